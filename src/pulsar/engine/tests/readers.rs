//! Subscriptions at the model broker: permits, dispatch, acknowledgements.

use super::cluster::{Cluster, EntryState, OpenFault, Reader, Subscription};
use super::schedule::Micros;
use crate::pulsar::wire::command::{self as wire, Ack, Command, Message};
use crate::pulsar::wire::pb::{self, ServerError, command_subscribe::SubType};

impl Subscription {
    fn set(&mut self, entry: usize, state: EntryState) {
        if entry >= self.states.len() {
            self.states.resize(entry + 1, EntryState::Unread);
            self.redelivered.resize(entry + 1, 0);
        }
        self.states[entry] = state;
    }

    /// What was delivered and not acknowledged is to be delivered again.
    fn rewind(&mut self, only: Option<usize>) {
        let all = 0..self.states.len();
        for entry in only.map_or(all, |entry| entry..entry + 1) {
            if self.states.get(entry) == Some(&EntryState::Pending) {
                self.states[entry] = EntryState::Unread;
                self.redelivered[entry] += 1;
                self.first_unread = self.first_unread.min(entry);
            }
        }
    }

    pub(super) fn backlog(&self, entries: usize) -> usize {
        entries - self.states.iter().filter(|state| **state == EntryState::Acked).count()
    }
}

impl Cluster {
    pub(super) fn subscribe(&mut self, now: Micros, conn: usize, open: &pb::CommandSubscribe) {
        self.counts.subscribes += 1;
        let (request, consumer_id) = (open.request_id(), open.consumer_id());
        match self.consumer_faults.get_mut(&consumer_id).and_then(std::collections::VecDeque::pop_front) {
            Some(OpenFault::Refuse(code)) => {
                self.reply_with(conn, wire::error(request, code, "fault"));
                return;
            }
            Some(OpenFault::Silent) => return,
            _ => {}
        }
        let refuse = |code: ServerError| wire::error(request, code as i32, "the model says no");
        let Some(index) = self.by_name.get(open.topic()).copied() else {
            self.reply_with(conn, refuse(ServerError::TopicNotFound));
            return;
        };
        if self.topics[index].owner != self.conns[conn].broker || self.topics[index].away_until > now {
            self.reply_with(conn, refuse(ServerError::ServiceNotReady));
            return;
        }
        let shared = open.subType() == SubType::Shared;
        let subscription = self.topics[index].subscription.get_or_insert_with(|| Subscription {
            shared,
            states: Vec::new(),
            redelivered: Vec::new(),
            first_unread: 0,
            session: None,
        });
        if let Some(reader) = subscription.session {
            if (reader.conn, reader.consumer_id) != (conn, consumer_id) {
                if !shared {
                    self.reply_with(conn, refuse(ServerError::ConsumerBusy));
                    return;
                }
                // The former self of the only consumer: a real broker would deliver to both for a while.
                self.conns[reader.conn].consumers.retain(|(id, _)| *id != reader.consumer_id);
                self.end_reader(now, reader.conn, reader.consumer_id, index);
            }
        }
        if let Some(subscription) = &mut self.topics[index].subscription {
            subscription.rewind(None);
            subscription.session = Some(Reader { conn, consumer_id, permits: 0, epoch: open.consumer_epoch });
        }
        self.conns[conn].consumers.retain(|(id, _)| *id != consumer_id);
        self.conns[conn].consumers.push((consumer_id, index));
        self.reply_with(conn, wire::success(request));
    }

    pub(super) fn end_reader(&mut self, _now: Micros, conn: usize, consumer_id: u64, topic: usize) {
        let Some(subscription) = &mut self.topics[topic].subscription else { return };
        let ours = subscription.session.is_some_and(|reader| (reader.conn, reader.consumer_id) == (conn, consumer_id));
        if ours {
            subscription.session = None;
            subscription.rewind(None);
        }
    }

