//! What is evidence against a channel, and what has no time or no connection to be tried.

use std::time::Duration;

use super::hands::{Hands, SECOND, address, late, route};
use super::network::{bytes, status};
use crate::error::{Delivery, ErrorKind};
use crate::pending::Pending;
use crate::rocketmq::engine::event::{CallEnd, CallId, EntryId, Fault, Opened};
use crate::rocketmq::wire::method::Method::{Heartbeat, QueryRoute, SendMessage};
use crate::rocketmq::wire::pb;

const MS: Duration = Duration::from_millis(1);

fn opened(begin: impl FnOnce(&mut Hands) -> Pending<Opened>, addresses: &[u32]) -> Hands {
    let mut hands = Hands::new();
    let mut opening = begin(&mut hands);
    hands.answer(QueryRoute, &route(addresses));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

fn well() -> CallEnd {
    CallEnd::Response(bytes(&pb::HeartbeatResponse { status: status(20000), ..Default::default() }))
}

/// Heartbeats on `entry` that have no answer, once there are so many. Those on others are answered.
fn beats_on(hands: &mut Hands, entry: EntryId, count: usize) -> Vec<CallId> {
    for _ in 0..200 {
        let (on, others): (Vec<_>, Vec<_>) = hands.asked(Heartbeat).into_iter().partition(|beat| beat.entry == entry);
        others.into_iter().for_each(|beat| hands.end(beat.id, well()));
        if on.len() >= count {
            return on.into_iter().map(|beat| beat.id).collect();
        }
        hands.wait(100 * MS);
    }
    panic!("there are not {count} heartbeats in 20 s");
}

/// One good answer ends a round; another of its answers may come after the next has begun.
#[test]
fn the_answers_of_one_round_are_not_those_of_the_next() {
    let mut hands = opened(Hands::producer, &[1]);
    let mut opening = hands.another_producer();
    hands.answer(QueryRoute, &route(&[1]));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    let entry = hands.channels.iter().find(|(_, at)| **at == address(1)).map(|(entry, _)| *entry).unwrap();
    let first = beats_on(&mut hands, entry, 2);
    hands.end(first[0], well());
    // A call that fails brings the next round forward; the other heartbeat has no end yet.
    hands.wait(2_900 * MS);
    hands.send(1, 5 * SECOND);
    hands.answer(SendMessage, &late());
    let second = beats_on(&mut hands, entry, 3);
    assert_eq!(second[0], first[1]);
    hands.end(first[1], late());
    hands.end(second[1], late());
    // It was the second round's only good answer that counted, and the first's late one did not.
    hands.end(second[2], well());
    for beat in beats_on(&mut hands, entry, 2) {
        hands.end(beat, late());
    }
    assert_eq!(hands.recovered, 0, "one late round is no evidence");
    for beat in beats_on(&mut hands, entry, 2) {
        hands.end(beat, late());
    }
    assert_eq!(hands.recovered, 1, "two are");
}

#[test]
fn a_send_without_time_for_an_answer_is_not_tried_again() {
    let mut hands = opened(Hands::producer, &[1]);
    hands.send(1, SECOND);
    hands.wait(985 * MS);
    // What was on its way ends with 15 ms left.
    hands.asked(SendMessage).into_iter().for_each(|call| hands.end(call.id, late()));
    assert!(hands.asked(SendMessage).is_empty() && hands.settled.is_empty());
    hands.wait(15 * MS);
    let (place, result) = hands.settled.remove(0);
    let error = result.unwrap_err();
    assert_eq!((place, error.kind(), error.delivery()), (1, ErrorKind::Timeout, Delivery::Unknown));
    // Who asks for so little gets it.
    hands.send(2, 15 * MS);
    assert_eq!(hands.asked(SendMessage).len(), 1);
}

#[test]
fn a_channel_that_dials_is_passed_over_and_blamed_for_nothing() {
    let mut hands = opened(Hands::producer, &[1, 2]);
    hands.send(1, 5 * SECOND);
    let first = hands.asked(SendMessage)[0].clone();
    hands.end(first.id, CallEnd::NotStarted(Fault::Dialling));
    let second = hands.asked(SendMessage)[0].clone();
    assert!(second.entry != first.entry, "the other one is tried");
    hands.end(second.id, CallEnd::NotStarted(Fault::Dialling));
    assert!(hands.asked(SendMessage).is_empty(), "and then it rests");
    assert!(hands.engine.isolated.is_empty());
    hands.wait(100 * MS);
    assert_eq!(hands.asked(SendMessage).len(), 1);
}
