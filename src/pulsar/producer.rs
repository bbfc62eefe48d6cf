//! Producers: the handle and its options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::client::{CLOSE_LIMIT, Client, callbacks_left};
use super::engine::event::{Batching, Command, LaneId, Outgoing, ProducerId, ProducerSpec, Reply, SendReceipt};
use super::event_loop::Control;
use super::lane::Lane;
use super::message::ProducerMessage;
use super::routing::{HashingScheme, Router, RoutingMode};
use super::topic::TopicName;
use super::wire::compress::Compression;
use super::wire::payload::BatchWriter;
use super::wire::pb;
use crate::error::{Error, ErrorKind, SendError};
use crate::pending::{Pending, completion};
use crate::policy::admission::Limits;
use crate::policy::budget::message_charge;
use crate::policy::limits::{Violations, after, flush_time};
use crate::policy::progress::Flushed;
use crate::runtime::callback::on_callback_thread;
use crate::runtime::permits::Permits;

/// Who else may produce to the topic (`CommandProducer.producer_access_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AccessMode {
    /// Anybody. The default.
    #[default]
    Shared,
    /// Nobody: `create` fails with [`Conflict`](ErrorKind::Conflict) if there is another producer.
    Exclusive,
}

/// A producer. Clones are the same producer; it closes, without waiting, when the last one is dropped.
///
/// Every accepted send is answered exactly once, and its result is fixed at most 100 ms after the send timeout,
/// which counts from the call: while the broker is away too.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<ProducerShared>,
}

struct ProducerShared {
    client: Client,
    id: ProducerId,
    topic: TopicName,
    name: String,
    lanes: Vec<Arc<Lane>>,
    permits: Arc<Permits<Outgoing>>,
    router: Router,
    compression: Compression,
    block_when_full: bool,
    closing: AtomicBool,
}

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

impl Producer {
    /// Sends a message and waits for the broker's receipt, at most the send timeout. The batch that the message
    /// joins is sent at once.
    ///
    /// # Errors
    ///
    /// Refused at admission, with the message given back: [`Closed`](ErrorKind::Closed),
    /// [`TooLarge`](ErrorKind::TooLarge), [`Misuse`](ErrorKind::Misuse) (sequence id),
    /// [`WouldBlock`](ErrorKind::WouldBlock) (no room, and waiting is switched off or not allowed on a callback
    /// thread), [`Timeout`](ErrorKind::Timeout) (no room in time). Accepted and failed: `Timeout`, `Closed`, or what
    /// the broker said; [`delivery`](SendError::delivery) tells whether the broker may hold it.
    pub fn send(&self, message: impl Into<ProducerMessage>) -> Result<SendReceipt, SendError<ProducerMessage>> {
        self.accept(message.into(), true, self.shared.block_when_full)?.wait().map_err(SendError::accepted)
    }

