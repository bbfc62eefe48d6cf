use bytes::Bytes;
use proptest::prelude::*;
use protobuf::{CodedOutputStream, Enum, EnumOrUnknown, Message as _, MessageField};

use super::common::*;
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::frame::WireError;
use crate::pulsar::wire::pb::{self, base_command::Type};

/// Parses a frame of ours with the generated code.
fn generated(out: &[u8]) -> (pb::BaseCommand, Bytes) {
    let (command, entry) = parts(&only_frame(out));
    (pb::BaseCommand::parse_from_bytes(&command).unwrap(), entry)
}

fn pb_id(id: &MessageIdData, explicit: bool) -> pb::MessageIdData {
    let mut data = pb::MessageIdData::new();
    data.set_ledgerId(id.ledger);
    data.set_entryId(id.entry);
    // Some peers write defaults, others leave them out.
    data.partition = (explicit || id.partition != -1).then_some(id.partition);
    data.batch_index = (explicit || id.batch_index != -1).then_some(id.batch_index);
    data.batch_size = (explicit || id.batch_size != 0).then_some(id.batch_size);
    data.ack_set.clone_from(&id.ack_set);
    if explicit {
        data.first_chunk_message_id = MessageField::some(pb_id(&MessageIdData::new(1, 2), false));
    }
    data
}

/// The frame of a command as a peer may write it: unknown fields around it and in it, fields turned round.
fn peer_frame(kind: Type, body: &[u8], unknown: &[u8], turn: bool, entry: &[u8]) -> Bytes {
    let body = [unknown, body, unknown].concat();
    let mut command = Vec::new();
    let mut stream = CodedOutputStream::vec(&mut command);
    stream.write_int32(1, kind.value()).unwrap();
    stream.write_bytes(kind.value() as u32, &body).unwrap();
    stream.flush().unwrap();
    drop(stream);
    let command = [unknown, &command, unknown].concat();
    let command = if turn { reversed(&command) } else { command };
    pb::BaseCommand::parse_from_bytes(&command).expect("valid for the generated code");
    [sized(&command), entry.to_vec()].concat().into()
}

fn maybe_reversed(bytes: Vec<u8>, turn: bool) -> Vec<u8> {
    if turn { reversed(&bytes) } else { bytes }
}

