//! The client's memory limit, and messages that are too large.

use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Compression, Producer};
use threadmq::testkit::pulsar::{Broker, EventKind, ServerError};
use threadmq::{Delivery, ErrorKind};

use super::answers::{Answers, PATIENCE, close_by, eventually};

const KIB: usize = 1024;
/// One producer takes at most half of it.
const LIMIT: usize = 1024 * KIB;
/// With the fixed charge, eight of them fill a producer's half.
const BODY: usize = LIMIT / 16 - 256;

/// Two producers take the whole limit without waiting, and nothing beyond.
fn takes_the_whole_limit(broker: &Broker, client: &Client, producers: &[Producer; 2]) {
    eventually("the memory is back", || client.stats().memory_used == 0);
    broker.hold_receipts("t");
    let mut pending = Vec::new();
    for producer in producers {
        for _ in 0..8 {
            pending.push(producer.try_submit(vec![b'm'; BODY]).unwrap());
        }
        assert_eq!(producer.try_submit(vec![b'm'; BODY]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    assert_eq!(client.stats().memory_used, LIMIT);
    broker.release_receipts("t");
    for mut one in pending {
        // Their receipts may have been sent before they were written.
        one.wait_timeout(PATIENCE).expect("an answer").unwrap();
    }
    eventually("the memory is back", || client.stats().memory_used == 0);
}

/// Field report 027.
#[test]
fn every_way_out_gives_memory_back() {
    let broker = Broker::builder().max_message_size(256 * KIB).start().unwrap();
    let client = Client::builder(broker.service_url()).memory_limit(Some(LIMIT)).build().unwrap();
    let create = || client.producer("t").batching(false).create().unwrap();
    let producers = [create(), create()];
    let hasty = client.producer("t").batching(false).send_timeout(Some(Duration::from_secs(1))).create().unwrap();
    takes_the_whole_limit(&broker, &client, &producers);

    // Refused.
    for _ in 0..4 {
        broker.answer_send_with("t", 1, ServerError::NOT_ALLOWED);
        let error = producers[0].send(vec![b'r'; BODY]).unwrap_err();
        assert_eq!(error.delivery(), Delivery::Refused);
    }
    takes_the_whole_limit(&broker, &client, &producers);

    // Timed out, written and not.
    broker.hold_receipts("t");
    let answers = Answers::default();
    for number in 0..4 {
        hasty.send_with(vec![b't'; BODY], answers.callback(number)).unwrap();
    }
    assert!(answers.wait(4).iter().all(|answer| answer.kind() == Some(ErrorKind::Timeout)));
    broker.release_receipts("t");
    takes_the_whole_limit(&broker, &client, &producers);
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();
    for number in 4..8 {
        hasty.send_with(vec![b't'; BODY], answers.callback(number)).unwrap();
    }
    assert!(answers.wait(8).iter().all(|answer| answer.kind() == Some(ErrorKind::Timeout)));
    broker.refuse_connections(false).unwrap();
    takes_the_whole_limit(&broker, &client, &producers);

    // Stored.
    for producer in &producers {
        producer.send(vec![b's'; BODY]).unwrap();
    }
    takes_the_whole_limit(&broker, &client, &producers);

    // Resent.
    broker.hold_receipts("t");
    let sends = broker.sends();
    let pending: Vec<_> = (0..4).map(|_| producers[0].submit(vec![b'l'; BODY]).unwrap()).collect();
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == sends + 4));
    broker.reset_connections();
    broker.release_receipts("t");
    for one in pending {
        one.wait().unwrap();
    }
    takes_the_whole_limit(&broker, &client, &producers);

    // Too large.
    assert_eq!(producers[0].send(vec![b'x'; 300 * KIB]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(producers[0].send(vec![b'x'; 2 * LIMIT]).unwrap_err().kind(), ErrorKind::TooLarge);
    takes_the_whole_limit(&broker, &client, &producers);

    // Closed.
    broker.hold_receipts("t");
    let pending: Vec<_> = (0..4).map(|_| hasty.submit(vec![b'c'; BODY]).unwrap()).collect();
    close_by(Duration::from_millis(300), |limit| hasty.close_within(limit));
    for one in pending {
        assert_eq!(one.wait().unwrap_err().kind(), ErrorKind::Closed);
    }
    broker.release_receipts("t");
    takes_the_whole_limit(&broker, &client, &producers);
    client.close().unwrap();
}

/// Field report 027: who waits for memory is woken by what comes back.
#[test]
fn a_sender_that_waits_for_memory_wakes() {
    let broker = Broker::start().unwrap();
    let client = Client::builder(broker.service_url()).memory_limit(Some(LIMIT)).build().unwrap();
    let create = || client.producer("t").batching(false).create().unwrap();
    let (full, other, waiting) = (create(), create(), create());
    broker.hold_receipts("t");
    let mut pending = Vec::new();
    for producer in [&full, &other] {
        pending.extend((0..8).map(|_| producer.try_submit(vec![b'm'; BODY]).unwrap()));
    }
    // One message is always allowed; the second has to wait.
    pending.push(waiting.try_submit("first").unwrap());
    assert_eq!(waiting.try_submit("second").unwrap_err().kind(), ErrorKind::WouldBlock);
    let sends = u64::try_from(pending.len()).unwrap();
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == sends));
    let ((second, woken), released) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let pending = waiting.submit("second").unwrap();
            (pending, Instant::now())
        });
        // It may not stand in line yet; then it finds room when it comes.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiter.is_finished());
        let released = Instant::now();
        broker.release_receipts("t");
        (waiter.join().unwrap(), released)
    });
    let woke = woken.saturating_duration_since(released);
    assert!(woke < Duration::from_secs(2), "{woke:?}");
    pending.push(second);
    for one in pending {
        one.wait().unwrap();
    }
    client.close().unwrap();
}

