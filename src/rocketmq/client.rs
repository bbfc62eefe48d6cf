//! The client: one driver, the threads around it, and what producers and consumers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::channel::{ChannelOptions, Security};
use super::credentials::{Credentials, CredentialsProvider, Source};
use super::driver::{Driver, Post};
use super::engine::event::{Command, Outgoing};
use super::engine::{EngineOptions, REQUEST_TIMEOUT};
use super::identity::Identity;
use super::probe::Probe;
use super::producer::ProducerBuilder;
use super::simple_consumer::SimpleConsumerBuilder;
use super::stats::{Stats, StatsCell};
use super::tls::TlsOptions;
use super::topic::TopicQueue;
use super::wire::endpoints::AccessPoint;
use crate::closing::{CLOSE_LIMIT, ClientEnd, Closing};
use crate::error::{Error, ErrorKind};
use crate::policy::budget::DEFAULT_MEMORY_LIMIT;
use crate::policy::limits::{Violations, deadline, flush_time};
use crate::runtime::budget::Budget;
use crate::runtime::clock;
use crate::runtime::permits::Permits;
use crate::runtime::thread::spawn_ending;
use crate::threads::Threads;

/// A RocketMQ client. Clones are the same client; it closes when the last of them, and of the producers and
/// consumers made from it, is dropped.
///
/// A client has one thread of its own (`tmq-rocketmq`) and those of its [`Threads`]; all clients of the process share
/// the threads of gRPC (`tmq-grpc-N`). Their number does not grow with producers, consumers, topics or endpoints.
/// A few more live while they have something to do: one that asks a [`CredentialsProvider`] (`tmq-credentials`), and up
/// to four that look at servers which TLS, or the lack of it, keeps out of reach (`tmq-tls-probe`).
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<ClientShared>,
}

pub(super) struct ClientShared {
    pub post: Post,
    pub threads: Threads,
    pub budget: Arc<Budget>,
    pub namespace: String,
    pub request_timeout: Duration,
    stats: Arc<StatsCell>,
    ids: AtomicU64,
    end: ClientEnd<Outgoing>,
}

/// Options of a [`Client`].
#[derive(Debug, Clone)]
#[must_use = "the client starts with `build`"]
pub struct ClientBuilder {
    endpoints: String,
    namespace: String,
    request_timeout: Duration,
    memory_limit: Option<usize>,
    credentials: Source,
    /// Ways in which credentials were given.
    credentials_given: u32,
    tls: Option<TlsOptions>,
    environment_proxy: bool,
    threads: Option<Threads>,
}

impl Client {
    /// Options for a client of the proxies at `endpoints`: `host:port[;host:port…]`, IPv6 addresses in brackets,
    /// `http://` or `https://` (which switches [TLS](ClientBuilder::tls) on) allowed before the first. The port is the
    /// proxy's gRPC port, 8081 by default of the server. A connection goes to one of several addresses; if that is
    /// dead, to the next, and a connection that is replaced begins with another.
    pub fn builder(endpoints: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            endpoints: endpoints.into(),
            namespace: String::new(),
            request_timeout: REQUEST_TIMEOUT,
            memory_limit: Some(DEFAULT_MEMORY_LIMIT),
            credentials: Source::Nothing,
            credentials_given: 0,
            tls: None,
            environment_proxy: false,
            threads: None,
        }
    }

    /// Options for a producer.
    pub fn producer(&self) -> ProducerBuilder {
        ProducerBuilder::new(self.clone())
    }

    /// Options for a simple consumer in the consumer group of this name.
    pub fn simple_consumer(&self, group: impl Into<String>) -> SimpleConsumerBuilder {
        SimpleConsumerBuilder::new(self.clone(), group.into())
    }

    /// The queues of a topic: where they are, what they take. Asks the server, as the start of a producer does, and
    /// takes as long; for tools and checks, not for each message.
    ///
    /// # Errors
    ///
    /// As [`ProducerBuilder::start`]: [`NotFound`](ErrorKind::NotFound) for a topic that does not exist.
    pub fn topic_queues(&self, topic: impl Into<String>) -> Result<Vec<TopicQueue>, Error> {
        let topic = topic.into();
        let producer = self.producer().topic(topic.as_str()).start()?;
        producer.queues(&topic)
    }

    /// What the client has counted so far.
    pub fn stats(&self) -> Stats {
        let callbacks = self.shared.threads.callbacks();
        self.shared.stats.read(callbacks.max_lag(), callbacks.waiting(), self.shared.budget.used())
    }

    /// Closes everything within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Closes all producers and consumers and the client itself. Producers flush first; what has no answer shortly
    /// before the limit is answered with [`Closed`](ErrorKind::Closed). `Ok` means that all is answered, that no
    /// callback runs any more and that the client's own threads are gone; those of gRPC stay for the process, and a
    /// [`CredentialsProvider`] that blocks is not waited for. Every call from now on fails with
    /// [`Closed`](ErrorKind::Closed). Closing again waits for the same end.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if callbacks outlive the limit: they still run once each.
    /// [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread: the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        self.shared.close_within(limit)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("closed", &self.shared.end.is_closed()).finish_non_exhaustive()
    }
}

