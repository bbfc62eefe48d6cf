//! Producers and consumers as a connection has them, and how they end.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Ending;
use super::state::State;
use super::topic::Place;
use crate::pulsar::wire::command::{close_consumer, close_producer, encode_ping};
use crate::pulsar::wire::pb;

#[derive(Debug, Clone)]
pub(super) struct ProducerSession {
    pub(super) topic: usize,
    pub(super) name: Arc<str>,
    /// Never used again, unlike the client's number.
    pub(super) session: u64,
}

#[derive(Debug, Clone)]
pub(super) struct ConsumerSession {
    pub(super) topic: usize,
    pub(super) subscription: Arc<str>,
}

/// A request that waits until an old connection has shown whether it lives.
pub(super) enum Waiting {
    Producer(u64, Box<pb::CommandProducer>),
    Subscribe(u64, Box<pb::CommandSubscribe>),
}

impl State {
    /// Something came in on this connection.
    pub(super) fn on_alive(&mut self, connection: u64) {
        if !self.checks.is_empty() {
            for waiting in self.checks.remove(&connection).unwrap_or_default() {
                self.resume(waiting, true);
            }
        }
    }

    /// Asks `old` for a sign of life on behalf of a request that it stands in the way of.
    pub(super) fn check(&mut self, old: u64, limit: Duration, waiting: Waiting) {
        self.write(old, encode_ping);
        self.checks.entry(old).or_default().push(waiting);
        let job = move |state: &mut Self| {
            if state.checks.contains_key(&old) {
                state.end_connections(&[old], Ending::Fin);
            }
        };
        self.later(limit, Box::new(job));
    }

    /// `checked`: the old connection is known to live.
    pub(super) fn resume(&mut self, waiting: Waiting, checked: bool) {
        match waiting {
            Waiting::Producer(connection, body) => self.open_producer(connection, &body, checked),
            Waiting::Subscribe(connection, body) => self.open_consumer(connection, &body, checked),
        }
    }

    pub(super) fn release_producer(&mut self, connection: u64, producer: &ProducerSession) {
        if let Some(topic) = self.topics.get_mut(producer.topic) {
            let is_holder = topic.producers.get(&producer.name).is_some_and(|h| h.place.connection == connection);
            if is_holder {
                topic.producers.remove(&producer.name);
            }
        }
    }

    pub(super) fn release_consumer(&mut self, connection: u64, id: u64, consumer: &ConsumerSession) {
        let Some(topic) = self.topics.get_mut(consumer.topic) else { return };
        let Some(at) = topic.subscriptions.iter().position(|s| s.name == consumer.subscription) else { return };
        let Some(subscription) = topic.subscriptions.get_mut(at) else { return };
        subscription.remove_consumer(Place { connection, id });
        if subscription.durable || subscription.has_consumers() {
            self.deliver(consumer.topic, at);
        } else {
            topic.subscriptions.remove(at);
        }
    }

    /// Ends the producers of a topic from our side. `url`: where the client is to go.
    pub(super) fn close_producers_of(&mut self, topic: &str, url: Option<&str>) -> usize {
        let topic = self.topic_index(topic);
        let mut closed = Vec::new();
        for (&connection, state) in &mut self.connections {
            let ids: Vec<u64> = state.producers.iter().filter(|(_, p)| p.topic == topic).map(|(id, _)| *id).collect();
            for id in ids {
                if let Some(producer) = state.producers.remove(&id) {
                    state.closed_producers.push(id);
                    closed.push((connection, id, producer));
                }
            }
        }
        for (connection, id, producer) in &closed {
            self.release_producer(*connection, producer);
            let mut close = close_producer(*id, u64::MAX);
            close.close_producer.mut_or_insert_default().assignedBrokerServiceUrl = url.map(str::to_owned);
            self.push(*connection, &close);
        }
        closed.len()
    }

    /// Ends the consumers of a topic, or of one subscription of it, from our side.
    pub(super) fn close_consumers_of(&mut self, topic: usize, subscription: Option<&str>, url: Option<&str>) -> usize {
        let mut closed = Vec::new();
        for (&connection, state) in &mut self.connections {
            let is_meant = |c: &ConsumerSession| c.topic == topic && subscription.is_none_or(|s| *c.subscription == *s);
            let ids: Vec<u64> = state.consumers.iter().filter(|(_, c)| is_meant(c)).map(|(id, _)| *id).collect();
            for id in ids {
                if let Some(consumer) = state.consumers.remove(&id) {
                    closed.push((connection, id, consumer));
                }
            }
        }
        for (connection, id, _) in &closed {
            let mut close = close_consumer(*id, u64::MAX);
            close.close_consumer.mut_or_insert_default().assignedBrokerServiceUrl = url.map(str::to_owned);
            self.push(*connection, &close);
        }
        // Afterwards, so that nothing is delivered from one that is going to one that goes next.
        for (connection, id, consumer) in &closed {
            self.release_consumer(*connection, *id, consumer);
        }
        closed.len()
    }
}
