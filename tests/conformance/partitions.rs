//! Partitioned topics as one producer and one consumer.

use std::collections::{BTreeMap, BTreeSet};

use threadmq::pulsar::{HashingScheme, ProducerMessage, RoutingMode};

use crate::target::{client, next, partitioned_topic, reader, text};

#[test]
fn the_names_of_partitions_are_known() {
    let client = client();
    let topic = partitioned_topic("names", 3);
    let names: Vec<_> = client.partitions(&topic).unwrap().iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(names, (0..3).map(|index| format!("{topic}-partition-{index}")).collect::<Vec<_>>());
    client.close().unwrap();
}

#[test]
fn round_robin_spreads_and_one_consumer_reads_all_partitions() {
    let client = client();
    let topic = partitioned_topic("spread", 3);
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).batching(false).create().unwrap();
    assert_eq!(producer.partitions(), 3);
    let pending: Vec<_> = (0..30).map(|number| producer.submit(number.to_string()).unwrap()).collect();
    let mut partitions = BTreeMap::new();
    for one in pending {
        *partitions.entry(one.wait().unwrap().message_id().partition()).or_insert(0) += 1;
    }
    assert_eq!(partitions.values().copied().collect::<Vec<_>>(), [10, 10, 10], "{partitions:?}");
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        let message = next(&consumer);
        assert!(message.topic().starts_with(&topic));
        consumer.ack(&message).unwrap();
        seen.insert(text(&message).parse::<u32>().unwrap());
    }
    assert_eq!(seen, (0..30).collect());
    client.close().unwrap();
}

#[test]
fn a_key_stays_on_its_partition_and_both_hashes_agree_with_the_other_clients() {
    let client = client();
    let topic = partitioned_topic("keys", 4);
    // "hello": JavaStringHash 0x05e918d2, Murmur3 0x248bfa47, both without the sign bit.
    for (scheme, hash) in [(HashingScheme::JavaString, 0x05e9_18d2_u32), (HashingScheme::Murmur3, 0x248b_fa47)] {
        let producer = client.producer(&topic).hashing(scheme).create().unwrap();
        for _ in 0..5 {
            let receipt = producer.send(ProducerMessage::new("body").key("hello")).unwrap();
            assert_eq!(receipt.message_id().partition(), Some(hash % 4), "{scheme:?}");
        }
    }
    client.close().unwrap();
}

#[test]
fn single_routing_keeps_to_one_partition() {
    let client = client();
    let topic = partitioned_topic("single", 3);
    let producer =
        client.producer(&topic).routing(RoutingMode::Single { partition: Some(2) }).batching(false).create().unwrap();
    for _ in 0..10 {
        assert_eq!(producer.send("body").unwrap().message_id().partition(), Some(2));
    }
    client.close().unwrap();
}
