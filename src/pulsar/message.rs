//! Messages to send and messages received.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::engine::event::PartId;
use super::message_id::MessageId;
use super::wire::command::MessageIdData;
use super::wire::payload::{Content, Extras, Key};

/// A message to be sent: a body and what travels with it.
///
/// ```
/// use threadmq::pulsar::ProducerMessage;
///
/// let message = ProducerMessage::new("a body").key("customer-7").property("attempt", "1");
/// # let _ = message;
/// ```
#[derive(Clone, Default)]
pub struct ProducerMessage {
    pub(crate) content: Content,
    pub(crate) sequence_id: Option<u64>,
    deliver_after: Option<Duration>,
}

impl ProducerMessage {
    /// A message with this body and nothing else. A `Vec` is taken over without a copy.
    pub fn new(payload: impl IntoPayload) -> Self {
        let content = Content { payload: payload.into_payload(), extras: None };
        Self { content, sequence_id: None, deliver_after: None }
    }

    /// A message without a value: in a compacted topic it removes its key (`MessageMetadata.null_value`).
    pub fn null() -> Self {
        let mut message = Self::new(Bytes::new());
        message.extras().null_value = true;
        message
    }

    /// The routing and compaction key (`partition_key`).
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.extras().key = Some(Key::Text(key.into()));
        self
    }

    /// A key that is not text; it travels in base64 (`partition_key_b64_encoded`).
    pub fn key_bytes(mut self, key: impl Into<Bytes>) -> Self {
        self.extras().key = Some(Key::Bytes(key.into()));
        self
    }

    /// The key that Key_Shared subscriptions go by instead of the message's key (`ordering_key`).
    pub fn ordering_key(mut self, key: impl Into<Bytes>) -> Self {
        self.extras().ordering_key = Some(key.into());
        self
    }

    /// Adds a property. The same name may be given again; readers usually see the last.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extras().properties.push((name.into(), value.into()));
        self
    }

    /// When what the message tells happened (`event_time`, milliseconds of the Unix epoch). Times before the epoch
    /// count as the epoch.
    pub fn event_time(mut self, at: SystemTime) -> Self {
        self.extras().event_time = Some(unix_millis(at));
        self
    }

    /// Delivers it no earlier than this (`deliver_at_time`); Shared and Key_Shared subscriptions only. Such a
    /// message is sent outside batches.
    pub fn deliver_at(mut self, at: SystemTime) -> Self {
        self.extras().deliver_at = Some(i64::try_from(unix_millis(at)).unwrap_or(i64::MAX));
        self.deliver_after = None;
        self
    }

    /// Delivers it no earlier than `delay` after the call to send.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = Some(delay);
        self
    }

    /// Its own sequence id (`sequence_id`), for deduplication by the broker. It must be larger than every id that
    /// the producer accepted for the partition before, else the send is [`Misuse`](crate::ErrorKind::Misuse).
    pub fn sequence_id(mut self, sequence_id: u64) -> Self {
        self.sequence_id = Some(sequence_id);
        self
    }

    /// The body.
    pub fn payload(&self) -> &Bytes {
        &self.content.payload
    }

    pub(crate) fn key_text(&self) -> Option<&str> {
        match self.content.extras.as_ref()?.key.as_ref()? {
            Key::Text(key) => Some(key),
            Key::Bytes(_) => None,
        }
    }

    /// Bytes of keys and properties, for the memory limit.
    pub(crate) fn extra_bytes(&self) -> usize {
        let Some(extras) = &self.content.extras else { return 0 };
        let properties: usize = extras.properties.iter().map(|(name, value)| name.len() + value.len()).sum();
        let key = match &extras.key {
            Some(Key::Text(key)) => key.len(),
            Some(Key::Bytes(key)) => key.len(),
            None => 0,
        };
        properties + key + extras.ordering_key.as_ref().map_or(0, Bytes::len)
    }

    /// Relative delays become points in time at the call.
    pub(crate) fn resolve(&mut self, now: impl FnOnce() -> SystemTime) {
        if let Some(delay) = self.deliver_after.take() {
            let at = now().checked_add(delay).map_or(u64::MAX, unix_millis);
            self.extras().deliver_at = Some(i64::try_from(at).unwrap_or(i64::MAX));
        }
    }

    /// A message that was not accepted goes back as it was.
    pub(crate) fn returned(content: Content, sequence_id: Option<u64>) -> Self {
        Self { content, sequence_id, deliver_after: None }
    }

    /// The body as it was before it was compressed at a send that was refused.
    pub(crate) fn unpack(&mut self, body: Option<Bytes>) {
        if let Some(body) = body {
            self.content.unpack(body);
        }
    }

    fn extras(&mut self) -> &mut Extras {
        self.content.extras.get_or_insert_with(Box::default)
    }
}

impl fmt::Debug for ProducerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerMessage")
            .field("payload_bytes", &self.content.payload.len())
            .field("extras", &self.content.extras)
            .field("sequence_id", &self.sequence_id)
            .finish_non_exhaustive()
    }
}

/// What can be the body of a message.
pub trait IntoPayload {
    /// The bytes of the body.
    fn into_payload(self) -> Bytes;
}

