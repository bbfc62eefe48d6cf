//! Reports about starting, telemetry and closing.

use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::rocketmq::{Client, Message};
use threadmq::testkit::rocketmq::{Effect, Rpc};

use super::stage::{MS, SLACK, Stage, consumer, eventually, receive_some, seconds};

/// The proxy comes back without memory on its old port: heartbeats and receives fail until it has the settings.
#[test]
fn n071_session_after_restart() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    let settings = stage.proxy.settings(0);
    stage.kill(0);
    stage.proxy.forget_settings();
    std::thread::sleep(seconds(3));
    stage.revive(0);
    let back = Instant::now();
    let connected = stage.networks[0].accepted();
    eventually("a new connection", || stage.networks[0].accepted() > connected);
    // One of the producer, one of the consumer.
    let told = eventually("settings of both", || stage.proxy.settings(0) >= settings + 2);
    producer.send(Message::new("t", "after")).unwrap();
    let (found, failures) = receive_some(&consumer, seconds(10));
    println!("071: settings {told:?} after the connection, received {:?} after the restart", back.elapsed());
    assert_eq!(found.len(), 1);
    assert!(told < seconds(2) + SLACK, "{told:?}");
    assert!(failures <= 10, "{failures} receives failed");
    assert_eq!(stage.proxy.streams_without_settings(), 0);
    client.close().unwrap();
}

#[test]
fn n073_startup_partial() {
    let stage = Stage::new(2);
    stage.networks[1].refuse();
    let client = Client::builder(stage.endpoints()).build().unwrap();
    let called = Instant::now();
    let producer = client.producer().topic("t").start().unwrap();
    let _consumer = consumer(&client, "g");
    println!("073: started after {:?}", called.elapsed());
    assert!(called.elapsed() < seconds(3) + SLACK, "{:?}", called.elapsed());
    for _ in 0..10 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    assert_eq!(stage.proxy.calls(1, Rpc::SendMessage), 0);
    stage.revive(1);
    eventually("telemetry of both", || stage.proxy.settings(1) >= 2);
    eventually("traffic", || {
        producer.send(Message::new("t", "x")).unwrap();
        stage.proxy.calls(1, Rpc::SendMessage) > 0
    });
    client.close().unwrap();
}

/// The first of the access points is the dead one.
#[test]
fn n073_startup_with_the_first_one_dead() {
    let stage = Stage::new(2);
    stage.networks[0].refuse();
    let client = Client::builder(stage.endpoints()).build().unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    for _ in 0..10 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    client.close().unwrap();
}

#[test]
fn n073_startup_with_nothing_there() {
    let stage = Stage::new(2);
    stage.networks.iter().for_each(|network| network.refuse());
    let client = Client::builder(stage.endpoints()).request_timeout(seconds(1)).build().unwrap();
    let called = Instant::now();
    let error = client.producer().topic("t").start().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Transport | ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
    assert!(called.elapsed() < MS * 5200 + SLACK, "{:?}", called.elapsed());
    stage.revive(0);
    stage.revive(1);
    let started = eventually("a later start works", || client.producer().topic("t").start().is_ok());
    println!("073: a later start works after {started:?}");
    client.close().unwrap();
}

/// A `TelemetryCommand` with this message, of a `nonce` alone, in this field.
fn command(field: u8) -> Vec<u8> {
    vec![field << 3 | 2, 3, 1 << 3 | 2, 1, b'n']
}

#[test]
fn n075_bad_server_input() {
    let stage = Stage::new(1);
    stage.proxy.max_body_size(1000);
    let client = stage.client();
    let producer = client.producer().topic("t").start().unwrap();
    let _consumer = consumer(&client, "g");
    eventually("both streams", || stage.proxy.streams(0) == 2);
    let settings = stage.proxy.settings(0);
    let unknown_field = vec![15 << 3 | 2, 1, 0];
    let truncated = vec![2 << 3 | 2, 200, 1];
    let no_kind_of_settings = vec![2 << 3 | 2, 0];
    for nonsense in [Vec::new(), unknown_field, truncated, no_kind_of_settings, vec![0xff; 100]] {
        stage.proxy.command(0, nonsense);
    }
    // An orphaned transaction, a message to verify, a lite subscription's end: not for these.
    for field in [5, 7, 9] {
        stage.proxy.command(0, command(field));
    }
    stage.proxy.ask_threads(0);
    eventually("both tell of their threads", || stage.proxy.thread_traces().len() == 2);
    // Field 4 is the result of a verification; its status says that this is not for them.
    let replies = stage.proxy.replies();
    let verified: Vec<_> =
        replies.iter().filter(|reply| contains(reply, &[4 << 3 | 2, 3, 1 << 3 | 2, 1, b'n'])).collect();
    assert_eq!(verified.len(), 2, "{replies:?}");
    assert_eq!((stage.proxy.streams(0), stage.proxy.settings(0)), (2, settings), "the streams live");
    let refused = producer.send(Message::new("t", vec![0; 1001])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge, "the settings are in force: {refused}");
    producer.send(Message::new("t", "x")).unwrap();
    let links = stage.networks[0].accepted();
    stage.proxy.ask_reconnect(0);
    eventually("a new link", || stage.networks[0].accepted() > links);
    producer.send(Message::new("t", "x")).unwrap();
    client.close().unwrap();
}

