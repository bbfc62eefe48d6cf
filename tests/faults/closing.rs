//! Close ends, whatever the broker does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::testkit::pulsar::{Broker, EventKind};

use super::answers::{Answers, MOMENT, PATIENCE, close_by, eventually};
use super::client;

/// Field report 003.
#[test]
fn every_send_that_races_a_close_returns() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let closed = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    let accepted = AtomicUsize::new(0);
    let answers = Answers::default();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                loop {
                    let after = closed.load(Ordering::SeqCst);
                    let began = Instant::now();
                    let result = producer.send("x");
                    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
                    match result {
                        Ok(_) => assert!(!after, "sent after close"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
                    }
                    sent.fetch_add(1, Ordering::SeqCst);
                    if after {
                        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
                        return;
                    }
                }
            });
        }
        for thread in 0..2 {
            let (producer, answers, accepted) = (&producer, &answers, &accepted);
            scope.spawn(move || {
                for number in (thread..).step_by(2) {
                    match producer.send_with("y", answers.callback(number)) {
                        Ok(()) => accepted.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Closed);
                            assert!(error.message().is_some(), "refused, so it comes back");
                            return;
                        }
                    };
                }
            });
        }
        eventually("sends", || sent.load(Ordering::SeqCst) > 100 && accepted.load(Ordering::SeqCst) > 100);
        producer.close().unwrap();
        closed.store(true, Ordering::SeqCst);
    });
    let told = answers.exactly(accepted.load(Ordering::SeqCst));
    assert!(told.iter().all(|answer| answer.kind().is_none_or(|kind| kind == ErrorKind::Closed)));
    client.close().unwrap();
}

/// Field report 007: nobody listens any more.
#[test]
fn close_does_not_wait_for_a_broker_that_is_gone() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    broker.stop();
    let answers = Answers::default();
    answers.send(&producer, 0..2);
    // The report closes in the middle of the reconnection.
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    close_by(Duration::from_secs(2), |limit| client.close_within(limit));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(answers.now().len(), 2, "close said that all is answered");
    for answer in answers.exactly(2) {
        assert_eq!(answer.kind(), Some(ErrorKind::Closed));
    }
    assert_eq!(consumer.receive().unwrap_err().kind(), ErrorKind::Closed);
}

/// Field report 007: the broker accepts and hangs up, so that attempts can be counted.
#[test]
fn nothing_reconnects_after_a_close() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let _consumer = client.consumer("t", "s").subscribe().unwrap();
    broker.hang_up(true);
    broker.reset_connections();
    let answers = Answers::default();
    answers.send(&producer, 0..2);
    assert!(broker.wait_for(PATIENCE, |_| broker.accepted() >= 3), "it tries again");
    close_by(Duration::from_secs(2), |limit| client.close_within(limit));
    let attempts = broker.accepted();
    assert!(!broker.wait_for(MOMENT * 3, |_| broker.accepted() > attempts), "an attempt after close");
    answers.exactly(2);
}

/// Field report 011, with receipts.
#[test]
fn close_writes_the_open_batch() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batch_max_delay(Duration::from_secs(10)).create().unwrap();
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    producer.close().unwrap();
    assert_eq!(answers.now().len(), 5, "before close returned");
    assert!(answers.exactly(5).iter().all(|answer| answer.result.is_ok()));
    let seen: Vec<_> = broker
        .log()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Send { num_messages, .. } => Some(num_messages),
            EventKind::CloseProducer { .. } => Some(0),
            _ => None,
        })
        .collect();
    assert_eq!(seen, [5, 0], "one batch, then the close");
    client.close().unwrap();
}

/// Field report 011, without receipts.
#[test]
fn close_answers_a_batch_without_receipt() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batch_max_delay(Duration::from_secs(10)).create().unwrap();
    broker.hold_receipts("t");
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    let began = Instant::now();
    close_by(Duration::from_secs(2), |limit| producer.close_within(limit));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(answers.now().len(), 5, "before close returned");
    for answer in answers.exactly(5) {
        assert_eq!(answer.kind(), Some(ErrorKind::Closed));
    }
    client.close().unwrap();
}
