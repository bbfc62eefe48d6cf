//! Reports about consumers.

use std::time::{Duration, Instant, SystemTime};

use threadmq::ErrorKind;
use threadmq::rocketmq::{Client, FilterExpression, Message, MessageType};
use threadmq::testkit::rocketmq::{Effect, Rpc};

use super::stage::{MS, SLACK, Stage, consumer, eventually, receive_some, seconds};

#[test]
fn n079_invisible_duration() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    client.producer().topic("t").start().unwrap().send(Message::new("t", "x")).unwrap();
    let (first, _) = receive_some(&consumer, seconds(1));
    // The work takes longer than the time that was asked for.
    std::thread::sleep(MS * 1500);
    let error = consumer.ack(&first[0]).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotFound, Some(40013)), "{error}");
    assert_eq!(stage.proxy.calls(0, Rpc::AckMessage), 1, "it can never succeed, so it is not tried again");
    let (again, _) = receive_some(&consumer, seconds(30));
    assert_eq!((again[0].message_id(), again[0].delivery_attempt()), (first[0].message_id(), 2));
    consumer.ack(&again[0]).unwrap();
    assert_eq!(consumer.receive(1, seconds(10)).unwrap(), []);
    client.close().unwrap();
}

#[test]
fn n081_ack_retry() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    for number in 1..=3 {
        producer.send(Message::new("t", number.to_string())).unwrap();
    }
    let mut found = Vec::new();
    while found.len() < 3 {
        found.extend(receive_some(&consumer, seconds(60)).0);
    }
    let calls = || stage.proxy.calls(0, Rpc::AckMessage);
    let ack = |effect: Effect, index: usize| {
        stage.proxy.on(Rpc::AckMessage).next(1).then(effect);
        consumer.ack(&found[index]).unwrap_err()
    };
    let error = ack(Effect::Status(40013, "over".to_owned()), 0);
    assert_eq!((error.code(), calls()), (Some(40013), 1), "{error}");
    for _ in 0..2 {
        let error = ack(Effect::Status(50001, "told to".to_owned()), 1);
        assert_eq!((error.kind(), error.code()), (ErrorKind::Broker, Some(50001)), "{error}");
    }
    consumer.ack(&found[1]).unwrap();
    assert_eq!(calls(), 4);
    let error = ack(Effect::Grpc(14, "told to".to_owned()), 2);
    assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
    // Meanwhile others are received.
    producer.send(Message::new("t", "4")).unwrap();
    assert_eq!(receive_some(&consumer, seconds(60)).0.len(), 1);
    consumer.ack(&found[2]).unwrap();
    // One that is never answered does not hold up close for longer than its limit.
    stage.proxy.on(Rpc::AckMessage).then(Effect::Lost);
    std::thread::scope(|scope| {
        let acknowledged = scope.spawn(|| consumer.ack(&found[0]));
        eventually("it is under way", || calls() == 7);
        let closing = Instant::now();
        let _ = client.close_within(seconds(1));
        assert!(closing.elapsed() < seconds(2) + SLACK, "{:?}", closing.elapsed());
        let error = acknowledged.join().unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::Timeout), "{error}");
    });
}

#[test]
fn n093_throttled_receives() {
    let stage = Stage::new(2);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    stage.proxy.on(Rpc::ReceiveMessage).at(0).then(Effect::Status(42900, "flow limit".to_owned()));
    let producer = client.producer().topic("t").start().unwrap();
    // Both endpoints get some; those of the other come.
    let called = Instant::now();
    for _ in 0..8 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    let (found, _) = receive_some(&consumer, seconds(60));
    assert!(!found.is_empty() && called.elapsed() < seconds(5) + SLACK);
    while !consumer.receive(32, seconds(60)).unwrap().is_empty() {}
    let at: Vec<Instant> = (stage.proxy.history().iter())
        .filter(|call| call.rpc == Rpc::ReceiveMessage && call.endpoint == 0)
        .map(|call| call.at)
        .collect();
    assert!(at.len() >= 2, "it is asked again");
    // The pause is 20 ms; two receives one after the other may each begin with a try.
    let most = called.elapsed().as_millis() / 15 + 2;
    assert!((at.len() as u128) < most, "{} polls in {:?}", at.len(), called.elapsed());
    stage.proxy.on(Rpc::ReceiveMessage).behave();
    let mut rest = found.len();
    while rest < 8 {
        rest += receive_some(&consumer, seconds(60)).0.len();
    }
    client.close().unwrap();
}

#[test]
fn n107_long_poll() {
    let stage = Stage::new(1);
    let client = Client::builder(stage.endpoints()).request_timeout(seconds(1)).build().unwrap();
    let consumer = consumer(&client, "g");
    stage.proxy.on(Rpc::ReceiveMessage).next(1).then(Effect::Late(MS * 300));
    let called = Instant::now();
    assert_eq!(consumer.receive(1, seconds(10)).unwrap(), [], "a little late is no error");
    let took = called.elapsed();
    assert!(took >= MS * 5200 && took < MS * 5300 + SLACK, "{took:?}");
    stage.proxy.on(Rpc::ReceiveMessage).then(Effect::Lost);
    let called = Instant::now();
    let error = consumer.receive(1, seconds(10)).unwrap_err();
    let took = called.elapsed();
    assert_eq!(error.kind(), ErrorKind::Timeout, "silence is one: {error}");
    assert!(took >= MS * 5900 && took < MS * 6300 + SLACK, "{took:?}");
    client.close().unwrap();
}