fn contains(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

#[test]
fn n077_no_receive_before_settings() {
    let stage = Stage::new(1);
    stage.proxy.on(Rpc::Telemetry).then(Effect::Late(MS * 500));
    let client = stage.client();
    let called = Instant::now();
    let consumer = consumer(&client, "g");
    let started = Instant::now();
    assert!(started - called >= MS * 490, "start did not wait for the settings: {:?}", started - called);
    let _ = consumer.receive(1, seconds(10)).unwrap();
    let early = |call: &&threadmq::testkit::rocketmq::Arrival| call.rpc == Rpc::ReceiveMessage && call.at < started;
    assert_eq!(stage.proxy.history().iter().filter(early).count(), 0);
    client.close().unwrap();
}

#[test]
fn n085_shutdown_wait() {
    let stage = Stage::new(1);
    let client = stage.client();
    let consumer = consumer(&client, "g");
    let producer = client.producer().topic("t").start().unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    let (found, _) = receive_some(&consumer, seconds(30));
    stage.proxy.on(Rpc::AckMessage).then(Effect::Late(MS * 1500));
    std::thread::scope(|scope| {
        let acknowledged = scope.spawn(|| consumer.ack(&found[0]));
        eventually("the acknowledgement is under way", || stage.proxy.calls(0, Rpc::AckMessage) == 1);
        let closing = Instant::now();
        client.close_within(seconds(20)).unwrap();
        assert!(closing.elapsed() < seconds(2) + SLACK, "{:?}", closing.elapsed());
        acknowledged.join().unwrap().unwrap();
        let history = stage.proxy.history();
        let late = history.iter().filter(|call| call.rpc == Rpc::ReceiveMessage && call.at > closing).count();
        assert_eq!(late, 0, "receives after the close began");
        // The consumer's farewell comes after its acknowledgement was answered.
        let acked = history.iter().find(|call| call.rpc == Rpc::AckMessage).unwrap().at;
        let farewells: Vec<_> = history.iter().filter(|call| call.rpc == Rpc::NotifyClientTermination).collect();
        assert_eq!(farewells.len(), 2, "one each");
        assert!(farewells.iter().any(|call| call.at - acked >= MS * 1400), "{farewells:?}");
    });
}

/// Handles and clients that go at any moment; answers that come later find nobody.
#[test]
fn n089_teardown() {
    let stage = Stage::new(1);
    stage.proxy.on(Rpc::QueryRoute).every(2).then(Effect::Late(MS * 300));
    let filler = stage.client();
    let feeding = filler.producer().topic("t").start().unwrap();
    for round in 0_u64..60 {
        let client = stage.client();
        let pause = Duration::from_micros((round * 7919) % 40_000);
        let called = Instant::now();
        if round % 3 == 0 {
            // Half started.
            std::thread::scope(|scope| {
                let starting = scope.spawn(|| client.producer().topic("t").start());
                std::thread::sleep(pause);
                client.close().unwrap();
                if let Err(error) = starting.join().unwrap() {
                    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                }
            });
        } else if round % 3 == 1 {
            // Running, with messages on their way and others coming.
            let producer = client.producer().start().unwrap();
            for _ in 0..20 {
                producer.send_with(Message::new("t", "x"), |_| ()).unwrap();
                feeding.send_with(Message::new("t", "y"), |_| ()).unwrap();
            }
            std::thread::sleep(pause);
            drop((client, producer));
        } else {
            let consumer = consumer(&client, "g");
            consumer.receive_with(32, seconds(10), |_| ()).unwrap();
            std::thread::sleep(pause);
            std::thread::scope(|scope| {
                scope.spawn(|| drop(consumer));
            });
            drop(client);
        }
        assert!(called.elapsed() < seconds(1) + SLACK, "{:?}", called.elapsed());
    }
    stage.proxy.on(Rpc::QueryRoute).behave();
    eventually("all have left", || stage.proxy.streams(0) == 1);
    feeding.flush().unwrap();
    filler.close().unwrap();
}
