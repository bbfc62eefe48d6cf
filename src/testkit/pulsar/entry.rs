//! Entries: check, prefix, damage, unpack.

use bytes::{BufMut, Bytes};
use protobuf::{EnumOrUnknown, Message as _};

use super::topic::Entry;
use crate::pulsar::message_id::MessageId;
use crate::pulsar::wire::payload::{BatchReader, Key, Metadata, decompress, parse_entry};
use crate::pulsar::wire::pb;

const CHECKSUM_MAGIC: [u8; 2] = [0x0e, 0x01];
const BROKER_ENTRY_MAGIC: [u8; 2] = [0x0e, 0x02];

/// What is wrong with a MESSAGE; see [`Broker::corrupt_next_message`](super::Broker::corrupt_next_message).
///
/// Only the frame that is delivered is damaged. The stored entry stays as it was: when it is delivered again, it
/// is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corruption {
    /// The checksum does not match.
    Checksum,
    /// A batch that claims 1000 messages in 20 bytes. Its checksum matches.
    BatchCount,
    /// The metadata breaks off in the middle of a field. The checksum matches.
    TruncatedMetadata,
    /// The metadata is larger than the frame it is in.
    OversizedMetadata,
    /// Valid LZ4 that has one byte less than the metadata states. The checksum matches.
    UncompressedSize,
    /// LZ4 of a few bytes that claims to become 4 GiB. The checksum matches.
    HugeUncompressedSize,
}

/// A message as the broker has it; see [`Broker::messages`](super::Broker::messages).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredMessage {
    /// Where it is: entry and place in its batch.
    pub id: MessageId,
    /// Uncompressed.
    pub payload: Bytes,
    /// In the order in which they were sent.
    pub properties: Vec<(String, String)>,
    /// The partition key, if it is text.
    pub key: Option<String>,
    /// The partition key, if it is bytes.
    pub key_bytes: Option<Bytes>,
    /// The ordering key.
    pub ordering_key: Option<Bytes>,
    /// The producer's number for it.
    pub sequence_id: u64,
    /// Milliseconds since 1970, by the producer's clock. The messages of a batch share it.
    pub publish_time: u64,
    /// Milliseconds since 1970, chosen by the user.
    pub event_time: Option<u64>,
    /// Milliseconds since 1970: not to be delivered before.
    pub deliver_at: Option<i64>,
    /// "No value", which is not the same as an empty one.
    pub null_value: bool,
    /// The name of its producer.
    pub producer_name: String,
    /// The protocol's number of the compression it came with.
    pub compression: i32,
    /// Why the entry could not be taken apart. Then `payload` is the whole entry, and all else is empty.
    pub unreadable: Option<String>,
}

/// Whether the checksum matches, if there is one.
pub(super) fn is_intact(entry: &[u8]) -> bool {
    let Some(rest) = entry.strip_prefix(&CHECKSUM_MAGIC) else {
        return true;
    };
    rest.split_first_chunk::<4>().is_some_and(|(sum, checked)| u32::from_be_bytes(*sum) == crc32c::crc32c(checked))
}

/// The entry behind the broker's own metadata.
pub(super) fn with_broker_entry(entry: &Entry) -> Bytes {
    let mut metadata = pb::BrokerEntryMetadata::new();
    metadata.set_broker_timestamp(entry.stored_at);
    metadata.set_index(entry.index);
    // Fails only for missing required fields; it has none.
    let metadata = metadata.write_to_bytes().unwrap_or_default();
    let mut out = Vec::with_capacity(metadata.len() + entry.bytes.len() + 6);
    out.extend_from_slice(&BROKER_ENTRY_MAGIC);
    out.put_u32(u32::try_from(metadata.len()).unwrap_or(0));
    out.extend_from_slice(&metadata);
    out.extend_from_slice(&entry.bytes);
    out.into()
}

/// The entry, damaged.
pub(super) fn corrupt(entry: &Bytes, corruption: Corruption) -> Bytes {
    let mut metadata = parse_metadata(entry);
    match corruption {
        Corruption::Checksum => {
            let mut damaged = entry.to_vec();
            if let Some(last) = damaged.last_mut() {
                *last ^= 0x55;
            }
            damaged.into()
        }
        Corruption::BatchCount => {
            metadata.set_num_messages_in_batch(1000);
            metadata.set_compression(pb::CompressionType::NONE);
            metadata.set_uncompressed_size(20);
            build(&bytes_of(&metadata), None, &[0; 20])
        }
        Corruption::TruncatedMetadata => {
            let mut bytes = bytes_of(&metadata);
            // Properties, of 100 bytes that do not follow.
            bytes.extend_from_slice(&[0x22, 100, 1, 2, 3]);
            build(&bytes, None, &[])
        }
        Corruption::OversizedMetadata => build(&bytes_of(&metadata), Some(u32::MAX), b"body"),
        Corruption::UncompressedSize => lz4_claiming(metadata, 6),
        Corruption::HugeUncompressedSize => lz4_claiming(metadata, u32::MAX),
    }
}

/// An LZ4 block of five literal bytes.
fn lz4_claiming(mut metadata: pb::MessageMetadata, size: u32) -> Bytes {
    metadata.num_messages_in_batch = None;
    metadata.compression = Some(EnumOrUnknown::new(pb::CompressionType::LZ4));
    metadata.set_uncompressed_size(size);
    build(&bytes_of(&metadata), None, b"\x50hello")
}

