//! An entry as the broker delivers it, taken apart into messages on the thread that receives it.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::engine::event::Delivery;
use super::engine::event::PartId;
use super::message::{BatchAcks, Details, EntryInfo, Message};
use super::wire::command::MessageIdData;
use super::wire::compress::DecompressError;
use super::wire::frame::WireError;
use super::wire::payload::{BatchReader, decompress, parse_entry};
use super::wire::pb::command_ack::ValidationError;

/// Bodies below this size are copied, so that one message that is kept does not hold a whole batch in memory.
const COPY_LIMIT: usize = 4096;

/// Bytes that a message in a batch takes at least: the size of its metadata, and in that the size of its body.
const LEAST_ITEM: usize = 6;

/// What an entry had in it.
pub(super) struct Unpacked {
    pub part: PartId,
    pub session: u32,
    pub messages: Vec<Message>,
    /// Permits of messages that nobody will see.
    pub skipped: u32,
    /// The entry could not be read; it is acknowledged with this, so that it is not delivered for ever.
    pub invalid: Option<(MessageIdData, ValidationError)>,
}

/// The permits that an entry used: the messages in its batch. Reads the metadata and nothing else, because the loop
/// asks it of a whole queue.
pub(super) fn permits(entry: &Bytes) -> u32 {
    let count =
        parse_entry(without_checksum(entry.clone())).ok().and_then(|entry| entry.metadata.num_messages_in_batch);
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1).max(1)
}

/// The entry without what comes before its metadata, so that no checksum is made of its bytes.
fn without_checksum(mut entry: Bytes) -> Bytes {
    if let Some(word) = entry.strip_prefix(&[0x0e, 0x02]).and_then(|rest| rest.first_chunk::<4>()) {
        let size = usize::try_from(u32::from_be_bytes(*word)).unwrap_or(usize::MAX);
        entry.advance(size.saturating_add(6).min(entry.len()));
    }
    if entry.starts_with(&[0x0e, 0x01]) {
        entry.advance(6.min(entry.len()));
    }
    entry
}

pub(super) fn unpack(delivery: Delivery, topic: Arc<str>) -> Unpacked {
    let Delivery { part, session, message_id, redelivery_count, ack_set, entry, max_message_size } = delivery;
    let invalid = |error, skipped| Unpacked {
        part,
        session,
        messages: Vec::new(),
        skipped,
        invalid: Some((message_id.clone(), error)),
    };
    let entry = match parse_entry(entry) {
        Ok(entry) => entry,
        Err(WireError::ChecksumMismatch) => return invalid(ValidationError::ChecksumMismatch, 1),
        Err(_) => return invalid(ValidationError::BatchDeSerializeError, 1),
    };
    let metadata = entry.metadata;
    let count = metadata.num_messages_in_batch.map(|count| u32::try_from(count).unwrap_or(0));
    let permits = count.unwrap_or(1).max(1);
    if metadata.marker_type.is_some() {
        return Unpacked { part, session, messages: Vec::new(), skipped: permits, invalid: None };
    }
    let payload = match decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, max_message_size) {
        Ok(payload) => payload,
        Err(error) => return invalid(validation_error(&error), permits),
    };
    // Each message of a batch has a size word: what counts more than fit is damaged, and nothing is reserved for it.
    if count.is_some_and(|count| count as usize > payload.len() / 4) {
        return invalid(ValidationError::BatchDeSerializeError, permits);
    }
    let info = Arc::new(EntryInfo {
        part,
        session,
        topic,
        id: message_id.clone(),
        producer_name: metadata.producer_name,
        publish_time: metadata.publish_time,
        redelivery_count,
        broker_time: entry.broker_entry.and_then(|broker| broker.timestamp),
        batch_size: count,
        acks: BatchAcks::new(count.unwrap_or(1)),
    });
    let Some(count) = count else {
        let details = Details {
            properties: metadata.properties,
            key: metadata.partition_key,
            ordering_key: metadata.ordering_key,
            event_time: metadata.event_time,
            null_value: metadata.null_value,
        };
        let message = Message {
            entry: info,
            index: None,
            payload: own(payload),
            details: boxed(details),
            sequence_id: metadata.sequence_id,
        };
        return Unpacked { part, session, messages: vec![message], skipped: 0, invalid: None };
    };
    let mut messages = Vec::with_capacity((count as usize).min(payload.len() / LEAST_ITEM));
    let mut skipped = 0;
    for item in BatchReader::new(payload, i32::try_from(count).unwrap_or(i32::MAX)) {
        let Ok(item) = item else {
            // What came before the damage is not delivered either: its acknowledgement would be the entry's.
            return Unpacked {
                part,
                session,
                messages: Vec::new(),
                skipped: permits,
                invalid: Some((message_id, ValidationError::BatchDeSerializeError)),
            };
        };
        let index = u32::try_from(item.index).unwrap_or(0);
        let gone = item.metadata.compacted_out
            || acknowledged(&ack_set, index)
            || metadata.compacted_batch_indexes.contains(&item.index);
        if gone {
            info.acks.mark(index);
            skipped += 1;
            continue;
        }
        let details = Details {
            properties: item.metadata.properties,
            key: item.metadata.partition_key,
            ordering_key: item.metadata.ordering_key,
            event_time: item.metadata.event_time,
            null_value: item.metadata.null_value,
        };
        messages.push(Message {
            entry: Arc::clone(&info),
            index: Some(index),
            payload: own(item.payload),
            details: boxed(details),
            sequence_id: item.metadata.sequence_id.unwrap_or(metadata.sequence_id),
        });
    }
    Unpacked { part, session, messages, skipped, invalid: None }
}

/// Whether the broker's set says that a message of a batch is acknowledged already: its bit is clear.
fn acknowledged(ack_set: &[i64], index: u32) -> bool {
    if ack_set.is_empty() {
        return false;
    }
    let word = ack_set.get(index as usize / 64).copied().unwrap_or(0);
    (word >> (index % 64)) & 1 == 0
}

fn own(payload: Bytes) -> Bytes {
    if payload.len() < COPY_LIMIT { Bytes::copy_from_slice(&payload) } else { payload }
}

fn boxed(details: Details) -> Option<Box<Details>> {
    let plain = details.properties.is_empty()
        && details.key.is_none()
        && details.ordering_key.is_none()
        && details.event_time.is_none()
        && !details.null_value;
    if plain { None } else { Some(Box::new(details)) }
}

fn validation_error(error: &DecompressError) -> ValidationError {
    match error {
        DecompressError::SizeMismatch | DecompressError::TooLarge { .. } => ValidationError::UncompressedSizeCorruption,
        _ => ValidationError::DecompressionError,
    }
}
