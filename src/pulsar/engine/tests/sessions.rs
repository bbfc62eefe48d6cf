//! Producers at the model broker: how they open, and how one that comes back takes the place of its former self.

use super::cluster::{Cluster, Comeback, Open, OpenFault, Out, Question, Session, Timer};
use super::schedule::{Micros, SEC};
use crate::policy::rng::Rng;
use crate::pulsar::wire::command::{self as wire, Command};
use crate::pulsar::wire::pb::{self, ServerError};

/// How long an old connection may take to show that it lives.
const LIVENESS: Micros = 5 * SEC;

impl Cluster {
    pub(super) fn producer(&mut self, now: Micros, rng: &mut Rng, conn: usize, open: &pb::CommandProducer) {
        self.counts.producers += 1;
        let (request, producer_id) = (open.request_id(), open.producer_id());
        let fault = self.producer_faults.get_mut(&producer_id).and_then(std::collections::VecDeque::pop_front);
        match fault {
            Some(OpenFault::Refuse(code)) => {
                self.reply_with(conn, wire::error(request, code, "fault"));
                return;
            }
            Some(OpenFault::Silent) => return,
            Some(OpenFault::Late(_) | OpenFault::CloseAfter) | None => {}
        }
        let Some(index) = self.by_name.get(open.topic()).copied() else {
            self.refuse(conn, request, ServerError::TopicNotFound);
            return;
        };
        let me = self.conns[conn].broker;
        let topic = &self.topics[index];
        if topic.owner != me || topic.away_until > now {
            self.refuse(conn, request, ServerError::ServiceNotReady);
            return;
        }
        if topic.terminated {
            self.refuse(conn, request, ServerError::TopicTerminatedError);
            return;
        }
        let mine = topic.sessions.iter().find(|session| (session.conn, session.producer_id) == (conn, producer_id));
        if let Some(name) = mine.map(|session| session.name.clone()) {
            if !self.conns[conn].sent_away.contains(&producer_id) {
                self.violation = Some(format!("producer {producer_id} is opened again where it is open"));
            }
            self.opened(conn, index, request, &name, 0);
            return;
        }
        let exclusive = open.producer_access_mode() == pb::ProducerAccessMode::Exclusive;
        if exclusive && (topic.taken_until > now || !topic.sessions.is_empty()) {
            self.refuse(conn, request, ServerError::ProducerFenced);
            return;
        }
        let name = open.producer_name().to_owned();
        let name = if name.is_empty() { self.unique_name() } else { name };
        let open = Open { request, producer_id, name };
        let delay = match fault {
            Some(OpenFault::Late(delay)) => delay,
            _ => 0,
        };
        let entered = self.take_place(now, conn, index, open, delay);
        if entered && fault == Some(OpenFault::CloseAfter) {
            // Comes from a session of the past on this connection's broker, so the session that it names lives on
            // another one of this client.
            let others: Vec<usize> = (0..self.conns.len())
                .filter(|other| *other != conn && self.conns[*other].open && self.conns[*other].greeted)
                .collect();
            if let Some(other) = others.get(rng.below(others.len() as u64) as usize) {
                self.send_away_producer(*other, producer_id, None);
            }
        }
    }

    /// Gives a producer its place, unless a session of its name holds it: whether that one's connection lives is
    /// asked first. True if it is in.
    fn take_place(&mut self, now: Micros, conn: usize, topic: usize, open: Open, delay: Micros) -> bool {
        let old = self.topics[topic].sessions.iter().find(|session| session.name == open.name).map(|old| old.conn);
        match old {
            None => {
                self.enter(conn, topic, &open, delay);
                return true;
            }
            Some(old) if old == conn => self.refuse(conn, open.request, ServerError::ProducerBusy),
            Some(old) => {
                self.conns[conn].opening.push((open.producer_id, open.request));
                self.ask_whether_alive(now, old, Comeback { topic, conn, open });
            }
        }
        false
    }

    /// The question is the old connection's: who comes while it is open joins it, and does not begin it anew.
    fn ask_whether_alive(&mut self, now: Micros, old: usize, comeback: Comeback) {
        if let Some(question) = &mut self.conns[old].question {
            question.comebacks.push(comeback);
            return;
        }
        let due = now + LIVENESS;
        self.conns[old].question = Some(Question { due, comebacks: vec![comeback] });
        self.reply(old, Command::Ping);
        self.out.push(Out::Timer { at: due, timer: Timer::Liveness { conn: old, due } });
    }

    /// Nothing was heard from a connection since it was asked: it is dead, whether anybody still waits or not.
    pub(super) fn liveness_due(&mut self, now: Micros, conn: usize, due: Micros) {
        if self.conns[conn].question.as_ref().is_some_and(|question| question.due == due) {
            self.drop_conn(now, conn);
        }
    }

    /// An old connection showed that it lives, or is gone: those that wait for its place are answered.
    pub(super) fn liveness_known(&mut self, now: Micros, old: usize, alive: bool) {
        let Some(question) = self.conns[old].question.take() else { return };
        for Comeback { topic, conn, open } in question.comebacks {
            let end = &mut self.conns[conn];
            let before = end.opening.len();
            end.opening.retain(|(_, request)| *request != open.request);
            if end.opening.len() == before || !end.open {
                continue;
            }
            if alive {
                self.refuse(conn, open.request, ServerError::ProducerBusy);
            } else if self.topics[topic].owner != self.conns[conn].broker || self.topics[topic].away_until > now {
                self.refuse(conn, open.request, ServerError::ServiceNotReady);
            } else {
                self.take_place(now, conn, topic, open, 0);
            }
        }
    }

    fn enter(&mut self, conn: usize, topic: usize, open: &Open, delay: Micros) {
        let session = Session { conn, producer_id: open.producer_id, name: open.name.clone() };
        self.topics[topic].sessions.push(session);
        self.conns[conn].producers.push((open.producer_id, topic));
        self.opened(conn, topic, open.request, &open.name, delay);
    }

    fn opened(&mut self, conn: usize, topic: usize, request: u64, name: &str, delay: Micros) {
        let last = self.topics[topic].last_sequence.get(name).filter(|_| self.dedup);
        let last = last.map_or(-1, |last| *last as i64);
        let command = wire::producer_success(request, name, last, Some(self.topics[topic].epoch), true);
        let frame = Command::Other(Box::new(command));
        self.out.push(match delay {
            0 => Out::Frame { conn, delay, frame },
            _ => Out::Late { conn, delay, frame },
        });
    }
}
