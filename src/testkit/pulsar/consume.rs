//! Subscriptions and what they deliver.

use std::sync::Arc;
use std::time::Duration;

use protobuf::Enum as _;

use super::ServerError;
use super::entry::{corrupt, publish_time, with_broker_entry};
use super::sessions::{ConsumerSession, Waiting};
use super::state::{State, now_ms};
use super::subscription::{Kind, Subscription};
use super::topic::{Place, Topic};
use crate::pulsar::message_id::MessageId;
use crate::pulsar::wire::command::{Ack, Message, MessageIdData, encode_message, error, success};
use crate::pulsar::wire::pb::{
    self, base_command::Type, command_subscribe::InitialPosition, command_subscribe::SubType,
};

impl State {
    /// `checked`: whoever has the exclusive subscription is known to be alive.
    pub(super) fn open_consumer(&mut self, connection: u64, body: &pb::CommandSubscribe, checked: bool) {
        let place = Place { connection, id: body.consumer_id() };
        let index = self.topic_index(body.topic());
        let Some(state) = self.connections.get(&connection) else { return };
        let Some(topic) = self.topics.get_mut(index) else { return };
        if state.consumers.contains_key(&place.id) {
            // The client asks again; it is the same consumer.
            return self.answer(connection, success(body.request_id()));
        }
        let kind = match body.subType() {
            SubType::Exclusive => Kind::Exclusive,
            SubType::Shared => Kind::Shared,
            other => {
                let why = format!("this broker does not play {other:?} subscriptions (type {})", other.value());
                return self.answer(connection, error(body.request_id(), ServerError::NOT_ALLOWED.code(), &why));
            }
        };
        let start = start_of(topic, body);
        let at = match topic.subscriptions.iter().position(|s| *s.name == *body.subscription()) {
            Some(at) => at,
            None => {
                let name = body.subscription().into();
                topic.subscriptions.push(Subscription::new(name, kind, body.durable(), start));
                topic.subscriptions.len() - 1
            }
        };
        let Some(subscription) = topic.subscriptions.get_mut(at) else { return };
        let first = subscription.consumers().next();
        if let Some(holder) = first.filter(|_| kind == Kind::Exclusive || subscription.kind != kind) {
            return match self.options.liveness_check {
                Some(limit) if !checked && holder.connection != connection => {
                    self.check(holder.connection, limit, Waiting::Subscribe(connection, Box::new(body.clone())));
                }
                _ => {
                    let why = "another consumer has the subscription";
                    self.answer(connection, error(body.request_id(), ServerError::CONSUMER_BUSY.code(), why));
                }
            };
        }
        subscription.set_kind(kind);
        subscription.add_consumer(place);
        let session = ConsumerSession { topic: index, subscription: body.subscription().into() };
        if let Some(state) = self.connections.get_mut(&connection) {
            state.consumers.insert(place.id, session);
        }
        self.answer(connection, success(body.request_id()));
    }

    pub(super) fn on_flow(&mut self, connection: u64, id: u64, permits: u32) {
        if let Some((topic, at)) = self.with_subscription(connection, id, |subscription, _| {
            subscription.add_permits(Place { connection, id }, permits);
        }) {
            self.deliver(topic, at);
        }
    }

    pub(super) fn on_ack(&mut self, connection: u64, ack: &Ack) {
        let place = self.with_subscription(connection, ack.consumer_id, |subscription, topic| {
            for id in &ack.message_ids {
                // Other ledgers are those of a former life.
                if id.ledger != topic.ledger {
                    continue;
                }
                // With words of a bit set only a part of the batch is meant, which counts once the whole is.
                let whole = id.ack_set.is_empty();
                match (ack.cumulative, whole) {
                    (false, true) => subscription.ack(id.entry, topic.end),
                    (false, false) => {}
                    (true, true) => subscription.ack_below(id.entry.saturating_add(1), topic.end),
                    (true, false) => subscription.ack_below(id.entry, topic.end),
                }
            }
        });
        let code = place.is_none().then_some(ServerError::CONSUMER_NOT_FOUND.code());
        self.answer_ack(connection, ack, code);
    }

    pub(super) fn answer_ack(&mut self, connection: u64, ack: &Ack, code: Option<i32>) {
        let Some(request_id) = ack.request_id else { return };
        let mut answer = command(Type::ACK_RESPONSE);
        let body = answer.ackResponse.mut_or_insert_default();
        body.set_consumer_id(ack.consumer_id);
        body.set_request_id(request_id);
        if let Some(code) = code {
            body.error = Some(protobuf::EnumOrUnknown::from_i32(code));
            body.set_message("not acknowledged".to_owned());
        }
        self.answer(connection, answer);
    }

