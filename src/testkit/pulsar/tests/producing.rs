use std::time::{Duration, Instant};

use super::client::Client;
use super::{A_WHILE, PATIENCE};
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::pb::{self, ProducerAccessMode, ServerError as Code};
use crate::testkit::pulsar::{Broker, EventKind, Request, ServerError};

const TOPIC: &str = "persistent://public/default/t";

#[test]
fn stores_what_producers_send_and_answers_each() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    let name = client.producer("t", 4);
    assert!(!name.is_empty());
    client.publish(4, 0, "a");
    client.publish_batch(4, 1, &["b", "c", "d"]);
    client.publish(4, 4, "");
    let receipts = [client.receipt(), client.receipt(), client.receipt()];
    assert_eq!(
        receipts.each_ref().map(|r| (r.sequence_id, r.highest_sequence_id)),
        [(0, None), (1, Some(3)), (4, None)]
    );
    let ids = receipts.map(|r| r.message_id.unwrap());
    assert_eq!(ids.each_ref().map(|id| (id.ledger, id.entry, id.partition)), [(1, 0, -1), (1, 1, -1), (1, 2, -1)]);

    let messages = broker.messages("t");
    let bodies: Vec<_> = messages.iter().map(|m| std::str::from_utf8(&m.payload).unwrap()).collect();
    assert_eq!(bodies, ["a", "b", "c", "d", ""]);
    assert_eq!(messages.iter().map(|m| m.sequence_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(messages[2].id.batch_index(), Some(1));
    assert_eq!(messages[2].publish_time, 1001);
    assert!(messages.iter().all(|m| m.unreadable.is_none() && m.producer_name == "p"));
    assert_eq!((broker.sends(), broker.received()), (3, 5));

    let sends: Vec<_> = broker
        .log()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Send { topic, sequence_id, highest, num_messages, .. } => {
                assert_eq!(&*topic, TOPIC);
                Some((sequence_id, highest, num_messages))
            }
            _ => None,
        })
        .collect();
    assert_eq!(sends, [(0, None, 1), (1, Some(3), 3), (4, None, 1)]);
}

#[test]
fn refuses_a_damaged_entry() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    let mut frame = Vec::new();
    client.encode(|out| frame.append(out));
    let content = crate::pulsar::wire::payload::Content { payload: "body".into(), extras: None };
    crate::pulsar::wire::payload::encode_single_send(
        &super::client::header(1, 0),
        &content,
        crate::pulsar::wire::compress::Compression::None,
        &mut frame,
    )
    .unwrap();
    *frame.last_mut().unwrap() ^= 1;
    client.raw(&frame);
    let answer = client.other(|answer| answer.send_error.is_some());
    assert_eq!(answer.send_error.error(), Code::ChecksumError);
    assert_eq!(answer.send_error.sequence_id(), 0);
    assert!(broker.messages("t").is_empty());

    let careless = Broker::builder().verify_checksums(false).start().unwrap();
    let mut client = Client::connect(&careless);
    client.producer("t", 1);
    client.raw(&frame);
    client.receipt();
    assert!(careless.messages("t")[0].unreadable.is_some());
}

#[test]
fn deduplicates_by_producer_name() {
    let broker = Broker::builder().deduplication(true).start().unwrap();
    let mut client = Client::connect(&broker);
    let request = client.ask_for_producer("t", 1, |open| open.name = Some("me"));
    assert_eq!(client.produces(request).last_sequence_id(), -1);
    client.publish(1, 5, "a");
    client.publish_batch(1, 6, &["b", "c"]);
    client.publish(1, 6, "again");
    client.publish(1, 7, "again");
    client.publish(1, 8, "d");
    let entries: Vec<_> = (0..5).map(|_| client.receipt().message_id.unwrap().entry).collect();
    assert_eq!(entries, [0, 1, u64::MAX, u64::MAX, 2]);
    drop(client);
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));

    let mut client = Client::connect(&broker);
    let request = client.ask_for_producer("t", 1, |open| open.name = Some("me"));
    assert_eq!(client.produces(request).last_sequence_id(), 8);
    assert_eq!(broker.messages("t").len(), 4);
}

