use bytes::Bytes;

use super::client::Client;
use super::{A_WHILE, PATIENCE};
use crate::pulsar::message_id::MessageId;
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::frame::WireError;
use crate::pulsar::wire::payload::{BatchReader, decompress, parse_entry};
use crate::pulsar::wire::pb::{self, ServerError as Code, command_subscribe::SubType};
use crate::testkit::pulsar::state::now_ms;
use crate::testkit::pulsar::{Broker, Corruption, EventKind};

/// A broker with the entries 0.. of these numbers of messages in the topic `t`.
fn filled(broker: &Broker, batches: &[usize]) -> Client {
    let mut client = Client::connect(broker);
    client.producer("t", 100);
    let mut sequence_id = 0;
    for &count in batches {
        client.publish_batch(100, sequence_id, &vec!["x"; count]);
        client.receipt();
        sequence_id += count as u64;
    }
    client
}

fn entry(n: u64) -> MessageIdData {
    MessageIdData::new(1, n)
}

fn acked(broker: &Broker) -> Vec<i64> {
    broker.acked("t", "sub").iter().map(MessageId::entry_id).collect()
}

#[test]
fn delivers_what_is_stored_unchanged() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.subscribe("t", 7, SubType::Exclusive);
    client.flow(7, 10);
    client.publish_batch(1, 0, &["a", "b"]);
    client.receipt();
    let message = client.message();
    assert_eq!((message.consumer_id, message.redelivery_count), (7, 0));
    assert_eq!(message.message_id, entry(0));
    let entry = parse_entry(message.entry).unwrap();
    assert_eq!((entry.broker_entry, entry.metadata.num_messages_in_batch), (None, Some(2)));
    let plain =
        decompress(entry.metadata.compression, &entry.payload, entry.metadata.uncompressed_size, 1 << 20).unwrap();
    let bodies: Vec<Bytes> = BatchReader::new(plain, 2).map(|item| item.unwrap().payload).collect();
    assert_eq!(bodies, ["a", "b"]);
}

#[test]
fn counts_permits_by_message() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[3, 3, 1, 1]);
    client.subscribe("t", 1, SubType::Exclusive);
    client.nothing_comes();
    client.flow(1, 4);
    // The second batch goes out because one permit is left: two are owed then.
    assert_eq!(client.entries(2), [0, 1]);
    client.nothing_comes();
    client.flow(1, 2);
    client.nothing_comes();
    client.flow(1, 1);
    assert_eq!(client.entries(1), [2]);
    client.nothing_comes();
}

#[test]
fn starts_where_the_subscription_says() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 1, 1]);
    let request = client.ask_to_subscribe("t", 1, SubType::Exclusive, |_| {});
    client.success(request);
    client.flow(1, 10);
    client.publish(100, 3, "new");
    client.receipt();
    assert_eq!(client.entries(1), [3]);

    // A reader.
    let start = entry(1);
    let request = client.ask_to_subscribe("t", 2, SubType::Exclusive, |open| {
        (open.subscription, open.durable, open.start_message_id) = ("reader", false, Some(&start));
    });
    client.success(request);
    client.flow(2, 10);
    assert_eq!(client.entries(3), [1, 2, 3]);
    // It leaves nothing behind.
    client.ack(2, false, &[entry(1)]);
    assert_eq!(broker.acked("t", "reader").len(), 1);
    client.send(&close_consumer(2, 50));
    client.success(50);
    assert!(broker.acked("t", "reader").is_empty());
}

#[test]
fn an_exclusive_subscription_has_one_consumer() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.subscribe("t", 1, SubType::Exclusive);
    let request = client.ask_to_subscribe("t", 2, SubType::Exclusive, |_| {});
    assert_eq!(client.error(request), Code::ConsumerBusy);
    let request = client.ask_to_subscribe("t", 2, SubType::Shared, |_| {});
    assert_eq!(client.error(request), Code::ConsumerBusy);
    let request = client.ask_to_subscribe("t", 2, SubType::Failover, |open| open.subscription = "other");
    assert_eq!(client.error(request), Code::NotAllowedError);
    // The same one again.
    client.subscribe("t", 1, SubType::Exclusive);
    client.send(&close_consumer(1, 50));
    client.success(50);
    client.subscribe("t", 2, SubType::Shared);
}

