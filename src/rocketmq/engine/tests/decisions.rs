//! Single decisions, each call answered by the test.

use std::time::Duration;

use super::hands::{Hands, SECOND, address, filter, late, refused, route};
use crate::error::ErrorKind;
use crate::pending::{Pending, completion};
use crate::rocketmq::engine::event::{Arrived, CallEnd, Command, RpcEvent};
use crate::rocketmq::handle::Handle;
use crate::rocketmq::wire::method::Method::{AckMessage, Heartbeat, QueryRoute, ReceiveMessage};
use crate::rocketmq::wire::pb;
use protobuf::Message as _;

const MS: Duration = Duration::from_millis(1);

fn opened_producer() -> Hands {
    let mut hands = Hands::new();
    let mut opening = hands.producer();
    hands.answer(QueryRoute, &route(&[1, 2]));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

fn opened_consumer(topics: &[&str], addresses: &[u32]) -> Hands {
    opened_consumer_with(topics, addresses, 3 * SECOND)
}

fn opened_consumer_with(topics: &[&str], addresses: &[u32], request_timeout: Duration) -> Hands {
    let mut hands = Hands { request_timeout, ..Hands::new() };
    let mut opening = hands.consumer(topics);
    hands.answer(QueryRoute, &route(addresses));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

fn handles(received: &mut Pending<Vec<Arrived>>) -> Vec<String> {
    let messages = received.try_wait().unwrap().unwrap();
    messages.iter().map(|arrived| arrived.read().unwrap().system_properties.receipt_handle.clone().unwrap()).collect()
}

/// All heartbeats end past their deadline, until something is replaced.
fn silence(hands: &mut Hands, limit: Duration) -> Duration {
    let (began, before) = (hands.now, hands.recovered);
    while hands.now < began + limit && hands.recovered == before {
        hands.wait(3 * SECOND);
        for beat in hands.asked(Heartbeat) {
            hands.end(beat.id, late());
        }
    }
    hands.now - began
}

#[test]
fn three_bad_answers_fail_a_start() {
    let mut hands = Hands::new();
    let mut opening = hands.producer();
    for _ in 0..2 {
        hands.answer(QueryRoute, &refused(50001));
        assert!(opening.try_wait().is_none());
        hands.wait(SECOND);
    }
    hands.answer(QueryRoute, &refused(50001));
    assert_eq!(opening.try_wait().unwrap().unwrap_err().code(), Some(50001));
    assert!(hands.engine.sessions.is_empty() && hands.calls.is_empty() && hands.channels.is_empty());
}

#[test]
fn a_route_query_that_a_replacement_cuts_off_does_not_count() {
    let mut hands = Hands::new();
    let mut opening = hands.producer();
    for _ in 0..2 {
        hands.answer(QueryRoute, &refused(50001));
        hands.wait(SECOND);
    }
    // The third is on its way when the channel turns out to be dead.
    let query = hands.asked(QueryRoute)[0].clone();
    silence(&mut hands, 20 * SECOND);
    assert_eq!(hands.recovered, 1);
    assert!(opening.try_wait().is_none(), "nobody refused anything");
    let again = hands.asked(QueryRoute);
    assert_eq!(again.len(), 1, "asked again at once");
    assert!(again[0].entry != query.entry);
    // The end of the one that was cut off changes nothing.
    hands.event(RpcEvent::Ended { call: query.id, ready: false, end: CallEnd::Cancelled });
    hands.answer(QueryRoute, &route(&[1]));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
}

#[test]
fn a_session_that_closes_keeps_its_links_watched() {
    let mut hands = opened_consumer_with(&["topic"], &[1], 60 * SECOND);
    hands.wait(SECOND);
    hands.beat();
    let at = address(1);
    let handles = [Handle { topic: "topic", message_id: "m", receipt_handle: "h", endpoints: &at }];
    let (places, mut acked) = hands.ack(&handles, 60 * SECOND);
    let mut closing = hands.close(60 * SECOND);
    let old = hands.asked(AckMessage)[0].entry;
    // The acknowledgement is on a link that has died.
    let taken = silence(&mut hands, 30 * SECOND);
    assert!(taken <= 18 * SECOND, "replaced although the session closes: {taken:?}");
    while hands.asked(AckMessage).iter().all(|call| call.entry == old) {
        hands.wait(200 * MS);
    }
    let answer = pb::AckMessageResponse { status: super::network::status(20000), ..Default::default() };
    hands.answer(AckMessage, &CallEnd::Response(super::network::bytes(&answer)));
    assert!(places.results(&handles, acked.try_wait().unwrap().unwrap())[0].is_ok());
    assert!(closing.try_wait().unwrap().is_ok());
}

#[test]
fn addresses_that_routes_no_longer_name_are_forgotten() {
    let mut hands = opened_producer();
    for round in 0..200_u32 {
        hands.wait(30 * SECOND);
        hands.beat();
        // Other addresses each time, and a bad one behind them in every third answer.
        let named = route(&[3 + 2 * round, 4 + 2 * round]);
        hands.answer(QueryRoute, &named);
        hands.beat();
        let known = hands.engine.addresses.len();
        assert!(known <= 8, "{known} addresses are known in round {round}");
        assert_eq!(hands.channels.len(), 3, "two that are named, and the access point");
        assert_eq!(hands.streams.len(), 2);
    }
    let mut closing = hands.close(SECOND);
    assert!(closing.try_wait().unwrap().is_ok());
    hands.calls.clone().into_iter().for_each(|call| hands.end(call.id, late()));
    assert!(hands.channels.is_empty() && hands.streams.is_empty());
    hands.wait(31 * SECOND);
    assert!(hands.engine.addresses.is_empty() && hands.engine.recovery.is_empty());
    assert!(hands.engine.isolated.is_empty() && hands.engine.timers.is_empty());
}

#[test]
fn the_cooldown_of_an_address_outlives_a_route_that_flaps() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let of = |hands: &Hands| hands.channels.iter().find(|(_, at)| **at == address(1)).map(|(entry, _)| *entry);
    let break_it = |hands: &mut Hands| {
        let entry = of(hands).unwrap();
        while hands.asked(Heartbeat).iter().all(|beat| beat.entry != entry) {
            hands.beat();
            hands.wait(100 * MS);
        }
        let beats = hands.asked(Heartbeat).into_iter().filter(|beat| beat.entry == entry).collect::<Vec<_>>();
        beats.iter().for_each(|beat| hands.end(beat.id, CallEnd::Failed { code: 14, message: "gone".into() }));
    };
    for _ in 0..25 {
        hands.wait(SECOND);
        hands.beat();
    }
    break_it(&mut hands);
    assert_eq!(hands.recovered, 1);
    let last = hands.now;
    while hands.asked(QueryRoute).is_empty() {
        hands.wait(100 * MS);
        hands.beat();
    }
    hands.answer(QueryRoute, &route(&[2]));
    hands.beat();
    assert!(of(&hands).is_none(), "the route does not name it any more");
    hands.wait(5 * SECOND);
    hands.subscribe("other", Some(filter("*")));
    hands.answer(QueryRoute, &route(&[1]));
    break_it(&mut hands);
    hands.beat();
    assert!(hands.now < last + 20 * SECOND);
    let entry = of(&hands);
    hands.wait(last + 30 * SECOND - hands.now - MS);
    assert_eq!(of(&hands), entry, "the address has come back with its past");
    hands.wait(MS);
    assert_ne!(of(&hands), entry);
}

#[test]
fn a_consumer_s_topic_is_asked_for_until_it_is_known() {
    let mut hands = opened_consumer(&["topic"], &[1]);
    hands.subscribe("other", Some(filter("*")));
    hands.answer(QueryRoute, &refused(50001));
    let mut receive = hands.receive(10, 10 * SECOND);
    assert_eq!(hands.asked(ReceiveMessage).len(), 1);
    hands.wait(SECOND);
    hands.answer(QueryRoute, &route(&[2]));
    let polls = hands.asked(ReceiveMessage);
    assert_eq!(polls.len(), 2, "the receive that waits polls the new topic");
    hands.message(polls[1].id, "other", "h1");
    hands.end(polls[1].id, CallEnd::StreamOver);
    assert_eq!(handles(&mut receive), ["h1"]);
}

#[test]
fn each_poll_of_a_receive_pauses_for_itself() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let mut receive = hands.receive(10, 10 * SECOND);
    let polls = hands.asked(ReceiveMessage);
    hands.end_poll(polls[0].id, 42900);
    hands.end_poll(polls[1].id, 50001);
    hands.wait(20 * MS);
    assert_eq!(hands.asked(ReceiveMessage).len(), 1, "the server was busy: again after 20 ms");
    hands.wait(980 * MS);
    assert_eq!(hands.asked(ReceiveMessage).len(), 2, "the other one after 1 s, although the first one waits");
    assert!(receive.try_wait().is_none());
}

