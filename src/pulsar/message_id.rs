//! Where a message stands in its topic.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use protobuf::Message as _;

use super::wire::pb::MessageIdData;
use crate::error::{Error, ErrorKind};

/// The place of a message in its topic. Ids of one partition are ordered as its messages are.
///
/// An entry is what the broker stores: one message, or a batch of them told apart by
/// [`batch_index`](Self::batch_index). Ids are equal when ledger, entry, partition and batch index are, and are
/// ordered by these four in turn. Ids of different partitions are comparable, so that they can be kept in sorted
/// maps, but that order means nothing. Cloning is cheap.
///
/// The text, `ledger:entry:partition:batch`, is for logs. To store an id use [`to_bytes`](Self::to_bytes): the
/// bytes are those of the other Pulsar clients.
#[derive(Clone)]
pub struct MessageId {
    // Signed, although the protocol says unsigned: −1 stands for "before everything" and must sort so.
    ledger_id: i64,
    entry_id: i64,
    partition: i32,
    batch_index: i32,
    batch_size: i32,
    first_chunk: Option<Box<ChunkStart>>,
}

/// Where the first chunk of a chunked message is. Boxed above, because few ids have one.
#[derive(Clone)]
struct ChunkStart {
    ledger_id: i64,
    entry_id: i64,
    partition: i32,
}

impl MessageId {
    /// Before the oldest message that the topic still has; for readers and for seeking.
    pub const EARLIEST: Self = Self::new(-1, -1, -1);
    /// After the newest message at the time of asking; for readers and for seeking.
    pub const LATEST: Self = Self::new(i64::MAX, i64::MAX, -1);

    /// The id of a whole entry. `partition` is −1 for a topic without partitions.
    pub(crate) const fn new(ledger_id: i64, entry_id: i64, partition: i32) -> Self {
        Self { ledger_id, entry_id, partition, batch_index: -1, batch_size: 0, first_chunk: None }
    }

    /// The id of one message of the batch that is stored as this entry.
    pub(crate) fn in_batch(&self, batch_index: i32, batch_size: i32) -> Self {
        Self { batch_index, batch_size, first_chunk: None, ..*self }
    }

    /// The id of a chunked message: this one of its last chunk, knowing that of its first.
    pub(crate) fn with_first_chunk(self, first: &Self) -> Self {
        let Self { ledger_id, entry_id, partition, .. } = *first;
        Self { first_chunk: Some(Box::new(ChunkStart { ledger_id, entry_id, partition })), ..self }
    }

    /// The id of the first chunk, if this is a chunked message. Seeking goes there, acknowledging does not.
    #[cfg(test)]
    pub(crate) fn first_chunk(&self) -> Option<Self> {
        self.first_chunk.as_ref().map(|first| Self::new(first.ledger_id, first.entry_id, first.partition))
    }

    /// The ledger; −1 in [`EARLIEST`](Self::EARLIEST).
    pub fn ledger_id(&self) -> i64 {
        self.ledger_id
    }

    /// The entry in its ledger, from 0; −1 in [`EARLIEST`](Self::EARLIEST).
    pub fn entry_id(&self) -> i64 {
        self.entry_id
    }

    /// The partition; `None` for a topic without partitions.
    pub fn partition(&self) -> Option<u32> {
        u32::try_from(self.partition).ok()
    }

    /// The place in the batch, from 0; `None` for a message that was not batched.
    pub fn batch_index(&self) -> Option<u32> {
        u32::try_from(self.batch_index).ok()
    }

    /// The number of messages in the batch; `None` for a message that was not batched, and when whoever made the
    /// id did not say.
    pub fn batch_size(&self) -> Option<u32> {
        u32::try_from(self.batch_size).ok().filter(|&size| size > 0)
    }

    /// The id as bytes, to be stored and read by [`from_bytes`](Self::from_bytes) or by another Pulsar client.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Fails only for a message with missing required fields, and these are set.
        self.to_pb().write_to_bytes().unwrap_or_default()
    }

    /// Reads an id from the bytes of [`to_bytes`](Self::to_bytes) or of another Pulsar client.
    ///
    /// Which messages of a batch are acknowledged, which some clients add, is dropped.
    ///
    /// # Errors
    /// Kind [`Misuse`](ErrorKind::Misuse), if the bytes are no message id.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let misuse = || Error::new(ErrorKind::Misuse, format!("these {} bytes are not a message id", bytes.len()));
        let data = MessageIdData::parse_from_bytes(bytes).map_err(|e| misuse().with_source(e))?;
        let id = Self::from_pb(&data);
        let beyond_batch = id.batch_size > 0 && id.batch_index >= id.batch_size;
        if id.partition < -1 || id.batch_index < -1 || id.batch_size < 0 || beyond_batch {
            return Err(misuse());
        }
        Ok(id)
    }

    /// The id that a peer sent. Takes every value; nonsense in it stays nonsense and hurts nobody.
    pub(crate) fn from_pb(data: &MessageIdData) -> Self {
        let mut id = Self::new(data.ledgerId() as i64, data.entryId() as i64, data.partition());
        id.batch_index = data.batch_index();
        id.batch_size = data.batch_size();
        if let Some(first) = data.first_chunk_message_id.as_ref() {
            return id.with_first_chunk(&Self::new(first.ledgerId() as i64, first.entryId() as i64, first.partition()));
        }
        id
    }

    /// The id in the form that commands carry.
    pub(crate) fn to_pb(&self) -> MessageIdData {
        let mut data = entry_data(self.ledger_id, self.entry_id, self.partition);
        if self.batch_index >= 0 {
            data.set_batch_index(self.batch_index);
            if self.batch_size > 0 {
                data.set_batch_size(self.batch_size);
            }
        }
        if let Some(first) = &self.first_chunk {
            data.first_chunk_message_id = Some(entry_data(first.ledger_id, first.entry_id, first.partition)).into();
        }
        data
    }

    fn place(&self) -> (i64, i64, i32, i32) {
        (self.ledger_id, self.entry_id, self.partition, self.batch_index)
    }
}

