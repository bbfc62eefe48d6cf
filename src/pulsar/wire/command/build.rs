//! Puts together the commands that are sent seldom.

use protobuf::MessageField;

use super::MessageIdData;
use crate::pulsar::wire::pb;
use pb::base_command::Type;
use pb::command_subscribe::{InitialPosition, SubType};

/// The protocol version that both directions state.
pub(super) const PROTOCOL_VERSION: i32 = 21;

/// What PRODUCER asks for.
#[derive(Debug, Clone)]
pub(crate) struct ProducerOpen<'a> {
    pub(crate) topic: &'a str,
    pub(crate) producer_id: u64,
    pub(crate) request_id: u64,
    /// `None`: the broker makes one. A name that it made is sent again with `user_provided_name` false.
    pub(crate) name: Option<&'a str>,
    pub(crate) user_provided_name: bool,
    /// One more at each attempt, so that the broker can tell a late request from the current one.
    pub(crate) epoch: u64,
    pub(crate) access_mode: pb::ProducerAccessMode,
    /// As the last PRODUCER_SUCCESS said.
    pub(crate) topic_epoch: Option<u64>,
    pub(crate) properties: &'a [(String, String)],
}

/// What SUBSCRIBE asks for; [`SubscribeOpen::new`] sets the protocol's defaults.
#[derive(Debug, Clone)]
pub(crate) struct SubscribeOpen<'a> {
    pub(crate) topic: &'a str,
    pub(crate) subscription: &'a str,
    pub(crate) sub_type: SubType,
    pub(crate) consumer_id: u64,
    pub(crate) request_id: u64,
    pub(crate) consumer_name: Option<&'a str>,
    pub(crate) priority_level: Option<i32>,
    pub(crate) durable: bool,
    pub(crate) start_message_id: Option<&'a MessageIdData>,
    pub(crate) start_rollback_seconds: Option<u64>,
    pub(crate) initial_position: InitialPosition,
    pub(crate) properties: &'a [(String, String)],
    pub(crate) subscription_properties: &'a [(String, String)],
    pub(crate) read_compacted: bool,
    pub(crate) replicate_subscription_state: bool,
    pub(crate) force_topic_creation: bool,
    pub(crate) key_shared: Option<pb::KeySharedMeta>,
    pub(crate) consumer_epoch: Option<u64>,
}

impl<'a> SubscribeOpen<'a> {
    pub(crate) fn new(
        topic: &'a str,
        subscription: &'a str,
        sub_type: SubType,
        consumer_id: u64,
        request_id: u64,
    ) -> Self {
        Self {
            topic,
            subscription,
            sub_type,
            consumer_id,
            request_id,
            consumer_name: None,
            priority_level: None,
            durable: true,
            start_message_id: None,
            start_rollback_seconds: None,
            initial_position: InitialPosition::Latest,
            properties: &[],
            subscription_properties: &[],
            read_compacted: false,
            replicate_subscription_state: false,
            force_topic_creation: true,
            key_shared: None,
            consumer_epoch: None,
        }
    }
}

/// CONNECT. `proxy_to_broker_url` is `host:port` of the broker behind a proxy.
pub(crate) fn connect(
    client_version: &str,
    auth_method: &str,
    auth_data: &[u8],
    proxy_to_broker_url: Option<&str>,
) -> pb::BaseCommand {
    let mut command = base(Type::CONNECT);
    let body = command.connect.mut_or_insert_default();
    body.set_client_version(client_version.to_owned());
    body.set_auth_method_name(auth_method.to_owned());
    body.set_auth_data(auth_data.to_vec());
    body.set_protocol_version(PROTOCOL_VERSION);
    body.proxy_to_broker_url = proxy_to_broker_url.map(str::to_owned);
    body.feature_flags = MessageField::some(feature_flags());
    command
}

/// PARTITIONED_METADATA.
pub(crate) fn partitioned_metadata(topic: &str, request_id: u64) -> pb::BaseCommand {
    let mut command = base(Type::PARTITIONED_METADATA);
    let body = command.partitionMetadata.mut_or_insert_default();
    body.set_topic(topic.to_owned());
    body.set_request_id(request_id);
    command
}

/// LOOKUP. `authoritative` is false at first and then as the redirect said.
pub(crate) fn lookup(topic: &str, request_id: u64, authoritative: bool) -> pb::BaseCommand {
    let mut command = base(Type::LOOKUP);
    let body = command.lookupTopic.mut_or_insert_default();
    body.set_topic(topic.to_owned());
    body.set_request_id(request_id);
    body.set_authoritative(authoritative);
    command
}