fn parse_metadata(entry: &[u8]) -> pb::MessageMetadata {
    let rest = entry.strip_prefix(&CHECKSUM_MAGIC).and_then(|rest| rest.get(4..)).unwrap_or(entry);
    let metadata = rest.split_first_chunk::<4>().and_then(|(size, rest)| {
        let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
        pb::MessageMetadata::parse_from_bytes(rest.get(..size)?).ok()
    });
    metadata.unwrap_or_default()
}

/// Milliseconds since 1970, by the producer's clock.
pub(super) fn publish_time(entry: &[u8]) -> u64 {
    parse_metadata(entry).publish_time()
}

/// Milliseconds since 1970, if the message is delayed.
pub(super) fn deliver_at(entry: &[u8]) -> Option<u64> {
    parse_metadata(entry).deliver_at_time.and_then(|time| u64::try_from(time).ok())
}

/// The number of messages, if the entry is a batch.
pub(super) fn batch_size(entry: &[u8]) -> Option<i32> {
    parse_metadata(entry).num_messages_in_batch
}

fn bytes_of(metadata: &pb::MessageMetadata) -> Vec<u8> {
    let mut metadata = metadata.clone();
    if !metadata.is_initialized() {
        metadata.set_producer_name("nobody".to_owned());
        metadata.set_sequence_id(0);
        metadata.set_publish_time(0);
    }
    metadata.write_to_bytes().unwrap_or_default()
}

/// With a right checksum. `stated` replaces the size of the metadata.
fn build(metadata: &[u8], stated: Option<u32>, payload: &[u8]) -> Bytes {
    let mut checked = Vec::new();
    checked.put_u32(stated.unwrap_or(u32::try_from(metadata.len()).unwrap_or(0)));
    checked.extend_from_slice(metadata);
    checked.extend_from_slice(payload);
    let mut out = CHECKSUM_MAGIC.to_vec();
    out.put_u32(crc32c::crc32c(&checked));
    out.extend_from_slice(&checked);
    out.into()
}

/// The messages of a stored entry, in order.
pub(super) fn unpack(id: &MessageId, bytes: &Bytes, into: &mut Vec<StoredMessage>) {
    let before = into.len();
    if let Err(why) = try_unpack(id, bytes, into) {
        into.truncate(before);
        into.push(StoredMessage { unreadable: Some(why), payload: bytes.clone(), ..blank(id) });
    }
}

fn try_unpack(id: &MessageId, bytes: &Bytes, into: &mut Vec<StoredMessage>) -> Result<(), String> {
    let entry = parse_entry(bytes.clone()).map_err(|error| error.to_string())?;
    let metadata = entry.metadata;
    let shared = StoredMessage {
        sequence_id: metadata.sequence_id,
        publish_time: metadata.publish_time,
        producer_name: metadata.producer_name.clone(),
        compression: metadata.compression,
        deliver_at: metadata.deliver_at_time,
        ..blank(id)
    };
    if metadata.encrypted || metadata.chunk.is_some() {
        // Only the whole of it can be taken apart.
        into.push(StoredMessage { payload: entry.payload, ..single(shared, metadata) });
        return Ok(());
    }
    let payload = decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, usize::MAX)
        .map_err(|error| error.to_string())?;
    let Some(count) = metadata.num_messages_in_batch else {
        into.push(StoredMessage { payload, ..single(shared, metadata) });
        return Ok(());
    };
    for item in BatchReader::new(payload, count) {
        let item = item.map_err(|error| error.to_string())?;
        let (key, key_bytes) = split_key(item.metadata.partition_key);
        into.push(StoredMessage {
            id: id.in_batch(item.index, count),
            payload: item.payload,
            properties: item.metadata.properties,
            key,
            key_bytes,
            ordering_key: item.metadata.ordering_key,
            sequence_id: item.metadata.sequence_id.unwrap_or(shared.sequence_id),
            event_time: item.metadata.event_time,
            null_value: item.metadata.null_value,
            ..shared.clone()
        });
    }
    Ok(())
}

fn single(shared: StoredMessage, metadata: Metadata) -> StoredMessage {
    let (key, key_bytes) = split_key(metadata.partition_key);
    StoredMessage {
        properties: metadata.properties,
        key,
        key_bytes,
        ordering_key: metadata.ordering_key,
        event_time: metadata.event_time,
        null_value: metadata.null_value,
        ..shared
    }
}

fn split_key(key: Option<Key>) -> (Option<String>, Option<Bytes>) {
    match key {
        Some(Key::Text(text)) => (Some(text), None),
        Some(Key::Bytes(bytes)) => (None, Some(bytes)),
        None => (None, None),
    }
}

fn blank(id: &MessageId) -> StoredMessage {
    StoredMessage {
        id: id.clone(),
        payload: Bytes::new(),
        properties: Vec::new(),
        key: None,
        key_bytes: None,
        ordering_key: None,
        sequence_id: 0,
        publish_time: 0,
        event_time: None,
        deliver_at: None,
        null_value: false,
        producer_name: String::new(),
        compression: 0,
        unreadable: None,
    }
}