    /// Sends a message and has `callback` called with its result on a callback thread, exactly once if this returns
    /// `Ok` and never if it returns an error. Waits for room, at most the send timeout, unless that is switched off.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn send_with(
        &self,
        message: impl Into<ProducerMessage>,
        callback: impl FnOnce(Result<SendReceipt, Error>) + Send + 'static,
    ) -> Result<(), SendError<ProducerMessage>> {
        let reply = Reply::Callback(Box::new(callback));
        self.admit(message.into(), reply, false, self.shared.block_when_full)
    }

    /// Sends a message; the result can be waited for later. Waits for room as [`send_with`](Self::send_with).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn submit(
        &self,
        message: impl Into<ProducerMessage>,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        self.accept(message.into(), false, self.shared.block_when_full)
    }

    /// As [`submit`](Self::submit), but never waits for room.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission; [`WouldBlock`](ErrorKind::WouldBlock) if there is no room.
    pub fn try_submit(
        &self,
        message: impl Into<ProducerMessage>,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        self.accept(message.into(), false, false)
    }

    fn accept(
        &self,
        message: ProducerMessage,
        urgent: bool,
        may_wait: bool,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        let (reply, pending) = completion();
        self.admit(message, Reply::Completion(reply), urgent, may_wait)?;
        Ok(pending)
    }

    fn admit(
        &self,
        mut message: ProducerMessage,
        reply: Reply,
        urgent: bool,
        may_wait: bool,
    ) -> Result<(), SendError<ProducerMessage>> {
        message.resolve(SystemTime::now);
        let shared = &*self.shared;
        let lane = match shared.lanes.as_slice() {
            [only] => only,
            lanes => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let index = shared.router.route(u64::try_from(now.as_millis()).unwrap_or(0), message.key_text());
                match lanes.get(index) {
                    Some(lane) => lane,
                    None => return Err(SendError::new(Error::new(ErrorKind::Internal, "no such partition"), message)),
                }
            }
        };
        if let Some(error) = lane.failed.get() {
            return Err(SendError::new(error.clone(), message));
        }
        let size = BatchWriter::single_size(&message.content);
        let limit = lane.max_message_size.load(Ordering::Relaxed) as usize;
        if size > limit && shared.compression == Compression::None {
            let text = format!("message of {size} bytes to {}: the broker accepts {limit} bytes", shared.topic);
            return Err(SendError::new(Error::new(ErrorKind::TooLarge, text), message));
        }
        let charge = message_charge(message.content.payload.len(), message.extra_bytes());
        let sequence = message.sequence_id;
        let outgoing = Outgoing { content: message.content, reply, urgent };
        let may_wait = may_wait && !on_callback_thread();
        match shared.permits.admit(lane.index, outgoing, charge, sequence, may_wait) {
            Ok(_) => Ok(()),
            // The reply goes unused: a callback of a refused message never runs, and its Pending was never given out.
            Err(refused) => Err(refused.map(|outgoing| ProducerMessage::returned(outgoing.content, sequence))),
        }
    }

    /// Waits until everything accepted before the call has its result and its callback has returned. Batches are
    /// sent at once. On a callback thread only the results are waited for.
    ///
    /// # Errors
    ///
    /// The first failure among the messages it waited for, in context.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_until(None)
    }

    /// As [`flush`](Self::flush), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); [`Timeout`](ErrorKind::Timeout) if the limit is over: everything goes on.
    pub fn flush_within(&self, limit: Duration) -> Result<(), Error> {
        self.flush_until(Some(after(Instant::now(), limit)))
    }

    fn flush_until(&self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "flush: the producer is closed"));
        }
        self.shared.client.shared.post.command(Command::Flush { producer: self.shared.id });
        let what = if on_callback_thread() { Flushed::Fixed } else { Flushed::Returned };
        self.shared.permits.wait_flushed(what, deadline)
    }

    /// Closes within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Flushes, answers what is left shortly before the limit with [`Closed`](ErrorKind::Closed), and leaves the
    /// broker. `Ok` means that everything is answered and no callback runs any more. Later sends are refused with
    /// `Closed`. Closing again waits for the same end; the earliest limit counts.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if callbacks outlive the limit: they still run once each.
    /// [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread: the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let now = Instant::now();
        let due = after(now, limit);
        let (reply, mut answer) = completion();
        self.shared.start_close(now, limit, Some(reply));
        if on_callback_thread() {
            return Err(Error::new(
                ErrorKind::WouldBlock,
                "close was called on a callback thread: it is started and goes on by itself",
            ));
        }
        // The loop answers by the limit; after the client's end it is gone, which is an answer too.
        let _ = answer.wait_timeout(due.saturating_duration_since(Instant::now()) + Duration::from_secs(1));
        self.shared.permits.wait_idle(Some(due)).map_err(callbacks_left)
    }

    /// The topic's full name.
    pub fn topic(&self) -> &TopicName {
        &self.shared.topic
    }

    /// The producer's name: the given one, or the one that the broker made (of the first partition).
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number of partitions; 1 for a topic without.
    pub fn partitions(&self) -> usize {
        self.shared.lanes.len()
    }

    /// The highest sequence id that the broker has stored, over all partitions; `None` if there is none yet.
    pub fn last_sequence_id(&self) -> Option<u64> {
        let last = self.shared.lanes.iter().map(|lane| lane.last_stored.load(Ordering::Relaxed)).max()?;
        u64::try_from(last).ok()
    }

    /// Messages that were accepted and are not answered, or whose callback has not returned.
    pub fn pending(&self) -> usize {
        self.shared.permits.pending()
    }
}

impl ProducerShared {
    fn start_close(&self, now: Instant, limit: Duration, reply: Option<crate::pending::Completion<()>>) {
        self.closing.store(true, Ordering::Release);
        self.permits.close();
        let (flush_until, due) = (after(now, flush_time(limit)), after(now, limit));
        self.client.shared.post.command(Command::CloseProducer { producer: self.id, flush_until, due, reply });
    }
}

impl Drop for ProducerShared {
    /// The last handle is gone: the close starts, and nobody waits for it.
    fn drop(&mut self) {
        if !self.closing.load(Ordering::Acquire) {
            self.start_close(Instant::now(), CLOSE_LIMIT, None);
        }
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.shared.topic.as_str())
            .field("name", &self.shared.name)
            .field("partitions", &self.shared.lanes.len())
            .finish_non_exhaustive()
    }
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
