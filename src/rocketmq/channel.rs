//! Channels of gRPC: how one is made, and what stands in the way of calls on it.
//!
//! Some channels are made in two steps, the first of them a look at the server on a thread that may block. One that takes
//! any certificate has to know it, because gRPC always checks: it trusts the one that was shown and no other. One of
//! several addresses whose certificates are for the address is made for one that answers, because gRPC checks all
//! against one name. When such a channel has lost its connection and cannot make another, the certificate may be a new
//! one, or another address has to serve: the server is looked at again.

use std::collections::HashMap;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use grpcio::{Channel, ChannelBuilder, Client, ConnectivityState, EnvBuilder, Environment};

use super::engine::event::{EntryId, Fault};
use super::probe::{Probe, Shown};
use super::rpc::RpcSink;
use super::tls::{Tls, Verify};
use super::wire::certificate;
use super::wire::endpoints::Endpoints;
use crate::policy::backoff::Backoff;
use crate::policy::rng::Rng;
use crate::runtime::blocking::Blocking;
use crate::runtime::clock;

/// One completion queue: what its thread does is post.
const QUEUES: usize = 1;
/// First and longest pause between attempts to connect. gRPC's own are 1 s and 120 s.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LONGEST_BACKOFF: Duration = Duration::from_secs(3);
/// How long one attempt to connect may take. gRPC's own is 20 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Threads for probes, at most: a server that does not answer holds one for the time of an attempt.
const PROBES: usize = 4;
/// So many channels that were made after a look and never worked are enough: then it is the certificate.
const MOST_FRUITLESS: usize = 2;
/// How often it is asked why a server cannot be reached.
const DIAGNOSIS_PAUSE: Duration = Duration::from_secs(5);

/// How channels are made.
pub(super) struct ChannelOptions {
    pub security: Security,
    /// Whether `http_proxy` and its like are followed.
    pub environment_proxy: bool,
}

pub(super) enum Security {
    Plaintext(Arc<Probe>),
    Tls(Tls),
}

impl Security {
    fn probe(&self) -> Arc<Probe> {
        match self {
            Self::Plaintext(probe) => Arc::clone(probe),
            Self::Tls(tls) => Arc::clone(&tls.probe),
        }
    }

    fn server_name(&self) -> Option<&str> {
        match self {
            Self::Tls(Tls { verify: Verify::Roots { server_name, .. }, .. }) => server_name.as_deref(),
            _ => None,
        }
    }
}

impl ChannelOptions {
    /// Whether the server has to be looked at before a channel is made.
    fn looks_first(&self, endpoints: &Endpoints) -> bool {
        match &self.security {
            Security::Plaintext(_) => false,
            Security::Tls(tls) => match &tls.verify {
                Verify::Nothing => true,
                // Through a proxy one address is tried anyway.
                Verify::Roots { server_name, .. } => {
                    server_name.is_none() && !self.environment_proxy && endpoints.addresses().len() > 1
                }
            },
        }
    }
}

/// What a look at an entry's server brought.
pub(super) enum Probed {
    /// An address that answers, and its certificate.
    Shown(Result<Shown, Fault>),
    /// Why it cannot be reached, if that is about TLS.
    Diagnosed(Option<Fault>),
}

/// Whether calls can be started on a channel.
pub(super) enum Gate {
    Open(Client),
    /// It has no connection yet, and is making one.
    Dialling(Client),
    /// Once the server has been looked at.
    Wait,
    Shut(Fault),
}

/// The channels of one client.
pub(super) struct Channels<S> {
    options: ChannelOptions,
    lines: HashMap<EntryId, Line>,
    blocking: Blocking,
    rng: Rng,
    sink: S,
}

struct Line {
    endpoints: Endpoints,
    /// The place of the address to begin with.
    first: usize,
    state: State,
    backoff: Backoff,
    /// The server is looked at again no sooner.
    not_before: Instant,
    /// Channels that were made one after another after a look, and never worked.
    fruitless: usize,
    /// What gRPC said of the last attempt.
    reason: String,
    fault: Fault,
    diagnosed: Option<Instant>,
    /// A call was answered.
    worked: bool,
}

enum State {
    Made(Client),
    Looking,
    /// No address answered, or none that is good.
    Unmade,
}

