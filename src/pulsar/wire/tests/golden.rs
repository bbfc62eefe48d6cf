//! Frames that a real broker sent: recorded once, read for ever.

use bytes::Bytes;

use super::common::only_frame;
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::payload::*;
use crate::pulsar::wire::pb::{self, ServerError};

/// The bytes of a fixture: hex digits in lines, comments after `#`.
fn fixture(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

macro_rules! golden {
    ($name:literal) => {
        decode(only_frame(&fixture(include_str!(concat!("golden/", $name, ".hex"))))).expect($name)
    };
}

macro_rules! other {
    ($name:literal, $part:ident) => {{
        let Command::Other(command) = golden!($name) else { panic!("{} is generated", $name) };
        command.$part.into_option().expect($name)
    }};
}

macro_rules! message {
    ($name:literal) => {{
        let Command::Message(message) = golden!($name) else { panic!("{} is a MESSAGE", $name) };
        message
    }};
}

/// The entry, and its messages.
fn open(message: Message) -> (Entry, Vec<BatchItem>) {
    let entry = parse_entry(message.entry).unwrap();
    let metadata = &entry.metadata;
    let plain = decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, 1 << 20).unwrap();
    let count = metadata.num_messages_in_batch.unwrap_or(0);
    let items = BatchReader::new(plain, count).collect::<Result<_, _>>().unwrap();
    (entry, items)
}

#[test]
fn handshake_and_keep_alive() {
    let connected = other!("connected", connected);
    assert_eq!(connected.server_version(), "Pulsar Server4.0.0");
    assert_eq!((connected.protocol_version(), connected.max_message_size()), (21, 5 * 1024 * 1024));
    assert_eq!(golden!("ping"), Command::Ping);
    assert_eq!(golden!("pong"), Command::Pong);
}

#[test]
fn lookups() {
    let found = other!("lookup_response", lookupTopicResponse);
    assert_eq!(found.response(), pb::command_lookup_topic_response::LookupType::Connect);
    assert_eq!((found.request_id(), found.brokerServiceUrl()), (2, "pulsar://127.0.0.1:6750"));
    assert!(found.authoritative() && found.proxy_through_service_url());
    let failed = other!("lookup_response_failed", lookupTopicResponse);
    assert_eq!(failed.response(), pb::command_lookup_topic_response::LookupType::Failed);
    assert_eq!((failed.error(), failed.message()), (ServerError::TopicNotFound, "Namespace not found"));

    let parts = other!("partitioned_metadata_response", partitionMetadataResponse);
    assert_eq!((parts.request_id(), parts.partitions()), (1, 3));
    let failed = other!("partitioned_metadata_response_failed", partitionMetadataResponse);
    assert_eq!(failed.response(), pb::command_partitioned_topic_metadata_response::LookupType::Failed);
    assert_eq!((failed.request_id(), failed.error()), (5, ServerError::TopicNotFound));
}

#[test]
fn producers() {
    let opened = other!("producer_success", producer_success);
    assert_eq!((opened.request_id(), opened.producer_name()), (3, "standalone-0-1"));
    assert_eq!((opened.last_sequence_id(), opened.producer_ready()), (-1, true));
    let error = other!("send_error", send_error);
    assert_eq!((error.producer_id(), error.sequence_id(), error.error()), (1, 4, ServerError::ChecksumError));
    let closed = other!("close_producer", close_producer);
    assert_eq!((closed.producer_id(), closed.has_assignedBrokerServiceUrl()), (60, false));

    // A single message's highest sequence id is stated as −1.
    let id = MessageIdData::new(14, 0);
    let receipt =
        SendReceipt { producer_id: 1, sequence_id: 0, highest_sequence_id: Some(u64::MAX), message_id: Some(id) };
    assert_eq!(golden!("send_receipt"), Command::SendReceipt(receipt));
    let id = MessageIdData::new(14, 1);
    let receipt = SendReceipt { producer_id: 1, sequence_id: 1, highest_sequence_id: Some(3), message_id: Some(id) };
    assert_eq!(golden!("send_receipt_batch"), Command::SendReceipt(receipt));
}