#[test]
fn a_poll_that_finds_nothing_early_goes_again() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let mut receive = hands.receive(10, 10 * SECOND);
    let poll = hands.asked(ReceiveMessage)[0].clone();
    hands.end_poll(poll.id, 40401);
    assert_eq!(hands.asked(ReceiveMessage).len(), 1, "not at once");
    hands.wait(SECOND);
    let again = hands.asked(ReceiveMessage);
    assert_eq!(again.len(), 2);
    let request = pb::ReceiveMessageRequest::parse_from_bytes(&again[1].body).unwrap();
    assert_eq!(request.long_polling_timeout.seconds, 9, "what is left");
    assert_eq!(again[1].timeout, 12 * SECOND);
    // With less than 5 s for its call a server refuses a poll: then it does not go.
    hands.wait(7 * SECOND + 500 * MS);
    hands.asked(ReceiveMessage).iter().for_each(|poll| hands.end_poll(poll.id, 40401));
    assert!(receive.try_wait().unwrap().unwrap().is_empty());
    assert!(hands.asked(ReceiveMessage).is_empty());
}

#[test]
fn a_receive_that_is_nearly_over_does_not_ask_for_a_poll_that_is_refused() {
    let mut hands = opened_consumer(&["topic"], &[1]);
    let mut first = hands.receive(1, 10 * SECOND);
    let mut second = hands.receive(1, 10 * SECOND);
    for _ in 0..9 {
        hands.wait(SECOND);
        hands.beat();
    }
    let poll = hands.asked(ReceiveMessage)[0].clone();
    hands.message(poll.id, "topic", "h1");
    hands.end(poll.id, CallEnd::StreamOver);
    assert_eq!(handles(&mut first), ["h1"]);
    assert!(hands.asked(ReceiveMessage).is_empty());
    assert!(second.try_wait().unwrap().unwrap().is_empty(), "no failure: there was nothing");
}

