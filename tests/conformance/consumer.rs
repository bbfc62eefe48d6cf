//! Subscriptions, acknowledgement, redelivery.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::pulsar::{Client, InitialPosition, SubscriptionType};

use crate::target::{PATIENCE, assert_quiet, client, next, numbers, reader, text, texts, topic};

fn fill(client: &Client, topic: &str, count: usize, batching: bool) {
    let producer = client.producer(topic).batching(batching).create().unwrap();
    let pending: Vec<_> = (0..count).map(|number| producer.submit(number.to_string()).unwrap()).collect();
    for one in pending {
        one.wait().unwrap();
    }
    producer.close().unwrap();
}

#[test]
fn a_new_subscription_starts_where_it_is_told() {
    let client = client();
    let topic = topic("position");
    fill(&client, &topic, 3, true);
    let latest = client.consumer(&topic, "latest").subscribe().unwrap();
    let earliest = client.consumer(&topic, "earliest").initial_position(InitialPosition::Earliest).subscribe().unwrap();
    assert_eq!(texts(&earliest, 3), numbers(3));
    assert_quiet(&latest);
    client.producer(&topic).create().unwrap().send("new").unwrap();
    assert_eq!(text(&next(&latest)), "new");
    client.close().unwrap();
}

#[test]
fn an_exclusive_subscription_has_one_consumer() {
    let client = client();
    let topic = topic("exclusive-sub");
    let first = client.consumer(&topic, "s").subscribe().unwrap();
    let second = client.consumer(&topic, "s").subscribe().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Conflict, "{second}");
    first.close().unwrap();
    client.consumer(&topic, "s").subscribe().unwrap();
    client.close().unwrap();
}

#[test]
fn a_shared_subscription_gives_each_message_to_one_consumer() {
    let client = client();
    let topic = topic("shared");
    let consumer = || {
        client
            .consumer(&topic, "s")
            .subscription_type(SubscriptionType::Shared)
            .receiver_queue(10)
            .initial_position(InitialPosition::Earliest)
            .subscribe()
            .unwrap()
    };
    let (one, two) = (consumer(), consumer());
    fill(&client, &topic, 100, false);
    let mut seen = BTreeSet::new();
    let (mut first, mut second) = (0, 0);
    let end = Instant::now() + PATIENCE;
    while seen.len() < 100 && Instant::now() < end {
        for (consumer, count) in [(&one, &mut first), (&two, &mut second)] {
            if let Some(message) = consumer.receive_timeout(Duration::from_millis(20)).unwrap() {
                assert!(seen.insert(text(&message).parse::<u32>().unwrap()), "given twice");
                consumer.ack(&message).unwrap();
                *count += 1;
            }
        }
    }
    assert_eq!(seen.len(), 100);
    assert!(first > 0 && second > 0, "{first} and {second}");
    client.close().unwrap();
}

#[test]
fn acknowledged_messages_do_not_come_again_and_others_do() {
    for batching in [true, false] {
        let client = client();
        let topic = topic("ack");
        let consumer = reader(&client, &topic);
        fill(&client, &topic, 10, batching);
        for number in 0..10 {
            let message = next(&consumer);
            assert_eq!(text(&message), number.to_string());
            if number < 5 || batching {
                consumer.ack(&message).unwrap();
            }
        }
        consumer.close().unwrap();
        let again = reader(&client, &topic);
        if batching {
            assert_quiet(&again);
        } else {
            assert_eq!(texts(&again, 5), numbers(10)[5..]);
        }
        client.close().unwrap();
    }
}

#[test]
fn a_batch_that_is_acknowledged_in_part_comes_again_whole() {
    let client = client();
    let topic = topic("part");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).batch_max_delay(Duration::from_secs(60)).create().unwrap();
    let pending: Vec<_> = (0..4).map(|number| producer.submit(number.to_string()).unwrap()).collect();
    producer.flush().unwrap();
    drop(pending);
    for number in 0..4 {
        let message = next(&consumer);
        if number < 3 {
            consumer.ack(&message).unwrap();
        }
    }
    consumer.close().unwrap();
    let again = reader(&client, &topic);
    assert_eq!(texts(&again, 4), numbers(4));
    client.close().unwrap();
}

