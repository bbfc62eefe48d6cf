//! Nonsense in answer to Settings and routes; streams that end at each point; floods.

use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::rocketmq::{FilterExpression, Message};
use threadmq::testkit::rocketmq::{Effect, End, Rpc};

use super::proto::{Fields, endpoints, exponential, ok, publishing, queue, route, settings, span, status};
use super::{SLACK, Stage, apart, eventually, message};

/// How long a start may take: three request timeouts and the tolerance for a first answer.
const START: Duration = Duration::from_secs(6);

/// Settings that are answers, whatever they say.
fn strange_settings() -> Vec<(&'static str, Fields)> {
    let long = || span(i64::MAX, 999_999_999);
    let customized = |steps: Vec<Fields>| {
        let steps = steps.into_iter().fold(Fields::new(), |steps, step| steps.message(1, step));
        Fields::new().number(1, 3).message(3, steps)
    };
    vec![
        ("empty", Fields::new()),
        ("a subscription", Fields::new().message(6, Fields::new().number(3, 1).number(4, -5).message(5, long()))),
        ("an empty subscription", Fields::new().message(6, Fields::new())),
        ("a body size of 0", publishing(0)),
        ("a negative body size", publishing(-1)),
        ("the least body size", publishing(i64::from(i32::MIN))),
        ("the greatest body size", publishing(i64::from(i32::MAX))),
        ("pauses for ever", publishing(4096).message(3, exponential(long(), long(), 2.0))),
        ("pauses that grow without end", publishing(4096).message(3, exponential(span(1, 0), long(), f32::MAX))),
        ("pauses times no number", publishing(4096).message(3, exponential(span(1, 0), long(), f32::NAN))),
        ("pauses that shrink", publishing(4096).message(3, exponential(span(0, 1), span(0, 1), -9.0))),
        ("negative pauses", publishing(4096).message(3, exponential(span(-5, -5), span(-1, 0), 2.0))),
        (
            "nanoseconds out of range",
            publishing(4096).message(3, exponential(span(0, 2_000_000_000), span(1, -1), 2.0)),
        ),
        ("no steps", publishing(4096).message(3, customized(Vec::new()))),
        ("steps for ever", publishing(4096).message(3, customized(vec![long(), span(-1, 0)]))),
        ("a step for ever", publishing(4096).message(3, customized(vec![long()]))),
        ("absurd attempts", publishing(4096).message(3, Fields::new().number(1, i64::from(i32::MIN)))),
        ("a request timeout for ever", publishing(4096).message(4, long())),
        ("a negative request timeout", publishing(4096).message(4, span(-1, 0))),
        ("another client type", publishing(4096).number(1, 77)),
    ]
}

#[test]
fn strange_settings_are_answers() {
    let stage = Stage::new();
    for (name, strange) in strange_settings() {
        stage.proxy.on(Rpc::Telemetry).then(Effect::Bytes(settings(strange)));
        let called = Instant::now();
        let builder = stage.client.producer().topic("t").send_timeout(Duration::from_secs(2));
        let producer = builder.start().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(called.elapsed() < START + SLACK, "{name}: {:?}", called.elapsed());
        producer.send(message()).unwrap_or_else(|error| panic!("{name}: {error}"));
        // A throttled send pauses for as long as the settings say, and is answered in time all the same.
        stage.proxy.on(Rpc::SendMessage).next(1).then(Effect::Status(42900, "flow limit".to_owned()));
        let called = Instant::now();
        if let Err(error) = producer.send(message()) {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{name}: {error}");
        }
        assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{name}: {:?}", called.elapsed());
        producer.close().unwrap();
        let consumer = stage.client.simple_consumer("g").subscribe("t", FilterExpression::all()).start();
        consumer.unwrap_or_else(|error| panic!("{name}: {error}")).close().unwrap();
        stage.proxy.on(Rpc::Telemetry).behave();
    }
    stage.producer().send(message()).unwrap();
    stage.finish();
}