#[test]
fn what_outlives_its_receive_is_for_the_next_that_asks_for_no_longer() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let mut first = hands.receive(2, 20 * SECOND);
    let polls = hands.asked(ReceiveMessage);
    hands.message(polls[0].id, "topic", "h1");
    hands.end(polls[0].id, CallEnd::StreamOver);
    assert_eq!(handles(&mut first), ["h1"]);
    hands.message(polls[1].id, "topic", "h2");
    hands.message(polls[1].id, "topic", "h3");
    hands.end(polls[1].id, CallEnd::StreamOver);
    let mut longer = hands.receive(5, 60 * SECOND);
    assert!(longer.try_wait().is_none(), "what is kept comes back to others before a minute is over");
    let mut shorter = hands.receive(5, 10 * SECOND);
    assert_eq!(handles(&mut shorter), ["h2", "h3"]);
    assert_eq!(hands.asked(ReceiveMessage).len(), 2, "of the longer one");
    // Kept for too long, it is given to nobody.
    hands.asked(ReceiveMessage).iter().for_each(|poll| hands.end_poll(poll.id, 40300));
    assert!(longer.try_wait().unwrap().is_err());
}

#[test]
fn a_longer_receive_ends_polls_that_nobody_waits_for() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let mut first = hands.receive(1, 10 * SECOND);
    let polls = hands.asked(ReceiveMessage);
    hands.message(polls[0].id, "topic", "h1");
    hands.end(polls[0].id, CallEnd::StreamOver);
    assert_eq!(handles(&mut first), ["h1"]);
    let _longer = hands.receive(1, 20 * SECOND);
    let now = hands.asked(ReceiveMessage);
    assert_eq!(now.len(), 2);
    assert!(now.iter().all(|poll| poll.id != polls[1].id));
}

