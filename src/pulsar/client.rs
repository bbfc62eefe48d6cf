//! The client: one event loop, the threads around it, and what producers and consumers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::consumer::ConsumerBuilder;
use super::engine::event::Command;
use super::engine::{CONNECTION_TIMEOUT, EngineOptions, KEEP_ALIVE, OPERATION_TIMEOUT};
use super::event_loop::{EventLoop, Post};
use super::producer_builder::ProducerBuilder;
use super::service_url::ServiceUrl;
use super::stats::{Stats, StatsCell};
use super::topic::TopicName;
use crate::closing::{CLOSE_LIMIT, ClientEnd, Closing};
use crate::error::{Error, ErrorKind};
use crate::pending::completion;
use crate::policy::budget::DEFAULT_MEMORY_LIMIT;
use crate::policy::limits::{Violations, close_waits, deadline, flush_time};
use crate::runtime::budget::Budget;
use crate::runtime::clock;
use crate::runtime::permits::Permits;
use crate::runtime::thread::spawn_ending;
use crate::threads::Threads;

use super::engine::event::Outgoing;

/// A Pulsar client. Clones are the same client; it closes when the last of them, and of the producers and consumers
/// made from it, is dropped.
///
/// A client has one thread for all its connections (`tmq-io-0`) and those of its [`Threads`]: their number does not
/// grow with producers, consumers, topics or brokers.
///
/// ```
/// # #[cfg(feature = "testkit")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let broker = threadmq::testkit::pulsar::Broker::start()?;
/// # let url = broker.service_url();
/// use threadmq::pulsar::Client;
///
/// let client = Client::builder(url).build()?; // "pulsar://localhost:6650"
/// let producer = client.producer("orders").create()?;
/// producer.send("a first order")?;
/// client.close()?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testkit"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<ClientShared>,
}

pub(super) struct ClientShared {
    pub post: Post,
    pub threads: Threads,
    pub budget: Arc<Budget>,
    pub operation_timeout: Duration,
    stats: Arc<StatsCell>,
    ids: AtomicU64,
    end: ClientEnd<Outgoing>,
}

/// Options of a [`Client`].
#[derive(Debug, Clone)]
#[must_use = "the client starts with `build`"]
pub struct ClientBuilder {
    service_url: String,
    connection_timeout: Duration,
    operation_timeout: Duration,
    keep_alive: Duration,
    memory_limit: Option<usize>,
    threads: Option<Threads>,
}

