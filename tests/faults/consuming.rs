//! Consumers over lost links, acknowledgements, redelivery.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use threadmq::pulsar::{InitialPosition, SubscriptionType};
use threadmq::testkit::pulsar::{Broker, EventKind};

use super::answers::{Answers, PATIENCE};
use super::client;

/// Field report 019.
#[test]
fn an_unload_is_survived_with_few_subscribes() {
    let broker = Broker::start().unwrap();
    let (client, sending) = (client(&broker), client(&broker));
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    let empty = client.consumer("empty", "s").subscribe().unwrap();
    let over = AtomicBool::new(false);
    let subscribes =
        || broker.count(|kind| matches!(kind, EventKind::Subscribe { topic, .. } if topic.ends_with("/t")));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let timeout = Duration::from_millis(200);
            while !over.load(Ordering::SeqCst) {
                let began = Instant::now();
                assert!(empty.receive_timeout(timeout).unwrap().is_none());
                let took = began.elapsed();
                assert!(took >= timeout && took < timeout * 10, "{took:?}");
            }
        });
        broker.close_consumers("t", None);
        // The report's broker closes the socket this much later.
        std::thread::sleep(Duration::from_millis(50));
        broker.drop_connections();
        let producer = sending.producer("t").create().unwrap();
        producer.send("m1").unwrap();
        producer.send("m2").unwrap();
        let began = Instant::now();
        for body in ["m1", "m2"] {
            let message = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(message.payload(), body);
            consumer.ack(&message).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        let again = subscribes();
        assert!(again <= 3, "{} SUBSCRIBEs beside the first", again - 1);
        assert!(!broker.wait_for(Duration::from_secs(5), |_| subscribes() > again), "it goes on subscribing");
        over.store(true, Ordering::SeqCst);
    });
    client.close().unwrap();
    sending.close().unwrap();
}

/// Field report 033.
#[test]
fn an_acknowledgement_survives_the_link() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    let answers = Answers::default();
    answers.send(&producer, 0..10);
    producer.flush().unwrap();
    let consumer = client
        .consumer("t", "s")
        .initial_position(InitialPosition::Earliest)
        .ack_grouping(Duration::from_secs(60), 1000)
        .subscribe()
        .unwrap();
    for number in 0..10 {
        let message = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
        if number == 9 {
            consumer.ack_cumulative(&message).unwrap();
        }
    }
    assert!(broker.acked("t", "s").is_empty(), "it waits for its group");
    broker.reset_connections();
    // Either it is written on the new link, or the application is given the messages again and says it again.
    let end = Instant::now() + Duration::from_secs(10);
    while broker.acked("t", "s").len() < 10 {
        assert!(Instant::now() < end, "neither acknowledged nor redelivered");
        if let Some(message) = consumer.receive_timeout(Duration::from_millis(50)).unwrap() {
            consumer.ack_cumulative(&message).unwrap();
        }
    }
    client.close().unwrap();
}

/// Field report 035.
#[test]
fn redelivery_keeps_its_delay() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    Answers::default().send(&producer, 0..3);
    producer.flush().unwrap();
    let delay = Duration::from_secs(1);
    let consumer = client
        .consumer("t", "s")
        .subscription_type(SubscriptionType::Shared)
        .initial_position(InitialPosition::Earliest)
        .negative_ack_delay(delay)
        .subscribe()
        .unwrap();
    let messages: Vec<_> = (0..3).map(|_| consumer.receive_timeout(PATIENCE).unwrap().unwrap()).collect();
    let mut refused = BTreeMap::new();
    for (message, pause) in messages.iter().zip([0, 300, 400]) {
        std::thread::sleep(Duration::from_millis(pause));
        refused.insert(message.id(), Instant::now());
        consumer.negative_ack(message).unwrap();
    }
    for _ in 0..3 {
        let again = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(again.redelivery_count(), 1);
        consumer.ack(&again).unwrap();
    }
    let mut requests = 0;
    for event in broker.log() {
        let EventKind::Redeliver { ids, .. } = event.kind else { continue };
        requests += 1;
        assert!(!ids.is_empty(), "everything, where some were meant");
        for id in ids {
            let after = event.at - refused.remove(&id).expect("asked for once");
            assert!(after >= delay, "{after:?}");
            assert!(after < delay * 4, "{after:?}");
        }
    }
    assert!(refused.is_empty(), "{refused:?}");
    assert!(requests >= 2, "one request for all");
    client.close().unwrap();
}