/// PRODUCER.
pub(crate) fn producer(open: &ProducerOpen<'_>) -> pb::BaseCommand {
    let mut command = base(Type::PRODUCER);
    let body = command.producer.mut_or_insert_default();
    body.set_topic(open.topic.to_owned());
    body.set_producer_id(open.producer_id);
    body.set_request_id(open.request_id);
    body.producer_name = open.name.map(str::to_owned);
    body.set_user_provided_producer_name(open.user_provided_name);
    body.set_epoch(open.epoch);
    body.set_producer_access_mode(open.access_mode);
    body.topic_epoch = open.topic_epoch;
    body.metadata = key_values(open.properties);
    command
}

/// CLOSE_PRODUCER.
pub(crate) fn close_producer(producer_id: u64, request_id: u64) -> pb::BaseCommand {
    let mut command = base(Type::CLOSE_PRODUCER);
    let body = command.close_producer.mut_or_insert_default();
    body.set_producer_id(producer_id);
    body.set_request_id(request_id);
    command
}

/// SUBSCRIBE.
pub(crate) fn subscribe(open: &SubscribeOpen<'_>) -> pb::BaseCommand {
    let mut command = base(Type::SUBSCRIBE);
    let body = command.subscribe.mut_or_insert_default();
    body.set_topic(open.topic.to_owned());
    body.set_subscription(open.subscription.to_owned());
    body.set_subType(open.sub_type);
    body.set_consumer_id(open.consumer_id);
    body.set_request_id(open.request_id);
    body.consumer_name = open.consumer_name.map(str::to_owned);
    body.priority_level = open.priority_level;
    body.set_durable(open.durable);
    body.start_message_id = open.start_message_id.map(message_id).into();
    body.start_message_rollback_duration_sec = open.start_rollback_seconds;
    body.set_initialPosition(open.initial_position);
    body.metadata = key_values(open.properties);
    body.subscription_properties = key_values(open.subscription_properties);
    body.set_read_compacted(open.read_compacted);
    body.set_replicate_subscription_state(open.replicate_subscription_state);
    body.set_force_topic_creation(open.force_topic_creation);
    body.keySharedMeta = open.key_shared.clone().into();
    body.consumer_epoch = open.consumer_epoch;
    command
}

/// CLOSE_CONSUMER.
pub(crate) fn close_consumer(consumer_id: u64, request_id: u64) -> pb::BaseCommand {
    let mut command = base(Type::CLOSE_CONSUMER);
    let body = command.close_consumer.mut_or_insert_default();
    body.set_consumer_id(consumer_id);
    body.set_request_id(request_id);
    command
}

/// UNSUBSCRIBE. `force` removes the subscription also while others use it.
pub(crate) fn unsubscribe(consumer_id: u64, request_id: u64, force: bool) -> pb::BaseCommand {
    let mut command = base(Type::UNSUBSCRIBE);
    let body = command.unsubscribe.mut_or_insert_default();
    body.set_consumer_id(consumer_id);
    body.set_request_id(request_id);
    body.set_force(force);
    command
}

/// REDELIVER_UNACKNOWLEDGED_MESSAGES. No ids: all; ids are for Shared and Key_Shared only.
pub(crate) fn redeliver(consumer_id: u64, ids: &[MessageIdData]) -> pb::BaseCommand {
    let mut command = base(Type::REDELIVER_UNACKNOWLEDGED_MESSAGES);
    let body = command.redeliverUnacknowledgedMessages.mut_or_insert_default();
    body.set_consumer_id(consumer_id);
    body.message_ids = ids.iter().map(message_id).collect();
    command
}

pub(super) fn base(kind: Type) -> pb::BaseCommand {
    let mut command = pb::BaseCommand::new();
    command.set_type(kind);
    command
}

/// What we can do: renew credentials on request, and read the broker's own metadata before an entry.
pub(super) fn feature_flags() -> pb::FeatureFlags {
    let mut flags = pb::FeatureFlags::new();
    flags.set_supports_auth_refresh(true);
    flags.set_supports_broker_entry_metadata(true);
    flags
}

fn key_values(pairs: &[(String, String)]) -> Vec<pb::KeyValue> {
    pairs
        .iter()
        .map(|(key, value)| {
            let mut pair = pb::KeyValue::new();
            pair.set_key(key.clone());
            pair.set_value(value.clone());
            pair
        })
        .collect()
}

fn message_id(id: &MessageIdData) -> pb::MessageIdData {
    let mut data = pb::MessageIdData::new();
    data.set_ledgerId(id.ledger);
    data.set_entryId(id.entry);
    data.partition = (id.partition != -1).then_some(id.partition);
    data.batch_index = (id.batch_index != -1).then_some(id.batch_index);
    data.batch_size = (id.batch_size != 0).then_some(id.batch_size);
    data.ack_set.clone_from(&id.ack_set);
    data
}