#[test]
fn an_exclusive_producer_is_alone() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    let exclusive = |open: &mut ProducerOpen| open.access_mode = ProducerAccessMode::Exclusive;
    let request = client.ask_for_producer("t", 1, exclusive);
    assert_eq!(client.produces(request).topic_epoch, Some(0));
    let request = client.ask_for_producer("t", 2, exclusive);
    assert_eq!(client.error(request), Code::ProducerFenced);
    let request = client.ask_for_producer("t", 2, |_| {});
    assert_eq!(client.error(request), Code::ProducerBusy);

    let request = client.request_id();
    client.send(&close_producer(1, request));
    client.success(request);
    let request = client.ask_for_producer("t", 2, exclusive);
    assert_eq!(client.produces(request).topic_epoch, Some(1));
    client.send(&close_producer(2, 99));
    client.success(99);
    // The first one is not wanted back.
    let request = client.ask_for_producer("t", 1, |open| {
        exclusive(open);
        open.topic_epoch = Some(0);
    });
    assert_eq!(client.error(request), Code::ProducerFenced);
}

#[test]
fn a_name_is_taken_while_its_connection_lives() {
    let broker = Broker::builder().liveness_check(PATIENCE).start().unwrap();
    let mut old = Client::connect(&broker);
    let named = |open: &mut ProducerOpen| (open.name, open.user_provided_name) = (Some("me"), true);
    let request = old.ask_for_producer("t", 1, named);
    old.produces(request);
    let mut new = Client::connect(&broker);
    let request = new.ask_for_producer("t", 1, named);
    // The broker asks the old one, which answers.
    old.answers_pings = false;
    assert_eq!(old.next(), Command::Ping);
    new.nothing_comes();
    old.encode(encode_pong);
    assert_eq!(new.error(request), Code::ProducerBusy);

    let request = new.ask_for_producer("t", 1, named);
    assert_eq!(old.next(), Command::Ping);
    drop(old);
    assert_eq!(new.produces(request).producer_name(), "me");
}

#[test]
fn a_dead_holder_of_a_name_is_put_out() {
    let broker = Broker::builder().liveness_check(A_WHILE).start().unwrap();
    let mut old = Client::connect(&broker);
    let named = |open: &mut ProducerOpen| (open.name, open.user_provided_name) = (Some("me"), true);
    let request = old.ask_for_producer("t", 1, named);
    old.produces(request);
    let mut new = Client::connect(&broker);
    let request = new.ask_for_producer("t", 1, named);
    new.produces(request);
    old.end();
}

#[test]
fn a_generated_name_is_handed_over_at_once() {
    // If it waited for the old one, the test would lose its patience first.
    let broker = Broker::builder().liveness_check(PATIENCE * 10).start().unwrap();
    let mut old = Client::connect(&broker);
    let name = old.producer("t", 2);
    let mut new = Client::connect(&broker);
    let request = new.ask_for_producer("t", 1, |open| (open.name, open.epoch) = (Some(name.as_str()), 1));
    new.produces(request);
    // What the old one still sends is dropped.
    old.publish(2, 0, "late");
    old.assert_alive();
    assert!(broker.messages("t").is_empty());
}

#[test]
fn the_backlog_has_a_limit() {
    let broker = Broker::builder().backlog_limit(1000).start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.subscribe("t", 1, pb::command_subscribe::SubType::Shared);
    let body = "x".repeat(300);
    for n in 0..2 {
        client.publish(1, n, &body);
        client.receipt();
    }
    client.publish(1, 2, &body);
    client.receipt();
    client.publish(1, 3, &body);
    let answer = client.other(|answer| answer.send_error.is_some());
    assert_eq!(answer.send_error.error(), Code::ProducerBlockedQuotaExceededError);
    // What is acknowledged makes room.
    client.flow(1, 1);
    let id = client.message().message_id;
    client.ack(1, false, &[id]);
    client.publish(1, 4, &body);
    assert_eq!(client.receipt().message_id.unwrap().entry, 3);
    let kept: Vec<_> = broker.messages("t").iter().map(|m| m.id.entry_id()).collect();
    assert_eq!(kept, [1, 2, 3]);
}

#[test]
fn discarding_only_counts() {
    let broker = Broker::builder().discard(true).start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.publish_batch(1, 0, &["a", "b"]);
    client.publish(1, 2, "c");
    assert_eq!(client.receipt().message_id.unwrap().entry, 0);
    assert_eq!(client.receipt().message_id.unwrap().entry, 1);
    assert!(broker.messages("t").is_empty());
    assert_eq!((broker.sends(), broker.received()), (2, 3));
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Send { .. })), 0);
}

#[test]
fn receipts_are_held_and_released() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.hold_receipts("t");
    for n in 0..4 {
        client.publish(1, n, "x");
    }
    client.nothing_comes();
    assert!(broker.release_receipt("t", 2));
    assert!(!broker.release_receipt("t", 2));
    assert_eq!(client.receipts(1), [2]);
    client.nothing_comes();
    broker.release_receipts("t");
    assert_eq!(client.receipts(3), [0, 1, 3]);
    client.publish(1, 4, "x");
    assert_eq!(client.receipts(1), [4]);
    assert_eq!(broker.messages("t").len(), 5);
}

