use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use protobuf::{EnumOrUnknown, Message as _};

use super::common::*;
use crate::pulsar::wire::command::{Command, Send, decode};
use crate::pulsar::wire::compress::{CompressError, Compression, decompress};
use crate::pulsar::wire::frame::WireError;
use crate::pulsar::wire::payload::*;
use crate::pulsar::wire::pb;

const HEADER: SendHeader<'static> =
    SendHeader { producer_id: 3, producer_name: "p-1", sequence_id: 40, publish_time_ms: 1_700_000_000_123 };

/// The SEND in `out`, and its metadata as the generated code reads it, with the checksum checked by hand.
fn sent(out: &[u8]) -> (Send, pb::MessageMetadata, Bytes) {
    let Command::Send(send) = decode(only_frame(out)).unwrap() else { panic!("a SEND") };
    let entry = send.entry.clone();
    assert_eq!(entry[..2], [0x0e, 0x01]);
    assert_eq!(entry[2..6], crc32c::crc32c(&entry[6..]).to_be_bytes());
    let (metadata, payload) = parts(&entry.slice(6..));
    (send, pb::MessageMetadata::parse_from_bytes(&metadata).unwrap(), payload)
}

fn entry_of(metadata: &[u8], payload: &[u8], checksum: bool) -> Vec<u8> {
    let rest = [&sized(metadata), payload].concat();
    if !checksum {
        return rest;
    }
    [&[0x0e, 0x01][..], &crc32c::crc32c(&rest).to_be_bytes(), &rest].concat()
}

fn base64_of(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut text = String::new();
    for digit in bits.as_bytes().chunks(6) {
        let digit = format!("{:0<6}", std::str::from_utf8(digit).unwrap());
        text.push(char::from(alphabet[usize::from_str_radix(&digit, 2).unwrap()]));
    }
    while text.len() % 4 != 0 {
        text.push('=');
    }
    text
}

fn pairs(list: &[pb::KeyValue]) -> Vec<(String, String)> {
    list.iter().map(|pair| (pair.key().to_owned(), pair.value().to_owned())).collect()
}

fn key_text(key: &Option<Key>) -> (Option<String>, bool) {
    match key {
        Some(Key::Text(text)) => (Some(text.clone()), false),
        Some(Key::Bytes(bytes)) => (Some(base64_of(bytes)), true),
        None => (None, false),
    }
}

fn key_values() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((text(), text()), 0..4)
}

fn pb_pairs(list: &[(String, String)]) -> Vec<pb::KeyValue> {
    let pair = |(key, value): &(String, String)| {
        let mut pair = pb::KeyValue::new();
        pair.set_key(key.clone());
        pair.set_value(value.clone());
        pair
    };
    list.iter().map(pair).collect()
}

