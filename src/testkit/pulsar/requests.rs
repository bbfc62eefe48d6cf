//! Takes in what the clients send: records it, decides its fate, hands it on. Handshake and look-ups.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use protobuf::Enum as _;

use super::connection::Ending;
use super::input::Incoming;
use super::log::EventKind;
use super::script::{Fate, Request};
use super::state::{Answering, Mute, State, full_name};
use super::{ServerError, consume::ids_of};
use crate::pulsar::message_id::MessageId;
use crate::pulsar::wire::command::{
    Command, connected, encode, encode_pong, error, lookup_failed, lookup_response, partitioned_metadata_failed,
    partitioned_metadata_response,
};
use crate::pulsar::wire::pb::{self, base_command::Type, command_lookup_topic_response::LookupType};

/// What the broker calls itself.
const SERVER_VERSION: &str = "threadmq-testkit";

impl State {
    pub(super) fn on_incoming(&mut self, connection: u64, at: Instant, item: Incoming) {
        let Some(state) = self.connections.get(&connection) else {
            // Ended by something that came in before this.
            return;
        };
        let mute = state.mute.or(self.mute);
        if let Some(kind) = self.event_of(connection, &item) {
            self.note(at, connection, kind);
        }
        let is_connect = matches!(&item.command, Command::Other(other) if other.type_() == Type::CONNECT);
        match mute {
            None => {}
            Some(Mute::PingOnly) if is_connect => {}
            Some(_) => return,
        }
        let Some(request) = request_of(&item.command) else {
            self.carry_out(connection, item);
            return;
        };
        match self.script.take(request) {
            None => self.carry_out(connection, item),
            Some(Fate::Ignore) => {}
            Some(Fate::Fail(code)) => self.refuse(connection, request, &item.command, code),
            Some(Fate::LoseAnswer) => {
                self.answering = Answering::Lost;
                self.carry_out(connection, item);
            }
            Some(Fate::Delay(delay)) => {
                self.answering = Answering::Late(delay);
                self.carry_out(connection, item);
            }
        }
        self.answering = Answering::AtOnce;
    }

    fn carry_out(&mut self, connection: u64, item: Incoming) {
        match item.command {
            Command::Send(send) => self.on_send(connection, send, item.intact),
            Command::Ack(ack) => self.on_ack(connection, &ack),
            Command::Flow { consumer_id, permits } => self.on_flow(connection, consumer_id, permits),
            Command::Ping => self.on_ping(connection),
            Command::Other(other) => self.on_other(connection, &other),
            Command::Pong | Command::SendReceipt(_) | Command::Message(_) | Command::Unknown(_) => {}
        }
    }

    fn on_ping(&mut self, connection: u64) {
        match self.answering {
            Answering::AtOnce => self.write(connection, encode_pong),
            Answering::Late(delay) => {
                self.later(delay, Box::new(move |state| state.write(connection, encode_pong)));
            }
            Answering::Lost => {}
        }
    }

    fn on_other(&mut self, connection: u64, command: &pb::BaseCommand) {
        match command.type_() {
            Type::CONNECT => self.on_connect(connection, command.connect.get_or_default()),
            Type::PARTITIONED_METADATA => self.on_partitions(connection, command.partitionMetadata.get_or_default()),
            Type::LOOKUP => self.on_lookup(connection, command.lookupTopic.get_or_default()),
            Type::PRODUCER => self.open_producer(connection, command.producer.get_or_default(), false),
            Type::CLOSE_PRODUCER => self.on_close_producer(connection, command.close_producer.get_or_default()),
            Type::SUBSCRIBE => self.open_consumer(connection, command.subscribe.get_or_default(), false),
            Type::CLOSE_CONSUMER => self.on_close_consumer(connection, command.close_consumer.get_or_default()),
            Type::UNSUBSCRIBE => self.on_unsubscribe(connection, command.unsubscribe.get_or_default()),
            Type::REDELIVER_UNACKNOWLEDGED_MESSAGES => {
                self.on_redeliver(connection, command.redeliverUnacknowledgedMessages.get_or_default());
            }
            Type::SEEK => self.on_seek(connection, command.seek.get_or_default()),
            Type::GET_LAST_MESSAGE_ID => {
                self.on_last_message_id(connection, command.getLastMessageId.get_or_default());
            }
            _ => {}
        }
    }

