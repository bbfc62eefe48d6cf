//! Nonsense in answer to receives, acknowledgements and changes of the invisible duration.

use std::io::Write;
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::rocketmq::MessageView;
use threadmq::testkit::rocketmq::{Effect, End, Rpc};

use super::proto::{Fields, message_frame, ok, properties, span, status, status_frame, time_frame};
use super::{SLACK, Stage, apart, ends, eventually, message};

const INVISIBLE: Duration = Duration::from_secs(60);
/// How long a receive may take: the await duration and the request timeout.
const RECEIVE: Duration = Duration::from_secs(6);

/// What a receive gives for these frames, asked for up to 4.
fn received(stage: &Stage, frames: Vec<Vec<u8>>, end: End) -> Result<Vec<MessageView>, threadmq::Error> {
    let consumer = stage.consumer();
    stage.proxy.on(Rpc::ReceiveMessage).next(1).then(Effect::Frames(frames, end));
    let called = Instant::now();
    let result = consumer.receive(4, INVISIBLE);
    assert!(called.elapsed() < RECEIVE + SLACK, "{:?}", called.elapsed());
    consumer.close().unwrap();
    stage.proxy.on(Rpc::ReceiveMessage).behave();
    result
}

#[test]
fn frames_in_any_order_and_number() {
    let one = || message_frame(properties("1"), "body");
    let garbage = || vec![0xff; 30];
    let cases: Vec<(&str, Vec<Vec<u8>>, usize)> = vec![
        ("status last", vec![one(), time_frame(), status_frame(20_000)], 1),
        ("a message alone", vec![one()], 1),
        ("two statuses", vec![status_frame(20_000), status_frame(40_401), one()], 1),
        ("an error after a message", vec![status_frame(20_000), one(), status_frame(50_001)], 1),
        ("times only", vec![time_frame(), time_frame(), one()], 1),
        ("an unknown kind", vec![Fields::new().message(9, ok()).done(), one()], 1),
        ("an empty frame", vec![Vec::new(), status_frame(20_000), one()], 1),
        ("a frame that cannot be read", vec![garbage(), status_frame(20_000), one()], 1),
        ("a message that cannot be read", vec![vec![0x12, 1, 0xff], status_frame(20_000), one()], 1),
        ("groups in groups", vec![vec![2 << 3 | 3; 500_000], one()], 1),
        ("one message twice", vec![status_frame(20_000), one(), one()], 2),
    ];
    std::thread::scope(|scope| {
        for (name, frames, count) in cases {
            scope.spawn(move || {
                let stage = Stage::new();
                for end in [End::Well, End::Grpc(14, "told to".to_owned())] {
                    let found = received(&stage, frames.clone(), end.clone());
                    let found = found.unwrap_or_else(|error| panic!("{name}, {end:?}: {error}"));
                    assert_eq!(found.len(), count, "{name}, {end:?}");
                    assert_eq!(found[0].body(), "body", "{name}");
                }
                stage.finish();
            });
        }
    });
}

/// No message, and no status that says that there is none.
#[test]
fn receives_without_an_answer_are_errors_or_empty() {
    let cases: Vec<(&str, Vec<Vec<u8>>, End)> = vec![
        ("an unknown status", vec![status_frame(39_999)], End::Well),
        ("a status that is none", vec![status_frame(0)], End::Well),
        ("a refusal", vec![status_frame(40_300)], End::Well),
        ("garbage", vec![vec![0xff; 30]], End::Well),
        ("garbage without end", vec![vec![0xff; 30]], End::Never),
        ("messages of garbage", vec![vec![0x12, 1, 0xff]; 4], End::Well),
        ("messages of garbage without end", vec![vec![0x12, 1, 0xff]; 4], End::Never),
        ("no frames", Vec::new(), End::Well),
        ("no frames, an error", Vec::new(), End::Grpc(13, "told to".to_owned())),
        ("no frames, no end", Vec::new(), End::Never),
        ("times without end", vec![time_frame(); 100], End::Never),
        ("nothing found, no end", vec![status_frame(40_401)], End::Never),
    ];
    std::thread::scope(|scope| {
        for (name, frames, end) in cases {
            scope.spawn(move || {
                let stage = Stage::new();
                let consumer = stage.consumer();
                stage.proxy.on(Rpc::ReceiveMessage).then(Effect::Frames(frames, end));
                let called = Instant::now();
                match consumer.receive(4, INVISIBLE) {
                    Ok(found) => assert!(found.is_empty(), "{name}: {found:?}"),
                    Err(error) => assert!(error.to_string().starts_with("receive"), "{name}: {error}"),
                }
                assert!(called.elapsed() < RECEIVE + SLACK, "{name}: {:?}", called.elapsed());
                let polls = stage.proxy.calls(0, Rpc::ReceiveMessage);
                assert!(polls <= 8, "{name}: {polls} polls in {:?}", called.elapsed());
                stage.proxy.on(Rpc::ReceiveMessage).behave();
                stage.producer().send(message()).unwrap();
                let mut found = Vec::new();
                eventually("a message comes", || {
                    found = consumer.receive(4, INVISIBLE).unwrap_or_default();
                    !found.is_empty()
                });
                consumer.ack(&found[0]).unwrap();
                stage.finish();
            });
        }
    });
}

