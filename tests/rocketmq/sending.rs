//! Sends: their results, their order, their refusals.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use threadmq::rocketmq::{Client, FilterExpression, Message, MessageType};
use threadmq::{Delivery, ErrorKind};

use crate::target::{INVISIBLE, PATIENCE, SLACK, client, consumer, group, receive, text, topic};

#[test]
fn a_blocking_send_gives_a_receipt_and_the_message_arrives() {
    let topic = topic("blocking", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("blocking", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let message =
        Message::new(&topic, "hello").tag("greeting").key("k1").key("k2").property("a", "1").property("b", "2");
    let receipt = producer.send(message).unwrap();
    assert_eq!(receipt.attempts(), 1);
    let received = receive(&consumer, 1).remove(0);
    assert_eq!(text(&received), "hello");
    assert_eq!(received.message_id(), receipt.message_id());
    assert_eq!((received.tag(), received.keys()), (Some("greeting"), &["k1".to_owned(), "k2".to_owned()][..]));
    assert_eq!((received.property("a"), received.property("b")), (Some("1"), Some("2")));
    assert_eq!((received.topic(), received.delivery_attempt()), (topic.as_str(), 1));
    assert!(!received.is_corrupted());
    client.close().unwrap();
}

#[test]
fn callbacks_run_once_each_and_flush_waits_for_them() {
    let topic = topic("callbacks", MessageType::Normal);
    let client = client();
    let producer = client.producer().topic(&topic).start().unwrap();
    let (tell, told) = channel();
    for number in 0..500 {
        let tell = tell.clone();
        let message = Message::new(&topic, number.to_string());
        producer.send_with(message, move |result| tell.send((number, result.map(|_| ()))).unwrap()).unwrap();
    }
    producer.flush().unwrap();
    let mut all: Vec<_> = told.try_iter().collect();
    assert_eq!(all.len(), 500, "flush returns after the callbacks");
    all.sort_by_key(|(number, _)| *number);
    assert!(all.iter().enumerate().all(|(index, (number, result))| index == *number && result.is_ok()));
    assert_eq!(producer.pending(), 0);
    client.close().unwrap();
}

#[test]
fn messages_of_a_group_arrive_in_order() {
    let topic = topic("fifo", MessageType::Fifo);
    let client = client();
    let consumer = consumer(&client, &group("fifo", true), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let (tell, told) = channel();
    for number in 0..30 {
        let tell = tell.clone();
        let message = Message::new(&topic, number.to_string()).message_group("g");
        producer.send_with(message, move |result| tell.send((number, result.is_ok())).unwrap()).unwrap();
    }
    producer.flush().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), (0..30).map(|number| (number, true)).collect::<Vec<_>>());
    let received: Vec<_> = receive(&consumer, 30).iter().map(text).collect();
    assert_eq!(received, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    client.close().unwrap();
}

#[test]
fn a_delayed_message_comes_no_earlier_than_asked() {
    let topic = topic("delay", MessageType::Delay);
    let client = client();
    let consumer = consumer(&client, &group("delay", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let at = SystemTime::now() + Duration::from_secs(4);
    producer.send(Message::new(&topic, "later").deliver_at(at)).unwrap();
    let received = receive(&consumer, 1);
    // Precise to a second.
    let came = SystemTime::now();
    assert!(came + Duration::from_secs(1) >= at, "it came too early");
    assert!(came < at + Duration::from_secs(2) + SLACK, "it came too late");
    assert_eq!(text(&received[0]), "later");
    client.close().unwrap();
}

#[test]
fn large_bodies_go_through_and_larger_ones_are_refused_whole() {
    let topic = topic("large", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("large", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let body: Vec<u8> = (0..4 * 1024 * 1024).map(|at: usize| (at % 251) as u8).collect();
    producer.send(Message::new(&topic, body.clone())).unwrap();
    assert!(receive(&consumer, 1)[0].body() == &body);
    let refused = producer.send(Message::new(&topic, vec![0; 4 * 1024 * 1024 + 1])).unwrap_err();
    assert_eq!((refused.kind(), refused.delivery()), (ErrorKind::TooLarge, Delivery::NotSent));
    assert_eq!(refused.message().unwrap().body().len(), 4 * 1024 * 1024 + 1, "given back");
    client.close().unwrap();
}

#[test]
fn a_topic_that_does_not_exist_is_said_so() {
    let client = client();
    let error = client.producer().topic("no-such-topic").start().unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotFound, Some(40402)), "{error}");
    let says_how = |shown: String| {
        let all = ["no-such-topic", "not created through gRPC", "updateTopic", "message.type"];
        assert!(all.iter().all(|part| shown.contains(part)), "{shown}");
    };
    says_how(error.to_string());
    let producer = client.producer().start().unwrap();
    let error = producer.send(Message::new("no-such-topic", "x")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::NotFound, Delivery::NotSent), "{error}");
    says_how(error.to_string());
    let error = client.simple_consumer("g").subscribe("no-such-topic", FilterExpression::all()).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    says_how(error.to_string());
    client.close().unwrap();
}

#[test]
fn the_wrong_type_of_message_is_refused_and_both_are_named() {
    let topic = topic("type", MessageType::Normal);
    let client = client();
    let producer = client.producer().topic(&topic).start().unwrap();
    let error = producer.send(Message::new(&topic, "x").message_group("g")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Misuse, Delivery::NotSent));
    let shown = error.to_string();
    assert!(shown.contains("FIFO") && shown.contains("NORMAL"), "{shown}");
    client.close().unwrap();
}

#[test]
fn everything_wrong_with_a_message_is_told_at_once() {
    let client = client();
    let producer = client.producer().start().unwrap();
    let error = producer.send(Message::new("a b", "").tag("x|y")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    let shown = error.to_string();
    assert!(shown.contains("topic") && shown.contains("body") && shown.contains("tag"), "{shown}");
    client.close().unwrap();
}

#[test]
fn without_a_server_start_fails_and_a_send_is_answered_in_time() {
    let client = Client::builder("127.0.0.1:1").build().unwrap();
    let error = client.producer().topic("t").start().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Transport | ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
    let producer = client.producer().send_timeout(Duration::from_millis(500)).start().unwrap();
    let started = Instant::now();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent), "{error}");
    assert!(started.elapsed() < PATIENCE);
    client.close().unwrap();
}

#[test]
fn calls_after_close_are_refused_at_once() {
    let topic = topic("closed", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("closed", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    producer.close().unwrap();
    producer.close().unwrap();
    let error = producer.send(Message::new(&topic, "x")).unwrap_err();
    assert_eq!((error.kind(), error.message().is_some()), (ErrorKind::Closed, true));
    client.close().unwrap();
    assert_eq!(consumer.receive(1, INVISIBLE).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.producer().start().unwrap_err().kind(), ErrorKind::Closed);
    client.close().unwrap();
}