#[test]
fn start_fails_in_time_without_settings() {
    let bare = |command: Fields| Effect::Bytes(command.done());
    let refused: Vec<(&str, Effect, Option<i32>)> = vec![
        ("nothing", Effect::Lost, None),
        ("garbage", Effect::Bytes(vec![0xff; 50]), None),
        ("no bytes", Effect::Bytes(Vec::new()), None),
        ("no status", bare(Fields::new().message(2, publishing(4096))), None),
        ("a status alone", bare(Fields::new().message(1, ok())), None),
        ("another command", bare(Fields::new().message(1, ok()).message(6, Fields::new().bytes(1, "n"))), None),
        ("groups in groups", Effect::Bytes(vec![2 << 3 | 3; 1_000_000]), None),
        ("a refusal", bare(Fields::new().message(1, status(40_300)).message(2, publishing(4096))), Some(40_300)),
        ("no end but one before", Effect::Cut(0, End::Well), None),
        ("an error before", Effect::Cut(0, End::Grpc(14, "told to".to_owned())), None),
        ("no stream", Effect::Grpc(14, "told to".to_owned()), None),
        ("no permission for a stream", Effect::Grpc(7, "told to".to_owned()), None),
        ("no such call", Effect::Grpc(12, "told to".to_owned()), None),
    ];
    let mut refused = refused.into_iter().peekable();
    // A few at a time: they are to be slow for what they are told, not for want of a processor.
    while refused.peek().is_some() {
        let batch: Vec<_> = refused.by_ref().take(5).collect();
        std::thread::scope(|scope| {
            batch.into_iter().for_each(|(name, effect, code)| {
                scope.spawn(move || {
                    let stage = Stage::new();
                    stage.proxy.on(Rpc::Telemetry).then(effect);
                    let called = Instant::now();
                    let error = stage.client.producer().topic("t").start().unwrap_err();
                    assert!(called.elapsed() < START + SLACK, "{name}: {:?}", called.elapsed());
                    assert!(error.to_string().starts_with("start: "), "{name}: {error}");
                    assert_eq!(error.code(), code, "{name}: {error}");
                    let started = called.elapsed().as_secs();
                    let opened = stage.proxy.calls(0, Rpc::Telemetry);
                    assert!(opened <= started + 2, "{name}: opened {opened} times in {started} s");
                    // Without streams nobody speaks for the session any more.
                    eventually("nothing stays", || stage.proxy.streams(0) == 0);
                    println!("{name}: {error} (after {:?})", called.elapsed());
                    stage.proxy.on(Rpc::Telemetry).behave();
                    stage.producer().send(message()).unwrap_or_else(|error| panic!("after {name}: {error}"));
                    stage.finish();
                });
            })
        });
    }
}

/// As the server of other clients' tests does: each answer to Settings is the last frame.
#[test]
fn streams_that_end_after_each_answer_disturb_nothing() {
    for end in [End::Well, End::Grpc(14, "told to".to_owned()), End::Grpc(13, "told to".to_owned())] {
        let stage = Stage::new();
        stage.proxy.on(Rpc::Telemetry).then(Effect::Cut(1, end));
        let (producer, consumer) = (stage.producer(), stage.consumer());
        let started = Instant::now();
        let mut received = 0;
        while started.elapsed() < Duration::from_secs(4) {
            producer.send(message()).unwrap();
            received += consumer.receive(32, Duration::from_secs(60)).unwrap().len();
        }
        assert!(received > 0);
        let opened = stage.proxy.calls(0, Rpc::Telemetry);
        let most = 2 * (started.elapsed().as_secs() + 2);
        assert!((4..=most).contains(&opened), "opened {opened} times in {:?}", started.elapsed());
        assert_eq!(stage.client.stats().recoveries, 0);
        stage.finish();
    }
}

/// Routes that lead nowhere, by what an error has to say of them.
fn strange_routes() -> Vec<(&'static str, Vec<u8>)> {
    let at = |scheme, host: &str, port| queue("t", Some(endpoints(scheme, host, port)));
    let two = Fields::new().number(1, 1);
    let two = two.message(2, Fields::new().bytes(1, "127.0.0.1").number(2, 1));
    let two = two.message(2, Fields::new().bytes(1, "name.example").number(2, 1));
    vec![
        ("no queues", route([])),
        ("queues without a broker", route([Fields::new().message(1, Fields::new().bytes(2, "t"))])),
        ("a broker without endpoints", route([queue("t", None)])),
        ("endpoints without addresses", route([queue("t", Some(Fields::new().number(1, 1)))])),
        ("port 0", route([at(1, "127.0.0.1", 0)])),
        ("port 65536", route([at(1, "127.0.0.1", 65_536)])),
        ("a negative port", route([at(1, "127.0.0.1", -1)])),
        ("an empty host", route([at(1, "", 8081)])),
        ("a host that is none", route([at(3, "two words\n", 8081)])),
        ("a host without end", route([at(3, &"a.".repeat(50_000), 8081)])),
        ("addresses of two kinds", route([queue("t", Some(two))])),
        ("garbage", vec![0xff; 50]),
        ("no status", Fields::new().message(2, at(1, "127.0.0.1", 8081)).done()),
    ]
}

#[test]
fn strange_routes_are_errors_at_start_and_keep_what_is_known_later() {
    let stage = Stage::new();
    let producer = stage.producer();
    for (name, strange) in strange_routes() {
        stage.proxy.on(Rpc::QueryRoute).then(Effect::Bytes(strange));
        let called = Instant::now();
        let error = stage.client.producer().topic("t").start().unwrap_err();
        assert!(called.elapsed() < START + SLACK, "{name}: {:?}", called.elapsed());
        let shown = error.to_string();
        assert!(shown.contains("route of t") && shown.len() < 2000, "{name}: {shown}");
        assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::NotFound), "{name}: {error}");
        producer.send(message()).unwrap_or_else(|error| panic!("{name}: {error}"));
        // A topic of which nothing is known.
        let undeclared = stage.client.producer().send_timeout(Duration::from_secs(1)).start().unwrap();
        let called = Instant::now();
        let error = undeclared.send(Message::new("t", "x")).unwrap_err();
        assert!(called.elapsed() < Duration::from_secs(1) + SLACK, "{name}: {:?}", called.elapsed());
        assert!(error.to_string().contains("t"), "{name}: {error}");
        stage.proxy.on(Rpc::QueryRoute).behave();
    }
    stage.producer().send(message()).unwrap();
    stage.finish();
}