    fn on_connect(&mut self, connection: u64, body: &pb::CommandConnect) {
        let greeting = self.script.greeting();
        if greeting.is_some() {
            // It leaves before the turn is over.
            self.publish_events();
        }
        let max_message_size = self.common.max_message_size.load(std::sync::atomic::Ordering::Relaxed);
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.reads_broker_entries = body.feature_flags.get_or_default().supports_broker_entry_metadata();
        if let Some((bytes, endless)) = greeting {
            state.write_anyway(|out| out.extend_from_slice(&bytes));
            if endless {
                state.flush();
                state.link.write_endlessly();
            }
            return;
        }
        let answer = connected(SERVER_VERSION, i32::try_from(max_message_size).unwrap_or(i32::MAX));
        match self.answering {
            Answering::AtOnce => state.write_anyway(|out| encode(&answer, out)),
            Answering::Late(_) | Answering::Lost => self.answer(connection, answer),
        }
    }

    fn on_partitions(&mut self, connection: u64, body: &pb::CommandPartitionedTopicMetadata) {
        let partitions = self.partitions.get(&full_name(body.topic())).copied().unwrap_or(0);
        self.answer(connection, partitioned_metadata_response(body.request_id(), partitions));
    }

    fn on_lookup(&mut self, connection: u64, body: &pb::CommandLookupTopic) {
        let topic = full_name(body.topic());
        let own = self.own_url();
        let routes = &self.routes;
        let (kind, url, authoritative) = if routes.redirect_loop {
            (LookupType::Redirect, own, false)
        } else if let Some((url, authoritative)) = routes.redirects.get(&topic) {
            (LookupType::Redirect, url.clone(), *authoritative)
        } else {
            (LookupType::Connect, routes.assigned.get(&topic).cloned().unwrap_or(own), true)
        };
        self.answer(connection, lookup_response(body.request_id(), kind, Some(&url), None, authoritative, false));
    }

    /// Where this broker says it is.
    pub(super) fn own_url(&self) -> String {
        match &self.routes.advertised {
            Some(url) => url.clone(),
            None => format!("pulsar://{}", self.address),
        }
    }

    /// Answers a request with an error, and nothing else happens.
    fn refuse(&mut self, connection: u64, request: Request, command: &Command, code: ServerError) {
        const WHY: &str = "as the test has it";
        let code = code.code();
        let other = match command {
            Command::Other(other) => other,
            Command::Ack(ack) => {
                self.answer_ack(connection, ack, Some(code));
                return;
            }
            _ => return,
        };
        let answer = match request {
            Request::Partitions => {
                partitioned_metadata_failed(other.partitionMetadata.get_or_default().request_id(), code, WHY)
            }
            Request::Lookup => lookup_failed(other.lookupTopic.get_or_default().request_id(), code, WHY),
            Request::Producer => error(other.producer.get_or_default().request_id(), code, WHY),
            Request::CloseProducer => error(other.close_producer.get_or_default().request_id(), code, WHY),
            Request::Subscribe => error(other.subscribe.get_or_default().request_id(), code, WHY),
            Request::CloseConsumer => error(other.close_consumer.get_or_default().request_id(), code, WHY),
            Request::Unsubscribe => error(other.unsubscribe.get_or_default().request_id(), code, WHY),
            Request::Seek => error(other.seek.get_or_default().request_id(), code, WHY),
            Request::LastMessageId => error(other.getLastMessageId.get_or_default().request_id(), code, WHY),
            Request::Connect => {
                if let Some(state) = self.connections.get_mut(&connection) {
                    // The request id means nothing here.
                    state.write_anyway(|out| encode(&error(u64::MAX, code, WHY), out));
                }
                self.end_connections(&[connection], Ending::Fin);
                return;
            }
            Request::Ack | Request::Ping => return,
        };
        self.push(connection, &answer);
    }

    /// What the log says about a frame; `None` for what a broker that discards does not record.
    fn event_of(&self, connection: u64, item: &Incoming) -> Option<EventKind> {
        let recorded = !self.options.discard;
        Some(match &item.command {
            Command::Send(send) if recorded => EventKind::Send {
                topic: self.topic_of_producer(connection, send.producer_id),
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                highest: send.highest_sequence_id,
                num_messages: send.num_messages,
                bytes: item.size,
                intact: item.intact,
            },
            Command::Ack(ack) if recorded => EventKind::Ack {
                consumer_id: ack.consumer_id,
                cumulative: ack.cumulative,
                ids: ids_of(&ack.message_ids),
                validation_error: ack.validation_error,
                wants_answer: ack.request_id.is_some(),
            },
            &Command::Flow { consumer_id, permits } if recorded => EventKind::Flow { consumer_id, permits },
            Command::Send(_) | Command::Ack(_) | Command::Flow { .. } => return None,
            Command::Ping => EventKind::Ping,
            Command::Pong => EventKind::Pong,
            Command::SendReceipt(_) => EventKind::Other(Type::SEND_RECEIPT.value()),
            Command::Message(_) => EventKind::Other(Type::MESSAGE.value()),
            Command::Unknown(number) => EventKind::Other(*number),
            Command::Other(other) => event_of_request(other),
        })
    }

