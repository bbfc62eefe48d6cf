//! Topics of the model brokers: where they go, and who is told.

use super::cluster::Cluster;
use super::schedule::Micros;
use crate::pulsar::wire::command as wire;

impl Cluster {
    /// The broker stops: all its connections end, its topics go elsewhere or wait for it.
    pub(super) fn stop(&mut self, now: Micros, broker: usize, keep_sequences: bool, away: Micros) {
        self.brokers[broker].down = true;
        for conn in 0..self.conns.len() {
            if self.conns[conn].broker == broker {
                self.drop_conn(now, conn);
            }
        }
        let heir = (0..self.brokers.len()).find(|other| *other != broker && !self.brokers[*other].down);
        for topic in self.topics.iter_mut().filter(|topic| topic.owner == broker) {
            topic.owner = heir.unwrap_or(broker);
            topic.away_until = now + away;
            if !keep_sequences {
                topic.last_sequence.clear();
            }
        }
    }

    /// A topic moves: its sessions are told, with the new broker's address or without.
    pub(super) fn unload(&mut self, now: Micros, topic: usize, to: usize, tell: bool, away: Micros) {
        let url = self.brokers[to].url();
        let state = &mut self.topics[topic];
        state.owner = to;
        state.away_until = now + away;
        let sessions = std::mem::take(&mut state.sessions);
        let reader = state.subscription.as_ref().and_then(|subscription| subscription.session);
        for session in sessions {
            self.conns[session.conn].producers.retain(|(id, _)| *id != session.producer_id);
            self.send_away_producer(session.conn, session.producer_id, tell.then_some(&url));
        }
        if let Some(reader) = reader {
            self.conns[reader.conn].consumers.retain(|(id, _)| *id != reader.consumer_id);
            self.end_reader(now, reader.conn, reader.consumer_id, topic);
            let mut command = wire::close_consumer(reader.consumer_id, 0);
            command.close_consumer.mut_or_insert_default().assignedBrokerServiceUrl = tell.then(|| url.clone());
            self.reply_with(reader.conn, command);
        }
    }

    pub(super) fn send_away_producer(&mut self, conn: usize, producer_id: u64, url: Option<&String>) {
        self.conns[conn].sent_away.push(producer_id);
        let mut command = wire::close_producer(producer_id, 0);
        command.close_producer.mut_or_insert_default().assignedBrokerServiceUrl = url.cloned();
        self.reply_with(conn, command);
    }

    /// A topic is terminated for good by this answer to a SEND.
    pub(super) fn terminated_by(&mut self, code: i32, topic: usize) {
        if code == 15 {
            self.topics[topic].terminated = true;
        }
    }
}