    pub(super) fn close_consumer(&mut self, now: Micros, conn: usize, consumer_id: u64) {
        let end = &mut self.conns[conn];
        if let Some(at) = end.consumers.iter().position(|(id, _)| *id == consumer_id) {
            let (_, topic) = end.consumers.remove(at);
            self.end_reader(now, conn, consumer_id, topic);
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Micros, conn: usize, command: &pb::CommandUnsubscribe) {
        let id = command.consumer_id();
        let topic = self.topic_of(conn, id);
        self.close_consumer(now, conn, id);
        match topic {
            Some(topic) => {
                self.topics[topic].subscription = None;
                self.reply_with(conn, wire::success(command.request_id()));
            }
            None => {
                let code = ServerError::ConsumerNotFound as i32;
                self.reply_with(conn, wire::error(command.request_id(), code, "no such consumer"));
            }
        }
    }

    fn topic_of(&self, conn: usize, consumer_id: u64) -> Option<usize> {
        self.conns[conn].consumers.iter().find(|(id, _)| *id == consumer_id).map(|(_, topic)| *topic)
    }

    pub(super) fn flow(&mut self, conn: usize, consumer_id: u64, permits: u32) {
        self.counts.flows += 1;
        let Some(topic) = self.topic_of(conn, consumer_id) else { return };
        if let Some(reader) = self.topics[topic].subscription.as_mut().and_then(|state| state.session.as_mut()) {
            reader.permits += i64::from(permits);
            if self.queue_sizes.get(&consumer_id).is_some_and(|size| reader.permits > *size) {
                self.violation = Some(format!("consumer {consumer_id} grants {} permits in all", reader.permits));
            }
        }
        self.dispatch(topic);
    }

    /// Delivers while there are permits. The last entry may take more than there are.
    pub(super) fn dispatch(&mut self, index: usize) {
        let topic = &mut self.topics[index];
        let Some(subscription) = &mut topic.subscription else { return };
        let Some(mut reader) = subscription.session else { return };
        while reader.permits > 0 && subscription.first_unread < topic.entries.len() {
            let entry = subscription.first_unread;
            subscription.first_unread += 1;
            if subscription.states.get(entry).is_some_and(|state| *state != EntryState::Unread) {
                continue;
            }
            subscription.set(entry, EntryState::Pending);
            let Some(stored) = topic.entries.get(entry) else { break };
            reader.permits -= i64::from(stored.messages);
            let frame = Command::Message(Message {
                consumer_id: reader.consumer_id,
                message_id: Self::message_id(index, entry),
                redelivery_count: subscription.redelivered[entry],
                ack_set: Vec::new(),
                consumer_epoch: reader.epoch.filter(|_| !subscription.shared),
                entry: stored.entry.clone(),
            });
            self.out.push(super::cluster::Out::Frame { conn: reader.conn, delay: 0, frame });
        }
        subscription.session = Some(reader);
    }

    pub(super) fn ack(&mut self, conn: usize, ack: &Ack) {
        self.counts.acks += 1;
        let Some(topic) = self.topic_of(conn, ack.consumer_id) else { return };
        let Some(subscription) = &mut self.topics[topic].subscription else { return };
        for id in &ack.message_ids {
            let entry = id.entry as usize;
            if id.ledger != topic as u64 + 1 {
                self.violation = Some(format!("an ack for {id:?} on topic {topic}"));
                return;
            }
            if ack.cumulative {
                for entry in 0..=entry {
                    subscription.set(entry, EntryState::Acked);
                }
            } else {
                subscription.set(entry, EntryState::Acked);
            }
        }
    }

    pub(super) fn redeliver(&mut self, conn: usize, command: &pb::CommandRedeliverUnacknowledgedMessages) {
        self.counts.redelivers += 1;
        let Some(topic) = self.topic_of(conn, command.consumer_id()) else { return };
        let Some(subscription) = &mut self.topics[topic].subscription else { return };
        if command.message_ids.is_empty() {
            if subscription.shared {
                self.violation = Some("an empty list of redeliveries on a shared subscription".into());
                return;
            }
            subscription.rewind(None);
            if let Some(reader) = &mut subscription.session {
                reader.epoch = command.consumer_epoch.or(reader.epoch);
            }
        } else {
            for id in &command.message_ids {
                subscription.rewind(Some(id.entryId() as usize));
            }
        }
        self.dispatch(topic);
    }
}
