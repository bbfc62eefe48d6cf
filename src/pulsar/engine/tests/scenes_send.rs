//! Facts about sends: receipts, refusals, deadlines, closes.

use std::time::Duration;

use super::cluster::ReceiptFault::{Duplicate, Late, Lose, Swap};
use super::fault::Fault;
use super::ops::Fate;
use super::scene::{Scene, TIMED_OUT, batching, timeout};
use super::schedule::{MS, SEC};
use crate::error::{Delivery, ErrorKind};

fn failed(kind: ErrorKind, delivery: Delivery) -> Option<Fate> {
    Some(Fate::Failed(kind, delivery))
}

#[test]
fn a_late_receipt_of_a_timed_out_message_is_ignored() {
    let mut scene = Scene::new(|plan| timeout(plan, 1.0));
    scene.receipts(&[Late(1_500 * MS); 3]);
    let late = scene.send_many(3);
    scene.run(1.3);
    assert_eq!(scene.fates(&late), [TIMED_OUT; 3]);
    let before = scene.counts();
    scene.receipts(&[Late(400 * MS)]);
    let fourth = scene.send(50);
    scene.run(1.0);
    assert_eq!(scene.fate(fourth), Some(Fate::Stored));
    assert_eq!((scene.counts().connects, scene.counts().producers), (before.connects, before.producers));
}

#[test]
fn a_receipt_ahead_of_the_front_reconnects_once_and_resends() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Lose]);
    let sent = scene.send_many(2);
    scene.run(3.0);
    assert!(scene.all_stored(&sent));
    let counts = scene.counts();
    assert_eq!((counts.connects, counts.producers, counts.sends), (2, 2, 4));
    scene.run(20.0);
    assert_eq!(scene.counts().connects, 2, "and never again");
}

#[test]
fn a_probe_waits_for_what_was_admitted_before_it() {
    let mut scene = Scene::new(|plan| plan.producers[0].max_pending = Some(1));
    scene.receipts(&[Late(500 * MS)]);
    let before = scene.send(50);
    scene.world.probe();
    let probe = before + 1;
    scene.run(0.3);
    assert_eq!(scene.fates(&[before, probe]), [None; 2]);
    scene.run(0.5);
    assert!(scene.all_stored(&[before, probe]));
}

#[test]
fn swapped_receipts_reconnect_once() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Swap]);
    let sent = scene.send_many(3);
    scene.run(5.0);
    assert!(scene.all_stored(&sent));
    assert_eq!(scene.counts().connects, 2);
}

#[test]
fn a_receipt_that_comes_twice_counts_once() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Duplicate; 5]);
    let sent = scene.send_many(10);
    scene.run(5.0);
    assert!(scene.all_stored(&sent));
    assert_eq!(scene.counts().connects, 1);
}

#[test]
fn receipts_and_errors_name_either_end_of_a_batch() {
    for seed in 1..=20 {
        let mut scene = Scene::new(|plan| {
            plan.seed = seed;
            batching(plan, 0.01);
        });
        scene.world.cluster.either_end = true;
        scene.send_errors(&[22]);
        let refused = scene.send_many(3);
        scene.run(0.2);
        let stored = scene.send_many(4);
        scene.run(0.2);
        assert_eq!(scene.fates(&refused), [failed(ErrorKind::Misuse, Delivery::Refused); 3]);
        assert!(scene.all_stored(&stored));
        assert_eq!((scene.counts().sends, scene.counts().connects), (2, 1));
    }
}