impl IntoPayload for Bytes {
    fn into_payload(self) -> Bytes {
        self
    }
}

impl IntoPayload for Vec<u8> {
    fn into_payload(self) -> Bytes {
        self.into()
    }
}

impl IntoPayload for String {
    fn into_payload(self) -> Bytes {
        self.into()
    }
}

impl IntoPayload for &str {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoPayload for &[u8] {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl<P: IntoPayload> From<P> for ProducerMessage {
    fn from(payload: P) -> Self {
        Self::new(payload)
    }
}

fn unix_millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A message received. Cloning is cheap.
#[derive(Clone)]
pub struct Message {
    pub(crate) entry: Arc<EntryInfo>,
    /// Index in the entry's batch; `None` for an entry of one message that is no batch.
    pub(crate) index: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) details: Option<Box<Details>>,
    pub(crate) sequence_id: u64,
}

/// What the messages of an entry share.
pub(crate) struct EntryInfo {
    pub part: PartId,
    pub session: u32,
    pub topic: Arc<str>,
    pub id: MessageIdData,
    pub producer_name: String,
    pub publish_time: u64,
    pub redelivery_count: u32,
    pub broker_time: Option<u64>,
    pub batch_size: Option<u32>,
    pub acks: BatchAcks,
}

/// Which messages of an entry are acknowledged: the entry is when all are.
pub(crate) struct BatchAcks {
    words: Vec<AtomicU64>,
    left: AtomicUsize,
}

/// What only some messages have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Details {
    pub properties: Vec<(String, String)>,
    pub key: Option<Key>,
    pub ordering_key: Option<Bytes>,
    pub event_time: Option<u64>,
    pub null_value: bool,
}

impl BatchAcks {
    pub(crate) fn new(count: u32) -> Self {
        let words = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { words, left: AtomicUsize::new(count as usize) }
    }

    /// Marks one message. True if it was the last of the entry, once.
    pub(crate) fn mark(&self, index: u32) -> bool {
        let Some(word) = self.words.get(index as usize / 64) else { return false };
        let bit = 1u64 << (index % 64);
        // Relaxed is enough: only the count decides, and it is one atomic.
        if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return false;
        }
        self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Marks all up to and with `index`. True if that completed the entry.
    pub(crate) fn mark_through(&self, index: u32) -> bool {
        (0..=index).filter(|index| self.mark(*index)).count() > 0
    }
}

impl Message {
    /// Where the broker holds it.
    pub fn id(&self) -> MessageId {
        let entry = &self.entry;
        let id = MessageId::new(entry.id.ledger as i64, entry.id.entry as i64, entry.id.partition);
        match (self.index, entry.batch_size) {
            (Some(index), Some(size)) => id.in_batch(index as i32, size as i32),
            _ => id,
        }
    }

    /// The body.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The topic it came from; of a partitioned topic, the partition.
    pub fn topic(&self) -> &str {
        &self.entry.topic
    }

    /// Its key, if it has one and the key is text.
    pub fn key(&self) -> Option<&str> {
        match self.details.as_ref()?.key.as_ref()? {
            Key::Text(key) => Some(key),
            Key::Bytes(_) => None,
        }
    }

    /// Its key as bytes, if it has one.
    pub fn key_bytes(&self) -> Option<&[u8]> {
        match self.details.as_ref()?.key.as_ref()? {
            Key::Text(key) => Some(key.as_bytes()),
            Key::Bytes(key) => Some(key),
        }
    }

    /// Its ordering key.
    pub fn ordering_key(&self) -> Option<&[u8]> {
        self.details.as_ref()?.ordering_key.as_deref()
    }

    /// All its properties in the order in which they were set.
    pub fn properties(&self) -> &[(String, String)] {
        self.details.as_ref().map_or(&[], |details| &details.properties)
    }

    /// The property of this name; the last one if it was set several times.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties().iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// When the producer sent it, by the producer's clock.
    pub fn publish_time(&self) -> SystemTime {
        from_millis(self.entry.publish_time)
    }

    /// When the broker took it, if the broker adds that to its entries.
    pub fn broker_publish_time(&self) -> Option<SystemTime> {
        self.entry.broker_time.map(from_millis)
    }

    /// The time that the producer gave it.
    pub fn event_time(&self) -> Option<SystemTime> {
        self.details.as_ref()?.event_time.filter(|time| *time > 0).map(from_millis)
    }

    /// True for a message without a value.
    pub fn is_null(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.null_value)
    }

    /// The sequence id that its producer gave it.
    pub fn sequence_id(&self) -> u64 {
        self.sequence_id
    }

    /// The name of its producer.
    pub fn producer_name(&self) -> &str {
        &self.entry.producer_name
    }

    /// How many times the broker delivered it before and was not given an acknowledgement.
    pub fn redelivery_count(&self) -> u32 {
        self.entry.redelivery_count
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id())
            .field("topic", &self.entry.topic)
            .field("payload_bytes", &self.payload.len())
            .field("sequence_id", &self.sequence_id)
            .finish_non_exhaustive()
    }
}

fn from_millis(millis: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}
