//! Reports about producers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, Message};
use threadmq::testkit::rocketmq::{Effect, Rpc};
use threadmq::testkit::{Direction, Network};
use threadmq::{Delivery, ErrorKind};

use super::answers::Answers;
use super::stage::{MS, SLACK, Stage, eventually, seconds};

#[test]
fn n065_callback_lost() {
    let stage = Stage::new(2);
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(2)).start().unwrap();
    stage.kill(1);
    let here = std::thread::current().id();
    let mut answers = Answers::new();
    for _ in 0..20 {
        answers.send(&producer, Message::new("t", "x"));
    }
    for answer in answers.all() {
        assert!(answer.result.is_ok(), "{:?}", answer.result);
        assert_ne!(answer.thread, here, "called on the caller's stack");
    }
    stage.kill(0);
    let mut answers = Answers::new();
    for _ in 0..20 {
        answers.send(&producer, Message::new("t", "x"));
    }
    for answer in answers.all() {
        let error = answer.result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Transport), "{error}");
        assert!(answer.after < seconds(2) + SLACK, "{:?}", answer.after);
        assert_ne!(answer.thread, here, "called on the caller's stack");
    }
    client.close().unwrap();
}

/// Here a call that is refused never calls back: its error is what it returns.
#[test]
fn n067_callback_twice() {
    let stage = Stage::new(1);
    let client = stage.client();
    let producer = client.producer().topic("t").start().unwrap();
    producer.close().unwrap();
    let before = stage.proxy.calls(0, Rpc::SendMessage);
    let called = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    for _ in 0..100 {
        let called = Arc::clone(&called);
        let refused = producer.send_with(Message::new("t", "x"), move |_| {
            called.fetch_add(1, Ordering::SeqCst);
        });
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.delivery()), (ErrorKind::Closed, Delivery::NotSent));
        assert!(refused.message().is_some(), "the message comes back");
    }
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    client.close().unwrap();
    assert_eq!((called.load(Ordering::SeqCst), stage.proxy.calls(0, Rpc::SendMessage)), (0, before));
}

#[test]
fn n069_retry_budget() {
    let stage = Stage::new(2);
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(3)).start().unwrap();
    eventually("both are used", || {
        producer.send(Message::new("t", "x")).unwrap();
        stage.proxy.calls(1, Rpc::SendMessage) > 0
    });
    let before = stage.proxy.calls(1, Rpc::SendMessage);
    stage.proxy.on(Rpc::SendMessage).at(1).then(Effect::Lost);
    let started = Instant::now();
    for _ in 0..10 {
        let called = Instant::now();
        producer.send(Message::new("t", "x")).unwrap();
        assert!(called.elapsed() < seconds(3) + SLACK, "{:?}", called.elapsed());
    }
    // Its heartbeats are answered, so it is tried again after each of them, and these come every 3 s at most.
    let tried = stage.proxy.calls(1, Rpc::SendMessage) - before;
    let most = 2 + started.elapsed().as_secs() / 3;
    assert!((1..=most).contains(&tried), "the silent one was tried {tried} times, not {most}");
    stage.proxy.on(Rpc::SendMessage).behave();
    eventually("the healthy endpoint is used again", || {
        producer.send(Message::new("t", "x")).unwrap();
        stage.proxy.calls(1, Rpc::SendMessage) > before + tried
    });
    assert_eq!(client.stats().recoveries, 0);
    client.close().unwrap();
}

#[test]
fn n093_throttled_sends() {
    let stage = Stage::new(1);
    stage.proxy.backoff(MS * 100, seconds(10), 2.0);
    let client = stage.client();
    let producer = client.producer().topic("t").start().unwrap();
    let throttled = || Effect::Status(42900, "flow limit".to_owned());
    stage.proxy.on(Rpc::SendMessage).next(2).then(throttled());
    assert_eq!(producer.send(Message::new("t", "x")).unwrap().attempts(), 3);
    let calls = stage.proxy.history();
    let at: Vec<Instant> = calls.iter().filter(|call| call.rpc == Rpc::SendMessage).map(|call| call.at).collect();
    let gaps = [at[1] - at[0], at[2] - at[1]];
    assert!(gaps[0] >= MS * 95 && gaps[0] < MS * 100 + SLACK, "{gaps:?}");
    assert!(gaps[1] >= MS * 195 && gaps[1] < MS * 200 + SLACK, "{gaps:?}");
    let before = stage.proxy.calls(0, Rpc::SendMessage);
    stage.proxy.on(Rpc::SendMessage).then(throttled());
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Throttled, Delivery::Refused), "{error}");
    assert_eq!((error.error().code(), error.error().attempts()), (Some(42900), 3));
    assert_eq!(stage.proxy.calls(0, Rpc::SendMessage), before + 3);
    client.close().unwrap();
}