impl Client {
    /// Options for a client of the cluster behind `service_url`: `pulsar://host[:port][,host[:port]…]`, IPv6
    /// addresses in brackets, port 6650 if none is given.
    ///
    /// Several hosts are tried in turn when a connection, a handshake or a look-up fails.
    pub fn builder(service_url: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            service_url: service_url.into(),
            connection_timeout: CONNECTION_TIMEOUT,
            operation_timeout: OPERATION_TIMEOUT,
            keep_alive: KEEP_ALIVE,
            memory_limit: Some(DEFAULT_MEMORY_LIMIT),
            threads: None,
        }
    }

    /// Options for a producer on `topic`, in any of the forms that [`TopicName`] accepts.
    pub fn producer(&self, topic: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), topic.into())
    }

    /// Options for a consumer of `topic` under the subscription of this name.
    pub fn consumer(&self, topic: impl Into<String>, subscription: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic.into(), subscription.into())
    }

    /// The names of a topic's partitions, or the topic's own name if it has none (`PARTITIONED_METADATA`).
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) for a name that is none, what the broker says, or
    /// [`Timeout`](ErrorKind::Timeout) after the operation timeout.
    pub fn partitions(&self, topic: &str) -> Result<Vec<TopicName>, Error> {
        let topic = TopicName::parse(topic)?;
        self.shared.partitions(&topic, Instant::now() + self.shared.operation_timeout)
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

    /// Closes all producers and consumers and the client itself. Producers flush first; what has no answer a tenth of
    /// the limit (at most 500 ms) before its end is answered with [`Closed`](ErrorKind::Closed). `Ok` means that all is answered, that no
    /// callback runs any more and that the client's own threads are gone. Every call on it from now on fails with
    /// [`Closed`](ErrorKind::Closed). Closing again waits for the same end.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if callbacks outlive the limit by 100 ms, or by 1 s while the machine is too
    /// busy to start any: they still run once each.
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

    pub(super) fn partitions(&self, topic: &TopicName, due: Instant) -> Result<Vec<TopicName>, Error> {
        self.check_open()?;
        if topic.partition_index().is_some() {
            return Ok(vec![topic.clone()]);
        }
        let (reply, answer) = completion();
        self.post.command(Command::Partitions { topic: topic.as_str().to_owned(), due, reply });
        let count = answer.wait()?;
        Ok(if count == 0 { vec![topic.clone()] } else { (0..count).map(|index| topic.partition(index)).collect() })
    }

    fn start_close(&self, limit: Duration) -> Closing {
        Closing::start(limit, |now, reply| {
            self.end.refuse();
            // A broker that does not confirm is left in time for the threads to end within the limit too.
            let flush = flush_time(limit);
            let leave = flush + limit.saturating_sub(flush) / 2;
            let (flush_until, due) = (deadline(now, flush), deadline(now, leave));
            self.post.command(Command::Shutdown { flush_until, due, reply });
        })
    }

    /// Waits until every callback has returned; the number of those that are left when the close is over.
    pub(super) fn wait_callbacks(&self, permits: &Permits<Outgoing>, due: Instant) -> Result<(), usize> {
        while let Some(until) = close_waits(Instant::now(), due, self.threads.callbacks_running()) {
            if permits.wait_idle(Some(until)).is_ok() {
                return Ok(());
            }
        }
        permits.wait_idle(Some(Instant::now()))
    }

    fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = self.start_close(limit);
        closing.wait()?;
        self.end.wait(closing.due, &self.threads, |permits| self.wait_callbacks(permits, closing.due))
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
    /// Time for a connection and its handshake together: 10 s by default, 1 ms to 1 hour. All addresses of a name
    /// share it: they are tried 250 ms apart, and the first that connects is used.
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Time for `create`, `subscribe`, `unsubscribe` and look-ups: 30 s by default, 1 ms to 1 hour.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// How often an idle connection is asked for a sign of life (`PING`): 30 s by default, 100 ms to 1 hour. A broker
    /// that owes an answer for 2 s is asked at once; one that does not answer within 3 s is given up.
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.keep_alive = interval;
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

    /// Checks the options and starts the client's threads. Nothing is connected yet: that happens with the first
    /// producer, consumer or look-up.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options;
    /// [`Internal`](ErrorKind::Internal) if the system gives no threads or descriptors.
    pub fn build(self) -> Result<Client, Error> {
        let hour = Duration::from_secs(3600);
        let mut violations = Violations::new();
        let url = violations.take(ServiceUrl::parse(&self.service_url));
        if url.as_ref().is_some_and(ServiceUrl::tls) {
            violations.add("service URL: pulsar+ssl:// is not supported yet".to_owned());
        }
        violations.range("connection_timeout", self.connection_timeout, Duration::from_millis(1), hour);
        violations.range("operation_timeout", self.operation_timeout, Duration::from_millis(1), hour);
        violations.range("keep_alive_interval", self.keep_alive, Duration::from_millis(100), hour);
        if self.memory_limit.is_some_and(|limit| limit < 64 * 1024) {
            violations.add("memory_limit: at least 65536 bytes".to_owned());
        }
        violations.finish("client")?;
        let Some(url) = url else { return Err(Error::new(ErrorKind::Config, "client: no service URL")) };
        let owns_threads = self.threads.is_none();
        let threads = match self.threads {
            Some(threads) => threads,
            None => Threads::builder().build()?,
        };
        let options = EngineOptions {
            service: url.hosts().to_vec(),
            tls: url.tls(),
            client_version: concat!("threadmq-", env!("CARGO_PKG_VERSION")).to_owned(),
            auth_method: String::new(),
            auth_data: Vec::new(),
            connection_timeout: self.connection_timeout,
            operation_timeout: self.operation_timeout,
            keep_alive: self.keep_alive,
            seed: clock::entropy_seed(),
        };
        let stats = Arc::new(StatsCell::default());
        let started = EventLoop::new(options, threads.clone(), Arc::clone(&stats))
            .and_then(|(event_loop, post)| Ok((post, spawn_ending("io-0", move || event_loop.run())?)));
        let (post, ending) = started.map_err(|error| {
            Error::new(ErrorKind::Internal, "the client's event loop could not be started").with_source(error)
        })?;
        let shared = ClientShared {
            post,
            threads,
            budget: Arc::new(Budget::new(self.memory_limit)),
            operation_timeout: self.operation_timeout,
            stats,
            ids: AtomicU64::new(1),
            end: ClientEnd::new(ending, "event loop", owns_threads),
        };
        Ok(Client { shared: Arc::new(shared) })
    }
}