fn environment() -> Arc<Environment> {
    static ENVIRONMENT: OnceLock<Arc<Environment>> = OnceLock::new();
    Arc::clone(ENVIRONMENT.get_or_init(|| {
        // For ever: gRPC does not join its threads, and a second environment would only add more.
        Arc::new(EnvBuilder::new().cq_count(QUEUES).name_prefix("tmq-grpc").build())
    }))
}

impl<S: RpcSink> Channels<S> {
    pub(super) fn new(options: ChannelOptions, sink: S) -> Self {
        let blocking = Blocking::new("tls-probe", PROBES);
        Self { options, lines: HashMap::new(), blocking, rng: Rng::new(clock::entropy_seed()), sink }
    }

    /// Makes a channel; it connects by itself, first to the address at the place `first`.
    pub(super) fn connect(&mut self, now: Instant, entry: EntryId, endpoints: Endpoints, first: usize) {
        let line = Line {
            endpoints,
            first,
            state: State::Unmade,
            backoff: Backoff::new(FIRST_BACKOFF, LONGEST_BACKOFF),
            not_before: now,
            fruitless: 0,
            reason: String::new(),
            fault: Fault::NoConnection,
            diagnosed: None,
            worked: false,
        };
        let target = if self.options.environment_proxy {
            // Such a proxy is told one address to connect to.
            line.endpoints.alone(first).target(0)
        } else {
            line.endpoints.target(first)
        };
        let looks_first = self.options.looks_first(&line.endpoints);
        self.lines.insert(entry, line);
        if looks_first {
            return self.look(now, entry);
        }
        let mut builder = self.builder();
        if let Security::Tls(Tls { verify: Verify::Roots { pem, server_name }, .. }) = &self.options.security {
            builder = self.secured(builder, pem);
            if let Some(name) = server_name {
                builder = builder.override_ssl_target(name.as_str());
            }
        }
        self.made(entry, builder.connect(&target));
    }

    fn made(&mut self, entry: EntryId, channel: Channel) {
        channel.check_connectivity_state(true);
        if let Some(line) = self.lines.get_mut(&entry) {
            line.state = State::Made(Client::new(channel));
        }
    }

    fn secured(&self, builder: ChannelBuilder, roots: &[u8]) -> ChannelBuilder {
        match &self.options.security {
            Security::Plaintext(_) => builder,
            Security::Tls(tls) => builder.set_credentials(tls.credentials(roots)),
        }
    }

    /// Forgets the channel. What still runs on it ends by cancellation.
    pub(super) fn close(&mut self, entry: EntryId) {
        self.lines.remove(&entry);
    }

    fn builder(&self) -> ChannelBuilder {
        let mut builder = ChannelBuilder::new(environment())
            .primary_user_agent(concat!("threadmq/", env!("CARGO_PKG_VERSION")))
            .enable_retry(false)
            .enable_http_proxy(self.options.environment_proxy)
            .max_receive_message_len(-1)
            .max_send_message_len(-1)
            // A channel of its own pool dials anew; the process-wide pool would hand it the dead connection.
            .use_local_subchannel_pool(true)
            .initial_reconnect_backoff(FIRST_BACKOFF)
            .max_reconnect_backoff(LONGEST_BACKOFF);
        let timeout = i32::try_from(CONNECT_TIMEOUT.as_millis());
        if let (Ok(key), Ok(timeout)) = (CString::new("grpc.min_reconnect_backoff_ms"), timeout) {
            builder = builder.raw_cfg_int(key, timeout);
        }
        builder
    }

    /// Whether a call can be started. Asks an idle channel to connect, too; one that just failed is not asked to fail
    /// again.
    pub(super) fn gate(&mut self, now: Instant, entry: EntryId) -> Gate {
        let Some(line) = self.lines.get(&entry) else { return Gate::Shut(Fault::NoConnection) };
        match &line.state {
            State::Looking => Gate::Wait,
            State::Made(client) => match client.channel().check_connectivity_state(true) {
                ConnectivityState::GRPC_CHANNEL_TRANSIENT_FAILURE | ConnectivityState::GRPC_CHANNEL_SHUTDOWN => {
                    self.shut(now, entry)
                }
                ConnectivityState::GRPC_CHANNEL_READY => Gate::Open(client.clone()),
                _ => Gate::Dialling(client.clone()),
            },
            State::Unmade => self.shut(now, entry),
        }
    }