/// Down as a machine whose port is forwarded by something that lives: connections are taken and reset.
#[test]
fn n099_channel_recovery() {
    let stage = Stage::new(1);
    let network = &stage.networks[0];
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(MS * 500).start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    network.set_upstream("127.0.0.1:1").unwrap();
    network.reset();
    let (down, before) = (Instant::now(), network.accepted());
    for _ in 0..10 {
        let called = Instant::now();
        let error = producer.send(Message::new("t", "x")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Transport), "{error}");
        assert!(called.elapsed() < MS * 600 + SLACK, "{:?}", called.elapsed());
    }
    while down.elapsed() < seconds(6) {
        let _ = producer.send(Message::new("t", "x"));
    }
    let dialled = network.accepted() - before;
    assert!(dialled <= 30, "{dialled} attempts to connect in {:?}", down.elapsed());
    network.set_upstream(stage.proxy.addr(0)).unwrap();
    let healed = eventually("a send succeeds", || producer.send(Message::new("t", "x")).is_ok());
    println!("099: {dialled} attempts to connect during the outage, healed {healed:?} after it");
    // The longest backoff is 3 s, with jitter.
    assert!(healed < seconds(4) + SLACK, "{healed:?}");
    client.close().unwrap();
}

#[test]
fn n101_half_open() {
    let stage = Stage::new(1);
    let network = &stage.networks[0];
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(1)).start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    let links = network.accepted();
    // It accepted, finished all set-up, and reads nothing any more.
    network.stall(Direction::ToServer);
    let stalled = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut answers = Answers::new();
                for _ in 0..5 {
                    let called = Instant::now();
                    let error = producer.send(Message::new("t", vec![b'x'; 1 << 20])).unwrap_err();
                    assert!(called.elapsed() < MS * 1200 + SLACK, "{:?}", called.elapsed());
                    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Transport), "{error}");
                    answers.send(&producer, Message::new("t", "small"));
                }
                assert!(answers.all().iter().all(|answer| answer.after < MS * 1200 + SLACK));
            });
        }
    });
    eventually("a new connection", || network.accepted() > links);
    let replaced = stalled.elapsed();
    println!("101: a new connection after {replaced:?}");
    assert!(replaced < seconds(17) + SLACK, "{replaced:?}");
    network.resume(Direction::ToServer);
    eventually("a send succeeds", || producer.send(Message::new("t", "x")).is_ok());
    client.close().unwrap();
}

/// What Go's client did: a send waits for a dial that hangs, whatever its own timeout.
#[test]
fn sends_do_not_wait_for_a_dial_that_hangs() {
    let stage = Stage::new(1);
    let network = &stage.networks[0];
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(1)).start().unwrap();
    network.freeze();
    network.reset();
    for _ in 0..5 {
        let called = Instant::now();
        producer.send(Message::new("t", "x")).unwrap_err();
        assert!(called.elapsed() < seconds(1) + SLACK, "{:?}", called.elapsed());
    }
    network.thaw();
    eventually("a send succeeds", || producer.send(Message::new("t", "x")).is_ok());
    let overdue = client.stats().longest_overdue;
    assert!(overdue < Duration::from_secs(2), "{overdue:?}");
    client.close().unwrap();
}

/// Nothing is there from the beginning: the same.
#[test]
fn sends_to_a_name_without_a_server_are_answered_in_time() {
    let network = Network::start("127.0.0.1:1").unwrap();
    network.freeze();
    let client = Client::builder(network.address().to_string()).build().unwrap();
    let producer = client.producer().send_timeout(seconds(1)).start().unwrap();
    let mut answers = Answers::new();
    for _ in 0..20 {
        answers.send(&producer, Message::new("t", "x"));
    }
    for answer in answers.all() {
        let error = answer.result.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent), "{error}");
        assert!(answer.after < seconds(1) + SLACK, "{:?}", answer.after);
    }
    client.close().unwrap();
}