impl ClientShared {
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.end.check_open()
    }

    pub(super) fn register(&self, permits: &Arc<Permits<Outgoing>>) {
        self.end.register(permits);
    }

    /// What goes along with every call of a session.
    pub(super) fn identity(&self, client_id: &str) -> Result<Identity, Error> {
        Identity::new(client_id, &self.namespace)
    }

    fn start_close(&self, limit: Duration) -> Closing {
        Closing::start(limit, |now, reply| {
            self.end.refuse();
            self.post.command(Command::Shutdown { flush_until: deadline(now, flush_time(limit)), reply });
        })
    }

    fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = self.start_close(limit);
        closing.wait()?;
        self.end.wait(closing.due, &self.threads, |permits| permits.wait_idle(Some(closing.due)))
    }
}

impl Drop for ClientShared {
    /// The last handle is gone: the close starts, and nobody waits for it.
    fn drop(&mut self) {
        if !self.end.is_closed() {
            drop(self.start_close(CLOSE_LIMIT));
        }
    }
}

impl ClientBuilder {
    /// The namespace of all topics and groups (`Resource.resource_namespace`); none by default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Time for one call to be answered: 3 s by default, 10 ms to 1 hour. Sends make several calls; see
    /// [`ProducerBuilder::send_timeout`].
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Access key and secret key; every call is signed with them (`MQv2-HMAC-SHA1`). None by default: calls are not
    /// signed.
    pub fn credentials(self, access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        self.identified_by(Source::Given(Credentials::new(access_key, secret_key)))
    }

    /// As [`credentials`](Self::credentials), with a session token (`x-mq-session-token`).
    pub fn session_credentials(
        self,
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
        session_token: impl Into<String>,
    ) -> Self {
        self.identified_by(Source::Given(Credentials::new(access_key, secret_key).session_token(session_token)))
    }

    /// Credentials that change while the client runs. The provider is first asked at the first call; a call that is
    /// answered 40100 (UNAUTHORIZED) is made once more within its own timeout when new ones come.
    pub fn credentials_provider(self, provider: impl CredentialsProvider) -> Self {
        self.identified_by(Source::Provider(Arc::new(provider)))
    }

    fn identified_by(mut self, source: Source) -> Self {
        self.credentials = source;
        self.credentials_given += 1;
        self
    }

    /// Switches TLS on, with these options. Without them it is on, with the defaults of [`TlsOptions`], if the endpoints
    /// begin with `https://`, and otherwise off. It holds for every endpoint, also for those that routes name.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Whether connections go through the HTTP proxy that `grpc_proxy`, `https_proxy` or `http_proxy` name in the
    /// environment, except to hosts in `no_grpc_proxy` or `no_proxy`: false by default. Not together with
    /// [`danger_accept_invalid_certificates`](TlsOptions::danger_accept_invalid_certificates).
    pub fn http_proxy_from_environment(mut self, follow: bool) -> Self {
        self.environment_proxy = follow;
        self
    }