proptest! {
    #[test]
    fn send_reads_as_generated(send in send(), unknown in unknown_fields(), turn: bool) {
        let mut body = pb::CommandSend::new();
        body.set_producer_id(send.producer_id);
        body.set_sequence_id(send.sequence_id);
        body.set_num_messages(send.num_messages);
        body.highest_sequence_id = send.highest_sequence_id;
        body.set_is_chunk(send.is_chunk);
        body.set_txnid_least_bits(7);
        body.message_id = MessageField::some(pb_id(&MessageIdData::new(1, 2), true));
        let body = maybe_reversed(body.write_to_bytes().unwrap(), turn);
        let frame = peer_frame(Type::SEND, &body, &unknown, turn, &send.entry);
        prop_assert_eq!(decode(frame).unwrap(), Command::Send(send));
    }

    #[test]
    fn send_writes_as_generated(send in send()) {
        let mut out = Vec::new();
        encode_send(&send, &mut out);
        let (command, entry) = generated(&out);
        prop_assert_eq!(command.type_(), Type::SEND);
        prop_assert_eq!(command.send.producer_id(), send.producer_id);
        prop_assert_eq!(command.send.sequence_id(), send.sequence_id);
        prop_assert_eq!(command.send.num_messages(), send.num_messages);
        prop_assert_eq!(command.send.highest_sequence_id, send.highest_sequence_id);
        prop_assert_eq!(command.send.is_chunk(), send.is_chunk);
        prop_assert!(command.send.special_fields.unknown_fields().iter().next().is_none());
        prop_assert_eq!(entry, &send.entry);
        prop_assert_eq!(decode(only_frame(&out)).unwrap(), Command::Send(send));
    }

    #[test]
    fn receipt_reads_as_generated(receipt in receipt(), unknown in unknown_fields(), explicit: bool) {
        let mut body = pb::CommandSendReceipt::new();
        body.set_producer_id(receipt.producer_id);
        body.set_sequence_id(receipt.sequence_id);
        body.highest_sequence_id = receipt.highest_sequence_id;
        body.message_id = receipt.message_id.as_ref().map(|id| pb_id(id, explicit)).into();
        let body = maybe_reversed(body.write_to_bytes().unwrap(), explicit);
        let frame = peer_frame(Type::SEND_RECEIPT, &body, &unknown, explicit, &[]);
        prop_assert_eq!(decode(frame).unwrap(), Command::SendReceipt(receipt));
    }

    #[test]
    fn receipt_writes_as_generated(receipt in receipt()) {
        let mut out = Vec::new();
        encode_receipt(&receipt, &mut out);
        let (command, entry) = generated(&out);
        prop_assert_eq!(command.type_(), Type::SEND_RECEIPT);
        prop_assert_eq!(command.send_receipt.producer_id(), receipt.producer_id);
        prop_assert_eq!(command.send_receipt.sequence_id(), receipt.sequence_id);
        prop_assert_eq!(command.send_receipt.highest_sequence_id, receipt.highest_sequence_id);
        let id: Option<pb::MessageIdData> = command.send_receipt.message_id.clone().into_option();
        prop_assert_eq!(id, receipt.message_id.as_ref().map(|id| pb_id(id, false)));
        prop_assert!(entry.is_empty());
        prop_assert_eq!(decode(only_frame(&out)).unwrap(), Command::SendReceipt(receipt));
    }

    #[test]
    fn message_reads_as_generated(message in message(), unknown in unknown_fields(), explicit: bool) {
        let mut body = pb::CommandMessage::new();
        body.set_consumer_id(message.consumer_id);
        body.message_id = MessageField::some(pb_id(&message.message_id, explicit));
        body.redelivery_count = (explicit || message.redelivery_count != 0).then_some(message.redelivery_count);
        body.ack_set.clone_from(&message.ack_set);
        body.consumer_epoch = message.consumer_epoch;
        let body = body.write_to_bytes().unwrap();
        let frame = peer_frame(Type::MESSAGE, &body, &unknown, explicit, &message.entry);
        prop_assert_eq!(decode(frame).unwrap(), Command::Message(message));
    }

    #[test]
    fn message_writes_as_generated(message in message()) {
        let mut out = Vec::new();
        encode_message(&message, &mut out);
        let (command, entry) = generated(&out);
        prop_assert_eq!(command.type_(), Type::MESSAGE);
        prop_assert_eq!(command.message.consumer_id(), message.consumer_id);
        prop_assert_eq!(&*command.message.message_id, &pb_id(&message.message_id, false));
        prop_assert_eq!(command.message.redelivery_count(), message.redelivery_count);
        prop_assert_eq!(&command.message.ack_set, &message.ack_set);
        prop_assert_eq!(command.message.consumer_epoch, message.consumer_epoch);
        prop_assert_eq!(entry, &message.entry);
        prop_assert_eq!(decode(only_frame(&out)).unwrap(), Command::Message(message));
    }

    #[test]
    fn ack_reads_as_generated(ack in ack(), unknown in unknown_fields(), explicit: bool) {
        let mut body = pb::CommandAck::new();
        body.set_consumer_id(ack.consumer_id);
        body.ack_type = Some(EnumOrUnknown::from_i32(i32::from(ack.cumulative)));
        body.message_id = ack.message_ids.iter().map(|id| pb_id(id, explicit)).collect();
        body.validation_error = ack.validation_error.map(EnumOrUnknown::from_i32);
        body.request_id = ack.request_id;
        let body = body.write_to_bytes().unwrap();
        let frame = peer_frame(Type::ACK, &body, &unknown, explicit, &[]);
        prop_assert_eq!(decode(frame).unwrap(), Command::Ack(ack));
    }

    #[test]
    fn ack_writes_as_generated(ack in ack()) {
        let mut out = Vec::new();
        encode_ack(&ack, &mut out);
        let (command, _) = generated(&out);
        prop_assert_eq!(command.type_(), Type::ACK);
        prop_assert_eq!(command.ack.consumer_id(), ack.consumer_id);
        prop_assert_eq!(command.ack.ack_type().value(), i32::from(ack.cumulative));
        let ids: Vec<_> = ack.message_ids.iter().map(|id| pb_id(id, false)).collect();
        prop_assert_eq!(&command.ack.message_id, &ids);
        prop_assert_eq!(command.ack.validation_error.map(|error| error.value()), ack.validation_error);
        prop_assert_eq!(command.ack.request_id, ack.request_id);
        prop_assert_eq!(decode(only_frame(&out)).unwrap(), Command::Ack(ack));
    }

    #[test]
    fn flow_both_ways(consumer_id in number(), permits: u32, unknown in unknown_fields(), turn: bool) {
        let mut out = Vec::new();
        encode_flow(consumer_id, permits, &mut out);
        let (command, _) = generated(&out);
        prop_assert_eq!(command.type_(), Type::FLOW);
        prop_assert_eq!(command.flow.consumer_id(), consumer_id);
        prop_assert_eq!(command.flow.messagePermits(), permits);
        let body = maybe_reversed(command.flow.write_to_bytes().unwrap(), turn);
        let frame = peer_frame(Type::FLOW, &body, &unknown, turn, &[]);
        prop_assert_eq!(decode(frame).unwrap(), Command::Flow { consumer_id, permits });
    }

    /// Repeated numbers may come packed.
    #[test]
    fn packed_ack_sets(words in proptest::collection::vec(any::<i64>(), 0..10)) {
        let mut body = Vec::new();
        let mut stream = CodedOutputStream::vec(&mut body);
        stream.write_uint64(1, 9).unwrap();
        stream.write_bytes(2, &pb_id(&MessageIdData::new(3, 4), false).write_to_bytes().unwrap()).unwrap();
        stream.write_repeated_packed_int64(4, &words).unwrap();
        stream.flush().unwrap();
        drop(stream);
        let Command::Message(message) = decode(peer_frame(Type::MESSAGE, &body, &[], false, &[])).unwrap() else {
            panic!("a message")
        };
        prop_assert_eq!(message.ack_set, words);
    }
}