#[test]
fn a_cumulative_acknowledgement_covers_what_came_before() {
    for batching in [true, false] {
        let client = client();
        let topic = topic("cumulative");
        let consumer = reader(&client, &topic);
        fill(&client, &topic, 10, batching);
        let messages: Vec<_> = (0..10).map(|_| next(&consumer)).collect();
        consumer.ack_cumulative(&messages[9]).unwrap();
        consumer.close().unwrap();
        assert_quiet(&reader(&client, &topic));
        client.close().unwrap();
    }
    let client = client();
    let topic = topic("cumulative-shared");
    let shared = client.consumer(&topic, "s").subscription_type(SubscriptionType::Shared).subscribe().unwrap();
    fill(&client, &topic, 1, false);
    let error = shared.ack_cumulative(&next(&shared)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    client.close().unwrap();
}

#[test]
fn a_negative_acknowledgement_brings_the_message_back_after_its_delay() {
    let client = client();
    let topic = topic("nack");
    let consumer = client
        .consumer(&topic, "s")
        .subscription_type(SubscriptionType::Shared)
        .initial_position(InitialPosition::Earliest)
        .negative_ack_delay(Duration::from_secs(1))
        .subscribe()
        .unwrap();
    fill(&client, &topic, 3, false);
    for number in 0..3 {
        let message = next(&consumer);
        if number != 1 {
            consumer.ack(&message).unwrap();
        } else {
            assert_eq!(message.redelivery_count(), 0);
            consumer.negative_ack(&message).unwrap();
        }
    }
    let asked = Instant::now();
    let again = next(&consumer);
    assert_eq!(text(&again), "1");
    assert_eq!(again.redelivery_count(), 1);
    assert!(asked.elapsed() >= Duration::from_millis(950), "after {:?}", asked.elapsed());
    consumer.ack(&again).unwrap();
    assert_quiet(&consumer);
    client.close().unwrap();
}

#[test]
fn an_exclusive_consumer_gets_everything_unacknowledged_again_in_order() {
    let client = client();
    let topic = topic("nack-exclusive");
    let consumer = client
        .consumer(&topic, "s")
        .initial_position(InitialPosition::Earliest)
        .negative_ack_delay(Duration::from_millis(100))
        .receiver_queue(4)
        .subscribe()
        .unwrap();
    fill(&client, &topic, 20, false);
    for number in 0..3 {
        let message = next(&consumer);
        assert_eq!(text(&message), number.to_string());
        consumer.ack(&message).unwrap();
    }
    consumer.negative_ack(&next(&consumer)).unwrap();
    // Entries on the way when the broker rewinds may come before the rewound ones; all come, and in the end all of
    // the rewound run stands in order.
    let mut seen = Vec::new();
    let end = Instant::now() + PATIENCE;
    while seen.iter().collect::<BTreeSet<_>>().len() < 17 && Instant::now() < end {
        if let Some(message) = consumer.receive_timeout(Duration::from_millis(100)).unwrap() {
            consumer.ack(&message).unwrap();
            seen.push(text(&message).parse::<u32>().unwrap());
        }
    }
    assert_eq!(seen.iter().copied().collect::<BTreeSet<_>>(), (3..20).collect());
    client.close().unwrap();
}

#[test]
fn a_small_queue_still_delivers_everything() {
    let client = client();
    let topic = topic("small-queue");
    fill(&client, &topic, 200, true);
    let consumer =
        client.consumer(&topic, "s").initial_position(InitialPosition::Earliest).receiver_queue(1).subscribe().unwrap();
    assert_eq!(texts(&consumer, 200), numbers(200));
    client.close().unwrap();
}

#[test]
fn receive_honours_its_time_limit_and_close_wakes_it() {
    let client = client();
    let consumer = client.consumer(topic("empty"), "s").subscribe().unwrap();
    assert!(consumer.try_receive().unwrap().is_none());
    let started = Instant::now();
    assert!(consumer.receive_timeout(Duration::from_millis(200)).unwrap().is_none());
    assert!(started.elapsed() >= Duration::from_millis(200));
    let waiting = {
        let consumer = consumer.clone();
        std::thread::spawn(move || consumer.receive())
    };
    consumer.close().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(consumer.receive().unwrap_err().kind(), ErrorKind::Closed);
    consumer.close().unwrap();
    client.close().unwrap();
}

#[test]
fn unsubscribe_removes_the_subscription_and_its_backlog() {
    let client = client();
    let topic = topic("unsubscribe");
    let consumer = reader(&client, &topic);
    fill(&client, &topic, 3, true);
    next(&consumer);
    consumer.unsubscribe().unwrap();
    assert_eq!(consumer.unsubscribe().unwrap_err().kind(), ErrorKind::Closed);
    let anew = client.consumer(&topic, "reader").initial_position(InitialPosition::Latest).subscribe().unwrap();
    assert_quiet(&anew);
    client.close().unwrap();
}