#[test]
fn n109_clock() {
    let stage = Stage::new(1);
    stage.proxy.create_topic("delayed", MessageType::Delay, 4);
    let client = stage.client();
    let producer = client.producer().topic("delayed").start().unwrap();
    let now = SystemTime::now();
    let times = [now + seconds(600), now + Duration::from_nanos(1_234_567_891), now - seconds(600)];
    for at in times {
        producer.send(Message::new("delayed", "x").deliver_at(at)).unwrap();
    }
    let before = SystemTime::now();
    producer.send(Message::new("delayed", "x").deliver_after(seconds(60))).unwrap();
    let after = SystemTime::now();
    let stored: Vec<SystemTime> =
        stage.proxy.stored("delayed").iter().map(|message| message.deliver_at.unwrap()).collect();
    assert_eq!(stored[..3], times, "exactly what was asked for");
    assert!(stored[3] >= before + seconds(60) && stored[3] <= after + seconds(60));
    client.close().unwrap();
}

/// Queues that leave the route and come back, with an error between. Subscribing again asks for the route at once;
/// left alone, it is asked for every 30 s.
#[test]
fn n111_route_change() {
    let stage = Stage::new(2);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    for _ in 0..8 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    let mut found = Vec::new();
    while found.len() < 8 {
        found.extend(receive_some(&consumer, seconds(60)).0);
    }
    producer.close().unwrap();
    let refresh = || {
        let asked = stage.proxy.calls(0, Rpc::QueryRoute);
        consumer.subscribe("t", FilterExpression::all()).unwrap();
        eventually("the route is asked for", || stage.proxy.calls(0, Rpc::QueryRoute) > asked);
        // What was polling before goes on to its end.
        assert_eq!(consumer.receive(1, seconds(10)).unwrap(), []);
    };
    let polls = || (stage.proxy.calls(0, Rpc::ReceiveMessage), stage.proxy.calls(1, Rpc::ReceiveMessage));
    stage.proxy.route_topic("t", 4, &[0]);
    refresh();
    eventually("its stream is closed", || stage.proxy.streams(1) == 0);
    let before = polls();
    assert_eq!(consumer.receive(1, seconds(10)).unwrap(), []);
    let after = polls();
    assert!(after.0 > before.0 && after.1 == before.1, "{before:?} {after:?}");
    // Messages of queues that left can still be acknowledged.
    let results = consumer.ack_batch(&found).unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    // An error keeps what is known.
    stage.proxy.on(Rpc::QueryRoute).then(Effect::Status(50001, "told to".to_owned()));
    refresh();
    let before = polls();
    assert_eq!(consumer.receive(1, seconds(10)).unwrap(), []);
    let after = polls();
    assert!(after.0 > before.0 && after.1 == before.1, "{before:?} {after:?}");
    stage.proxy.on(Rpc::QueryRoute).behave();
    stage.proxy.route_topic("t", 8, &[0, 1]);
    // The failure pauses routes for a second.
    std::thread::sleep(seconds(1));
    refresh();
    eventually("its stream is open", || stage.proxy.streams(1) == 1);
    let before = polls();
    assert_eq!(consumer.receive(1, seconds(10)).unwrap(), []);
    let after = polls();
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    // One loop each: a receive of 5 s is one poll of each endpoint.
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
    client.close().unwrap();
}

/// The same without help: the refresh comes by itself.
#[test]
fn n111_route_change_is_seen_by_itself() {
    let stage = Stage::new(2);
    stage.proxy.route_topic("t", 4, &[0]);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    assert_eq!((stage.proxy.streams(0), stage.proxy.streams(1)), (2, 0));
    stage.proxy.route_topic("t", 8, &[0, 1]);
    let seen = eventually("both open a stream", || stage.proxy.streams(1) == 2);
    println!("111: seen after {seen:?}");
    assert!(seen < seconds(30) + SLACK, "{seen:?}");
    eventually("sends go there", || {
        producer.send(Message::new("t", "x")).unwrap();
        stage.proxy.calls(1, Rpc::SendMessage) > 0
    });
    let before = stage.proxy.calls(1, Rpc::ReceiveMessage);
    receive_some(&consumer, seconds(60));
    eventually("receives go there", || stage.proxy.calls(1, Rpc::ReceiveMessage) > before);
    client.close().unwrap();
}

#[test]
fn n113_size_limit() {
    let stage = Stage::new(1);
    stage.proxy.max_body_size(80 << 20);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    let value = "v".repeat(120);
    let large = (0..120).fold(Message::new("t", vec![b'x'; 4 << 20]), |message, number| {
        message.property(format!("name{number:03}"), value.as_str())
    });
    producer.send(large).unwrap();
    producer.send(Message::new("t", vec![b'y'; 20 << 20])).unwrap();
    let mut sizes = Vec::new();
    while sizes.len() < 2 {
        for message in receive_some(&consumer, seconds(60)).0 {
            assert!(!message.is_corrupted());
            sizes.push(message.body().len());
        }
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [4 << 20, 20 << 20]);
    stage.proxy.create_topic("wide", MessageType::Normal, 20_000);
    client.producer().topic("wide").start().unwrap().send(Message::new("wide", "x")).unwrap();
    assert_eq!(client.stats().recoveries, 0);
    client.close().unwrap();
}