#[test]
fn routes_that_lead_nowhere_are_told_in_time() {
    let stage = Stage::new();
    for (name, host, port) in [("a closed port", "127.0.0.1", 1), ("no such name", "no-such-host.invalid", 8081)] {
        let scheme = if port == 1 { 1 } else { 3 };
        let strange = route([queue("t", Some(endpoints(scheme, host, port)))]);
        stage.proxy.on(Rpc::QueryRoute).then(Effect::Bytes(strange));
        let error = stage.client.producer().topic("t").start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{name}: {error}");
        let producer = stage.client.producer().send_timeout(Duration::from_secs(2)).start().unwrap();
        let called = Instant::now();
        let error = producer.send(message()).unwrap_err();
        assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{name}: {:?}", called.elapsed());
        // A call that was made before the connection failed may have left, for all that is known.
        println!("{name}: {error}, {:?}", error.delivery());
        stage.proxy.on(Rpc::QueryRoute).behave();
    }
    stage.finish();
}

/// Queues that cannot be written or read, of unknown kinds, of replicas: nothing to send to.
#[test]
fn queues_that_take_nothing() {
    let stage = Stage::new();
    let port = i64::from(stage.proxy.addr(0).port());
    let own = || Some(endpoints(1, "127.0.0.1", port));
    let topic = || Fields::new().message(1, Fields::new().bytes(2, "t"));
    let broker = |id: i64| Fields::new().bytes(1, "b").number(2, id).message(3, own().unwrap());
    for (name, one) in [
        ("permission for nothing", topic().number(3, 1).message(4, broker(0)).number(5, 1)),
        ("permission to read", topic().number(3, 2).message(4, broker(0)).number(5, 1)),
        ("an unknown permission", topic().number(3, 99).message(4, broker(0)).number(5, 1)),
        ("a replica", topic().number(3, 4).message(4, broker(1)).number(5, 1)),
        ("a negative broker id", topic().number(3, 4).message(4, broker(-1)).number(5, 1)),
    ] {
        stage.proxy.on(Rpc::QueryRoute).then(Effect::Bytes(route([one])));
        let builder = stage.client.producer().topic("t").send_timeout(Duration::from_secs(1));
        let producer = builder.start().unwrap_or_else(|error| panic!("{name}: {error}"));
        let error = producer.send(message()).unwrap_err();
        assert!(error.to_string().contains("t"), "{name}: {error}");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{name}: {error}");
        stage.proxy.on(Rpc::QueryRoute).behave();
    }
    // Kinds of messages that this build does not know, or none: the server has the last word.
    let unknown = topic().number(3, 4).message(4, broker(0));
    for (name, one) in [("no kinds", unknown.clone()), ("kind 0", unknown.number(5, 0))] {
        stage.proxy.on(Rpc::QueryRoute).then(Effect::Bytes(route([one])));
        let producer = stage.client.producer().topic("t").send_timeout(Duration::from_secs(1)).start().unwrap();
        let sent = producer.send(message());
        println!("{name}: {sent:?}");
        stage.proxy.on(Rpc::QueryRoute).behave();
    }
    stage.finish();
}

#[test]
fn a_flood_of_commands_is_borne() {
    apart("hostile::sessions::a_flood_of_commands_is_borne", 128 * 1024, || {
        let stage = Stage::new();
        let producer = stage.producer();
        eventually("a stream", || stage.proxy.streams(0) == 1);
        for _ in 0..20_000 {
            stage.proxy.command(0, Vec::new());
            stage.proxy.command(0, vec![0xff; 30]);
            stage.proxy.command(0, Fields::new().message(7, Fields::new().bytes(1, "n")).done());
            stage.proxy.command(0, Fields::new().message(1, ok()).message(2, publishing(4096)).done());
        }
        for _ in 0..100 {
            stage.proxy.ask_threads(0);
        }
        eventually("a send succeeds", || producer.send(message()).is_ok());
        eventually("the last command is answered", || stage.proxy.thread_traces().len() == 100);
        eventually("a send succeeds", || producer.send(message()).is_ok());
        stage.finish();
    });
}

/// A server that asks for a new connection on each stream it gets.
#[test]
fn commands_to_reconnect_again_and_again() {
    let stage = Stage::new();
    let reconnect = Fields::new().message(8, Fields::new().bytes(1, "n")).done();
    let answer = vec![settings(publishing(4096)), reconnect.clone(), reconnect];
    let producer = stage.producer();
    stage.proxy.on(Rpc::Telemetry).next(20).then(Effect::Frames(answer, End::Never));
    stage.proxy.ask_reconnect(0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        let called = Instant::now();
        let _ = producer.send(message());
        assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", called.elapsed());
    }
    eventually("sends go on", || producer.send(message()).is_ok());
    println!("{} recoveries", stage.client.stats().recoveries);
    stage.finish();
}