#[test]
fn a_subscription_that_changes_starts_afresh() {
    let mut hands = opened_consumer(&["topic"], &[1]);
    let mut receive = hands.receive(1, 10 * SECOND);
    let old = hands.asked(ReceiveMessage)[0].clone();
    hands.subscribe("topic", Some(filter("*")));
    assert_eq!(hands.asked(ReceiveMessage)[0].id, old.id, "nothing changed");
    hands.subscribe("topic", Some(filter("tag")));
    let new = hands.asked(ReceiveMessage);
    assert_eq!(new.len(), 1);
    let request = pb::ReceiveMessageRequest::parse_from_bytes(&new[0].body).unwrap();
    assert_eq!(request.filter_expression.expression, "tag");
    // A late frame of the old poll is heard by nobody.
    hands.message(old.id, "topic", "h1");
    hands.event(RpcEvent::Ended { call: old.id, ready: true, end: CallEnd::StreamOver });
    assert!(receive.try_wait().is_none());
    hands.subscribe("topic", None);
    assert_eq!(receive.try_wait().unwrap().unwrap_err().kind(), ErrorKind::Misuse);
    assert!(hands.asked(ReceiveMessage).is_empty() && hands.streams.is_empty());
}

#[test]
fn a_batch_has_one_result_for_each_handle_in_order() {
    let mut hands = opened_consumer(&["topic"], &[1, 2]);
    let (one, two) = (address(1), address(2));
    let handle = |name, endpoints| Handle { topic: "topic", message_id: name, receipt_handle: name, endpoints };
    let handles = [handle("a", &one), handle("b", &two), handle("c", &one), handle("a", &one), handle("d", &two)];
    let (places, mut acked) = hands.ack(&handles, 5 * SECOND);
    let calls = hands.asked(AckMessage);
    assert_eq!(calls.len(), 2, "one for each broker");
    for call in calls {
        let request = pb::AckMessageRequest::parse_from_bytes(&call.body).unwrap();
        let entry = |entry: &pb::AckMessageEntry| pb::AckMessageResultEntry {
            receipt_handle: entry.receipt_handle.clone(),
            status: super::network::status(if entry.receipt_handle == "c" { 40013 } else { 20000 }),
            ..Default::default()
        };
        // In another order than asked, and those of one broker are not named at all.
        let second = request.entries.iter().any(|entry| entry.receipt_handle == "b");
        let entries = if second { Vec::new() } else { request.entries.iter().rev().map(entry).collect() };
        let code = if second { 50001 } else { 30000 };
        let answer = pb::AckMessageResponse { status: super::network::status(code), entries, ..Default::default() };
        hands.end(call.id, CallEnd::Response(super::network::bytes(&answer)));
    }
    let results = places.results(&handles, acked.try_wait().unwrap().unwrap());
    let codes: Vec<_> = results.iter().map(|result| result.as_ref().err().and_then(|error| error.code())).collect();
    assert_eq!(codes, [None, Some(50001), Some(40013), None, Some(50001)]);
}

#[test]
fn a_blocked_stream_is_released_by_a_replacement_and_by_a_close() {
    let mut hands = opened_producer();
    hands.wait(SECOND);
    // Nothing of what is written arrives, and no heartbeat is answered.
    let old: Vec<_> = hands.streams.keys().copied().collect();
    silence(&mut hands, 20 * SECOND);
    assert!(hands.recovered > 0);
    assert!(old.iter().any(|stream| !hands.streams.contains_key(stream)), "its stream is cancelled");
    assert_eq!(hands.streams.len(), 2, "and opened again, with Settings");
    assert!(hands.streams.values().all(|(entry, writes)| *writes > 0 && hands.channels.contains_key(entry)));
    let mut closing = hands.close(SECOND);
    assert!(hands.streams.is_empty(), "nobody waits for a write that is stuck");
    assert!(closing.try_wait().unwrap().is_ok());
}