#[test]
fn the_consumer_of_a_dead_connection_is_put_out() {
    let broker = Broker::builder().liveness_check(A_WHILE).start().unwrap();
    let mut old = Client::connect(&broker);
    old.subscribe("t", 1, SubType::Exclusive);
    let mut new = Client::connect(&broker);
    new.subscribe("t", 1, SubType::Exclusive);
    old.end();
}

#[test]
fn shared_consumers_take_turns_and_inherit() {
    let broker = Broker::start().unwrap();
    let mut one = filled(&broker, &[1, 1, 1, 1]);
    let mut two = Client::connect(&broker);
    one.subscribe("t", 1, SubType::Shared);
    two.subscribe("t", 1, SubType::Shared);
    two.flow(1, 2);
    assert_eq!(two.entries(2), [0, 1]);
    one.flow(1, 10);
    assert_eq!(one.entries(2), [2, 3]);
    two.flow(1, 10);
    // The broker has read that before the next entry comes over the other connection.
    two.assert_alive();
    for n in 4..8 {
        one.publish(100, n, "x");
    }
    let mut ones = Vec::new();
    let mut receipts = 0;
    while ones.len() < 2 || receipts < 4 {
        match one.next() {
            Command::Message(message) => ones.push(message.message_id.entry),
            Command::SendReceipt(_) => receipts += 1,
            other => panic!("{other:?}"),
        }
    }
    let twos = two.entries(2);
    assert!(ones == [4, 6] && twos == [5, 7] || ones == [5, 7] && twos == [4, 6], "{ones:?} {twos:?}");

    // What the other did not acknowledge comes to the one that stays.
    two.ack(1, false, &[entry(1)]);
    drop(two);
    let mut inherited = Vec::new();
    for _ in 0..3 {
        let message = one.message();
        assert_eq!(message.redelivery_count, 1);
        inherited.push(message.message_id.entry);
    }
    assert_eq!(inherited, [0, twos[0], twos[1]]);
}

#[test]
fn acknowledges_one_by_one_and_all_below() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 2, 1, 1, 1]);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 100);
    client.entries(5);
    client.ack(1, false, &[entry(1), entry(3)]);
    assert_eq!(acked(&broker), [1, 3]);
    // A part of a batch, and an id of another life.
    let part = MessageIdData { ack_set: vec![1], ..entry(2) };
    client.ack(1, false, &[part.clone(), MessageIdData::new(9, 2)]);
    assert_eq!(acked(&broker), [1, 3]);
    client.ack(1, true, &[part]);
    assert_eq!(acked(&broker), [0, 1, 3]);
    client.ack(1, true, &[entry(2)]);
    assert_eq!(acked(&broker), [0, 1, 2, 3]);
    // Nonsense does no harm.
    client.ack(1, true, &[MessageIdData::new(1, u64::MAX)]);
    client.ack(1, false, &[MessageIdData::new(1, u64::MAX), entry(70)]);
    assert_eq!(acked(&broker), [0, 1, 2, 3, 4]);

    let wanted = |kind: &EventKind| matches!(kind, EventKind::Ack { cumulative: true, .. });
    assert_eq!(broker.count(wanted), 3);
}

