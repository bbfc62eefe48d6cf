//! The user's side: simple consumers that receive, acknowledge, change their subscriptions and close.

use std::collections::BTreeSet;
use std::time::Duration;

use super::plan::{TOPICS, Trigger};
use super::schedule::{MS, Micros, SEC};
use super::world::{Event, Owner, Stage, World};
use crate::pending::{Pending, Reply, completion};
use crate::rocketmq::engine::event::{Answers, Arrived, Command, ConsumerSpec, Opened, Role, SessionId, SessionSpec};
use crate::rocketmq::handle::{self, Handle, Places};
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

pub(super) struct Consumer {
    pub session: SessionId,
    pub opening: Option<Pending<Opened>>,
    pub open: bool,
    pub closing: Option<(Pending<()>, Micros)>,
    pub done: bool,
    pub topics: BTreeSet<usize>,
    pub(super) receives: Vec<Receiving>,
    pub(super) acks: Vec<Acking>,
    pub(super) changes: Vec<Changing>,
    pub(super) told: Vec<Pending<()>>,
    pub(super) held: Vec<Held>,
}

pub(super) struct Receiving {
    pub(super) max: usize,
    /// The latest that it may be answered.
    pub(super) due: Micros,
    pub(super) answer: Pending<Vec<Arrived>>,
}

pub(super) struct Acking {
    pub(super) held: Vec<Held>,
    pub(super) places: Places,
    pub(super) due: Micros,
    pub(super) answer: Pending<Answers>,
}

pub(super) struct Changing {
    pub(super) held: Held,
    pub(super) due: Micros,
    pub(super) answer: Pending<Answers>,
}

/// A message that the user has.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) uid: usize,
    pub(super) topic: usize,
    pub(super) handle: String,
    pub(super) endpoints: Endpoints,
}

impl Held {
    pub(super) fn handle(&self) -> Handle<'_> {
        Handle { topic: TOPICS[self.topic], message_id: "id", receipt_handle: &self.handle, endpoints: &self.endpoints }
    }
}

impl Consumer {
    pub(super) fn new() -> Self {
        Self {
            session: SessionId(0),
            opening: None,
            open: false,
            closing: None,
            done: false,
            topics: BTreeSet::new(),
            receives: Vec::new(),
            acks: Vec::new(),
            changes: Vec::new(),
            told: Vec::new(),
            held: Vec::new(),
        }
    }

    pub(super) fn is_receiving(&self) -> bool {
        !self.receives.is_empty()
    }

    pub(super) fn is_acking(&self) -> bool {
        !self.acks.is_empty() || !self.changes.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_receiving() || self.is_acking() || !self.told.is_empty() || self.opening.is_some()
    }
}

pub(super) fn handles(held: &[Held]) -> Vec<Handle<'_>> {
    held.iter().map(Held::handle).collect()
}

fn all() -> pb::FilterExpression {
    pb::FilterExpression { expression: "*".into(), type_: pb::FilterType::TAG.into(), ..Default::default() }
}

