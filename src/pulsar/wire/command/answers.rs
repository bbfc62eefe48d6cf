//! What a broker sends: built by the embedded broker and by tests.

use protobuf::{EnumOrUnknown, MessageField};

use super::build::{PROTOCOL_VERSION, base, feature_flags};
use crate::pulsar::wire::pb;
use pb::base_command::Type;
use pb::command_lookup_topic_response::LookupType;
use pb::command_partitioned_topic_metadata_response::LookupType as MetadataOutcome;

/// CONNECTED.
pub(crate) fn connected(server_version: &str, max_message_size: i32) -> pb::BaseCommand {
    let mut command = base(Type::CONNECTED);
    let body = command.connected.mut_or_insert_default();
    body.set_server_version(server_version.to_owned());
    body.set_protocol_version(PROTOCOL_VERSION);
    body.set_max_message_size(max_message_size);
    body.feature_flags = MessageField::some(feature_flags());
    command
}

/// AUTH_RESPONSE, the one that a client sends. The data is present also when it is empty, because brokers insist on the field.
#[cfg(test)]
pub(crate) fn auth_response(client_version: &str, auth_method: &str, auth_data: &[u8]) -> pb::BaseCommand {
    let mut command = base(Type::AUTH_RESPONSE);
    let body = command.authResponse.mut_or_insert_default();
    body.set_client_version(client_version.to_owned());
    body.set_protocol_version(PROTOCOL_VERSION);
    let response = body.response.mut_or_insert_default();
    response.set_auth_method_name(auth_method.to_owned());
    response.set_auth_data(auth_data.to_vec());
    command
}

/// AUTH_CHALLENGE.
pub(crate) fn auth_challenge(server_version: &str, auth_method: &str, challenge: &[u8]) -> pb::BaseCommand {
    let mut command = base(Type::AUTH_CHALLENGE);
    let body = command.authChallenge.mut_or_insert_default();
    body.set_server_version(server_version.to_owned());
    body.set_protocol_version(PROTOCOL_VERSION);
    let data = body.challenge.mut_or_insert_default();
    data.set_auth_method_name(auth_method.to_owned());
    data.set_auth_data(challenge.to_vec());
    command
}

/// PARTITIONED_METADATA_RESPONSE; 0 partitions means a topic without partitions.
pub(crate) fn partitioned_metadata_response(request_id: u64, partitions: u32) -> pb::BaseCommand {
    let mut command = base(Type::PARTITIONED_METADATA_RESPONSE);
    let body = command.partitionMetadataResponse.mut_or_insert_default();
    body.set_request_id(request_id);
    body.set_partitions(partitions);
    body.set_response(MetadataOutcome::Success);
    command
}

/// PARTITIONED_METADATA_RESPONSE of a failure.
pub(crate) fn partitioned_metadata_failed(request_id: u64, code: i32, message: &str) -> pb::BaseCommand {
    let mut command = base(Type::PARTITIONED_METADATA_RESPONSE);
    let body = command.partitionMetadataResponse.mut_or_insert_default();
    body.set_request_id(request_id);
    body.set_response(MetadataOutcome::Failed);
    body.error = Some(EnumOrUnknown::from_i32(code));
    body.set_message(message.to_owned());
    command
}

/// LOOKUP_RESPONSE that names a broker: `kind` is `Connect` or `Redirect`.
pub(crate) fn lookup_response(
    request_id: u64,
    kind: LookupType,
    broker_url: Option<&str>,
    broker_url_tls: Option<&str>,
    authoritative: bool,
    proxy_through_service_url: bool,
) -> pb::BaseCommand {
    let mut command = base(Type::LOOKUP_RESPONSE);
    let body = command.lookupTopicResponse.mut_or_insert_default();
    body.set_request_id(request_id);
    body.set_response(kind);
    body.brokerServiceUrl = broker_url.map(str::to_owned);
    body.brokerServiceUrlTls = broker_url_tls.map(str::to_owned);
    body.set_authoritative(authoritative);
    body.set_proxy_through_service_url(proxy_through_service_url);
    command
}

/// LOOKUP_RESPONSE of a failure.
pub(crate) fn lookup_failed(request_id: u64, code: i32, message: &str) -> pb::BaseCommand {
    let mut command = base(Type::LOOKUP_RESPONSE);
    let body = command.lookupTopicResponse.mut_or_insert_default();
    body.set_request_id(request_id);
    body.set_response(LookupType::Failed);
    body.error = Some(EnumOrUnknown::from_i32(code));
    body.set_message(message.to_owned());
    command
}

/// PRODUCER_SUCCESS. `last_sequence_id` is −1 when there is none; `ready` false means "wait for the access".
pub(crate) fn producer_success(
    request_id: u64,
    producer_name: &str,
    last_sequence_id: i64,
    topic_epoch: Option<u64>,
    ready: bool,
) -> pb::BaseCommand {
    let mut command = base(Type::PRODUCER_SUCCESS);
    let body = command.producer_success.mut_or_insert_default();
    body.set_request_id(request_id);
    body.set_producer_name(producer_name.to_owned());
    body.set_last_sequence_id(last_sequence_id);
    body.topic_epoch = topic_epoch;
    body.set_producer_ready(ready);
    // Brokers always send the field, empty when the topic has no schema.
    body.set_schema_version(Vec::new());
    command
}

/// SEND_ERROR.
pub(crate) fn send_error(producer_id: u64, sequence_id: u64, code: i32, message: &str) -> pb::BaseCommand {
    let mut command = base(Type::SEND_ERROR);
    let body = command.send_error.mut_or_insert_default();
    body.set_producer_id(producer_id);
    body.set_sequence_id(sequence_id);
    body.error = Some(EnumOrUnknown::from_i32(code));
    body.set_message(message.to_owned());
    command
}

/// SUCCESS.
pub(crate) fn success(request_id: u64) -> pb::BaseCommand {
    let mut command = base(Type::SUCCESS);
    command.success.mut_or_insert_default().set_request_id(request_id);
    command
}

/// ERROR.
pub(crate) fn error(request_id: u64, code: i32, message: &str) -> pb::BaseCommand {
    let mut command = base(Type::ERROR);
    let body = command.error.mut_or_insert_default();
    body.set_request_id(request_id);
    body.error = Some(EnumOrUnknown::from_i32(code));
    body.set_message(message.to_owned());
    command
}