#[test]
fn a_close_while_a_channel_connects_leaves_nothing() {
    let mut hands = Hands::new();
    let mut opening = hands.producer();
    let mut closing = hands.close(SECOND);
    assert_eq!(opening.try_wait().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(closing.try_wait().unwrap().is_ok());
    assert!(hands.channels.is_empty() && hands.calls.is_empty());
}

#[test]
fn the_end_of_the_client_comes_last() {
    let mut hands = Hands::new();
    let mut opening = hands.producer();
    assert_eq!(hands.channels.len(), 1);
    let (reply, mut ended) = completion();
    hands.command(Command::Shutdown { flush_until: hands.now + SECOND, reply });
    assert!(opening.try_wait().unwrap().is_err() && ended.try_wait().unwrap().is_ok());
    assert!(hands.finished && hands.channels.is_empty());
}

#[test]
fn every_shutdown_is_answered() {
    let mut hands = opened_producer();
    let shutdown = |hands: &mut Hands| {
        let (reply, pending) = completion();
        hands.command(Command::Shutdown { flush_until: hands.now + SECOND, reply });
        pending
    };
    let (mut one, mut two) = (shutdown(&mut hands), shutdown(&mut hands));
    assert!(one.try_wait().is_none() && two.try_wait().is_none(), "farewells are on their way");
    hands.calls.clone().into_iter().for_each(|call| hands.end(call.id, late()));
    assert!(one.try_wait().unwrap().is_ok() && two.try_wait().unwrap().is_ok() && hands.finished);
}

#[test]
fn a_stream_that_ends_is_opened_again_after_a_second_if_it_is_still_wanted() {
    let mut hands = opened_producer();
    let end_all = |hands: &mut Hands| {
        for stream in std::mem::take(&mut hands.streams).into_keys() {
            hands.event(RpcEvent::StreamEnded { stream, reason: "over".into() });
        }
    };
    end_all(&mut hands);
    hands.wait(999 * MS);
    hands.beat();
    assert!(hands.streams.is_empty());
    hands.wait(MS);
    assert_eq!(hands.streams.len(), 2);
    assert!(hands.streams.values().all(|(_, writes)| *writes == 1), "Settings");
    // One of the two endpoints leaves the route within the second.
    while hands.asked(QueryRoute).is_empty() {
        hands.wait(100 * MS);
        hands.beat();
    }
    end_all(&mut hands);
    hands.answer(QueryRoute, &route(&[1]));
    hands.wait(2 * SECOND);
    assert_eq!(hands.streams.len(), 1);
    // The server lost the settings: they are told at once, not after a second.
    end_all(&mut hands);
    while hands.asked(Heartbeat).is_empty() {
        hands.wait(MS);
    }
    let unknown = pb::HeartbeatResponse { status: super::network::status(40015), ..Default::default() };
    let open = hands.streams.len();
    hands.answer(Heartbeat, &CallEnd::Response(super::network::bytes(&unknown)));
    let told = hands.streams.values().any(|(_, writes)| *writes > 1);
    assert!(hands.streams.len() > open || told);
}

#[test]
fn a_good_heartbeat_takes_an_endpoint_off_the_isolated_ones() {
    let mut hands = opened_consumer(&["topic"], &[1]);
    let _receive = hands.receive(1, 10 * SECOND);
    let poll = hands.asked(ReceiveMessage)[0].clone();
    // Throttling and refusals say nothing of the connection.
    hands.end(poll.id, CallEnd::Failed { code: 8, message: "too much".into() });
    assert!(hands.engine.isolated.is_empty());
    hands.wait(SECOND);
    let poll = hands.asked(ReceiveMessage)[0].clone();
    hands.end_poll(poll.id, 50001);
    assert!(hands.engine.isolated.is_empty());
    hands.wait(SECOND);
    let poll = hands.asked(ReceiveMessage)[0].clone();
    hands.end(poll.id, late());
    assert_eq!(hands.engine.isolated.len(), 1);
    hands.wait(3 * SECOND);
    hands.beat();
    assert!(hands.engine.isolated.is_empty());
    assert_eq!(hands.recovered, 0);
}