#[test]
fn redelivers_what_is_asked_for() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 1, 1]);
    client.subscribe("t", 1, SubType::Shared);
    client.flow(1, 100);
    client.entries(3);
    client.ack(1, false, &[entry(0)]);
    // Neither the acknowledged one nor one that is not there.
    client.send(&redeliver(1, &[entry(0), entry(2), entry(50)]));
    let message = client.message();
    assert_eq!((message.message_id.entry, message.redelivery_count), (2, 1));
    client.send(&redeliver(1, &[]));
    let again: Vec<_> = (0..2).map(|_| client.message()).map(|m| (m.message_id.entry, m.redelivery_count)).collect();
    assert_eq!(again, [(1, 1), (2, 2)]);
    client.nothing_comes();
    // Redelivery takes permits like anything else.
    client.send(&close_consumer(1, 50));
    client.success(50);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 1);
    let message = client.message();
    assert_eq!((message.message_id.entry, message.redelivery_count), (1, 2));
    // Exclusive: ids mean nothing, everything comes again.
    client.send(&redeliver(1, &[entry(2)]));
    client.nothing_comes();
    client.flow(1, 5);
    let again: Vec<_> = (0..2).map(|_| client.message()).map(|m| (m.message_id.entry, m.redelivery_count)).collect();
    assert_eq!(again, [(1, 3), (2, 3)]);
}

#[test]
fn delays_for_shared_subscriptions() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[]);
    let due = now_ms() + 300;
    client.publish_at(100, 0, due as i64);
    client.publish(100, 1, "now");
    client.publish_at(100, 2, i64::MAX);
    client.publish_at(100, 3, -5);
    client.receipts(4);
    client.subscribe("t", 1, SubType::Shared);
    client.flow(1, 100);
    assert_eq!(client.entries(3), [1, 3, 0]);
    assert!(now_ms() >= due);
    client.nothing_comes();
    client.send(&close_consumer(1, 50));
    client.success(50);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 100);
    assert_eq!(client.entries(4), [0, 1, 2, 3]);
}

#[test]
fn unsubscribing_forgets() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 1]);
    client.subscribe("t", 1, SubType::Shared);
    client.subscribe("t", 2, SubType::Shared);
    client.send(&unsubscribe(1, 50, false));
    assert_eq!(client.error(50), Code::ConsumerBusy);
    client.send(&close_consumer(2, 51));
    client.success(51);
    client.flow(1, 10);
    client.entries(2);
    client.ack(1, true, &[entry(1)]);
    client.send(&unsubscribe(1, 52, false));
    client.success(52);
    client.subscribe("t", 1, SubType::Shared);
    client.flow(1, 10);
    assert_eq!(client.entries(2), [0, 1]);
}

#[test]
fn consumers_are_closed_and_sent_elsewhere() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1]);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    client.message();
    assert_eq!(broker.close_consumers("t", "pulsar://elsewhere:6650"), 1);
    let close = client.other(|answer| answer.close_consumer.is_some());
    assert_eq!(close.close_consumer.assignedBrokerServiceUrl(), "pulsar://elsewhere:6650");
    client.subscribe("t", 1, SubType::Exclusive);
    // Its permits went with it.
    client.nothing_comes();
    client.flow(1, 1);
    assert_eq!(client.message().redelivery_count, 1);
}