    fn topic_of_producer(&self, connection: u64, producer_id: u64) -> Arc<str> {
        let session = self.connections.get(&connection).and_then(|state| state.producers.get(&producer_id));
        let topic = session.and_then(|session| self.topics.get(session.topic));
        topic.map_or_else(|| "".into(), |topic| Arc::clone(&topic.name))
    }
}

fn request_of(command: &Command) -> Option<Request> {
    Some(match command {
        Command::Ping => Request::Ping,
        Command::Ack(_) => Request::Ack,
        Command::Other(other) => match other.type_() {
            Type::CONNECT => Request::Connect,
            Type::PARTITIONED_METADATA => Request::Partitions,
            Type::LOOKUP => Request::Lookup,
            Type::PRODUCER => Request::Producer,
            Type::CLOSE_PRODUCER => Request::CloseProducer,
            Type::SUBSCRIBE => Request::Subscribe,
            Type::CLOSE_CONSUMER => Request::CloseConsumer,
            Type::UNSUBSCRIBE => Request::Unsubscribe,
            Type::SEEK => Request::Seek,
            Type::GET_LAST_MESSAGE_ID => Request::LastMessageId,
            _ => return None,
        },
        _ => return None,
    })
}

fn event_of_request(command: &pb::BaseCommand) -> EventKind {
    match command.type_() {
        Type::CONNECT => {
            let body = command.connect.get_or_default();
            let flags = body.feature_flags.get_or_default();
            EventKind::Connect {
                protocol_version: body.protocol_version(),
                client_version: body.client_version().to_owned(),
                auth_method: body.auth_method_name().to_owned(),
                auth_data: Bytes::copy_from_slice(body.auth_data()),
                supports_auth_refresh: flags.supports_auth_refresh(),
                supports_broker_entry_metadata: flags.supports_broker_entry_metadata(),
                proxy_to_broker_url: body.proxy_to_broker_url.clone(),
            }
        }
        Type::AUTH_RESPONSE => {
            let response = command.authResponse.get_or_default().response.get_or_default();
            EventKind::AuthResponse {
                auth_method: response.auth_method_name().to_owned(),
                auth_data: Bytes::copy_from_slice(response.auth_data()),
            }
        }
        Type::PARTITIONED_METADATA => {
            EventKind::Partitions { topic: full_name(command.partitionMetadata.get_or_default().topic()) }
        }
        Type::LOOKUP => {
            let body = command.lookupTopic.get_or_default();
            EventKind::Lookup { topic: full_name(body.topic()), authoritative: body.authoritative() }
        }
        Type::PRODUCER => {
            let body = command.producer.get_or_default();
            EventKind::Producer {
                topic: full_name(body.topic()),
                producer_id: body.producer_id(),
                name: body.producer_name.clone(),
                user_provided_name: body.user_provided_producer_name(),
                epoch: body.epoch(),
                access_mode: body.producer_access_mode().value(),
                topic_epoch: body.topic_epoch,
            }
        }
        Type::CLOSE_PRODUCER => {
            EventKind::CloseProducer { producer_id: command.close_producer.get_or_default().producer_id() }
        }
        Type::SUBSCRIBE => {
            let body = command.subscribe.get_or_default();
            EventKind::Subscribe {
                topic: full_name(body.topic()),
                subscription: body.subscription().into(),
                consumer_id: body.consumer_id(),
                consumer_name: body.consumer_name.clone(),
                subscription_type: body.subType().value(),
                durable: body.durable(),
                start: body.start_message_id.as_ref().map(MessageId::from_pb),
            }
        }
        Type::REDELIVER_UNACKNOWLEDGED_MESSAGES => {
            let body = command.redeliverUnacknowledgedMessages.get_or_default();
            EventKind::Redeliver {
                consumer_id: body.consumer_id(),
                ids: body.message_ids.iter().map(MessageId::from_pb).collect(),
            }
        }
        Type::CLOSE_CONSUMER => {
            EventKind::CloseConsumer { consumer_id: command.close_consumer.get_or_default().consumer_id() }
        }
        Type::UNSUBSCRIBE => EventKind::Unsubscribe { consumer_id: command.unsubscribe.get_or_default().consumer_id() },
        Type::SEEK => {
            let body = command.seek.get_or_default();
            EventKind::Seek {
                consumer_id: body.consumer_id(),
                to: body.message_id.as_ref().map(MessageId::from_pb),
                to_time: body.message_publish_time,
            }
        }
        Type::GET_LAST_MESSAGE_ID => {
            EventKind::LastMessageId { consumer_id: command.getLastMessageId.get_or_default().consumer_id() }
        }
        other => EventKind::Other(other.value()),
    }
}
