//! Values and bytes for the tests of the codec.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use protobuf::{CodedInputStream, CodedOutputStream};

use crate::pulsar::wire::command::{Ack, Message, MessageIdData, Send, SendReceipt};
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::frame::next_frame;
use crate::pulsar::wire::payload::{Content, Extras, Key};

/// All codecs that are compiled in.
pub(super) fn codecs() -> Vec<Compression> {
    let mut all = vec![Compression::None];
    if cfg!(feature = "lz4") {
        all.push(Compression::Lz4);
    }
    if cfg!(feature = "zlib") {
        all.push(Compression::Zlib);
    }
    if cfg!(feature = "zstd") {
        all.push(Compression::Zstd);
    }
    if cfg!(feature = "snappy") {
        all.push(Compression::Snappy);
    }
    all
}

/// Numbers with all lengths of varint, the ends in favour.
pub(super) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0u64..300, any::<u64>(), (0u32..64).prop_map(|bit| 1 << bit)]
}

pub(super) fn number32() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), Just(-1), Just(1), Just(i32::MIN), Just(i32::MAX), 0..300, any::<i32>()]
}

pub(super) fn blob(most: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "\\PC{0,12}", 1 => "[a-z]{120,140}"]
}

pub(super) fn message_id() -> impl Strategy<Value = MessageIdData> {
    (number(), number(), number32(), number32(), number32(), vec(any::<i64>(), 0..4)).prop_map(
        |(ledger, entry, partition, batch_index, batch_size, ack_set)| MessageIdData {
            ledger,
            entry,
            partition,
            batch_index,
            batch_size,
            ack_set,
        },
    )
}

pub(super) fn send() -> impl Strategy<Value = Send> {
    (number(), number(), number32(), of(number()), any::<bool>(), blob(40)).prop_map(
        |(producer_id, sequence_id, num_messages, highest_sequence_id, is_chunk, entry)| Send {
            producer_id,
            sequence_id,
            num_messages,
            highest_sequence_id,
            is_chunk,
            entry,
        },
    )
}

pub(super) fn receipt() -> impl Strategy<Value = SendReceipt> {
    (number(), number(), of(number()), of(message_id())).prop_map(
        |(producer_id, sequence_id, highest_sequence_id, message_id)| SendReceipt {
            producer_id,
            sequence_id,
            highest_sequence_id,
            message_id,
        },
    )
}

pub(super) fn message() -> impl Strategy<Value = Message> {
    (number(), message_id(), any::<u32>(), vec(any::<i64>(), 0..20), of(number()), blob(40)).prop_map(
        |(consumer_id, message_id, redelivery_count, ack_set, consumer_epoch, entry)| Message {
            consumer_id,
            message_id,
            redelivery_count,
            ack_set,
            consumer_epoch,
            entry,
        },
    )
}

pub(super) fn ack() -> impl Strategy<Value = Ack> {
    (number(), any::<bool>(), vec(message_id(), 0..8), of(0..5), of(number())).prop_map(
        |(consumer_id, cumulative, message_ids, validation_error, request_id)| Ack {
            consumer_id,
            cumulative,
            message_ids,
            validation_error,
            request_id,
        },
    )
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![text().prop_map(Key::Text), blob(20).prop_map(Key::Bytes)]
}

fn extras() -> impl Strategy<Value = Extras> {
    (vec((text(), text()), 0..4), of(key()), of(blob(20)), of(number()), of(any::<i64>()), prop::bool::weighted(0.2))
        .prop_map(|(properties, key, ordering_key, event_time, deliver_at, null_value)| Extras {
            properties,
            key,
            ordering_key,
            event_time,
            deliver_at,
            null_value,
            packed: None,
        })
}

pub(super) fn content() -> impl Strategy<Value = Content> {
    (blob(300), of(extras()))
        .prop_map(|(payload, extras)| Content { payload, extras: extras.map(Box::new) })
        // "No value" has no body.
        .prop_map(|mut content| {
            if content.extras.as_ref().is_some_and(|extras| extras.null_value) {
                content.payload = Bytes::new();
            }
            content
        })
}

/// Fields with numbers that no message of the protocol uses, of every wire type but groups.
pub(super) fn unknown_fields() -> impl Strategy<Value = Vec<u8>> {
    vec((900u32..2000, 0u32..4, any::<u64>(), vec(any::<u8>(), 0..10)), 0..4).prop_map(|fields| {
        let mut out = Vec::new();
        let mut stream = CodedOutputStream::vec(&mut out);
        for (number, kind, value, bytes) in fields {
            match kind {
                0 => stream.write_uint64(number, value).unwrap(),
                1 => stream.write_fixed64(number, value).unwrap(),
                2 => stream.write_fixed32(number, value as u32).unwrap(),
                _ => stream.write_bytes(number, &bytes).unwrap(),
            }
        }
        stream.flush().unwrap();
        drop(stream);
        out
    })
}

/// The fields of a message, last one first. Repeated fields turn round, too, so compare those as sets.
pub(super) fn reversed(message: &[u8]) -> Vec<u8> {
    let mut stream = CodedInputStream::from_bytes(message);
    let mut ends = vec![0];
    while let Some(tag) = stream.read_raw_tag_or_eof().unwrap() {
        match tag & 7 {
            0 => drop(stream.read_raw_varint64().unwrap()),
            1 => stream.skip_raw_bytes(8).unwrap(),
            2 => {
                let len = stream.read_raw_varint32().unwrap();
                stream.skip_raw_bytes(len).unwrap();
            }
            _ => stream.skip_raw_bytes(4).unwrap(),
        }
        ends.push(stream.pos() as usize);
    }
    ends.windows(2).rev().flat_map(|range| message[range[0]..range[1]].to_vec()).collect()
}

/// `size:u32 bytes`.
pub(super) fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// The only frame in `bytes`, without its size word.
pub(super) fn only_frame(bytes: &[u8]) -> Bytes {
    let mut buffer = BytesMut::from(bytes);
    let frame = next_frame(&mut buffer, 1 << 30).unwrap().expect("a whole frame");
    assert!(buffer.is_empty());
    frame
}

/// The command bytes of a frame, and its entry.
pub(super) fn parts(frame: &Bytes) -> (Bytes, Bytes) {
    let size = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    (frame.slice(4..4 + size), frame.slice(4 + size..))
}