#[test]
fn ping_and_pong() {
    let mut out = Vec::new();
    encode_ping(&mut out);
    assert_eq!(generated(&out).0.type_(), Type::PING);
    assert!(generated(&out).0.ping.is_some());
    assert_eq!(decode(only_frame(&out)), Ok(Command::Ping));
    out.clear();
    encode_pong(&mut out);
    assert_eq!(generated(&out).0.type_(), Type::PONG);
    assert!(generated(&out).0.pong.is_some());
    assert_eq!(decode(only_frame(&out)), Ok(Command::Pong));
}

#[test]
fn the_last_of_a_repeated_field_counts() {
    let flow = |consumer: u8, permits: u8| vec![8, consumer, 16, permits];
    let command = [&[8, 18, 8, 11][..], &[0x5a, 4], &flow(1, 2), &[0x5a, 6], &flow(3, 4), &[16, 9]].concat();
    assert_eq!(decode(sized(&command).into()), Ok(Command::Flow { consumer_id: 3, permits: 9 }));
}

#[test]
fn an_unknown_type_is_not_an_error() {
    for number in [0, 1, 41, 69, 82, 1000, -1, i32::MIN] {
        let mut command = Vec::new();
        let mut stream = CodedOutputStream::vec(&mut command);
        stream.write_int32(1, number).unwrap();
        stream.write_bytes(700, b"what it says").unwrap();
        stream.flush().unwrap();
        drop(stream);
        assert_eq!(decode(sized(&command).into()), Ok(Command::Unknown(number)));
    }
}

