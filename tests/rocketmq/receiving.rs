//! A simple consumer: filters, invisible durations, acknowledgements.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::rocketmq::{FilterExpression, Message, MessageType};

use crate::target::{INVISIBLE, PATIENCE, SLACK, client, consumer, group, receive, text, topic};

#[test]
fn an_empty_topic_gives_no_messages_and_no_error() {
    let topic = topic("empty", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("empty", false), &topic);
    let called = Instant::now();
    assert_eq!(consumer.receive(8, INVISIBLE).unwrap(), []);
    // The await duration, less what a poll may come back early by.
    let took = called.elapsed();
    assert!(took > Duration::from_millis(3900) && took < Duration::from_secs(5) + SLACK, "{took:?}");
    client.close().unwrap();
}

#[test]
fn messages_of_all_queues_come_to_one_receive_after_another() {
    let topic = topic("queues", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("queues", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    for number in 0..40 {
        producer.send(Message::new(&topic, number.to_string())).unwrap();
    }
    let mut received: Vec<u32> = receive(&consumer, 40).iter().map(|message| text(message).parse().unwrap()).collect();
    received.sort_unstable();
    assert_eq!(received, (0..40).collect::<Vec<_>>());
    client.close().unwrap();
}

#[test]
fn a_tag_filter_lets_through_what_it_names() {
    let topic = topic("tags", MessageType::Normal);
    let client = client();
    let group = group("tags", false);
    let filter = FilterExpression::tags("a||b");
    let consumer = client
        .simple_consumer(&group)
        .subscribe(&topic, filter)
        .await_duration(Duration::from_secs(5))
        .start()
        .unwrap();
    let producer = client.producer().topic(&topic).start().unwrap();
    for tag in ["a", "c", "b", "c"] {
        producer.send(Message::new(&topic, tag).tag(tag)).unwrap();
    }
    let mut received: Vec<_> = receive(&consumer, 2).iter().map(text).collect();
    received.sort();
    assert_eq!(received, ["a", "b"]);
    assert_eq!(consumer.receive(8, INVISIBLE).unwrap(), []);
    client.close().unwrap();
}

#[test]
fn what_is_not_acknowledged_comes_again_when_its_time_is_over() {
    let topic = topic("again", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("again", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    producer.send(Message::new(&topic, "twice")).unwrap();
    let mut first = Vec::new();
    while first.is_empty() {
        first = consumer.receive(1, INVISIBLE).unwrap();
    }
    let again = receive(&consumer, 1).remove(0);
    assert_eq!(again.message_id(), first[0].message_id());
    assert_eq!(again.delivery_attempt(), 2);
    // The old handle is void.
    let error = consumer.ack(&first[0]).unwrap_err();
    assert_eq!(error.code(), Some(40013), "{error}");
    client.close().unwrap();
}

#[test]
fn a_changed_invisible_duration_replaces_the_handle() {
    let topic = topic("change", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("change", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    producer.send(Message::new(&topic, "x")).unwrap();
    let mut first = Vec::new();
    while first.is_empty() {
        first = consumer.receive(1, INVISIBLE).unwrap();
    }
    for long in [Duration::from_secs(12 * 3600 + 1), Duration::MAX] {
        let error = consumer.change_invisible_duration(&first[0], long).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("invisible_duration"), "{error}");
    }
    let changed = consumer.change_invisible_duration(&first[0], Duration::from_secs(60)).unwrap();
    assert_eq!(changed.message_id(), first[0].message_id());
    consumer.ack(&changed).unwrap();
    assert_eq!(consumer.receive(1, INVISIBLE).unwrap(), []);
    client.close().unwrap();
}

#[test]
fn a_batch_of_acknowledgements_has_a_result_for_each() {
    let topic = topic("batch", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("batch", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    for number in 0..5 {
        producer.send(Message::new(&topic, number.to_string())).unwrap();
    }
    let mut messages = Vec::new();
    while messages.len() < 5 {
        messages.extend(consumer.receive(8, Duration::from_secs(60)).unwrap());
    }
    consumer.ack(&messages[2]).unwrap();
    let results = consumer.ack_batch(&messages).unwrap();
    assert_eq!(results.len(), 5);
    assert!(results.iter().enumerate().all(|(index, result)| result.is_ok() || index == 2), "{results:?}");
    client.close().unwrap();
}

#[test]
fn a_receive_with_a_callback_is_answered_once() {
    let topic = topic("with", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("with", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    producer.send(Message::new(&topic, "x")).unwrap();
    let (tell, told) = channel();
    consumer.receive_with(1, INVISIBLE, move |result| tell.send(result.map(|found| found.len())).unwrap()).unwrap();
    assert!(told.recv_timeout(PATIENCE).unwrap().unwrap() <= 1);
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
    client.close().unwrap();
}

#[test]
fn close_ends_a_receive_that_waits() {
    let topic = topic("close", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("close", false), &topic);
    let (tell, told) = channel();
    consumer.receive_with(1, INVISIBLE, move |result| tell.send(result).unwrap()).unwrap();
    consumer.close().unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().kind(), ErrorKind::Closed);
    client.close().unwrap();
}

#[test]
fn subscriptions_can_be_changed() {
    let (first, second) = (topic("first", MessageType::Normal), topic("second", MessageType::Normal));
    let client = client();
    let consumer = consumer(&client, &group("subscribe", false), &first);
    let producer = client.producer().topics([&first, &second]).start().unwrap();
    consumer.subscribe(&second, FilterExpression::all()).unwrap();
    consumer.unsubscribe(&first).unwrap();
    producer.send(Message::new(&first, "1")).unwrap();
    producer.send(Message::new(&second, "2")).unwrap();
    assert_eq!(text(&receive(&consumer, 1)[0]), "2");
    client.close().unwrap();
}
