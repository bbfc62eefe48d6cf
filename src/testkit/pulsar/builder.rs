//! Setting up a broker.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::Broker;
use super::options::Options;

/// Sets up a [`Broker`].
///
/// ```
/// use threadmq::testkit::pulsar::Broker;
///
/// let broker = Broker::builder().deduplication(true).max_message_size(1024 * 1024).start()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct BrokerBuilder {
    options: Options,
}

impl BrokerBuilder {
    /// The address to listen on. Default 127.0.0.1.
    pub fn ip(mut self, ip: impl Into<IpAddr>) -> Self {
        self.options.ip = ip.into();
        self
    }

    /// The port. Default 0: the system picks a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.options.port = port;
        self
    }

    /// Bytes of metadata and payload that an entry may have; CONNECTED states it, and a connection with a larger
    /// frame is closed. Default 5 MiB.
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.options.max_message_size = bytes;
        self
    }

    /// Bytes that a topic keeps. Beyond it the oldest entries go that every subscription has acknowledged; if that
    /// is not enough, sends and new producers are refused with `ProducerBlockedQuotaExceededError`. Default 256 MiB.
    pub fn backlog_limit(mut self, bytes: usize) -> Self {
        self.options.backlog_limit = bytes;
        self
    }

    /// Events that the broker's log keeps; some 200 bytes each. Beyond it the oldest go, an eighth at a time: SEND, ACK,
    /// FLOW, REDELIVER, PING and PONG first, and of the others only if they alone are too many. [`Broker::sends`] and
    /// [`Broker::received`] go on counting. Default 250,000.
    pub fn log_limit(mut self, events: usize) -> Self {
        self.options.log_limit = events;
        self
    }

    /// Recognises what a producer name has sent before by its sequence ids, stores it once, and answers the second
    /// time with the id `u64::MAX:u64::MAX`. Default off.
    pub fn deduplication(mut self, on: bool) -> Self {
        self.options.deduplication = on;
        self
    }

    /// Puts the broker's own metadata (time and index) before each delivered entry, for clients that announce that
    /// they read it. Default off.
    pub fn broker_entry_metadata(mut self, on: bool) -> Self {
        self.options.broker_entry_metadata = on;
        self
    }

    /// Checks the checksum of every entry, and answers a wrong one with `ChecksumError`. Default on; off saves
    /// time in benchmarks.
    pub fn verify_checksums(mut self, on: bool) -> Self {
        self.options.verify_checksums = on;
        self
    }

    /// Keeps no messages, and no record of SEND, ACK and FLOW: for benchmarks. Only [`Broker::sends`] and
    /// [`Broker::received`] count. Consumers get nothing. Default off.
    pub fn discard(mut self, on: bool) -> Self {
        self.options.discard = on;
        self
    }

    /// How long the broker waits for a sign of life from an old connection that holds a producer name or an
    /// exclusive subscription which a new connection asks for. Without one the old connection is closed and the
    /// new one served; else the new one is refused (ProducerBusy, ConsumerBusy). `None` refuses at once. Default
    /// 100 ms; real brokers wait 5 s.
    pub fn liveness_check(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.options.liveness_check = limit.into();
        self
    }

    /// Size in bytes of the kernel's receive buffer of each connection. With a small one (the kernel has a minimum
    /// of a few KiB) a broker that does not read fills the client's socket soon. Default: the system's.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.options.receive_buffer = Some(bytes);
        self
    }

    /// Starts the broker.
    ///
    /// # Errors
    /// When the port cannot be had or a thread cannot be started.
    pub fn start(self) -> io::Result<Broker> {
        Broker::with(self.options)
    }
}