    fn shut(&mut self, now: Instant, entry: EntryId) -> Gate {
        let Some(line) = self.lines.get_mut(&entry) else { return Gate::Shut(Fault::NoConnection) };
        let fault = line.fault.clone();
        if !self.options.looks_first(&line.endpoints) {
            self.diagnose(now, entry);
        } else if now >= line.not_before {
            line.first = line.first.wrapping_add(1);
            self.look(now, entry);
            return Gate::Wait;
        }
        Gate::Shut(fault)
    }

    /// A call ended without a connection, for this reason.
    pub(super) fn failed(&mut self, now: Instant, entry: EntryId, reason: &str) {
        let Some(line) = self.lines.get_mut(&entry) else { return };
        reason.clone_into(&mut line.reason);
        if !self.options.looks_first(&line.endpoints) {
            self.diagnose(now, entry);
        }
    }

    /// A call showed that there is a connection.
    pub(super) fn works(&mut self, entry: EntryId) {
        if let Some(line) = self.lines.get_mut(&entry) {
            line.backoff.reset();
            line.fruitless = 0;
            line.fault = Fault::NoConnection;
            line.worked = true;
        }
    }

    fn look(&mut self, now: Instant, entry: EntryId) {
        let Some(line) = self.lines.get_mut(&entry) else { return };
        line.state = State::Looking;
        line.not_before = now + line.backoff.next(&mut self.rng);
        let (probe, sink) = (self.options.security.probe(), self.sink.clone());
        let (addresses, first) = (line.endpoints.addresses().to_vec(), line.first);
        let started = self.blocking.run(move || {
            // Whatever happens, the channel does not wait for ever.
            let shown = catch_unwind(AssertUnwindSafe(|| probe.fetch(&addresses, first, CONNECT_TIMEOUT)));
            sink.probed(entry, Probed::Shown(shown.unwrap_or(Err(Fault::NoConnection))));
        });
        if let Err(error) = started {
            log::error!("no thread to look at a server on: {error}");
            line.state = State::Unmade;
        }
    }

    fn diagnose(&mut self, now: Instant, entry: EntryId) {
        let Some(line) = self.lines.get_mut(&entry) else { return };
        let security = &self.options.security;
        let (probe, tls) = (security.probe(), matches!(security, Security::Tls(_)));
        // What spoke plaintext does not take to TLS; certificates change.
        if line.diagnosed.is_some_and(|at| now < at + DIAGNOSIS_PAUSE) || (line.worked && !tls) {
            return;
        }
        line.diagnosed = Some(now);
        let server_name = security.server_name().map(str::to_owned);
        let (addresses, reason, sink) = (line.endpoints.addresses().to_vec(), line.reason.clone(), self.sink.clone());
        let started = self.blocking.run(move || {
            let found = probe.diagnose(&addresses, server_name.as_deref(), tls, &reason, CONNECT_TIMEOUT);
            sink.probed(entry, Probed::Diagnosed(found));
        });
        if let Err(error) = started {
            log::warn!("no thread to look at a server on: {error}");
        }
    }

    pub(super) fn probed(&mut self, now: Instant, entry: EntryId, probed: Probed) {
        let Some(line) = self.lines.get_mut(&entry) else { return };
        match probed {
            Probed::Diagnosed(fault) => line.fault = fault.unwrap_or(Fault::NoConnection),
            Probed::Shown(Err(fault)) => {
                line.fault = fault;
                line.state = State::Unmade;
            }
            Probed::Shown(Ok(shown)) if line.fruitless >= line.endpoints.addresses().len().max(MOST_FRUITLESS) => {
                line.fault = Fault::Tls { peer: shown.server.to_string(), reason: line.reason.clone() };
                line.state = State::Unmade;
                line.fruitless = 0;
                line.not_before = now + LONGEST_BACKOFF;
            }
            Probed::Shown(Ok(shown)) => {
                line.fruitless += 1;
                let Security::Tls(tls) = &self.options.security else { return };
                let builder = match &tls.verify {
                    Verify::Roots { pem, .. } => self.secured(self.builder(), pem),
                    Verify::Nothing => self
                        .secured(self.builder(), certificate::pem(&shown.der).as_bytes())
                        .override_ssl_target(shown.expected),
                };
                let scheme = if shown.server.is_ipv4() { "ipv4" } else { "ipv6" };
                // The one that was looked at: the others may have other certificates.
                self.made(entry, builder.connect(&format!("{scheme}:{}", shown.server)));
            }
        }
    }
}
