//! An embedded RocketMQ 5 proxy: topics, queues, groups and telemetry in memory, behind real gRPC ports.
//!
//! It does what the clients of this crate need of a proxy, with the statuses of the real one, and it can be told to
//! misbehave: see [`Proxy::on`], [`Proxy::end_streams`], [`Proxy::ask_reconnect`]. With a [`Network`](super::Network)
//! in front (see [`Proxy::advertise`]) links go half-open.
//!
//! ```
//! use std::time::Duration;
//! use threadmq::rocketmq::{Client, Message, MessageType};
//! use threadmq::testkit::rocketmq::Proxy;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let proxy = Proxy::start()?;
//! proxy.create_topic("orders", MessageType::Normal, 4);
//! let client = Client::builder(proxy.endpoints()).build()?;
//! let producer = client.producer().topic("orders").start()?;
//! producer.send(Message::new("orders", "a first order"))?;
//! assert_eq!(proxy.stored("orders").len(), 1);
//! client.close()?;
//! # Ok(())
//! # }
//! ```

mod answers;
mod guard;
mod polls;
mod queue;
mod script;
mod service;
mod share;
mod sql;
mod state;
mod streams;
#[cfg(test)]
mod tests;
mod worker;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use grpcio::{
    ChannelBuilder, EnvBuilder, Environment, Server, ServerBuilder, ServerCredentials, ServerCredentialsBuilder,
    ShutdownFuture,
};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};
use crate::rocketmq::MessageType;
use guard::Guard;
pub use queue::Stored;
pub use script::{Arrival, Effect, End, Rpc, Script};
use state::State;
use worker::Job;

/// Options of a [`Proxy`].
#[derive(Debug, Clone)]
#[must_use = "the proxy starts with `start`"]
pub struct ProxyBuilder {
    endpoints: usize,
    tls: Option<(Vec<u8>, Vec<u8>)>,
}

/// A proxy in this process. It ends when this is dropped.
pub struct Proxy {
    state: Arc<Mutex<State>>,
    jobs: Sender<Job>,
    guard: Arc<Guard>,
    /// Behind a lock because they are not `Sync`; nobody but `drop` asks for them.
    servers: Mutex<Vec<Server>>,
    thread: Option<JoinHandle<()>>,
    _environment: Arc<Environment>,
}

impl ProxyBuilder {
    /// How many ports it listens on: 1 by default, up to 16. Each is a broker of its own in routes, and a topic's
    /// queues are spread over them.
    pub fn endpoints(mut self, endpoints: usize) -> Self {
        self.endpoints = endpoints;
        self
    }

    /// Speaks TLS, and nothing else, with this certificate and private key, both in PEM. By default plaintext. See
    /// [`Proxy::SELF_SIGNED`].
    pub fn tls(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.tls = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Starts it on free ports of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) for a number of endpoints out of range; [`Internal`](ErrorKind::Internal) if no
    /// port or thread can be had.
    pub fn start(self) -> Result<Proxy, Error> {
        if !(1..=16).contains(&self.endpoints) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("endpoints: {} is not between 1 and 16", self.endpoints),
            ));
        }
        let failed =
            |error: &dyn std::fmt::Display| Error::new(ErrorKind::Internal, format!("embedded proxy: {error}"));
        let state = Arc::new(Mutex::new(State::new(self.endpoints)));
        let (jobs, thread) = worker::start(Arc::clone(&state)).map_err(|error| failed(&error))?;
        let environment = Arc::new(EnvBuilder::new().cq_count(1).name_prefix("tmq-proxy").build());
        let guard = Arc::new(Guard::default());
        let mut servers = Vec::new();
        for endpoint in 0..self.endpoints {
            let arguments = ChannelBuilder::new(Arc::clone(&environment))
                .max_receive_message_len(-1)
                .max_send_message_len(-1)
                .reuse_port(false)
                .build_args();
            let mut server = ServerBuilder::new(Arc::clone(&environment))
                .register_service(service::service(endpoint, &jobs, &guard))
                .channel_args(arguments)
                .build()
                .map_err(|error| failed(&error))?;
            let port = server.add_listening_port("127.0.0.1:0", self.credentials()).map_err(|error| failed(&error))?;
            server.start();
            state.lock().listen(endpoint, SocketAddr::from(([127, 0, 0, 1], port)));
            servers.push(server);
        }
        Ok(Proxy { state, jobs, guard, servers: Mutex::new(servers), thread: Some(thread), _environment: environment })
    }

    fn credentials(&self) -> ServerCredentials {
        match &self.tls {
            Some((certificate, key)) => {
                ServerCredentialsBuilder::new().add_cert(certificate.clone(), key.clone()).build()
            }
            None => ServerCredentials::insecure(),
        }
    }
}

impl Proxy {
    /// Starts a proxy with one endpoint on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// As [`ProxyBuilder::start`].
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// Options for a proxy.
    pub fn builder() -> ProxyBuilder {
        ProxyBuilder { endpoints: 1, tls: None }
    }

    /// A self-signed certificate for `localhost` and 127.0.0.1 and its private key, both in PEM, for
    /// [`ProxyBuilder::tls`]. Everybody knows this key: it protects nothing.
    pub const SELF_SIGNED: (&'static str, &'static str) =
        (include_str!("self_signed.crt.pem"), include_str!("self_signed.key.pem"));

    /// From now on turns away (UNAUTHORIZED, 40100) every call that is not signed with this access key and secret key.
    /// By default nobody is.
    pub fn require_credentials(&self, access_key: impl Into<String>, secret_key: impl Into<String>) {
        self.guard.require(access_key.into(), secret_key.into());
    }

