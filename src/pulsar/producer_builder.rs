//! The options of a producer, checked all at once, and its opening.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::Client;
use super::engine::event::{Batching, Command, LaneId, ProducerId, ProducerSpec};
use super::event_loop::Control;
use super::lane::Lane;
use super::producer::{AccessMode, Producer, ProducerShared};
use super::routing::{HashingScheme, Router, RoutingMode};
use super::topic::TopicName;
use super::wire::compress::Compression;
use super::wire::pb;
use crate::error::{Error, ErrorKind};
use crate::pending::completion;
use crate::policy::admission::Limits;
use crate::policy::limits::Violations;
use crate::runtime::permits::Permits;

/// Options of a [`Producer`].
#[must_use = "the producer exists after `create`"]
pub struct ProducerBuilder {
    client: Client,
    topic: String,
    name: Option<String>,
    access_mode: AccessMode,
    properties: Vec<(String, String)>,
    initial_sequence_id: Option<u64>,
    send_timeout: Option<Duration>,
    max_pending: Option<usize>,
    block_when_full: bool,
    batching: bool,
    batch_messages: usize,
    batch_bytes: usize,
    batch_delay: Duration,
    compression: Compression,
    routing: RoutingMode,
    hashing: HashingScheme,
}

impl ProducerBuilder {
    pub(super) fn new(client: Client, topic: String) -> Self {
        Self {
            client,
            topic,
            name: None,
            access_mode: AccessMode::Shared,
            properties: Vec::new(),
            initial_sequence_id: None,
            send_timeout: Some(Duration::from_secs(30)),
            max_pending: None,
            block_when_full: true,
            batching: true,
            batch_messages: 1000,
            batch_bytes: 128 * 1024,
            batch_delay: Duration::from_millis(1),
            compression: Compression::None,
            routing: RoutingMode::default(),
            hashing: HashingScheme::default(),
        }
    }

    /// A name that is unique on the topic (`producer_name`); by default the broker makes one. Deduplication goes by
    /// it, over restarts too.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Who else may produce; [`AccessMode::Shared`] by default.
    pub fn access_mode(mut self, mode: AccessMode) -> Self {
        self.access_mode = mode;
        self
    }

    /// Adds a property that the broker shows in its statistics (`metadata`).
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// The sequence id of the first message. By default one above the last that the broker knows of this name.
    pub fn initial_sequence_id(mut self, sequence_id: u64) -> Self {
        self.initial_sequence_id = Some(sequence_id);
        self
    }

