//! The log is bounded, and what is dropped is the least missed.

use std::sync::Arc;
use std::time::Instant;

use super::PATIENCE;
use super::client::Client;
use crate::testkit::pulsar::Broker;
use crate::testkit::pulsar::log::{Event, EventKind, Log};

fn sessions(log: &[Event]) -> Vec<u64> {
    log.iter().filter(|event| matches!(event.kind, EventKind::Other(_))).map(|event| event.connection).collect()
}

fn traffic(log: &[Event]) -> Vec<u64> {
    log.iter().filter(|event| matches!(event.kind, EventKind::Ping)).map(|event| event.connection).collect()
}

fn event(number: u64, kind: EventKind) -> Event {
    Event { at: Instant::now(), connection: number, kind }
}

/// Every tenth event is not traffic.
fn append(log: &Log, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let kind = if number % 10 == 0 { EventKind::Other(0) } else { EventKind::Ping };
        log.append(&mut vec![event(number, kind)]);
    }
}

#[test]
fn the_oldest_traffic_goes_first() {
    let log = Log::new(80);
    append(&log, 0..80);
    assert_eq!(log.all().len(), 80);
    append(&log, 80..300);
    let kept = log.all();
    assert!((70..=80).contains(&kept.len()), "{}", kept.len());
    assert_eq!(sessions(&kept), (0..30).map(|n| n * 10).collect::<Vec<_>>());
    let newest = traffic(&kept);
    let expected: Vec<u64> = (0..300).filter(|n| n % 10 != 0).collect();
    assert_eq!(newest, expected[expected.len() - newest.len()..]);
    assert!(kept.windows(2).all(|pair| pair[0].connection < pair[1].connection), "in order");

    // Sessions alone are too many.
    append(&log, 300..3_000);
    let kept = log.all();
    assert!(kept.len() <= 80);
    assert_eq!(sessions(&kept).last(), Some(&2_990));
    let log = Log::new(0);
    append(&log, 0..10);
    assert!(log.all().is_empty());
}

#[test]
fn whoever_waits_sees_what_is_there_and_what_comes() {
    let log = Arc::new(Log::new(80));
    append(&log, 0..1_000);
    let waiting = std::thread::spawn({
        let log = Arc::clone(&log);
        move || log.wait(Instant::now() + PATIENCE, |seen| seen.last().is_some_and(|last| last.connection == 4_999))
    });
    append(&log, 1_000..5_000);
    assert!(waiting.join().unwrap());
    let seen = std::cell::RefCell::new(Vec::new());
    assert!(log.wait(Instant::now() + PATIENCE, |log| {
        *seen.borrow_mut() = log.to_vec();
        !log.is_empty()
    }));
    assert_eq!(traffic(&seen.borrow()), traffic(&log.all()));
}

#[test]
fn a_busy_broker_keeps_its_sessions_in_the_log() {
    let broker = Broker::builder().log_limit(100).start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    for n in 0..1_000 {
        client.publish(1, n, "x");
        client.receipts(1);
    }
    assert!(broker.wait_for(PATIENCE, |log| {
        log.iter().any(|event| matches!(event.kind, EventKind::Send { sequence_id: 999, .. }))
    }));
    assert!(broker.log().len() <= 100);
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Connect { .. } | EventKind::Producer { .. })), 2);
    assert_eq!((broker.sends(), broker.received(), broker.messages("t").len()), (1_000, 1_000, 1_000));
}