#[test]
fn checksum_is_crc32c() {
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

/// Byte for byte, so that a change of the form is seen.
#[test]
fn a_bare_message_byte_for_byte() {
    let mut out = Vec::new();
    let header = SendHeader { producer_id: 1, producer_name: "ab", sequence_id: 2, publish_time_ms: 300 };
    let content = Content { payload: Bytes::from_static(b"hi"), extras: None };
    let size = encode_single_send(&header, &content, Compression::None, &mut out).unwrap();
    let metadata = [0x0a, 2, b'a', b'b', 0x10, 2, 0x18, 0xac, 2, 0x48, 2];
    assert_eq!(size, metadata.len() + 2);
    let command = [0x08, 6, 0x32, 4, 0x08, 1, 0x10, 2];
    let frame = [&sized(&command), &entry_of(&metadata, b"hi", true)[..]].concat();
    assert_eq!(out, sized(&frame));
}

#[test]
fn a_batch_of_one_is_marked_as_a_batch() {
    let mut batch = BatchWriter::default();
    batch.push(40, &Content { payload: Bytes::from_static(b"hi"), extras: None });
    let mut out = Vec::new();
    batch.finish_into(&HEADER, 40, Compression::None, &mut out).unwrap();
    let (send, metadata, payload) = sent(&out);
    assert_eq!((send.num_messages, send.highest_sequence_id), (1, Some(40)));
    assert_eq!(metadata.num_messages_in_batch, Some(1));
    assert_eq!(payload, [&sized(&[0x18, 2, 0x40, 40]), &b"hi"[..]].concat());
    assert_eq!(metadata.uncompressed_size(), 10);
}

#[test]
fn no_value_has_no_body() {
    let extras = Extras { null_value: true, ..Extras::default() };
    let content = Content { payload: Bytes::from_static(b"ignored"), extras: Some(Box::new(extras)) };
    let mut out = Vec::new();
    for compression in codecs() {
        out.clear();
        encode_single_send(&HEADER, &content, compression, &mut out).unwrap();
        let (_, metadata, payload) = sent(&out);
        assert!(payload.is_empty() && metadata.null_value());
        assert_eq!(metadata.compression(), pb::CompressionType::NONE);
    }
    let mut batch = BatchWriter::default();
    batch.push(1, &content);
    out.clear();
    batch.finish_into(&HEADER, 1, Compression::None, &mut out).unwrap();
    let item = BatchReader::new(sent(&out).2, 1).next().unwrap().unwrap();
    assert!(item.metadata.null_value && item.payload.is_empty());
}

#[test]
fn a_missing_codec_leaves_everything_as_it_was() {
    let missing = [
        (cfg!(feature = "lz4"), Compression::Lz4),
        (cfg!(feature = "zlib"), Compression::Zlib),
        (cfg!(feature = "zstd"), Compression::Zstd),
        (cfg!(feature = "snappy"), Compression::Snappy),
    ];
    for (_, compression) in missing.into_iter().filter(|(there, _)| !there) {
        let content = Content { payload: Bytes::from_static(b"hi"), extras: None };
        let mut out = b"before".to_vec();
        let unsupported = Err(CompressError::Unsupported(compression));
        assert_eq!(encode_single_send(&HEADER, &content, compression, &mut out), unsupported);
        let mut batch = BatchWriter::default();
        batch.push(1, &content);
        assert_eq!(batch.finish_into(&HEADER, 1, compression, &mut out), unsupported);
        assert!(batch.is_empty() && batch.bytes() == 0);
        assert_eq!(out, b"before");
    }
}

proptest! {
    #[test]
    fn single_sends(content in content(), codec in prop::sample::select(codecs()), before in vec(any::<u8>(), 0..9)) {
        let mut out = before.clone();
        let size = encode_single_send(&HEADER, &content, codec, &mut out).unwrap();
        prop_assert_eq!(&out[..before.len()], &before);
        let (send, metadata, payload) = sent(&out[before.len()..]);
        prop_assert_eq!((send.producer_id, send.sequence_id, send.num_messages), (3, 40, 1));
        prop_assert_eq!((send.highest_sequence_id, send.is_chunk), (None, false));
        prop_assert_eq!(size, send.entry.len() - 2 - 4 - 4);

        prop_assert_eq!((metadata.producer_name(), metadata.sequence_id(), metadata.publish_time()), ("p-1", 40, HEADER.publish_time_ms));
        prop_assert_eq!(metadata.num_messages_in_batch, None);
        prop_assert_eq!(metadata.uncompressed_size() as usize, content.payload.len());
        let extras = content.extras.clone().map(|extras| *extras).unwrap_or_default();
        prop_assert_eq!(pairs(&metadata.properties), extras.properties.clone());
        prop_assert_eq!((metadata.partition_key.clone(), metadata.partition_key_b64_encoded()), key_text(&extras.key));
        prop_assert_eq!(metadata.ordering_key.as_deref(), extras.ordering_key.as_deref());
        prop_assert_eq!(metadata.event_time, extras.event_time);
        prop_assert_eq!(metadata.deliver_at_time, extras.deliver_at);
        prop_assert_eq!(metadata.null_value(), extras.null_value);

        let entry = parse_entry(send.entry).unwrap();
        prop_assert_eq!(&entry.payload, &payload);
        prop_assert_eq!(entry.metadata.partition_key, extras.key);
        let plain = decompress(entry.metadata.compression, &payload, entry.metadata.uncompressed_size, 1000).unwrap();
        prop_assert_eq!(plain, content.payload);
    }

    #[test]
    fn batches(
        contents in vec(content(), 1..12),
        codec in prop::sample::select(codecs()),
        first in number(),
        before in vec(any::<u8>(), 0..9),
    ) {
        let mut batch = BatchWriter::default();
        // What was there before leaves nothing behind.
        batch.push(1, &contents[0]);
        batch.finish_into(&HEADER, 1, codec, &mut Vec::new()).unwrap();
        prop_assert!(batch.is_empty());

        for (i, content) in contents.iter().enumerate() {
            let bytes = batch.bytes();
            batch.push(first.wrapping_add(i as u64), content);
            prop_assert!(batch.bytes() - bytes <= BatchWriter::single_size(content));
            prop_assert_eq!(batch.len(), i + 1);
        }
        let bytes = batch.bytes();
        let mut out = before.clone();
        let highest = first.wrapping_add(contents.len() as u64 - 1);
        let header = SendHeader { sequence_id: first, ..HEADER };
        let size = batch.finish_into(&header, highest, codec, &mut out).unwrap();
        prop_assert_eq!(&out[..before.len()], &before);

        let (send, metadata, payload) = sent(&out[before.len()..]);
        prop_assert_eq!(send.num_messages as usize, contents.len());
        prop_assert_eq!((send.sequence_id, send.highest_sequence_id), (first, Some(highest)));
        prop_assert_eq!(size, send.entry.len() - 2 - 4 - 4);
        prop_assert_eq!((metadata.sequence_id(), metadata.highest_sequence_id()), (first, highest));
        prop_assert_eq!(metadata.num_messages_in_batch.map(|n| n as usize), Some(contents.len()));
        prop_assert_eq!(metadata.uncompressed_size() as usize, bytes);
        let first_extras = contents[0].extras.clone().map(|extras| *extras).unwrap_or_default();
        prop_assert_eq!((metadata.partition_key.clone(), metadata.partition_key_b64_encoded()), key_text(&first_extras.key));
        prop_assert_eq!(metadata.ordering_key.as_deref(), first_extras.ordering_key.as_deref());

        let plain = decompress(metadata.compression().into_number(), &payload, metadata.uncompressed_size(), 1 << 20).unwrap();
        // As the generated code reads it.
        let mut rest = plain.clone();
        for (i, content) in contents.iter().enumerate() {
            let extras = content.extras.clone().map(|extras| *extras).unwrap_or_default();
            let (single, after) = parts(&rest);
            let single = pb::SingleMessageMetadata::parse_from_bytes(&single).unwrap();
            prop_assert_eq!(single.sequence_id, Some(first.wrapping_add(i as u64)));
            prop_assert_eq!(pairs(&single.properties), extras.properties);
            prop_assert_eq!((single.partition_key.clone(), single.partition_key_b64_encoded()), key_text(&extras.key));
            prop_assert_eq!(single.ordering_key.as_deref(), extras.ordering_key.as_deref());
            prop_assert_eq!(single.event_time, extras.event_time);
            prop_assert_eq!(single.null_value(), extras.null_value);
            let size = single.payload_size() as usize;
            prop_assert_eq!(&after[..size], &content.payload[..]);
            rest = after.slice(size..);
        }
        prop_assert!(rest.is_empty());
        // As ours does.
        let items: Vec<_> = BatchReader::new(plain, contents.len() as i32).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(items.len(), contents.len());
        for (i, (item, content)) in items.into_iter().zip(contents).enumerate() {
            let extras = content.extras.map(|extras| *extras).unwrap_or_default();
            prop_assert_eq!(item.index as usize, i);
            prop_assert_eq!(item.payload, content.payload);
            prop_assert_eq!(item.metadata.partition_key, extras.key);
            prop_assert_eq!(item.metadata.properties, extras.properties);
            prop_assert_eq!(item.metadata.ordering_key, extras.ordering_key);
        }
    }

    #[test]
    fn metadata_reads_as_generated(
        (name, sequence_id, publish_time, properties) in (text(), number(), number(), key_values()),
        (key, ordering_key, schema_version) in (of(text()), of(blob(9)), of(blob(9))),
        (compression, uncompressed_size, batch) in (number32(), any::<u32>(), of(number32())),
        (event_time, deliver_at, highest, null_value) in (of(number()), of(any::<i64>()), of(number()), any::<bool>()),
        (marker, compacted, replicated_from) in (of(number32()), vec(any::<i32>(), 0..5), of(text())),
        (chunk, encrypted) in (of((text(), number32(), number32(), number32())), any::<bool>()),
        (unknown, turn, checksum, payload) in (unknown_fields(), any::<bool>(), any::<bool>(), blob(40)),
    ) {
        let mut generated = pb::MessageMetadata::new();
        generated.set_producer_name(name.clone());
        generated.set_sequence_id(sequence_id);
        generated.set_publish_time(publish_time);
        generated.properties = pb_pairs(&properties);
        generated.partition_key.clone_from(&key);
        generated.ordering_key = ordering_key.as_ref().map(|key| key.to_vec());
        generated.schema_version = schema_version.as_ref().map(|version| version.to_vec());
        generated.compression = Some(EnumOrUnknown::from_i32(compression));
        generated.set_uncompressed_size(uncompressed_size);
        generated.num_messages_in_batch = batch;
        generated.event_time = event_time;
        generated.deliver_at_time = deliver_at;
        generated.highest_sequence_id = highest;
        generated.set_null_value(null_value);
        generated.marker_type = marker;
        generated.compacted_batch_indexes.clone_from(&compacted);
        generated.replicated_from.clone_from(&replicated_from);
        generated.replicate_to = vec!["elsewhere".to_owned()];
        generated.txnid_least_bits = highest;
        if let Some((uuid, id, count, size)) = &chunk {
            generated.set_uuid(uuid.clone());
            generated.set_chunk_id(*id);
            generated.set_num_chunks_from_msg(*count);
            generated.set_total_chunk_msg_size(*size);
        }
        if encrypted {
            generated.set_encryption_param(vec![0; 12]);
        }
        let message = [&unknown[..], &generated.write_to_bytes().unwrap(), &unknown].concat();
        let message = if turn && properties.len() < 2 && compacted.len() < 2 { reversed(&message) } else { message };
        let entry = entry_of(&message, &payload, checksum);
        let broker = [&[0x0e, 0x02][..], &sized(&[8, 77, 16, 5])].concat();
        let with_broker = parse_entry([broker, entry.clone()].concat().into()).unwrap();
        prop_assert_eq!(with_broker.broker_entry, Some(BrokerEntry { timestamp: Some(77), index: Some(5) }));
        let entry = parse_entry(entry.into()).unwrap();
        prop_assert_eq!(entry.broker_entry, None);
        prop_assert_eq!(&entry.metadata, &with_broker.metadata);
        prop_assert_eq!(entry.payload, payload);
        prop_assert_eq!(entry.metadata, Metadata {
            producer_name: name,
            sequence_id,
            publish_time,
            properties,
            partition_key: key.map(Key::Text),
            ordering_key,
            compression,
            uncompressed_size,
            num_messages_in_batch: batch,
            event_time,
            deliver_at_time: deliver_at,
            highest_sequence_id: highest,
            null_value,
            marker_type: marker,
            compacted_batch_indexes: compacted,
            replicated_from,
            schema_version,
            chunk: chunk.map(|(uuid, id, count, total_size)| Chunk { uuid, id, count, total_size }),
            encrypted,
        });
    }

    #[test]
    fn single_metadata_reads_as_generated(
        (properties, key, ordering_key, event_time) in (key_values(), of(blob(12)), of(blob(9)), of(number())),
        (sequence_id, null_value, compacted_out, payload) in (of(number()), any::<bool>(), any::<bool>(), blob(40)),
        (unknown, turn) in (unknown_fields(), any::<bool>()),
    ) {
        let mut generated = pb::SingleMessageMetadata::new();
        generated.properties = pb_pairs(&properties);
        if let Some(key) = &key {
            generated.set_partition_key(base64_of(key));
            generated.set_partition_key_b64_encoded(true);
        }
        generated.ordering_key = ordering_key.as_ref().map(|key| key.to_vec());
        generated.event_time = event_time;
        generated.sequence_id = sequence_id;
        generated.set_null_value(null_value);
        generated.set_compacted_out(compacted_out);
        generated.set_payload_size(payload.len() as i32);
        let message = [&unknown[..], &generated.write_to_bytes().unwrap(), &unknown].concat();
        let message = if turn && properties.len() < 2 { reversed(&message) } else { message };
        let one = [&sized(&message), &payload[..]].concat();
        let items: Vec<_> = BatchReader::new([&one[..], &one].concat().into(), 2).map(Result::unwrap).collect();
        prop_assert_eq!(items.iter().map(|item| item.index).collect::<Vec<_>>(), [0, 1]);
        for item in items {
            prop_assert_eq!(&item.payload, &payload);
            prop_assert_eq!(item.metadata, SingleMetadata {
                properties: properties.clone(),
                partition_key: key.clone().map(Key::Bytes),
                event_time,
                ordering_key: ordering_key.clone(),
                sequence_id,
                null_value,
                compacted_out,
            });
        }
    }
}

trait IntoNumber {
    fn into_number(self) -> i32;
}

impl IntoNumber for pb::CompressionType {
    fn into_number(self) -> i32 {
        self as i32
    }
}

#[test]
fn a_damaged_entry_fails_its_checksum() {
    let mut out = Vec::new();
    let content = Content { payload: Bytes::from_static(b"body"), extras: None };
    encode_single_send(&HEADER, &content, Compression::None, &mut out).unwrap();
    let entry = sent(&out).0.entry;
    for at in 2..entry.len() {
        let mut damaged = entry.to_vec();
        damaged[at] ^= 0x10;
        assert_eq!(parse_entry(damaged.into()), Err(WireError::ChecksumMismatch), "byte {at}");
    }
}

#[test]
fn lengths_in_entries_are_checked() {
    let parse = |bytes: &[u8]| parse_entry(Bytes::copy_from_slice(bytes)).unwrap_err();
    assert_eq!(parse(&[]), WireError::Truncated);
    assert_eq!(parse(&[0, 0, 0, 1]), WireError::Truncated);
    assert_eq!(parse(&[0xff, 0xff, 0xff, 0xff, 0]), WireError::Truncated);
    assert_eq!(parse(&[0x0e, 0x01, 0, 0]), WireError::Truncated);
    assert_eq!(parse(&[0x0e, 0x02, 0, 0, 0, 9, 8, 1]), WireError::Truncated);
    assert_eq!(parse(&[0x0e, 0x02, 0xff, 0xff, 0xff, 0xff, 8, 1]), WireError::Truncated);
    assert_eq!(parse(&sized(&[0x0a, 0, 0x10, 1])), WireError::MissingField("publish_time"));
    assert_eq!(parse(&sized(&[0x0a, 0, 0x18, 1])), WireError::MissingField("sequence_id"));
    assert_eq!(parse(&sized(&[0x10, 0, 0x18, 1])), WireError::MissingField("producer_name"));
}

#[test]
fn a_batch_that_claims_too_much_is_refused_at_once() {
    let one = |payload: &[u8]| [&sized(&[0x18, payload.len() as u8]), payload].concat();
    let three = [one(b"a"), one(b"b"), one(b"c")].concat();
    let read = |count: i32| BatchReader::new(three.clone().into(), count).collect::<Vec<_>>();
    assert_eq!(read(3).len(), 3);
    assert!(read(3).iter().all(Result::is_ok));
    // Rest is left alone, as other clients do.
    assert_eq!(read(2).len(), 2);
    assert!(read(0).is_empty());
    assert_eq!(read(1000), [Err(WireError::Truncated)]);
    assert_eq!(read(i32::MAX), [Err(WireError::Truncated)]);
    assert_eq!(read(-1), [Err(WireError::BadLength)]);

    // An error in the middle ends it.
    let broken = [one(b"a"), sized(&[0x18, 99]), one(&[7; 20])].concat();
    let read: Vec<_> = BatchReader::new(broken.into(), 3).collect();
    assert_eq!(read.len(), 2);
    assert_eq!(read[1], Err(WireError::Truncated));
    let negative = sized(&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    assert_eq!(BatchReader::new(negative.into(), 1).next(), Some(Err(WireError::BadLength)));
    let sizeless = sized(&[0x40, 1]);
    assert_eq!(BatchReader::new(sizeless.into(), 1).next(), Some(Err(WireError::MissingField("payload_size"))));
}

/// Payloads are views, not copies.
#[test]
fn reading_shares_memory() {
    let mut batch = BatchWriter::default();
    batch.push(1, &Content { payload: Bytes::from(vec![1; 100]), extras: None });
    batch.push(2, &Content { payload: Bytes::from(vec![2; 100]), extras: None });
    let mut out = Vec::new();
    batch.finish_into(&HEADER, 2, Compression::None, &mut out).unwrap();
    let frame = only_frame(&out);
    let range = frame.as_ptr_range();
    let Command::Send(send) = decode(frame).unwrap() else { panic!("a SEND") };
    let entry = parse_entry(send.entry).unwrap();
    for item in BatchReader::new(entry.payload, 2) {
        assert!(range.contains(&item.unwrap().payload.as_ptr()));
    }
}

#[test]
fn text_that_is_no_utf8_costs_the_reader_nothing_but_the_letters() {
    let metadata = [0x0a, 1, 0xff, 0x10, 1, 0x18, 1, 0x22, 6, 0x0a, 1, b'k', 0x12, 1, 0xfe];
    let entry = parse_entry(sized(&metadata).into()).unwrap();
    assert_eq!(entry.metadata.producer_name, "\u{fffd}");
    assert_eq!(entry.metadata.properties, [("k".to_owned(), "\u{fffd}".to_owned())]);
}

#[test]
fn a_key_that_only_claims_to_be_base64_is_given_as_it_came() {
    let metadata = [0x0a, 0, 0x10, 1, 0x18, 1, 0x32, 2, b'!', b'?', 0x88, 1, 1];
    let entry = parse_entry(sized(&metadata).into()).unwrap();
    assert_eq!(entry.metadata.partition_key, Some(Key::Text("!?".to_owned())));
}
