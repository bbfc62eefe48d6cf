//! Receipts that come late or out of turn.

use std::time::Duration;

use threadmq::ErrorKind;
use threadmq::testkit::pulsar::{Broker, EventKind};

use super::answers::{Answers, MOMENT, PATIENCE};
use super::{bodies, client, resent};

/// Field report 015: older than the front.
#[test]
fn late_receipts_are_ignored() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).send_timeout(Some(Duration::from_secs(1))).create().unwrap();
    broker.hold_receipts("t");
    let answers = Answers::default();
    answers.send(&producer, 1..4);
    for answer in answers.wait(3) {
        assert_eq!(answer.kind(), Some(ErrorKind::Timeout));
    }
    answers.send(&producer, 4..5);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 4));
    broker.release_receipts("t");
    let all = answers.exactly(4);
    assert!(all[3].result.is_ok() && all[3].number == 4, "{all:?}");
    assert_eq!(broker.accepted(), 1, "it reconnected");
    assert_eq!(bodies(&broker, "t"), ["1", "2", "3", "4"]);
    client.close().unwrap();
}

/// Field report 015: newer than the front, so the front's receipt is lost.
#[test]
fn a_receipt_from_the_future_makes_one_reconnect() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    let answers = Answers::default();
    answers.send(&producer, 0..6);
    answers.wait(6);
    broker.hold_receipts("t");
    answers.send(&producer, 6..8);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 8));
    assert!(broker.release_receipt("t", 7), "6 is in front");
    assert!(broker.wait_for(PATIENCE, |_| resent(&broker).len() == 2));
    broker.release_receipts("t");
    assert!(answers.exactly(8).iter().all(|answer| answer.result.is_ok()));
    assert_eq!(resent(&broker), [6, 7]);
    let reconnects = |broker: &Broker| broker.count(|kind| matches!(kind, EventKind::Accepted { .. })) - 1;
    assert_eq!(reconnects(&broker), 1);
    assert!(!broker.wait_for(MOMENT, |_| reconnects(&broker) > 1), "it goes on reconnecting");
    client.close().unwrap();
}