/// Field report 029.
#[test]
fn only_the_message_that_is_too_large_fails() {
    let limit = 1024 * KIB;
    let broker = Broker::builder().max_message_size(limit).start().unwrap();
    let client = Client::builder(broker.service_url()).build().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(2 * limit)
    .collect();

    // Known at the call.
    let plain = client.producer("t").create().unwrap();
    let answers = Answers::default();
    plain.send_with("small", answers.callback(0)).unwrap();
    let began = Instant::now();
    let refused = plain.send_with(noise.clone(), answers.callback(1)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((refused.kind(), refused.delivery()), (ErrorKind::TooLarge, Delivery::NotSent));
    assert_eq!(refused.message().unwrap().payload().len(), noise.len());
    plain.send_with("small", answers.callback(2)).unwrap();
    plain.flush().unwrap();
    assert!(answers.exactly(2).iter().all(|answer| answer.result.is_ok()));

    // Known at the call too when it is compressed: that happens there.
    let packed = client.producer("t").compression(Compression::Lz4).create().unwrap();
    let answers = Answers::default();
    packed.send_with("small", answers.callback(0)).unwrap();
    let refused = packed.send_with(noise.clone(), answers.callback(1)).unwrap_err();
    assert_eq!((refused.kind(), refused.delivery()), (ErrorKind::TooLarge, Delivery::NotSent));
    assert_eq!(refused.message().unwrap().payload()[..], noise[..], "as it was given");
    packed.send_with("small", answers.callback(2)).unwrap();
    // What compresses well fits, whatever its size before.
    packed.send_with(vec![7u8; 2 * limit], answers.callback(3)).unwrap();
    packed.flush().unwrap();
    assert!(answers.exactly(3).iter().all(|answer| answer.result.is_ok()));
    for event in broker.log() {
        match event.kind {
            EventKind::Send { bytes, .. } => assert!(bytes <= limit + 10 * KIB, "{bytes}"),
            EventKind::Malformed(text) => panic!("{text}"),
            EventKind::ConnectionClosed { .. } => panic!("the connection was closed"),
            _ => {}
        }
    }
    assert_eq!(broker.accepted(), 1);
    client.close().unwrap();
}