#[test]
fn seeks_by_id_and_time() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 1, 1, 1]);
    let again = |client: &mut Client, request: pb::BaseCommand| {
        client.send(&request);
        // A broker closes the consumer first.
        client.other(|answer| answer.close_consumer.is_some());
        client.success(60);
        client.subscribe("t", 1, SubType::Exclusive);
        client.flow(1, 1);
        client.message().message_id.entry
    };
    client.subscribe("t", 1, SubType::Exclusive);
    let seek = |id: Option<MessageId>, time: Option<u64>| {
        let mut command = pb::BaseCommand::new();
        command.set_type(pb::base_command::Type::SEEK);
        let body = command.seek.mut_or_insert_default();
        body.set_consumer_id(1);
        body.set_request_id(60);
        body.message_id = id.map(|id| id.to_pb()).into();
        body.message_publish_time = time;
        command
    };
    assert_eq!(again(&mut client, seek(Some(MessageId::new(1, 2, -1)), None)), 2);
    assert_eq!(again(&mut client, seek(None, Some(1001))), 1);
    assert_eq!(again(&mut client, seek(Some(MessageId::EARLIEST), None)), 0);
    client.send(&seek(Some(MessageId::LATEST), None));
    client.other(|answer| answer.close_consumer.is_some());
    client.success(60);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    client.nothing_comes();

    let mut command = pb::BaseCommand::new();
    command.set_type(pb::base_command::Type::GET_LAST_MESSAGE_ID);
    let body = command.getLastMessageId.mut_or_insert_default();
    body.set_consumer_id(1);
    body.set_request_id(61);
    client.send(&command);
    let answer = client.other(|answer| answer.getLastMessageIdResponse.is_some());
    let last = &answer.getLastMessageIdResponse.last_message_id;
    assert_eq!((last.ledgerId(), last.entryId(), last.batch_size()), (1, 3, 1));
    assert_eq!(answer.getLastMessageIdResponse.consumer_mark_delete_position.entryId(), 3);
}

#[test]
fn adds_its_own_metadata_for_those_who_read_it() {
    let broker = Broker::builder().broker_entry_metadata(true).start().unwrap();
    let mut client = filled(&broker, &[3, 2]);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    let indexes: Vec<_> =
        (0..2).map(|_| parse_entry(client.message().entry).unwrap().broker_entry.unwrap().index).collect();
    assert_eq!(indexes, [Some(2), Some(4)]);

    let mut old = Client::dial(&broker);
    let mut hello = connect("tester", "", b"", None);
    hello.connect.mut_or_insert_default().feature_flags = None.into();
    old.send(&hello);
    old.next();
    let request = old.ask_to_subscribe("t", 1, SubType::Shared, |open| {
        (open.subscription, open.initial_position) = ("old", pb::command_subscribe::InitialPosition::Earliest);
    });
    old.success(request);
    old.flow(1, 1);
    assert_eq!(parse_entry(old.message().entry).unwrap().broker_entry, None);
}

#[test]
fn damages_a_delivery_once() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1]);
    client.subscribe("t", 1, SubType::Shared);
    client.flow(1, 100);
    client.message();
    let mut damaged = |corruption| {
        broker.corrupt_next_message("t", corruption);
        client.send(&redeliver(1, &[]));
        parse_entry(client.message().entry)
    };
    assert_eq!(damaged(Corruption::Checksum), Err(WireError::ChecksumMismatch));
    assert!(matches!(damaged(Corruption::TruncatedMetadata), Err(WireError::Truncated | WireError::BadProtobuf)));
    assert_eq!(damaged(Corruption::OversizedMetadata), Err(WireError::Truncated));
    let batch = damaged(Corruption::BatchCount).unwrap();
    assert_eq!((batch.metadata.num_messages_in_batch, batch.payload.len()), (Some(1000), 20));
    assert!(BatchReader::new(batch.payload, 1000).any(|item| item.is_err()));
    for corruption in [Corruption::UncompressedSize, Corruption::HugeUncompressedSize] {
        let entry = damaged(corruption).unwrap();
        let metadata = entry.metadata;
        assert!(decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, 1 << 20).is_err());
    }
    // What is stored was never touched.
    client.send(&redeliver(1, &[]));
    assert!(parse_entry(client.message().entry).is_ok());
    assert_eq!(broker.messages("t").len(), 1);
}

#[test]
fn a_lost_connection_gives_its_messages_back() {
    let broker = Broker::start().unwrap();
    let mut client = filled(&broker, &[1, 1]);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    client.entries(2);
    client.ack(1, false, &[entry(0)]);
    broker.drop_connections();
    let mut client = Client::connect(&broker);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    let message = client.message();
    assert_eq!((message.message_id.entry, message.redelivery_count), (1, 1));
    client.nothing_comes();
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 1));
}