fn entry_data(ledger_id: i64, entry_id: i64, partition: i32) -> MessageIdData {
    let mut data = MessageIdData::new();
    data.set_ledgerId(ledger_id as u64);
    data.set_entryId(entry_id as u64);
    if partition >= 0 {
        data.set_partition(partition);
    }
    data
}

impl PartialEq for MessageId {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for MessageId {}

impl PartialOrd for MessageId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MessageId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl Hash for MessageId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.ledger_id, self.entry_id, self.partition, self.batch_index)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batched(ledger: i64, entry: i64, partition: i32, index: i32, size: i32) -> MessageId {
        MessageId::new(ledger, entry, partition).in_batch(index, size)
    }

    #[test]
    fn has_the_wire_form_of_other_clients() {
        assert_eq!(MessageId::new(5, 300, -1).to_bytes(), [8, 5, 16, 0xac, 2]);
        assert_eq!(batched(5, 6, 7, 1, 10).to_bytes(), [8, 5, 16, 6, 24, 7, 32, 1, 48, 10]);
        let mut earliest = vec![8];
        earliest.extend([0xff; 9]);
        earliest.extend([1, 16]);
        earliest.extend([0xff; 9]);
        earliest.push(1);
        assert_eq!(MessageId::EARLIEST.to_bytes(), earliest);
        assert_eq!(MessageId::from_bytes(&earliest).unwrap(), MessageId::EARLIEST);
        // With an acknowledgement set (field 5), as the Java client writes ids of batches.
        let id = MessageId::from_bytes(&[8, 5, 16, 6, 24, 7, 32, 1, 40, 3, 48, 10]).unwrap();
        assert_eq!(id, batched(5, 6, 7, 1, 10));
    }

    #[test]
    fn refuses_other_bytes() {
        let cases: [&[u8]; 8] = [
            &[],
            &[8, 5],
            &[16, 5],
            &[0xff],
            &[8, 5, 16, 6, 32, 10, 48, 10],
            &[8, 5, 16, 6, 24, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[8, 5, 16, 6, 32, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[8, 5, 16, 6, 48, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ];
        for bytes in cases {
            assert_eq!(MessageId::from_bytes(bytes).expect_err("not an id").kind(), ErrorKind::Misuse, "{bytes:?}");
        }
    }

    #[test]
    fn sorts_by_place() {
        let sorted = [
            MessageId::EARLIEST,
            MessageId::new(0, 0, -1),
            MessageId::new(0, 1, 0),
            batched(0, 1, 0, 0, 2),
            batched(0, 1, 0, 1, 2),
            MessageId::new(0, 2, 0),
            MessageId::new(1, 0, 0),
            MessageId::LATEST,
        ];
        assert!(sorted.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn batch_size_and_chunks_are_not_part_of_the_identity() {
        let plain = batched(1, 2, 3, 4, 0);
        assert_eq!(plain, batched(1, 2, 3, 4, 9));
        let chunked = MessageId::new(1, 9, 0).with_first_chunk(&MessageId::new(1, 5, 0));
        assert_eq!(chunked, MessageId::new(1, 9, 0));
        let read = MessageId::from_bytes(&chunked.to_bytes()).unwrap();
        assert_eq!(read.first_chunk(), Some(MessageId::new(1, 5, 0)));
    }

    #[test]
    fn tells_its_fields() {
        let id = batched(1, 2, 3, 4, 5);
        assert_eq!(id.to_string(), "1:2:3:4");
        assert_eq!(format!("{id:?}"), "MessageId(1:2:3:4)");
        assert_eq!((id.ledger_id(), id.entry_id()), (1, 2));
        assert_eq!((id.partition(), id.batch_index(), id.batch_size()), (Some(3), Some(4), Some(5)));
        let plain = MessageId::new(1, 2, -1);
        assert_eq!((plain.partition(), plain.batch_index(), plain.batch_size()), (None, None, None));
        assert_eq!(MessageId::EARLIEST.to_string(), "-1:-1:-1:-1");
    }

    #[test]
    fn stays_small() {
        assert!(size_of::<MessageId>() <= 40);
    }

    proptest! {
        #[test]
        fn bytes_round_trip(ledger: i64, entry: i64, partition in -1..i32::MAX, index in 0..i32::MAX, size: bool) {
            let plain = MessageId::new(ledger, entry, partition);
            prop_assert_eq!(&MessageId::from_bytes(&plain.to_bytes()).unwrap(), &plain);
            let id = plain.in_batch(index, if size { i32::MAX } else { 0 });
            let read = MessageId::from_bytes(&id.to_bytes()).unwrap();
            prop_assert_eq!(&read, &id);
            prop_assert_eq!(read.batch_size(), id.batch_size());
        }

        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            let _ = MessageId::from_bytes(&bytes);
        }
    }
}
