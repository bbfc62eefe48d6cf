//! Producers and what they send.

use std::sync::Arc;

use super::connection::Ending;
use super::receipts::Receipt;
use super::sessions::{ProducerSession, Waiting};
use super::state::{State, now_ms};
use super::topic::{Holder, Place};
use super::{ServerError, topic::Topic};
use crate::pulsar::wire::command::{
    MessageIdData, Send, SendReceipt, encode_receipt, error, producer_success, send_error, success,
};
use crate::pulsar::wire::pb::{self, ProducerAccessMode};

/// Why a producer is not let in at once.
enum Refusal {
    Error(ServerError, &'static str),
    /// Somebody on this connection has the name; it may be dead.
    HeldBy(u64),
}

impl State {
    /// `checked`: whoever has the name is known to be alive.
    pub(super) fn open_producer(&mut self, connection: u64, body: &pb::CommandProducer, checked: bool) {
        let place = Place { connection, id: body.producer_id() };
        let deduplication = self.options.deduplication;
        let index = self.topic_index(body.topic());
        let Some(state) = self.connections.get(&connection) else { return };
        let Some(topic) = self.topics.get_mut(index) else { return };
        if let Some(session) = state.producers.get(&place.id) {
            // The client asks again; it is the same producer.
            let last = last_sequence_id(topic, &session.name, deduplication);
            let answer = producer_success(body.request_id(), &session.name, last, topic.epoch, true);
            return self.answer(connection, answer);
        }
        let name: Arc<str> = match body.producer_name() {
            "" => format!("testkit-{}", self.sessions + 1).into(),
            name => name.into(),
        };
        match admit(topic, place, &name, body, self.options.backlog_limit) {
            Ok(()) => {}
            Err(Refusal::Error(code, why)) => {
                return self.answer(connection, error(body.request_id(), code.code(), why));
            }
            Err(Refusal::HeldBy(old)) => {
                return match self.options.liveness_check {
                    Some(limit) if !checked && old != connection => {
                        self.check(old, limit, Waiting::Producer(connection, Box::new(body.clone())));
                    }
                    _ => {
                        let why = "a producer of this name is already connected";
                        self.answer(connection, error(body.request_id(), ServerError::PRODUCER_BUSY.code(), why));
                    }
                };
            }
        }
        self.sessions += 1;
        let session = ProducerSession { topic: index, name: Arc::clone(&name), session: self.sessions };
        let last = last_sequence_id(topic, &name, deduplication);
        let answer = producer_success(body.request_id(), &name, last, topic.epoch, true);
        let exclusive = body.producer_access_mode() != ProducerAccessMode::Shared;
        let user_provided_name = body.user_provided_producer_name() && !body.producer_name().is_empty();
        let replaced =
            topic.producers.insert(name, Holder { place, epoch: body.epoch(), user_provided_name, exclusive });
        if let Some(replaced) = replaced {
            if let Some(old) = self.connections.get_mut(&replaced.place.connection) {
                old.producers.remove(&replaced.place.id);
                old.closed_producers.push(replaced.place.id);
            }
        }
        if let Some(state) = self.connections.get_mut(&connection) {
            state.closed_producers.retain(|&id| id != place.id);
            state.producers.insert(place.id, session);
        }
        self.answer(connection, answer);
    }

    pub(super) fn on_close_producer(&mut self, connection: u64, body: &pb::CommandCloseProducer) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        if let Some(producer) = state.producers.remove(&body.producer_id()) {
            state.closed_producers.push(body.producer_id());
            self.release_producer(connection, &producer);
        }
        self.answer(connection, success(body.request_id()));
    }

