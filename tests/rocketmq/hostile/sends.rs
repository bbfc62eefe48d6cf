//! Nonsense in answer to sends and heartbeats.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use threadmq::testkit::rocketmq::{Effect, End, Rpc};
use threadmq::{Delivery, ErrorKind};

use super::proto::{Fields, ok, status};
use super::{SLACK, Stage, eventually, message};

/// What no server says, by name.
fn nonsense() -> Vec<(String, Effect)> {
    let mut all: Vec<(String, Effect)> = Vec::new();
    for code in [0, 1, 200, 20_001, 39_999, 40_022, 99_999, -1, i32::MIN, i32::MAX] {
        all.push((format!("status {code}"), Effect::Status(code, "told to".to_owned())));
    }
    for code in [-1, 1, 2, 4, 5, 9, 10, 13, 14, 15, 17, 999] {
        all.push((format!("gRPC {code}"), Effect::Grpc(code, "two\nlines\0".to_owned())));
    }
    let bytes: [(&str, Vec<u8>); 9] = [
        ("nothing", Vec::new()),
        ("0xff", vec![0xff; 40]),
        ("a length beyond the end", vec![1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]),
        ("groups in groups", vec![1 << 3 | 3; 1_000_000]),
        ("no status", Fields::new().message(9, ok()).done()),
        ("a status that is a number", Fields::new().number(1, 20_000).done()),
        ("all well, but no entry", Fields::new().message(1, ok()).done()),
        ("several results, but no entry", Fields::new().message(1, status(30_000)).done()),
        ("text that is none", Fields::new().message(1, Fields::new().number(1, 40_000).bytes(2, [0xff, 0xfe])).done()),
    ];
    all.extend(bytes.map(|(name, bytes)| (name.to_owned(), Effect::Bytes(bytes))));
    all.push(("an end without an answer".to_owned(), Effect::Frames(Vec::new(), End::Well)));
    all.push(("a status of megabytes".to_owned(), Effect::Status(40_000, "long ".repeat(500_000))));
    all.push(("metadata beyond all limits".to_owned(), Effect::Grpc(13, "long ".repeat(20_000))));
    all
}

#[test]
fn sends_are_answered_once_with_an_error_that_says_why() {
    let stage = Stage::new();
    let producer = stage.producer();
    for (name, effect) in nonsense() {
        stage.proxy.on(Rpc::SendMessage).next(1).then(effect);
        let (tell, told) = channel();
        let called = Instant::now();
        producer.send_with(message(), move |result| tell.send(result).unwrap()).unwrap();
        let error = told.recv_timeout(SLACK).unwrap_or_else(|_| panic!("{name}: no answer")).unwrap_err();
        assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{name}: {:?}", called.elapsed());
        assert!(told.recv().is_err(), "{name}: answered again");
        let shown = error.to_string();
        assert!(shown.starts_with("send to t") && shown.len() < 2000 && !shown.contains('\n'), "{name}: {shown}");
        assert_ne!(error.delivery(), Delivery::NotSent, "{name}: {error}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{name}: {error}");
        producer.send(message()).unwrap_or_else(|error| panic!("after {name}: {error}"));
    }
    assert_eq!(stage.client.stats().recoveries, 0);
    stage.finish();
}

/// Three attempts, each with another answer: still one result, and in time.
#[test]
fn every_attempt_may_be_answered_with_other_nonsense() {
    let stage = Stage::new();
    let producer = stage.client.producer().topic("t").send_timeout(Duration::from_secs(3)).start().unwrap();
    let all = nonsense();
    for (_, effect) in &all {
        stage.proxy.on(Rpc::SendMessage).next(1).then(effect.clone());
    }
    let (tell, told) = channel();
    for _ in 0..all.len() {
        let tell = tell.clone();
        producer.send_with(message(), move |result| tell.send(result.map(drop)).unwrap()).unwrap();
    }
    drop(tell);
    assert_eq!(told.iter().count(), all.len());
    producer.send(message()).unwrap();
    stage.finish();
}

#[test]
fn heartbeats_that_are_answered_with_nonsense_condemn_nothing() {
    let stage = Stage::new();
    let producer = stage.producer();
    for (_, effect) in nonsense() {
        if effect != Effect::Grpc(14, "two\nlines\0".to_owned()) {
            stage.proxy.on(Rpc::Heartbeat).next(1).then(effect);
        }
    }
    // A send that runs into its deadline brings the next heartbeat forward.
    stage.proxy.on(Rpc::SendMessage).every(2).then(Effect::Lost);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        let _ = producer.send(message());
    }
    assert!(stage.proxy.calls(0, Rpc::Heartbeat) >= 4);
    stage.proxy.on(Rpc::SendMessage).behave();
    stage.proxy.on(Rpc::Heartbeat).behave();
    eventually("a send succeeds", || producer.send(message()).is_ok());
    assert_eq!(stage.client.stats().recoveries, 0);
    stage.finish();
}

/// FIFO: the group goes on after nonsense.
#[test]
fn a_message_group_goes_on() {
    use threadmq::rocketmq::{Message, MessageType};
    let stage = Stage::new();
    stage.proxy.create_topic("f", MessageType::Fifo, 4);
    let builder = stage.client.producer().topic("f").max_attempts(1);
    let producer = builder.send_timeout(Duration::from_secs(30)).start().unwrap();
    let all = nonsense();
    for (_, effect) in &all {
        stage.proxy.on(Rpc::SendMessage).next(1).then(effect.clone());
    }
    let (tell, told) = channel();
    for number in 0..all.len() + 5 {
        let tell = tell.clone();
        let message = Message::new("f", number.to_string()).message_group("g");
        producer.send_with(message, move |result| tell.send((number, result.is_ok())).unwrap()).unwrap();
    }
    drop(tell);
    let answers: Vec<_> = told.iter().collect();
    assert_eq!(answers, (0..all.len() + 5).map(|number| (number, number >= all.len())).collect::<Vec<_>>());
    stage.finish();
}