impl World {
    pub(super) fn open_consumer(&mut self, index: usize) {
        let session = SessionId(self.sessions.len() as u64 + 1);
        self.sessions.insert(session, (Owner::Consumer(index), false));
        let (reply, opening) = completion();
        let topics: BTreeSet<usize> =
            if self.rng.chance(1, 5) { [self.rng.below(2) as usize].into() } else { (0..TOPICS.len()).collect() };
        let held = std::mem::take(&mut self.consumers[index].held);
        let plan = &self.plan.consumers[index];
        let role = Role::SimpleConsumer(ConsumerSpec {
            group: format!("group-{index}"),
            subscriptions: topics.iter().map(|topic| (TOPICS[*topic].to_owned(), all())).collect(),
            await_duration: plan.wait,
        });
        let spec = SessionSpec { namespace: String::new(), request_timeout: plan.request_timeout, role };
        // What was received before is still held: acknowledgements go through the new session.
        self.consumers[index] = Consumer { session, opening: Some(opening), topics, held, ..Consumer::new() };
        let due = self.instant(self.now + 30 * SEC);
        self.start_due.insert(session, self.now + 30 * SEC);
        self.note("open consumer", session.0, index as u64);
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Open { session, spec: Box::new(spec), due, reply });
        });
        self.trigger(Trigger::Open);
    }

    /// The user's program goes on.
    pub(super) fn consume(&mut self, index: usize) {
        let consumer = &self.consumers[index];
        if consumer.done || self.stage == Stage::Over {
            return;
        }
        if !consumer.open {
            if consumer.opening.is_none() && consumer.closing.is_none() {
                self.open_consumer(index);
            }
            return self.after(300 * MS, Event::Consume(index));
        }
        if self.stage == Stage::Busy {
            self.do_something(index);
            let pause = if self.rng.chance(1, 8) { self.rng.below(4 * SEC) } else { self.rng.below(300 * MS) };
            self.after(pause, Event::Consume(index));
        } else {
            self.drain(index);
            self.after(20 * MS, Event::Consume(index));
        }
    }

    /// A steady program: it subscribes to everything, receives all the time and acknowledges what it has.
    fn drain(&mut self, index: usize) {
        for topic in 0..TOPICS.len() {
            if self.stage == Stage::Healed && !self.consumers[index].topics.contains(&topic) {
                self.subscribe(index, topic);
            }
        }
        if !self.consumers[index].is_receiving() {
            self.receive(index);
        }
        let held = std::mem::take(&mut self.consumers[index].held);
        if !held.is_empty() {
            self.acknowledge(index, held);
        }
    }

    fn do_something(&mut self, index: usize) {
        let consumer = &self.consumers[index];
        let held = consumer.held.len() as u64;
        match self.rng.below(12) {
            0..=3 if consumer.receives.len() < self.plan.consumers[index].parallel => self.receive(index),
            4 | 5 if held > 0 => {
                let at = self.rng.below(held) as usize;
                let one = self.consumers[index].held.swap_remove(at);
                self.acknowledge(index, vec![one]);
            }
            6 | 7 if held > 0 => {
                let count = 1 + self.rng.below(held) as usize;
                let mut batch: Vec<Held> = self.consumers[index].held.drain(..count).collect();
                // The same message twice, and one that nobody handed out.
                if self.rng.chance(1, 6) {
                    batch.push(batch[0].clone());
                }
                if self.rng.chance(1, 6) {
                    batch.insert(0, Held { handle: "nonsense".into(), ..batch[0].clone() });
                }
                self.acknowledge(index, batch);
            }
            8 if held > 0 => {
                let at = self.rng.below(held) as usize;
                let one = self.consumers[index].held.swap_remove(at);
                self.change_invisible(index, one);
            }
            9 if self.rng.chance(1, 4) => {
                let topic = self.rng.below(TOPICS.len() as u64) as usize;
                match self.consumers[index].topics.contains(&topic) {
                    true if self.consumers[index].topics.len() > 1 || self.rng.chance(1, 4) => {
                        self.unsubscribe(index, topic);
                    }
                    _ => self.subscribe(index, topic),
                }
            }
            _ => {}
        }
    }

    fn receive(&mut self, index: usize) {
        let plan = &self.plan.consumers[index];
        let max = 1 + self.rng.below(32) as usize;
        let other = self.stage == Stage::Busy && self.rng.chance(1, 8);
        let invisible = if other { plan.invisible * 2 } else { plan.invisible };
        let due = self.now + (plan.wait + plan.request_timeout).as_micros() as Micros;
        let (reply, answer) = completion();
        let session = self.consumers[index].session;
        self.note("receive", session.0, max as u64);
        self.consumers[index].receives.push(Receiving { max, due, answer });
        let reply = Reply::Completion(reply);
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Receive { session, max, invisible, reply });
        });
        self.trigger(Trigger::Receive);
    }

    fn acknowledge(&mut self, index: usize, held: Vec<Held>) {
        let (places, calls) = handle::acknowledge("", &format!("group-{index}"), &handles(&held));
        let at = self.now + 500 * MS + self.rng.below(6 * SEC);
        let due = self.instant(at);
        let (reply, answer) = completion();
        let session = self.consumers[index].session;
        self.note("ack", session.0, held.len() as u64);
        self.consumers[index].acks.push(Acking { held, places, due: at, answer });
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Prepared { session, method: Method::AckMessage, calls, due, reply });
        });
        self.trigger(Trigger::Ack);
    }

    fn change_invisible(&mut self, index: usize, held: Held) {
        let at = self.now + 500 * MS + self.rng.below(6 * SEC);
        let due = self.instant(at);
        let (reply, answer) = completion();
        let session = self.consumers[index].session;
        let invisible = Duration::from_secs(10 + self.rng.below(10));
        let calls = vec![handle::change("", &format!("group-{index}"), &held.handle(), invisible)];
        let method = Method::ChangeInvisibleDuration;
        self.note("change", session.0, held.uid as u64);
        self.consumers[index].changes.push(Changing { held, due: at, answer });
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Prepared { session, method, calls, due, reply });
        });
        self.trigger(Trigger::Ack);
    }

    fn subscribe(&mut self, index: usize, topic: usize) {
        if self.consumers[index].is_receiving() {
            self.happened("a topic is subscribed under a receive");
        }
        self.consumers[index].topics.insert(topic);
        self.tell_subscription(index, topic, Some(all()));
    }

    pub(super) fn unsubscribe(&mut self, index: usize, topic: usize) {
        if self.consumers[index].is_receiving() {
            self.happened("a topic is given up under a receive");
        }
        self.consumers[index].topics.remove(&topic);
        self.tell_subscription(index, topic, None);
    }

    fn tell_subscription(&mut self, index: usize, topic: usize, filter: Option<pb::FilterExpression>) {
        let (reply, answer) = completion();
        let session = self.consumers[index].session;
        self.note("subscribe", topic as u64, u64::from(filter.is_some()));
        self.consumers[index].told.push(answer);
        let topic = TOPICS[topic].to_owned();
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Subscribe { session, topic, filter, reply });
        });
    }

    /// The user closes a consumer, at whatever point it is. It may be opened again.
    pub(super) fn close_consumer(&mut self, index: usize, limit: Micros) {
        let consumer = &mut self.consumers[index];
        if consumer.closing.is_some() || !(consumer.open || consumer.opening.is_some()) {
            return;
        }
        let (reply, pending) = completion();
        consumer.closing = Some((pending, self.now + limit));
        consumer.open = false;
        let (session, flush_until) = (consumer.session, self.instant(self.now + limit));
        self.note("close consumer", session.0, limit);
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Close { session, flush_until, reply: Some(reply) });
        });
        self.trigger(Trigger::Close);
    }
}