    /// How long a send may take, from the call to its result: 30 s by default, 1 ms to 1 day, `None` for as long as
    /// it takes. One value for all messages, so that results are fixed in send order.
    pub fn send_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.send_timeout = timeout;
        self
    }

    /// The most messages that may be pending; `None`, the default, leaves it to the client's memory limit. At least 1.
    pub fn max_pending(mut self, messages: Option<usize>) -> Self {
        self.max_pending = messages;
        self
    }

    /// Whether a send waits for room (the default) or fails at once with [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn block_when_full(mut self, block: bool) -> Self {
        self.block_when_full = block;
        self
    }

    /// Whether messages are sent in batches: on by default.
    pub fn batching(mut self, on: bool) -> Self {
        self.batching = on;
        self
    }

    /// The most messages in a batch: 1000 by default, 2 to 100,000.
    pub fn batch_max_messages(mut self, messages: usize) -> Self {
        self.batch_messages = messages;
        self
    }

    /// The most bytes in a batch before compression: 128 KiB by default, 1 KiB to 5 MiB. A message that is larger
    /// goes alone.
    pub fn batch_max_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// How long a message may wait for its batch to fill: 1 ms by default, up to 1 minute; it adds to the latency of
    /// messages that nobody waits for. A blocking `send` does not sit it out.
    pub fn batch_max_delay(mut self, delay: Duration) -> Self {
        self.batch_delay = delay;
        self
    }

    /// The compression of batches and messages; none by default.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How messages without a key are spread over partitions; [`RoutingMode::RoundRobin`] by default.
    pub fn routing(mut self, mode: RoutingMode) -> Self {
        self.routing = mode;
        self
    }

    /// How keys are hashed to partitions; [`HashingScheme::JavaString`] by default.
    pub fn hashing(mut self, scheme: HashingScheme) -> Self {
        self.hashing = scheme;
        self
    }

    /// Opens the producer on all partitions of its topic, within the client's operation timeout.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options; what the broker says
    /// ([`NotFound`](ErrorKind::NotFound), [`Authorization`](ErrorKind::Authorization),
    /// [`Conflict`](ErrorKind::Conflict), …); [`Timeout`](ErrorKind::Timeout) with the last failure as its source;
    /// [`Closed`](ErrorKind::Closed).
    pub fn create(self) -> Result<Producer, Error> {
        let topic = self.check()?;
        let client = &self.client.shared;
        let due = Instant::now() + client.operation_timeout;
        let partitions = client.partitions(&topic, due)?;
        let count = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
        let start = (crate::runtime::clock::entropy_seed() & u64::from(u32::MAX)) as u32;
        let switching = self.batching.then_some(self.batch_delay);
        let router = Router::new(self.routing, count, self.hashing, switching, start)?;
        let id = ProducerId(client.next_id());
        let limits = Limits { max_pending: self.max_pending, send_timeout: self.send_timeout };
        let ids: Vec<LaneId> = partitions.iter().map(|_| LaneId(client.next_id())).collect();
        let (post, looks) = (client.post.clone(), ids.clone());
        let permits = Permits::new(limits, ids.len(), Arc::clone(&client.budget), move |lane| {
            if let Some(lane) = looks.get(lane) {
                post.look(*lane);
            }
        });
        client.register(&permits);
        let lanes: Vec<Arc<Lane>> = ids
            .iter()
            .enumerate()
            .zip(&partitions)
            .map(|((index, id), topic)| {
                Arc::new(Lane::new(*id, index, topic, Arc::clone(&permits), client.threads.callbacks().lane()))
            })
            .collect();
        let batching = self.batching.then_some(Batching {
            max_messages: self.batch_messages,
            max_bytes: self.batch_bytes,
            max_delay: self.batch_delay,
        });
        let spec = Arc::new(ProducerSpec {
            name: self.name,
            access_mode: match self.access_mode {
                AccessMode::Shared => pb::ProducerAccessMode::Shared,
                AccessMode::Exclusive => pb::ProducerAccessMode::Exclusive,
            },
            properties: self.properties,
            initial_sequence_id: self.initial_sequence_id,
            compression: self.compression,
            batching,
        });
        let (reply, answer) = completion();
        let names = ids.iter().copied().zip(partitions.iter().map(|topic| topic.as_str().to_owned())).collect();
        let open = Command::OpenProducer { producer: id, spec, lanes: names, due, reply };
        client.post.control(Control::OpenProducer(lanes.clone(), open));
        let opened = answer.wait()?;
        for (lane, opened) in lanes.iter().zip(&opened.lanes) {
            permits.open(lane.index, opened.next_sequence_id);
            let last = i64::try_from(opened.next_sequence_id).unwrap_or(i64::MAX).saturating_sub(1);
            lane.last_stored.store(last, Ordering::Relaxed);
        }
        let shared = ProducerShared {
            client: self.client.clone(),
            id,
            topic,
            name: opened.lanes.first().map(|lane| lane.name.clone()).unwrap_or_default(),
            lanes,
            permits,
            router,
            compression: self.compression,
            batch_max_bytes: if self.batching { self.batch_bytes } else { 0 },
            block_when_full: self.block_when_full,
            closing: AtomicBool::new(false),
        };
        Ok(Producer { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<TopicName, Error> {
        let mut violations = Violations::new();
        let topic = violations.take(TopicName::parse(&self.topic));
        if self.name.as_ref().is_some_and(String::is_empty) {
            violations.add("name: must not be empty".to_owned());
        }
        if let Some(timeout) = self.send_timeout {
            violations.range("send_timeout", timeout, Duration::from_millis(1), Duration::from_secs(86_400));
        }
        if self.max_pending == Some(0) {
            violations.add("max_pending: at least 1".to_owned());
        }
        if self.batching {
            violations.range("batch_max_messages", self.batch_messages, 2, 100_000);
            violations.range("batch_max_bytes", self.batch_bytes, 1024, 5 * 1024 * 1024);
            violations.range("batch_max_delay", self.batch_delay, Duration::ZERO, Duration::from_secs(60));
        }
        if !self.compression.is_available() {
            violations.add(format!("compression: {:?} is not compiled in", self.compression));
        }
        violations.finish("producer")?;
        self.client.shared.check_open()?;
        topic.ok_or_else(|| Error::new(ErrorKind::Config, "producer: no topic"))
    }
}