#[test]
fn consumers() {
    assert_eq!(other!("success", success).request_id(), 4);
    assert_eq!(other!("ack_response", ackResponse).request_id(), 5);
    let busy = other!("error", error);
    assert_eq!((busy.request_id(), busy.error()), (2, ServerError::ConsumerBusy));
    assert_eq!(other!("error_not_found", error).error(), ServerError::TopicNotFound);
    let change = other!("active_consumer_change", active_consumer_change);
    assert_eq!((change.consumer_id(), change.is_active()), (4, true));
    assert_eq!(other!("close_consumer", close_consumer).request_id(), u64::MAX);
}

/// What this codec wrote, as the broker handed it back.
#[test]
fn our_own_messages() {
    let message = message!("message");
    assert_eq!((message.consumer_id, message.redelivery_count), (7, 0));
    assert_eq!(message.message_id, MessageIdData::new(14, 0));
    let (entry, _) = open(message);
    assert_eq!(entry.broker_entry.and_then(|broker| broker.index), Some(0));
    assert!(entry.broker_entry.is_some_and(|broker| broker.timestamp >= Some(entry.metadata.publish_time)));
    assert_eq!(entry.payload, "hello, broker");
    assert_eq!(entry.metadata.partition_key, Some(Key::Bytes(Bytes::from_static(b"\x00\xffkey"))));
    assert_eq!(entry.metadata.ordering_key.as_deref(), Some(&b"order"[..]));
    assert_eq!(entry.metadata.properties[1], ("größe".to_owned(), String::new()));

    let (entry, items) = open(message!("message_batch"));
    assert_eq!(entry.broker_entry.and_then(|broker| broker.index), Some(3));
    assert_eq!(entry.metadata.highest_sequence_id, Some(3));
    for (item, letter) in items.iter().zip(b"bcd") {
        assert_eq!(item.payload, vec![*letter; 50]);
    }
    assert_eq!(items.len(), 3);

    assert_eq!(message!("message_redelivered").redelivery_count, 1);
    let rest = message!("message_ack_set");
    assert_eq!((rest.redelivery_count, &rest.ack_set[..]), (1, &[0b101][..]));
}

/// What the official C++ client wrote, in every codec of this build.
#[test]
fn messages_of_another_client() {
    let mut batches = vec![(message!("message_cpp_none"), 0)];
    if cfg!(feature = "lz4") {
        batches.push((message!("message_cpp_lz4"), 1));
    }
    if cfg!(feature = "zlib") {
        batches.push((message!("message_cpp_zlib"), 2));
    }
    if cfg!(feature = "zstd") {
        batches.push((message!("message_cpp_zstd"), 3));
    }
    if cfg!(feature = "snappy") {
        batches.push((message!("message_cpp_snappy"), 4));
    }
    for (message, codec) in batches {
        let (entry, items) = open(message);
        assert_eq!(entry.metadata.compression, codec);
        assert!(entry.metadata.producer_name.starts_with("cpp-"));
        assert_eq!(items.len(), 3);
        for (i, item) in items.iter().enumerate() {
            assert_eq!(item.payload, format!("body {i} {}", "x".repeat(60)));
            assert_eq!(
                item.metadata,
                SingleMetadata {
                    properties: vec![("n".to_owned(), i.to_string())],
                    partition_key: Some(Key::Text("key".to_owned())),
                    event_time: Some(1_600_000_000_000 + i as u64),
                    ordering_key: Some(Bytes::from_static(b"ok")),
                    sequence_id: Some(11 + i as u64),
                    null_value: false,
                    compacted_out: false,
                }
            );
        }
    }
    let (entry, _) = open(message!("message_cpp_single"));
    assert_eq!(entry.payload, "alone");
    assert_eq!(entry.metadata.num_messages_in_batch, None);
    assert_eq!(entry.metadata.properties, [("a".to_owned(), "b".to_owned())]);
}