    pub(super) fn on_redeliver(&mut self, connection: u64, body: &pb::CommandRedeliverUnacknowledgedMessages) {
        let place = Place { connection, id: body.consumer_id() };
        let found = self.with_subscription(connection, place.id, |subscription, topic| {
            if subscription.kind == Kind::Shared && !body.message_ids.is_empty() {
                let ids = body.message_ids.iter().filter(|id| id.ledgerId() == topic.ledger);
                subscription.redeliver(place, ids.map(pb::MessageIdData::entryId));
            } else {
                subscription.redeliver_all(place);
            }
        });
        if let Some((topic, at)) = found {
            self.deliver(topic, at);
        }
    }

    pub(super) fn on_close_consumer(&mut self, connection: u64, body: &pb::CommandCloseConsumer) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        if let Some(consumer) = state.consumers.remove(&body.consumer_id()) {
            self.release_consumer(connection, body.consumer_id(), &consumer);
        }
        self.answer(connection, success(body.request_id()));
    }

    pub(super) fn on_unsubscribe(&mut self, connection: u64, body: &pb::CommandUnsubscribe) {
        let place = Place { connection, id: body.consumer_id() };
        let mut alone = false;
        let found = self.with_subscription(connection, place.id, |subscription, _| {
            alone = subscription.consumers().all(|other| other == place);
        });
        let refused = match found {
            None => Some((ServerError::CONSUMER_NOT_FOUND, "no such consumer")),
            Some(_) if !alone && !body.force() => Some((ServerError::CONSUMER_BUSY, "others use the subscription")),
            Some(_) => None,
        };
        if let Some((code, why)) = refused {
            return self.answer(connection, error(body.request_id(), code.code(), why));
        }
        if let Some((index, at)) = found {
            if let Some(state) = self.connections.get_mut(&connection) {
                state.consumers.remove(&place.id);
            }
            if let Some(topic) = self.topics.get_mut(index) {
                let removed = topic.subscriptions.remove(at);
                self.close_consumers_of(index, Some(&removed.name), None);
            }
        }
        self.answer(connection, success(body.request_id()));
    }

    pub(super) fn on_seek(&mut self, connection: u64, body: &pb::CommandSeek) {
        let found = self.with_subscription(connection, body.consumer_id(), |_, _| {});
        let Some((index, at)) = found else {
            let code = ServerError::CONSUMER_NOT_FOUND.code();
            return self.answer(connection, error(body.request_id(), code, "no such consumer"));
        };
        let Some(topic) = self.topics.get_mut(index) else { return };
        let to = match (body.message_id.as_ref(), body.message_publish_time) {
            (Some(id), _) => position(topic, id),
            (None, Some(time)) => {
                let later = topic.store.entries().find(|(_, entry)| publish_time(&entry.bytes) >= time);
                later.map_or(topic.store.end(), |(id, _)| id)
            }
            (None, None) => topic.store.end(),
        };
        let Some(subscription) = topic.subscriptions.get_mut(at) else { return };
        let name = subscription.name.clone();
        subscription.seek(to);
        // A broker closes the consumers first and answers when the cursor is there.
        self.close_consumers_of(index, Some(&name), None);
        self.answer(connection, success(body.request_id()));
    }

    pub(super) fn on_last_message_id(&mut self, connection: u64, body: &pb::CommandGetLastMessageId) {
        let mut mark_delete = None;
        let found = self.with_subscription(connection, body.consumer_id(), |subscription, _| {
            mark_delete = subscription.mark_delete().checked_sub(1);
        });
        let Some(topic) = found.and_then(|(index, _)| self.topics.get(index)) else {
            let code = ServerError::CONSUMER_NOT_FOUND.code();
            return self.answer(connection, error(body.request_id(), code, "no such consumer"));
        };
        let id = |entry: Option<u64>| {
            let mut id = pb::MessageIdData::new();
            id.set_ledgerId(topic.ledger);
            // −1 for none.
            id.set_entryId(entry.unwrap_or(u64::MAX));
            id.partition = (topic.partition >= 0).then_some(topic.partition);
            id
        };
        let last = topic.store.end().checked_sub(1);
        let mut last_id = id(last);
        if let Some(entry) = last.and_then(|last| topic.store.entry(last)) {
            if let Some(count) = super::entry::batch_size(&entry.bytes) {
                last_id.set_batch_index(count.saturating_sub(1));
                last_id.set_batch_size(count);
            }
        }
        let mut answer = command(Type::GET_LAST_MESSAGE_ID_RESPONSE);
        let response = answer.getLastMessageIdResponse.mut_or_insert_default();
        response.last_message_id = Some(last_id).into();
        response.consumer_mark_delete_position = Some(id(mark_delete)).into();
        response.set_request_id(body.request_id());
        self.answer(connection, answer);
    }

    /// Runs `act` on the subscription of a consumer; gives the places of topic and subscription.
    fn with_subscription(
        &mut self,
        connection: u64,
        id: u64,
        act: impl FnOnce(&mut Subscription, &TopicView),
    ) -> Option<(usize, usize)> {
        let session = self.connections.get(&connection)?.consumers.get(&id)?;
        let topic = self.topics.get_mut(session.topic)?;
        let at = topic.subscriptions.iter().position(|s| s.name == session.subscription)?;
        let view = TopicView { ledger: topic.ledger, end: topic.store.end() };
        act(topic.subscriptions.get_mut(at)?, &view);
        Some((session.topic, at))
    }

    /// Delivers what can be delivered.
    pub(super) fn deliver(&mut self, index: usize, subscription: usize) {
        let Some(topic) = self.topics.get_mut(index) else { return };
        let Topic { store, subscriptions, corruptions, ledger, partition, .. } = topic;
        let Some(subscription) = subscriptions.get_mut(subscription) else { return };
        let mut postponed = Vec::new();
        while let Some(delivery) = subscription.next(store.end()) {
            let Some(entry) = store.entry(delivery.entry) else {
                // Dropped long ago.
                subscription.ack(delivery.entry, store.end());
                continue;
            };
            if let (Some(due), Kind::Shared) = (entry.deliver_at, subscription.kind) {
                let wait = due.saturating_sub(now_ms());
                if wait > 0 {
                    subscription.postpone(delivery.entry);
                    postponed.push((delivery.entry, Duration::from_millis(wait)));
                    continue;
                }
            }
            let Some(connection) = self.connections.get_mut(&delivery.to.connection) else { break };
            subscription.charge(delivery.to, entry.num_messages);
            let bytes = if let Some(corruption) = corruptions.pop_front() {
                corrupt(&entry.bytes, corruption)
            } else if self.options.broker_entry_metadata && connection.reads_broker_entries {
                with_broker_entry(entry)
            } else {
                entry.bytes.clone()
            };
            let message = Message {
                consumer_id: delivery.to.id,
                message_id: MessageIdData { partition: *partition, ..MessageIdData::new(*ledger, delivery.entry) },
                redelivery_count: delivery.redelivery_count,
                ack_set: Vec::new(),
                consumer_epoch: None,
                entry: bytes,
            };
            connection.write(|out| encode_message(&message, out));
        }
        let (ledger, name) = (*ledger, Arc::clone(&subscription.name));
        for (entry, wait) in postponed {
            let name = Arc::clone(&name);
            self.later(wait, Box::new(move |state| state.deliver_due(index, ledger, &name, entry)));
        }
    }

    fn deliver_due(&mut self, index: usize, ledger: u64, name: &str, entry: u64) {
        let Some(topic) = self.topics.get_mut(index).filter(|topic| topic.ledger == ledger) else { return };
        let Some(at) = topic.subscriptions.iter().position(|s| *s.name == *name) else { return };
        if let Some(subscription) = topic.subscriptions.get_mut(at) {
            subscription.due(entry);
        }
        self.deliver(index, at);
    }
}

