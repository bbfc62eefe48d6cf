//! What travels with a message arrives with it: batched and alone, through every codec.

use std::time::{Duration, SystemTime};

use threadmq::pulsar::{Compression, ProducerMessage};

use crate::target::{client, next, reader, text, texts, topic};

fn rich() -> ProducerMessage {
    ProducerMessage::new("body")
        .key("key")
        .ordering_key(vec![1u8, 2, 255])
        .property("one", "1")
        .property("two", "zwei")
        .event_time(SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567))
}

#[test]
fn everything_that_travels_with_a_message_arrives() {
    for batching in [true, false] {
        let client = client();
        let topic = topic("rich");
        let consumer = reader(&client, &topic);
        let producer = client.producer(&topic).batching(batching).name(format!("rich-{batching}")).create().unwrap();
        let before = SystemTime::now() - Duration::from_secs(1);
        // Two at once, so that they share a batch if there are batches.
        let first = producer.submit(rich()).unwrap();
        let second = producer.submit(rich()).unwrap();
        let (first, second) = (first.wait().unwrap(), second.wait().unwrap());
        assert_eq!((first.attempts(), second.attempts()), (1, 1));
        for receipt in [first, second] {
            let message = next(&consumer);
            assert_eq!(text(&message), "body");
            assert_eq!(message.key(), Some("key"));
            assert_eq!(message.ordering_key(), Some(&[1u8, 2, 255][..]));
            assert_eq!(message.property("one"), Some("1"));
            assert_eq!(message.property("two"), Some("zwei"));
            assert_eq!(message.properties().len(), 2);
            assert_eq!(message.event_time(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567)));
            assert!(message.publish_time() >= before);
            assert_eq!(message.sequence_id(), receipt.sequence_id());
            assert_eq!(message.producer_name(), format!("rich-{batching}"));
            assert_eq!(message.id().ledger_id(), receipt.message_id().ledger_id());
            assert_eq!(message.id().entry_id(), receipt.message_id().entry_id());
            assert_eq!(message.id().batch_index(), receipt.message_id().batch_index());
            assert_eq!(message.redelivery_count(), 0);
            assert_eq!(message.topic(), topic);
        }
        client.close().unwrap();
    }
}

#[test]
fn every_codec_carries_batches_and_single_messages() {
    for codec in [Compression::None, Compression::Lz4, Compression::Zlib, Compression::Zstd, Compression::Snappy] {
        for batching in [true, false] {
            let client = client();
            let topic = topic("codec");
            let consumer = reader(&client, &topic);
            let producer = client.producer(&topic).batching(batching).compression(codec).create().unwrap();
            let mut bodies: Vec<String> = (0..50).map(|number| format!("{number:0>200}")).collect();
            bodies.push("x".repeat(64 * 1024));
            bodies.push(String::new());
            let pending: Vec<_> = bodies.iter().map(|body| producer.submit(body.as_str()).unwrap()).collect();
            for one in pending {
                one.wait().unwrap_or_else(|error| panic!("{codec:?} batching {batching}: {error}"));
            }
            assert_eq!(texts(&consumer, bodies.len()), bodies, "{codec:?} batching {batching}");
            client.close().unwrap();
        }
    }
}

#[test]
fn incompressible_bodies_of_all_sizes_survive_every_codec() {
    for codec in [Compression::Lz4, Compression::Zlib, Compression::Zstd, Compression::Snappy] {
        let client = client();
        let topic = topic("incompressible");
        let consumer = reader(&client, &topic);
        let producer = client.producer(&topic).compression(codec).create().unwrap();
        let mut state = 0x9e37_79b9_u32;
        for size in [0, 1, 64 * 1024, 1024 * 1024] {
            let body: Vec<u8> = (0..size)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            producer.send(body.clone()).unwrap();
            assert_eq!(next(&consumer).payload()[..], body[..], "{codec:?} {size} bytes");
        }
        client.close().unwrap();
    }
}

#[test]
fn a_null_value_is_not_an_empty_body() {
    let client = client();
    let topic = topic("null");
    let consumer = reader(&client, &topic);
    for batching in [true, false] {
        let producer = client.producer(&topic).batching(batching).create().unwrap();
        let null = producer.submit(ProducerMessage::null().key("gone")).unwrap();
        let empty = producer.submit(ProducerMessage::new("").key("empty")).unwrap();
        null.wait().unwrap();
        empty.wait().unwrap();
        let (null, empty) = (next(&consumer), next(&consumer));
        assert!(null.is_null() && null.payload().is_empty());
        assert_eq!(null.key(), Some("gone"));
        assert!(!empty.is_null() && empty.payload().is_empty());
    }
    client.close().unwrap();
}

#[test]
fn keys_may_be_bytes() {
    let client = client();
    let topic = topic("byte-key");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).create().unwrap();
    producer.send(ProducerMessage::new("body").key_bytes(vec![0u8, 255, 7])).unwrap();
    assert_eq!(next(&consumer).key_bytes(), Some(&[0u8, 255, 7][..]));
    client.close().unwrap();
}