    /// Bytes of messages that all producers of the client may have pending: 64 MiB by default, at least 64 KiB,
    /// `None` for no limit. A message is charged its body, its properties and 256 bytes. One producer takes at most
    /// half; one with nothing pending is always admitted one message.
    pub fn memory_limit(mut self, bytes: Option<usize>) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Threads to share with other clients. By default the client starts its own, which end with it.
    pub fn threads(mut self, threads: &Threads) -> Self {
        self.threads = Some(threads.clone());
        self
    }

    /// Checks the options and starts the client's threads. Nothing is connected yet. With TLS and without
    /// [`root_certificates`](TlsOptions::root_certificates) it reads those of the system, which takes some
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options;
    /// [`Internal`](ErrorKind::Internal) if the system gives no threads.
    pub fn build(self) -> Result<Client, Error> {
        let mut violations = Violations::new();
        let access = violations.take(AccessPoint::parse(&self.endpoints));
        let security = self.security(access.as_ref().and_then(|access| access.tls), &mut violations);
        let unverified = |security: &Security| matches!(security, Security::Tls(tls) if !tls.verifies());
        if self.environment_proxy && security.as_ref().is_some_and(unverified) {
            violations.add(
                "http_proxy_from_environment: not with danger_accept_invalid_certificates, which looks at the server \
                 itself"
                    .to_owned(),
            );
        }
        let hour = Duration::from_secs(3600);
        violations.range("request_timeout", self.request_timeout, Duration::from_millis(10), hour);
        if self.memory_limit.is_some_and(|limit| limit < 64 * 1024) {
            violations.add("memory_limit: at least 65536 bytes".to_owned());
        }
        if self.credentials_given > 1 {
            violations.add("credentials: given more than once: leave one of them".to_owned());
        }
        if let Source::Given(credentials) = &self.credentials {
            violations.take(credentials.signer());
        }
        violations.take(Identity::new("client", &self.namespace));
        violations.finish("client")?;
        let (Some(access), Some(security)) = (access, security) else {
            return Err(Error::new(ErrorKind::Config, "client: no endpoints"));
        };
        let channels = ChannelOptions { security, environment_proxy: self.environment_proxy };
        let owns_threads = self.threads.is_none();
        let threads = match self.threads {
            Some(threads) => threads,
            None => Threads::builder().build()?,
        };
        let options = EngineOptions {
            access: access.endpoints,
            platform: std::env::consts::OS.to_owned(),
            seed: clock::entropy_seed(),
        };
        let stats = Arc::new(StatsCell::default());
        let (driver, post) = Driver::new(options, channels, self.credentials, &threads, Arc::clone(&stats))?;
        let ending = spawn_ending("rocketmq", move || driver.run()).map_err(|error| {
            Error::new(ErrorKind::Internal, "the client's driver could not be started").with_source(error)
        })?;
        let shared = ClientShared {
            post,
            threads,
            budget: Arc::new(Budget::new(self.memory_limit)),
            namespace: self.namespace,
            request_timeout: self.request_timeout,
            stats,
            ids: AtomicU64::new(1),
            end: ClientEnd::new(ending, "driver", owns_threads),
        };
        Ok(Client { shared: Arc::new(shared) })
    }

    /// `asked` is what the endpoints' prefix says.
    fn security(&self, asked: Option<bool>, violations: &mut Violations) -> Option<Security> {
        match (&self.tls, asked) {
            (None, Some(true)) => TlsOptions::new().lower(violations).map(Security::Tls),
            (None, _) => violations.take(Probe::new(None)).map(|probe| Security::Plaintext(Arc::new(probe))),
            (Some(tls), asked) => {
                if asked == Some(false) {
                    let text = "tls: given, and the endpoints begin with http://: write https://, or leave TLS out";
                    violations.add(text.to_owned());
                }
                tls.lower(violations).map(Security::Tls)
            }
        }
    }
}