#[test]
fn a_damaged_message_goes_once_more_on_a_new_link() {
    let mut scene = Scene::new(|_| {});
    scene.send_errors(&[9]);
    let sent = scene.send(50);
    scene.run(2.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    assert_eq!(scene.counts().connects, 2);
}

/// Two messages, the first refused with `code`; the answer is lost with its link or not.
fn first_refused(code: i32, dedup: bool, lost: bool) -> (Scene, [u64; 2]) {
    let mut scene = Scene::new(|plan| plan.dedup = dedup);
    if lost {
        let conn = scene.conn();
        scene.world.conns[conn].to_client.swallows = true;
    }
    scene.send_errors(&[code]);
    let sent = [scene.send(50), scene.send(50)];
    scene.run(10.0);
    assert_eq!(scene.fate(sent[1]), Some(Fate::Stored));
    (scene, sent)
}

#[test]
fn a_message_that_is_not_allowed_is_refused_again_when_the_answer_was_lost() {
    for dedup in [false, true] {
        let (scene, [first, second]) = first_refused(22, dedup, true);
        assert_eq!(scene.fate(first), failed(ErrorKind::Misuse, Delivery::Unknown), "deduplication {dedup}");
        assert_eq!(scene.world.cluster.order[0], [second]);
        assert_eq!(scene.counts().connects, 2);
    }
}

#[test]
fn a_damaged_message_that_then_counts_as_a_duplicate_is_in_doubt() {
    let (scene, [first, second]) = first_refused(9, true, false);
    assert_eq!(scene.fate(first), failed(ErrorKind::Broker, Delivery::Unknown));
    assert_eq!(scene.world.cluster.order[0], [second]);
}

#[test]
fn a_damaged_message_loses_its_place_in_the_order() {
    for lost in [false, true] {
        let (scene, [first, second]) = first_refused(9, false, lost);
        assert_eq!(scene.fate(first), Some(Fate::Stored), "the answer is lost: {lost}");
        assert_eq!(scene.world.cluster.order[0], [second, first]);
    }
}

/// What the protocol cannot tell: the receipt is the same as that of a message whose first receipt was lost.
#[test]
fn a_damaged_message_whose_answer_was_lost_is_taken_for_stored_under_deduplication() {
    let (scene, [first, second]) = first_refused(9, true, true);
    assert_eq!(scene.fate(first), Some(Fate::Stored));
    assert_eq!(scene.world.cluster.order[0], [second]);
}

#[test]
fn a_failing_topic_is_opened_anew_on_the_same_link() {
    let mut scene = Scene::new(|_| {});
    scene.send_errors(&[2]);
    let sent = scene.send_many(3);
    scene.run(2.0);
    assert!(scene.all_stored(&sent));
    assert_eq!((scene.counts().connects, scene.counts().producers), (1, 2));
}

#[test]
fn a_terminated_topic_fails_everything_at_once() {
    let mut scene = Scene::new(|_| {});
    let stored = scene.send_many(5);
    scene.run(0.5);
    scene.world.cluster.topics[0].terminated = true;
    let failing = scene.send_many(10);
    scene.run(0.5);
    assert!(scene.all_stored(&stored));
    for uid in &failing {
        assert!(matches!(scene.fate(*uid), Some(Fate::Failed(ErrorKind::Broker, _))), "{:?}", scene.fate(*uid));
    }
    assert!(scene.counts().producers <= 2);
    let after = scene.send(50);
    scene.run(0.2);
    assert_eq!(scene.fate(after), failed(ErrorKind::Broker, Delivery::NotSent));
}

#[test]
fn every_send_is_answered_while_the_client_reconnects() {
    let mut scene = Scene::new(|plan| timeout(plan, 1.0));
    scene.world.net.refuse_until[0] = 20 * SEC;
    scene.cut();
    scene.run(0.1);
    let sent = scene.send_many(5);
    scene.run(1.2);
    assert_eq!(scene.fates(&sent), [failed(ErrorKind::Timeout, Delivery::NotSent); 5]);
    for uid in sent {
        let took = scene.took(uid);
        assert!((Duration::from_millis(1_000)..Duration::from_millis(1_100)).contains(&took), "{took:?}");
    }
    // The broker accepts again, and the longest pause is ten seconds.
    scene.run(30.0);
    let next = scene.send(50);
    scene.run(3.0);
    assert_eq!(scene.fate(next), Some(Fate::Stored));
}

#[test]
fn only_what_has_no_receipt_is_resent() {
    let mut scene = Scene::new(|_| {});
    let mut sent = scene.send_many(6);
    scene.run(0.1);
    scene.receipts(&[Lose; 4]);
    sent.extend(scene.send_many(4));
    scene.run(0.2);
    scene.cut();
    scene.run(2.0);
    assert!(scene.all_stored(&sent));
    assert_eq!((scene.counts().connects, scene.counts().sends), (2, 14));
}

#[test]
fn only_the_message_that_is_too_large_fails() {
    for batch in [false, true] {
        let mut scene = Scene::unopened(|plan| {
            if batch {
                batching(plan, 0.01);
            }
        });
        scene.world.cluster.brokers[0].max_message_size = 10_000;
        scene.run(0.5);
        let small = scene.send(50);
        let large = scene.send(20_000);
        let last = scene.send(50);
        scene.run(0.2);
        assert!(scene.all_stored(&[small, last]));
        assert_eq!(scene.fate(large), failed(ErrorKind::TooLarge, Delivery::NotSent));
        assert!(scene.took(large) < Duration::from_millis(100));
        assert_eq!(scene.counts().connects, 1);
    }
}

#[test]
fn close_flushes_first() {
    let mut scene = Scene::new(|plan| batching(plan, 10.0));
    let sent = scene.send_many(5);
    scene.world.close_producer(0, 2 * SEC);
    scene.run(0.2);
    assert!(scene.all_stored(&sent));
    assert_eq!((scene.counts().sends, scene.counts().closes), (1, 1));
    assert!(scene.world.producers[0].closes.is_empty(), "and it is answered as soon as that is done");
}

#[test]
fn close_answers_what_cannot_be_flushed_within_its_limit() {
    let mut scene = Scene::new(|plan| batching(plan, 0.01));
    scene.receipts(&[Lose; 50]);
    let sent = scene.send_many(5);
    scene.world.close_producer(0, 2 * SEC);
    scene.run(1.8);
    assert_eq!(scene.fates(&sent), [None; 5]);
    scene.run(0.3);
    assert_eq!(scene.fates(&sent), [failed(ErrorKind::Closed, Delivery::Unknown); 5]);
    assert!(scene.world.producers[0].closes.is_empty());
}

#[test]
fn close_is_answered_while_the_broker_is_away() {
    let mut scene = Scene::new(|_| {});
    scene.world.net.refuse_until[0] = 100 * SEC;
    scene.cut();
    scene.run(0.1);
    let sent = scene.send_many(2);
    scene.world.close_producer(0, 2 * SEC);
    scene.run(2.1);
    assert_eq!(scene.fates(&sent), [failed(ErrorKind::Closed, Delivery::NotSent); 2]);
    assert!(scene.world.producers[0].closes.is_empty());
    assert!(scene.world.producers[0].lanes[0].closed);
}

#[test]
fn a_batch_that_is_partly_due_is_finished_for_the_rest() {
    let mut scene = Scene::new(|plan| {
        timeout(plan, 1.0);
        batching(plan, 0.5);
    });
    scene.receipts(&[Late(400 * MS)]);
    let first = scene.send(50);
    scene.run(0.3);
    let second = scene.send(50);
    scene.run(1.5);
    // Sent together at 0.5 s; the first is due at 1.0 s, the receipt comes at about 0.9 s: both are stored.
    assert!(scene.all_stored(&[first, second]));
    scene.receipts(&[Late(650 * MS)]);
    let first = scene.send(50);
    scene.run(0.3);
    let second = scene.send(50);
    scene.run(1.5);
    assert_eq!(scene.fate(first), TIMED_OUT);
    assert_eq!(scene.fate(second), Some(Fate::Stored), "with its own place in the batch");
}

#[test]
fn what_is_due_before_it_was_sent_never_leaves() {
    let mut scene = Scene::new(|plan| {
        timeout(plan, 1.0);
        plan.window = 1;
        plan.budget = 1;
    });
    let conn = scene.conn();
    scene.world.conns[conn].to_broker.held = true;
    let sent = scene.send_many(6);
    scene.run(1.2);
    let unsent =
        scene.fates(&sent).iter().filter(|fate| **fate == failed(ErrorKind::Timeout, Delivery::NotSent)).count();
    assert!(unsent >= 3, "{:?}", scene.fates(&sent));
    let conn = scene.conn();
    scene.world.conns[conn].to_broker.held = false;
    scene.world.arrive_at_broker(conn);
    scene.run(3.0);
    assert!(scene.counts().sends as usize <= sent.len() - unsent);
}

#[test]
fn every_receipt_fault_leaves_a_lane_that_works() {
    for fault in [Lose, Duplicate, Late(3 * SEC), Swap] {
        let mut scene = Scene::new(|plan| timeout(plan, 5.0));
        scene.apply(Fault::Receipt(fault));
        scene.send_many(4);
        scene.run(20.0);
        let after = scene.send(50);
        scene.run(1.0);
        assert_eq!(scene.fate(after), Some(Fate::Stored), "{fault:?}");
    }
}

#[test]
fn the_earliest_limit_of_several_closes_governs() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Lose; 50]);
    let sent = scene.send(50);
    scene.world.close_producer(0, 20 * SEC);
    scene.run(0.1);
    scene.world.producers[0].open = true;
    scene.world.close_producer(0, SEC);
    scene.run(1.1);
    assert_eq!(scene.fate(sent), failed(ErrorKind::Closed, Delivery::Unknown));
    assert!(scene.world.producers[0].closes.is_empty(), "both are answered");
}

