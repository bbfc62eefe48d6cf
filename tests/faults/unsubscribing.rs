//! Unsubscribing a partitioned topic while some partitions fail or say nothing.

use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Consumer, InitialPosition};
use threadmq::testkit::pulsar::{Broker, EventKind, Request, ServerError};
use threadmq::{Delivery, ErrorKind};

use super::answers::{PATIENCE, eventually};

const LIMIT: Duration = Duration::from_secs(2);

fn impatient(broker: &Broker) -> Client {
    Client::builder(broker.service_url()).operation_timeout(LIMIT).build().unwrap()
}

fn subscribe(client: &Client) -> Consumer {
    client.consumer("t", "s").initial_position(InitialPosition::Earliest).subscribe().unwrap()
}

fn subscribes(broker: &Broker) -> usize {
    broker.count(|kind| matches!(kind, EventKind::Subscribe { .. }))
}

#[test]
fn every_partition_is_tried_and_what_is_left_stays_usable() {
    let broker = Broker::start().unwrap();
    broker.create_partitioned_topic("t", 4);
    let client = impatient(&broker);
    let consumer = subscribe(&client);
    broker.ignore_next(Request::Unsubscribe, 1);
    broker.fail_next(Request::Unsubscribe, ServerError::METADATA, 1);
    broker.lose_answer_of_next(Request::Unsubscribe, 1);
    let began = Instant::now();
    let error = consumer.unsubscribe().unwrap_err();
    let took = began.elapsed();
    assert!(took >= LIMIT && took < LIMIT + PATIENCE, "{took:?}");
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    assert!(error.to_string().contains("3 of 4 partitions"), "{error}");
    assert!(error.to_string().contains("t-partition-0"), "{error}");
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Unsubscribe { .. })), 4);
    // The two that did not answer are subscribed anew.
    assert!(broker.wait_for(PATIENCE, |_| subscribes(&broker) == 6));
    for partition in 0..3 {
        let producer = client.producer(format!("t-partition-{partition}")).create().unwrap();
        producer.send(format!("to {partition}")).unwrap();
        let message = consumer.receive_timeout(PATIENCE).unwrap().expect("a message");
        assert_eq!(message.payload(), format!("to {partition}").as_bytes());
        consumer.ack(&message).unwrap();
    }
    consumer.unsubscribe().unwrap();
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Unsubscribe { .. })), 7);
    assert_eq!(consumer.receive().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(consumer.unsubscribe().unwrap_err().kind(), ErrorKind::Closed);
    client.close().unwrap();
}

#[test]
fn what_is_left_of_a_failed_unsubscribe_closes() {
    let broker = Broker::start().unwrap();
    broker.create_partitioned_topic("t", 3);
    let client = impatient(&broker);
    let consumer = subscribe(&client);
    broker.fail_next(Request::Unsubscribe, ServerError::CONSUMER_BUSY, 2);
    let error = consumer.unsubscribe().unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Conflict, Delivery::Refused));
    assert!(error.to_string().contains("2 of 3 partitions"), "{error}");
    consumer.close().unwrap();
    assert_eq!(consumer.receive().unwrap_err().kind(), ErrorKind::Closed);
    client.close().unwrap();
    eventually("the connection ends", || broker.connections() == 0);
}