#[test]
fn every_type_needs_its_part() {
    for kind in Type::VALUES {
        let command = decode(sized(&[8, kind.value() as u8]).into());
        match kind {
            Type::PING => assert_eq!(command, Ok(Command::Ping)),
            Type::PONG => assert_eq!(command, Ok(Command::Pong)),
            _ => assert_eq!(command, Err(WireError::MissingField("command body")), "{kind:?}"),
        }
    }
    assert_eq!(decode(sized(&[]).into()), Err(WireError::MissingField("type")));
}

#[test]
fn required_fields_are_required() {
    let missing = |kind: Type, body: &[u8]| {
        let command = [&[8, kind.value() as u8, (kind.value() << 3 | 2) as u8, body.len() as u8], body].concat();
        decode(sized(&command).into()).unwrap_err()
    };
    assert_eq!(missing(Type::SEND, &[16, 1]), WireError::MissingField("producer_id"));
    assert_eq!(missing(Type::SEND, &[8, 1]), WireError::MissingField("sequence_id"));
    assert_eq!(missing(Type::SEND_RECEIPT, &[16, 1]), WireError::MissingField("producer_id"));
    assert_eq!(missing(Type::SEND_RECEIPT, &[8, 1]), WireError::MissingField("sequence_id"));
    assert_eq!(missing(Type::SEND_RECEIPT, &[8, 1, 16, 1, 26, 2, 8, 1]), WireError::MissingField("entryId"));
    assert_eq!(missing(Type::SEND_RECEIPT, &[8, 1, 16, 1, 26, 2, 16, 1]), WireError::MissingField("ledgerId"));
    assert_eq!(missing(Type::MESSAGE, &[18, 4, 8, 1, 16, 1]), WireError::MissingField("consumer_id"));
    assert_eq!(missing(Type::MESSAGE, &[8, 1]), WireError::MissingField("message_id"));
    assert_eq!(missing(Type::ACK, &[8, 1]), WireError::MissingField("ack_type"));
    assert_eq!(missing(Type::ACK, &[16, 1]), WireError::MissingField("consumer_id"));
    assert_eq!(missing(Type::FLOW, &[8, 1]), WireError::MissingField("messagePermits"));
    assert_eq!(missing(Type::FLOW, &[16, 1]), WireError::MissingField("consumer_id"));
    // By the generated code.
    assert_eq!(missing(Type::SUCCESS, &[]), WireError::BadProtobuf);
    // Not the wire type that belongs there, and a group.
    assert_eq!(missing(Type::FLOW, &[10, 0, 16, 1]), WireError::BadProtobuf);
    assert_eq!(missing(Type::FLOW, &[8, 1, 16, 1, 27, 28]), WireError::BadProtobuf);
    assert_eq!(missing(Type::ACK, &[8, 1, 16, 2]), WireError::BadProtobuf);
}

#[test]
fn a_command_size_beyond_the_frame_is_refused() {
    assert_eq!(decode(Bytes::from_static(&[0, 0, 0])), Err(WireError::Truncated));
    assert_eq!(decode(Bytes::from_static(&[0, 0, 0, 3, 8, 18])), Err(WireError::BadLength));
    assert_eq!(decode(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 8, 18])), Err(WireError::BadLength));
}

/// An id in an id, five thousand deep: our code does not follow it, the generated code refuses it.
#[test]
fn deep_nesting() {
    let mut id = vec![8, 1, 16, 1];
    for _ in 0..5000 {
        let mut outer = vec![8, 1, 16, 1];
        let mut stream = CodedOutputStream::vec(&mut outer);
        stream.write_bytes(7, &id).unwrap();
        stream.flush().unwrap();
        drop(stream);
        id = outer;
    }
    let nested = |kind: Type| {
        let mut body = vec![8, 1, 16, 1];
        let mut stream = CodedOutputStream::vec(&mut body);
        stream.write_bytes(3, &id).unwrap();
        stream.flush().unwrap();
        drop(stream);
        let mut command = Vec::new();
        let mut stream = CodedOutputStream::vec(&mut command);
        stream.write_int32(1, kind.value()).unwrap();
        stream.write_bytes(kind.value() as u32, &body).unwrap();
        stream.flush().unwrap();
        drop(stream);
        decode(sized(&command).into())
    };
    let Ok(Command::SendReceipt(receipt)) = nested(Type::SEND_RECEIPT) else { panic!("a receipt") };
    assert_eq!(receipt.message_id, Some(MessageIdData::new(1, 1)));
    assert_eq!(nested(Type::SEEK), Err(WireError::BadProtobuf));
}