#[test]
fn held_receipts_die_with_their_producer() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.hold_receipts("t");
    client.publish(1, 0, "x");
    client.send(&close_producer(1, 50));
    client.success(50);
    client.producer("t", 1);
    client.publish(1, 7, "x");
    client.assert_alive();
    broker.release_receipts("t");
    assert_eq!(client.receipts(1), [7]);
}

#[test]
fn receipts_are_lost_doubled_turned_around() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.drop_receipts("t", 2);
    for n in 0..3 {
        client.publish(1, n, "x");
    }
    assert_eq!(client.receipts(1), [2]);

    broker.reorder_receipts("t", true);
    for n in 3..6 {
        client.publish(1, n, "x");
    }
    assert_eq!(client.receipts(2), [4, 3]);
    client.assert_alive();
    broker.reorder_receipts("t", false);
    assert_eq!(client.receipts(1), [5]);

    broker.duplicate_receipts("t", true);
    client.publish(1, 6, "x");
    assert_eq!(client.receipts(2), [6, 6]);
    broker.duplicate_receipts("t", false);

    broker.receipt_by_highest("t", true);
    client.publish_batch(1, 7, &["a", "b", "c"]);
    let receipt = client.receipt();
    assert_eq!((receipt.sequence_id, receipt.highest_sequence_id), (9, Some(9)));
}

#[test]
fn receipts_are_late() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    let delay = Duration::from_millis(200);
    broker.delay_receipts("t", delay);
    let sent = Instant::now();
    client.publish(1, 0, "x");
    client.publish(1, 1, "x");
    client.assert_alive();
    assert_eq!(client.receipts(2), [0, 1]);
    assert!(sent.elapsed() >= delay);
    broker.delay_receipts("t", None);
    broker.delay_receipts("other", PATIENCE);
    client.publish(1, 2, "x");
    assert_eq!(client.receipts(1), [2]);
}

#[test]
fn a_chosen_send_is_refused() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.answer_send_with("t", 2, ServerError::PERSISTENCE);
    for n in 0..3 {
        client.publish(1, n, "x");
    }
    assert_eq!(client.receipts(1), [0]);
    let answer = client.other(|answer| answer.send_error.is_some());
    assert_eq!((answer.send_error.error(), answer.send_error.sequence_id()), (Code::PersistenceError, 1));
    assert_eq!(client.receipts(1), [2]);
    assert_eq!(broker.messages("t").len(), 2);
}

#[test]
fn a_terminated_topic_takes_nothing() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.publish(1, 0, "x");
    client.receipt();
    broker.terminate("t");
    client.other(|answer| answer.close_producer.is_some());
    let request = client.ask_for_producer("t", 1, |_| {});
    assert_eq!(client.error(request), Code::TopicTerminatedError);
    assert_eq!(broker.messages("t").len(), 1);
}

#[test]
fn producers_are_closed_and_sent_elsewhere() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.producer("other", 2);
    assert_eq!(broker.close_producers("t", "127.0.0.1:1"), 1);
    let close = client.other(|answer| answer.close_producer.is_some());
    assert_eq!(close.close_producer.producer_id(), 1);
    assert_eq!(close.close_producer.assignedBrokerServiceUrl(), "pulsar://127.0.0.1:1");
    // What was on its way is dropped, and the connection stays.
    client.publish(1, 0, "late");
    client.assert_alive();
    assert!(broker.messages("t").is_empty());
    client.producer("t", 1);
    client.publish(1, 0, "x");
    client.receipt();
    broker.unload("t");
    let close = client.other(|answer| answer.close_producer.is_some());
    assert_eq!(close.close_producer.assignedBrokerServiceUrl, None);
    client.publish(2, 0, "x");
    client.receipt();
    // A producer that never was.
    client.publish(77, 0, "x");
    client.end();
}

#[test]
fn the_same_producer_asked_for_twice_is_the_same() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    broker.lose_answer_of_next(Request::Producer, 1);
    client.ask_for_producer("t", 1, |open| open.name = Some("me"));
    client.assert_alive();
    let request = client.ask_for_producer("t", 1, |open| open.name = Some("me"));
    assert_eq!(client.produces(request).producer_name(), "me");
    // The same name under another number on the same connection.
    let request = client.ask_for_producer("t", 2, |open| open.name = Some("me"));
    assert_eq!(client.error(request), Code::ProducerBusy);
}
