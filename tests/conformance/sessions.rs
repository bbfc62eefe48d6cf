//! What happens when the broker ends a session or a topic.

use std::time::Duration;

use threadmq::ErrorKind;
use threadmq::pulsar::AccessMode;

use crate::target::{client, next, numbers, reader, terminate, text, topic, unload};

#[test]
fn sends_and_receives_go_on_in_order_over_unloads() {
    for (batching, mode) in [(true, AccessMode::Shared), (false, AccessMode::Shared), (true, AccessMode::Exclusive)] {
        let client = client();
        let topic = topic("unload");
        let consumer = reader(&client, &topic);
        let producer = client.producer(&topic).batching(batching).access_mode(mode).create().unwrap();
        let mut pending = Vec::new();
        for number in 0..300 {
            if number % 100 == 50 {
                unload(&topic);
            }
            pending.push(producer.submit(number.to_string()).unwrap());
        }
        for one in pending {
            one.wait().unwrap_or_else(|error| panic!("batching {batching} {mode:?}: {error}"));
        }
        // Redelivery and resending may repeat, but what comes first comes in order and complete.
        let mut seen = Vec::new();
        while seen.len() < 300 {
            let message = next(&consumer);
            consumer.ack(&message).unwrap();
            let body = text(&message);
            if !seen.contains(&body) {
                seen.push(body);
            }
        }
        assert_eq!(seen, numbers(300));
        client.close().unwrap();
    }
}

#[test]
fn a_terminated_topic_fails_its_producer_for_good() {
    let client = client();
    let topic = topic("terminated");
    let producer = client.producer(&topic).send_timeout(Some(Duration::from_secs(60))).create().unwrap();
    producer.send("last").unwrap();
    terminate(&topic);
    let error = producer.send("too late").unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Timeout, "told at once, not by the send timeout: {error}");
    let error = client.producer(&topic).create().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Timeout, "{error}");
    producer.close().unwrap();
    client.close().unwrap();
}