#[test]
fn the_earliest_limit_of_several_client_closes_governs() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Lose; 50]);
    let sent = scene.send(50);
    scene.world.shut_down(20 * SEC);
    scene.run(0.1);
    assert_eq!(scene.fate(sent), None);
    scene.world.shut_down(SEC);
    scene.run(1.2);
    assert_eq!(scene.fate(sent), failed(ErrorKind::Closed, Delivery::Unknown));
    scene.world.look_at_answers();
    assert!(scene.world.finished && scene.world.shutdowns.is_empty(), "both are answered");
    assert!(scene.world.engine.links.is_empty());
}

#[test]
fn a_loop_that_ends_by_a_defect_answers_everything() {
    let mut scene = Scene::new(|_| {});
    scene.receipts(&[Lose; 50]);
    let flying = scene.send_many(3);
    scene.run(0.1);
    scene.world.net.refuse_until[0] = 100 * SEC;
    scene.cut();
    scene.run(0.1);
    let waiting = scene.send_many(2);
    scene.run(0.1);
    scene.world.producers[0].close_called = true;
    let now = scene.world.clock().instant;
    scene.world.net.internal = true;
    scene.world.engine.abandon(now);
    scene.world.drain();
    assert_eq!(scene.fates(&flying), [failed(ErrorKind::Internal, Delivery::Unknown); 3]);
    assert_eq!(scene.fates(&waiting), [failed(ErrorKind::Internal, Delivery::NotSent); 2]);
}