/// The stream of a receive ends at each point: nothing is lost, because what was not received comes again.
#[test]
fn receives_that_are_cut_at_each_point() {
    for end in ends() {
        let stage = Stage::new();
        let (producer, consumer) = (stage.producer(), stage.consumer());
        for number in 0..8 {
            producer.send(threadmq::rocketmq::Message::new("t", number.to_string())).unwrap();
        }
        let mut bodies = std::collections::BTreeSet::new();
        let mut take = |after: Option<usize>| {
            if let Some(after) = after {
                stage.proxy.on(Rpc::ReceiveMessage).next(1).then(Effect::Cut(after, end.clone()));
            }
            let called = Instant::now();
            for message in consumer.receive(4, Duration::from_secs(2)).unwrap_or_default() {
                if consumer.ack(&message).is_ok() {
                    bodies.insert(message.body().clone());
                }
            }
            assert!(called.elapsed() < RECEIVE + SLACK, "{:?}", called.elapsed());
            bodies.len()
        };
        // Those that never end take their whole time.
        let step = if end == End::Never { 3 } else { 1 };
        for after in (0..=6).step_by(step) {
            take(Some(after));
        }
        eventually("all come", || take(None) == 8);
        stage.finish();
    }
}

#[test]
fn strange_messages_are_given_as_they_are() {
    let stage = Stage::new();
    let consumer = stage.consumer();
    let digest = |kind: i64, sum: &str| properties("1").message(4, Fields::new().number(1, kind).bytes(2, sum));
    let (long_ago, far) = (|| span(i64::MIN, -1), || span(i64::MAX, i64::from(i32::MAX)));
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("no properties", message_frame(Fields::new(), "body"), false),
        ("no id", message_frame(Fields::new().bytes(12, "handle"), "body"), false),
        ("no topic", Fields::new().message(2, Fields::new().bytes(4, "body")).done(), false),
        ("no contents", Fields::new().message(2, Fields::new()).done(), false),
        ("a wrong CRC32", message_frame(digest(1, "00000000"), "body"), true),
        ("a wrong MD5", message_frame(digest(2, "00"), "body"), true),
        ("a wrong SHA1", message_frame(digest(3, ""), "body"), true),
        ("an unknown digest", message_frame(digest(99, "00"), "body"), false),
        ("a digest without end", message_frame(digest(2, &"0".repeat(1_000_000)), "body"), true),
        ("an unknown encoding", message_frame(properties("1").number(5, 77), "body"), true),
        ("GZIP that is none", message_frame(properties("1").number(5, 2), "body"), true),
        ("GZIP that is cut", message_frame(properties("1").number(5, 2), [0x1f, 0x8b, 8, 0]), true),
        ("attempts below 0", message_frame(properties("1").number(16, -7), "body"), false),
        ("an absurd queue", message_frame(properties("1").number(13, -1).number(14, i64::MIN), "body"), false),
        (
            "absurd times",
            message_frame(properties("1").message(7, long_ago()).message(9, long_ago()).message(11, far()), "body"),
            false,
        ),
        ("an unknown type", message_frame(properties("1").number(6, 1234), "body"), false),
    ];
    for (name, frame, corrupted) in cases {
        let frames = vec![status_frame(20_000), frame];
        stage.proxy.on(Rpc::ReceiveMessage).next(1).then(Effect::Frames(frames, End::Well));
        let found = consumer.receive(4, INVISIBLE).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].is_corrupted(), corrupted, "{name}");
        let message = &found[0];
        println!("{name}: {message:?} {:?} {:?} {:?}", message.born_at(), message.stored_at(), message.deliver_at());
        // Nobody knows its handle, or there is none: an error, in time.
        let called = Instant::now();
        let error = consumer.ack(message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}: {error}");
        consumer.change_invisible_duration(message, INVISIBLE).unwrap_err();
        assert!(called.elapsed() < SLACK, "{name}: {:?}", called.elapsed());
    }
    stage.finish();
}

/// More than asked for: what was asked for is given, the rest is left to come again.
#[test]
fn more_messages_than_asked_for() {
    apart("hostile::receives::more_messages_than_asked_for", 300 * 1024, || {
        let stage = Stage::new();
        let mut frames = vec![status_frame(20_000)];
        frames.extend((0..30_000).map(|number| message_frame(properties(&number.to_string()), [b'x'; 1024])));
        for end in ends() {
            let found = received(&stage, frames.clone(), end).unwrap();
            assert_eq!(found.len(), 4);
        }
        stage.finish();
    });
}