    pub(super) fn on_send(&mut self, connection: u64, send: Send, intact: bool) {
        let Some(state) = self.connections.get(&connection) else { return };
        let Some(session) = state.producers.get(&send.producer_id) else {
            // What was on its way when the producer was closed is dropped; else the client does not know what it
            // does.
            if !state.closed_producers.contains(&send.producer_id) {
                self.end_connections(&[connection], Ending::Fin);
            }
            return;
        };
        let (index, session_number) = (session.topic, session.session);
        let Some(topic) = self.topics.get_mut(index) else { return };
        let size = send.entry.len();
        let refusal = if topic.terminated {
            Some(ServerError::TOPIC_TERMINATED.code())
        } else if let Some(code) = topic.receipts.refusal() {
            Some(code)
        } else if !intact {
            Some(ServerError::CHECKSUM.code())
        } else {
            None
        };
        if let Some(code) = refusal {
            let answer = send_error(send.producer_id, send.sequence_id, code, "not stored");
            return self.push(connection, &answer);
        }
        let num_messages = u32::try_from(send.num_messages).unwrap_or(1).max(1);
        let duplicate = self.options.deduplication && {
            let last = topic.last_sequence_ids.get(&session.name).copied();
            last.is_some_and(|last| send.sequence_id <= last)
        };
        let message_id = if duplicate {
            MessageIdData::new(u64::MAX, u64::MAX)
        } else {
            if !self.options.discard && !topic.make_room(size, self.options.backlog_limit) {
                let code = ServerError::PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR.code();
                let answer = send_error(send.producer_id, send.sequence_id, code, "the backlog is full");
                return self.push(connection, &answer);
            }
            if self.options.deduplication {
                let highest = send.highest_sequence_id.unwrap_or(0).max(send.sequence_id);
                topic.last_sequence_ids.insert(Arc::clone(&session.name), highest);
            }
            let entry = topic.store.push(send.entry, num_messages, now_ms(), !self.options.discard);
            self.counters.add(num_messages);
            MessageIdData { partition: topic.partition, ..MessageIdData::new(topic.ledger, entry) }
        };
        let receipt = Receipt {
            to: Place { connection, id: send.producer_id },
            session: session_number,
            body: SendReceipt {
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                highest_sequence_id: send.highest_sequence_id,
                message_id: Some(message_id),
            },
        };
        if topic.receipts.is_plain() {
            self.send_receipt(&receipt);
        } else {
            let delay = topic.receipts.delay;
            let leaving = topic.receipts.pass(receipt);
            match delay {
                None => self.send_receipts(&leaving),
                Some(delay) => self.later(delay, Box::new(move |state| state.send_receipts(&leaving))),
            }
        }
        for subscription in 0..self.topics.get(index).map_or(0, |topic| topic.subscriptions.len()) {
            self.deliver(index, subscription);
        }
    }

    pub(super) fn send_receipts(&mut self, receipts: &[Receipt]) {
        for receipt in receipts {
            self.send_receipt(receipt);
        }
    }

    /// Drops it, if its producer session is over.
    fn send_receipt(&mut self, receipt: &Receipt) {
        let Some(state) = self.connections.get_mut(&receipt.to.connection) else { return };
        if state.producers.get(&receipt.to.id).is_some_and(|session| session.session == receipt.session) {
            state.write(|out| encode_receipt(&receipt.body, out));
        }
    }
}

/// −1 for none, as brokers answer also when they do not deduplicate.
fn last_sequence_id(topic: &Topic, name: &str, deduplication: bool) -> i64 {
    let last = if deduplication { topic.last_sequence_ids.get(name).copied() } else { None };
    last.and_then(|last| i64::try_from(last).ok()).unwrap_or(-1)
}

/// Whether the producer may join the topic. Settles the topic's epoch.
fn admit(
    topic: &mut Topic,
    place: Place,
    name: &str,
    body: &pb::CommandProducer,
    backlog_limit: usize,
) -> Result<(), Refusal> {
    if topic.terminated {
        return Err(Refusal::Error(ServerError::TOPIC_TERMINATED, "the topic is terminated"));
    }
    if !topic.make_room(1, backlog_limit) {
        let code = ServerError::PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR;
        return Err(Refusal::Error(code, "the backlog is full"));
    }
    match body.producer_access_mode() {
        ProducerAccessMode::Shared => {
            let taken = topic.producers.values().any(|holder| holder.exclusive);
            if taken && topic.producers.get(name).is_none_or(|holder| !holder.exclusive) {
                return Err(Refusal::Error(ServerError::PRODUCER_BUSY, "the topic has an exclusive producer"));
            }
        }
        ProducerAccessMode::Exclusive => {
            let outdated = body.topic_epoch.is_some_and(|epoch| topic.epoch.is_some_and(|current| epoch < current));
            if outdated || !topic.producers.is_empty() {
                return Err(Refusal::Error(ServerError::PRODUCER_FENCED, "the topic has another producer"));
            }
            topic.epoch = Some(body.topic_epoch.unwrap_or_else(|| topic.epoch.map_or(0, |epoch| epoch + 1)));
        }
        _ => return Err(Refusal::Error(ServerError::NOT_ALLOWED, "this broker does not play that access mode")),
    }
    let Some(holder) = topic.producers.get(name) else {
        return Ok(());
    };
    // A client that comes back under the name that a broker made for it takes the place of its former self.
    let is_successor = !holder.user_provided_name
        && !body.user_provided_producer_name()
        && holder.epoch < body.epoch()
        && holder.place != place;
    if is_successor { Ok(()) } else { Err(Refusal::HeldBy(holder.place.connection)) }
}