struct TopicView {
    ledger: u64,
    end: u64,
}

fn command(kind: Type) -> pb::BaseCommand {
    let mut command = pb::BaseCommand::new();
    command.set_type(kind);
    command
}

/// Where a new subscription starts.
fn start_of(topic: &Topic, body: &pb::CommandSubscribe) -> u64 {
    match (body.start_message_id.as_ref(), body.initialPosition()) {
        (Some(id), _) if !body.durable() => position(topic, id),
        (_, InitialPosition::Earliest) => topic.store.first(),
        (_, InitialPosition::Latest) => topic.store.end(),
    }
}

/// The entry that an id means. It is delivered itself: whether it is wanted is the client's to say.
fn position(topic: &Topic, id: &pb::MessageIdData) -> u64 {
    let (first, end) = (topic.store.first(), topic.store.end());
    // −1 is before everything, the largest number behind everything.
    let (ledger, entry) = (id.ledgerId() as i64, id.entryId() as i64);
    match u64::try_from(ledger) {
        Err(_) => first,
        Ok(ledger) if ledger < topic.ledger => first,
        Ok(ledger) if ledger > topic.ledger => end,
        Ok(_) => u64::try_from(entry).unwrap_or(0).clamp(first, end),
    }
}

pub(super) fn ids_of(ids: &[MessageIdData]) -> Vec<MessageId> {
    let id = |id: &MessageIdData| {
        let whole = MessageId::new(id.ledger as i64, id.entry as i64, id.partition);
        if id.batch_index < 0 { whole } else { whole.in_batch(id.batch_index, id.batch_size) }
    };
    ids.iter().map(id).collect()
}