fn bombs() -> [(&'static str, Vec<u8>); 3] {
    // 2 GiB of nothing.
    let (block, blocks) = (vec![0; 1 << 20], 2048);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let mut zstd = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..blocks {
        gzip.write_all(&block).unwrap();
        zlib.write_all(&block).unwrap();
        zstd.write_all(&block).unwrap();
    }
    [("gzip", gzip.finish().unwrap()), ("zlib", zlib.finish().unwrap()), ("zstd", zstd.finish().unwrap())]
}

#[test]
fn bodies_that_unpack_to_gigabytes_are_left_packed() {
    // Bodies are unpacked up to 128 MiB, in a buffer that doubles.
    apart("hostile::receives::bodies_that_unpack_to_gigabytes_are_left_packed", 360 * 1024, || {
        let stage = Stage::new();
        for (codec, bomb) in bombs() {
            let packed = message_frame(properties(codec).number(5, 2), &bomb);
            let found = received(&stage, vec![status_frame(20_000), packed], End::Well).unwrap();
            assert_eq!(found.len(), 1, "{codec}");
            assert!(found[0].is_corrupted(), "{codec}");
            assert_eq!(found[0].body(), &bomb, "{codec}");
        }
        stage.finish();
    });
}

#[test]
fn acknowledgements_that_are_answered_with_nonsense() {
    let stage = Stage::new();
    let (producer, consumer) = (stage.producer(), stage.consumer());
    for _ in 0..3 {
        producer.send(message()).unwrap();
    }
    let mut found = Vec::new();
    eventually("three messages", || {
        found.extend(consumer.receive(4, Duration::from_secs(600)).unwrap());
        found.len() == 3
    });
    let entry = |handle: &str, code: i64| Fields::new().bytes(2, handle).message(3, status(code));
    let answer = |code: i64| Fields::new().message(1, status(code));
    let cases: Vec<(&str, Effect)> = vec![
        ("nothing", Effect::Bytes(Vec::new())),
        ("garbage", Effect::Bytes(vec![0xff; 30])),
        ("no status", Effect::Bytes(Fields::new().message(9, ok()).done())),
        ("an unknown status", Effect::Status(39_999, "told to".to_owned())),
        ("several results, but none", Effect::Bytes(answer(30_000).done())),
        ("results of others", Effect::Bytes(answer(30_000).message(2, entry("another", 20_000)).done())),
        ("an end without an answer", Effect::Frames(Vec::new(), End::Well)),
        ("never", Effect::Lost),
        ("UNAVAILABLE", Effect::Grpc(14, "told to".to_owned())),
    ];
    for (name, effect) in cases {
        stage.proxy.on(Rpc::AckMessage).next(1).then(effect.clone());
        stage.proxy.on(Rpc::ChangeInvisibleDuration).next(1).then(effect);
        let called = Instant::now();
        let results = consumer.ack_batch(&found).unwrap();
        assert_eq!(results.len(), 3, "{name}");
        assert!(results.iter().all(Result::is_err), "{name}: {results:?}");
        let error = consumer.change_invisible_duration(&found[0], INVISIBLE).unwrap_err();
        assert!(error.to_string().contains("invisible") || error.kind() == ErrorKind::Timeout, "{name}: {error}");
        assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{name}: {:?}", called.elapsed());
    }
    let results = consumer.ack_batch(&found).unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    stage.finish();
}

/// Carried out, and the answer lost.
#[test]
fn an_acknowledgement_without_an_answer_is_in_doubt() {
    let stage = Stage::new();
    let consumer = stage.consumer();
    stage.producer().send(message()).unwrap();
    let mut found = Vec::new();
    eventually("the message", || {
        found = consumer.receive(1, Duration::from_secs(600)).unwrap();
        !found.is_empty()
    });
    stage.proxy.on(Rpc::AckMessage).next(1).then(Effect::Lost);
    let error = consumer.ack(&found[0]).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, threadmq::Delivery::Unknown), "{error}");
    assert!(error.to_string().starts_with("acknowledge"), "{error}");
    stage.finish();
}

/// Receives that do not block are limited, and hold nobody else up.
#[test]
fn receives_by_the_thousand_do_not_hold_up_a_send() {
    let stage = Stage::new();
    let (producer, consumer) = (stage.producer(), stage.consumer());
    stage.proxy.on(Rpc::SendMessage).then(Effect::Lost);
    let (tell, told) = std::sync::mpsc::channel();
    let called = Instant::now();
    // 2 s for it.
    let pending = producer.submit(message()).unwrap();
    for _ in 0..15_000 {
        let tell = tell.clone();
        let callback = move |result: Result<Vec<_>, threadmq::Error>| {
            let _ = tell.send(result.err().map(|error| error.kind()));
        };
        consumer.receive_with(1, INVISIBLE, callback).unwrap();
    }
    pending.wait().unwrap_err();
    assert!(called.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", called.elapsed());
    let refused = told.iter().take(15_000).filter(|kind| *kind == Some(ErrorKind::WouldBlock)).count();
    assert_eq!(refused, 15_000 - 1_024);
    stage.finish();
}