    /// What a client is built with: the endpoint with the number 0, as it is [advertised](Self::advertise).
    pub fn endpoints(&self) -> String {
        self.state.lock().advertised(0).to_string()
    }

    /// Where an endpoint listens.
    pub fn addr(&self, endpoint: usize) -> SocketAddr {
        self.state.lock().listening(endpoint)
    }

    /// Routes name this address for the endpoint, so that a network can stand between.
    pub fn advertise(&self, endpoint: usize, addr: SocketAddr) {
        self.state.lock().advertise(endpoint, addr);
    }

    /// Creates a topic with so many queues, spread over the endpoints.
    pub fn create_topic(&self, topic: impl Into<String>, accepts: MessageType, queues: usize) {
        self.state.lock().create_topic(topic.into(), accepts, queues);
    }

    /// Forgets a topic and its messages.
    pub fn delete_topic(&self, topic: &str) {
        self.state.lock().delete_topic(topic);
    }

    /// Routes of a topic name so many queues from now on, spread over these endpoints. Messages stay where they are.
    pub fn route_topic(&self, topic: &str, queues: usize, endpoints: &[usize]) {
        self.state.lock().route_topic(topic, queues, endpoints);
    }

    /// How often a group may be given a message before it goes to the dead letters: 16 by default.
    pub fn max_attempts(&self, group: impl Into<String>, attempts: u32) {
        self.state.lock().limit_attempts(group.into(), attempts);
    }

    /// What a topic holds, in the order in which it was stored, acknowledged messages included.
    pub fn stored(&self, topic: &str) -> Vec<Stored> {
        self.state.lock().stored(topic)
    }

    /// Messages that a group was given too often. They are in the topic `%DLQ%` and the group's name, too.
    pub fn dead_letters(&self, group: &str) -> Vec<Stored> {
        self.state.lock().dead_letters(group)
    }

    /// How many calls of a kind arrived, by endpoint.
    pub fn calls(&self, endpoint: usize, rpc: Rpc) -> u64 {
        self.state.lock().calls(endpoint, rpc)
    }

    /// The calls that arrived, oldest first: the latest 100,000.
    pub fn history(&self) -> Vec<Arrival> {
        self.state.lock().history()
    }

    /// Telemetry streams whose first write was something else than Settings.
    pub fn streams_without_settings(&self) -> u64 {
        self.state.lock().streams.without_settings
    }

    /// Telemetry streams that are open, by endpoint.
    pub fn streams(&self, endpoint: usize) -> usize {
        self.state.lock().streams.count(endpoint)
    }

    /// How many times Settings came, by endpoint.
    pub fn settings(&self, endpoint: usize) -> u64 {
        self.state.lock().streams.settings.get(&endpoint).copied().unwrap_or(0)
    }

    /// Calls of this kind are to misbehave; see [`Script`].
    pub fn on(&self, rpc: Rpc) -> Script<'_> {
        Script::new(&self.state, rpc)
    }

    /// Ends all telemetry streams.
    pub fn end_streams(&self) {
        self.state.lock().streams.end_all();
    }

    /// Forgets the settings of all clients: their heartbeats are answered UNRECOGNIZED_CLIENT_TYPE until they send
    /// them again.
    pub fn forget_settings(&self) {
        self.state.lock().forget_settings();
    }

    /// Asks all clients of an endpoint to connect anew (`ReconnectEndpointsCommand`).
    pub fn ask_reconnect(&self, endpoint: usize) {
        self.command(endpoint, streams::reconnect_command());
    }

    /// Asks all clients of an endpoint for the state of their threads (`PrintThreadStackTraceCommand`); answers are
    /// in [`thread_traces`](Self::thread_traces).
    pub fn ask_threads(&self, endpoint: usize) {
        self.command(endpoint, streams::threads_command());
    }

    /// What clients answered to [`ask_threads`](Self::ask_threads).
    pub fn thread_traces(&self) -> Vec<String> {
        self.state.lock().streams.traces.clone()
    }

    /// Writes an encoded `TelemetryCommand`, or what is none, on all streams of an endpoint.
    pub fn command(&self, endpoint: usize, command: impl Into<Vec<u8>>) {
        self.state.lock().streams.write(endpoint, &command.into().into());
    }

    /// What clients wrote on their streams beside Settings: encoded `TelemetryCommand`s.
    pub fn replies(&self) -> Vec<Vec<u8>> {
        self.state.lock().streams.replies.clone()
    }

    /// The largest body that it takes and tells clients of, from their next Settings on: 4 MiB by default.
    pub fn max_body_size(&self, bytes: usize) {
        self.state.lock().max_body_size = bytes;
    }

    /// The pauses between attempts that it tells clients of, from their next Settings on: none by default.
    pub fn backoff(&self, initial: Duration, max: Duration, multiplier: f32) {
        self.state.lock().backoff = Some(streams::backoff(initial, max, multiplier));
    }
}

/// An end of a server takes a millisecond; its calls are cancelled.
const LONGEST_END: Duration = Duration::from_secs(10);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a server's end.
fn ended(end: &mut ShutdownFuture, until: Instant) -> bool {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if Pin::new(&mut *end).poll(&mut context).is_ready() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::park_timeout(left);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.lock().stop();
        let _ = self.jobs.send(Job::Stop);
        let mut ends = Vec::new();
        for server in self.servers.get_mut() {
            ends.push(server.shutdown());
            server.cancel_all_calls();
        }
        // gRPC ends the process if a server goes whose listeners are not down yet.
        let until = Instant::now() + LONGEST_END;
        if !ends.iter_mut().all(|end| ended(end, until)) {
            log::error!("an embedded proxy does not end: it stays in memory");
            std::mem::forget(std::mem::take(self.servers.get_mut()));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("endpoints", &self.endpoints()).finish_non_exhaustive()
    }
}