/// Every constructor gives a command that is complete, and reads back as itself.
#[test]
fn constructors_set_all_required_fields() {
    let properties = [("a".to_owned(), "b".to_owned())];
    let id =
        MessageIdData { partition: 3, batch_index: 4, batch_size: 5, ack_set: vec![-1], ..MessageIdData::new(1, 2) };
    let open = ProducerOpen {
        topic: "t",
        producer_id: 1,
        request_id: 2,
        name: Some("n"),
        user_provided_name: false,
        epoch: 3,
        access_mode: pb::ProducerAccessMode::WaitForExclusive,
        topic_epoch: Some(4),
        properties: &properties,
    };
    let subscribe_open = SubscribeOpen {
        start_message_id: Some(&id),
        properties: &properties,
        consumer_name: Some("c"),
        ..SubscribeOpen::new("t", "s", pb::command_subscribe::SubType::Key_Shared, 5, 6)
    };
    let lookup_kind = pb::command_lookup_topic_response::LookupType::Redirect;
    let commands = [
        connect("v", "token", b"secret", Some("h:1")),
        connected("broker", 77),
        auth_response("v", "token", b""),
        auth_challenge("broker", "token", b"c"),
        partitioned_metadata("t", 1),
        partitioned_metadata_response(1, 4),
        partitioned_metadata_failed(1, 99, "no"),
        lookup("t", 1, true),
        lookup_response(1, lookup_kind, Some("u"), None, true, false),
        lookup_failed(1, 6, "no"),
        producer(&open),
        producer_success(1, "n", -1, Some(2), true),
        send_error(1, 2, 9, "no"),
        close_producer(1, 2),
        subscribe(&subscribe_open),
        close_consumer(1, 2),
        unsubscribe(1, 2, true),
        redeliver(1, std::slice::from_ref(&id)),
        success(1),
        error(1, 11, "no"),
    ];
    let mut out = Vec::new();
    for command in commands {
        out.clear();
        encode(&command, &mut out);
        assert_eq!(decode(only_frame(&out)), Ok(Command::Other(Box::new(command))));
    }
    let opened = producer(&open);
    assert_eq!(opened.producer.producer_access_mode(), pb::ProducerAccessMode::WaitForExclusive);
    assert!(!opened.producer.user_provided_producer_name());
    assert_eq!((opened.producer.epoch(), opened.producer.topic_epoch()), (3, 4));
    assert_eq!(opened.producer.metadata[0].value(), "b");
    let greeting = connect("v", "", b"", None);
    assert_eq!(greeting.connect.protocol_version(), 21);
    assert!(greeting.connect.feature_flags.supports_auth_refresh());
    assert!(greeting.connect.feature_flags.supports_broker_entry_metadata());
    assert!(!greeting.connect.has_proxy_to_broker_url());
    let subscribed = subscribe(&subscribe_open);
    assert_eq!(subscribed.subscribe.start_message_id.batch_index(), 4);
    assert!(subscribed.subscribe.durable() && subscribed.subscribe.force_topic_creation());
}

/// Frames written one after the other stay apart.
#[test]
fn encoders_append() {
    let mut out = b"before".to_vec();
    encode_ping(&mut out);
    let at = out.len();
    encode(&success(7), &mut out);
    assert_eq!(&out[..6], b"before");
    assert_eq!(decode(only_frame(&out[6..at])), Ok(Command::Ping));
    assert_eq!(decode(only_frame(&out[at..])), Ok(Command::Other(Box::new(success(7)))));
}
