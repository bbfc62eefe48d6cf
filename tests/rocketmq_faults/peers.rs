//! What released clients were measured to do, as what this one must not.

use std::time::{Duration, Instant};

use threadmq::rocketmq::Message;
use threadmq::testkit::rocketmq::Rpc;

use super::answers::Answers;
use super::stage::{MS, SLACK, Stage, consumer, eventually, receive_some, seconds};

/// A consumer that polls receives again after its link went half-open: its own heartbeats replace the link.
#[test]
fn half_open_consumers_receive_again() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    eventually("a heartbeat", || stage.proxy.calls(0, Rpc::Heartbeat) > 0);
    stage.networks[0].half_open();
    let fault = Instant::now();
    let other = stage.client();
    other.producer().topic("t").start().unwrap().send(Message::new("t", "x")).unwrap();
    let (found, failures) = receive_some(&consumer, seconds(60));
    println!("half-open: a message received {:?} after the fault, {failures} receives failed", fault.elapsed());
    assert_eq!(found.len(), 1);
    assert!(fault.elapsed() < seconds(17) + SLACK, "{:?}", fault.elapsed());
    consumer.ack(&found[0]).unwrap();
    assert_eq!(client.stats().recoveries, 1);
    assert_eq!(stage.proxy.streams_without_settings(), 0);
    client.close().unwrap();
    other.close().unwrap();
}

/// Sends of one attempt each: their deadlines are hints, so that the link is replaced as fast as under any sends.
/// Without hints the next heartbeat would come 10 s after the last, and the second one 3 s later.
#[test]
fn half_open_under_sends_of_one_attempt() {
    let stage = Stage::new(1);
    let client = stage.client();
    let builder = client.producer().topic("t").max_attempts(1).send_timeout(seconds(1));
    let producer = builder.start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    eventually("a heartbeat", || stage.proxy.calls(0, Rpc::Heartbeat) > 0);
    stage.networks[0].half_open();
    let fault = Instant::now();
    eventually("a send succeeds", || producer.send(Message::new("t", "x")).is_ok());
    println!("half-open: a send of one attempt {:?} after the fault", fault.elapsed());
    assert!(fault.elapsed() < seconds(10) + seconds(2), "{:?}", fault.elapsed());
    client.close().unwrap();
}

/// The proxy is killed, and started again 20 s later without memory: sends fail in time meanwhile, and go on within
/// seconds, not after gRPC's own backoff; the consumer receives again.
#[test]
fn restart_of_the_proxy() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").send_timeout(seconds(3)).start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    consumer.ack(&receive_some(&consumer, seconds(60)).0[0]).unwrap();
    let settings = stage.proxy.settings(0);
    stage.kill(0);
    stage.proxy.forget_settings();
    let down = Instant::now();
    let mut answers = Answers::new();
    while down.elapsed() < seconds(20) {
        answers.send(&producer, Message::new("t", "x"));
        std::thread::sleep(MS * 500);
    }
    stage.revive(0);
    let back = Instant::now();
    let healed = eventually("a send succeeds", || producer.send(Message::new("t", "after")).is_ok());
    let (_, failures) = receive_some(&consumer, seconds(60));
    let received = back.elapsed();
    println!("restart: sends after {healed:?}, received after {received:?}, {failures} receives failed");
    assert!(healed < seconds(4) + SLACK, "{healed:?}");
    assert!(received < seconds(8) + SLACK, "{received:?}");
    eventually("settings of both again", || stage.proxy.settings(0) >= settings + 2);
    let answers = answers.all();
    let longest = answers.iter().map(|answer| answer.after).max().unwrap();
    assert!(longest < MS * 3100 + SLACK, "no send blocks beyond its timeout: {longest:?}");
    assert_eq!(stage.proxy.streams_without_settings(), 0);
    client.close().unwrap();
}

/// A server that is frozen for 20 s and goes on: sends are good again at once.
#[test]
fn frozen_and_thawed() {
    let stage = Stage::new(1);
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(3)).start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    stage.networks[0].freeze();
    let frozen = Instant::now();
    let mut answers = Answers::new();
    while frozen.elapsed() < seconds(20) {
        answers.send(&producer, Message::new("t", "x"));
        std::thread::sleep(MS * 500);
    }
    stage.networks[0].thaw();
    let healed = eventually("a send succeeds", || producer.send(Message::new("t", "after")).is_ok());
    println!("frozen: sends after {healed:?}, {} recoveries", client.stats().recoveries);
    assert!(healed < seconds(4) + SLACK, "{healed:?}");
    let longest = answers.all().iter().map(|answer| answer.after).max().unwrap_or(Duration::ZERO);
    assert!(longest < MS * 3100 + SLACK, "{longest:?}");
    client.close().unwrap();
}
