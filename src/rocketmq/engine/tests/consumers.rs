//! The user's side: simple consumers that receive, acknowledge, change their subscriptions and close.

use std::collections::BTreeSet;
use std::time::Duration;

use super::plan::{TOPICS, Trigger};
use super::schedule::{MS, Micros, SEC};
use super::world::{Event, Owner, Stage, World};
use crate::error::{Error, ErrorKind, Recovery};
use crate::pending::{Pending, Reply, completion};
use crate::rocketmq::engine::event::{Arrived, Command, ConsumerSpec, Handle, Opened, Role, SessionId, SessionSpec};
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
    receives: Vec<Receiving>,
    acks: Vec<Acking>,
    changes: Vec<Changing>,
    told: Vec<Pending<()>>,
    held: Vec<Held>,
}

struct Receiving {
    max: usize,
    /// The latest that it may be answered.
    due: Micros,
    answer: Pending<Vec<Arrived>>,
}

struct Acking {
    handles: Vec<String>,
    due: Micros,
    answer: Pending<Vec<Result<(), Error>>>,
}

struct Changing {
    held: Held,
    due: Micros,
    answer: Pending<String>,
}

/// A message that the user has.
#[derive(Clone)]
struct Held {
    uid: usize,
    topic: usize,
    handle: String,
    endpoints: Endpoints,
}

impl Held {
    fn handle(&self) -> Handle {
        Handle {
            topic: TOPICS[self.topic].into(),
            message_id: self.uid.to_string(),
            receipt_handle: self.handle.clone(),
            endpoints: self.endpoints.clone(),
        }
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

    fn is_waiting(&self) -> bool {
        self.is_receiving() || self.is_acking() || !self.told.is_empty() || self.opening.is_some()
    }
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
        let handles: Vec<Handle> = held.iter().map(Held::handle).collect();
        let names = handles.iter().map(|handle| handle.receipt_handle.clone()).collect();
        let at = self.now + 500 * MS + self.rng.below(6 * SEC);
        let due = self.instant(at);
        let (reply, answer) = completion();
        let session = self.consumers[index].session;
        self.note("ack", session.0, handles.len() as u64);
        self.consumers[index].acks.push(Acking { handles: names, due: at, answer });
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Ack { session, handles, due, reply });
        });
        self.trigger(Trigger::Ack);
    }

    fn change_invisible(&mut self, index: usize, held: Held) {
        let at = self.now + 500 * MS + self.rng.below(6 * SEC);
        let due = self.instant(at);
        let (reply, answer) = completion();
        let (session, handle) = (self.consumers[index].session, held.handle());
        let invisible = Duration::from_secs(10 + self.rng.below(10));
        self.note("change", session.0, held.uid as u64);
        self.consumers[index].changes.push(Changing { held, due: at, answer });
        self.engine(|engine, now| {
            engine.handle_command(now, Command::ChangeInvisible { session, handle, invisible, due, reply });
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

    /// What the user has been answered.
    pub(super) fn look_at_consumers(&mut self) {
        for index in 0..self.consumers.len() {
            if self.consumers[index].is_waiting() || self.consumers[index].closing.is_some() {
                self.look_at(index);
            }
        }
    }

    fn look_at(&mut self, index: usize) {
        let session = self.consumers[index].session;
        if let Some(result) = self.consumers[index].opening.as_mut().and_then(|pending| pending.try_wait()) {
            self.consumers[index].opening = None;
            self.consumers[index].open = result.is_ok() && self.consumers[index].closing.is_none();
            if let Err(error) = result {
                self.start_failed(session, &error);
            }
        }
        let mut at = 0;
        while let Some(receive) = self.consumers[index].receives.get_mut(at) {
            match receive.answer.try_wait() {
                Some(result) => {
                    let receive = self.consumers[index].receives.remove(at);
                    self.received(index, &receive, result);
                }
                None => {
                    let due = receive.due;
                    self.must_be_answered(due, "a receive");
                    at += 1;
                }
            }
        }
        let mut at = 0;
        while let Some(ack) = self.consumers[index].acks.get_mut(at) {
            match ack.answer.try_wait() {
                Some(result) => {
                    let ack = self.consumers[index].acks.remove(at);
                    self.acked(&ack, result);
                }
                None => {
                    let due = ack.due;
                    self.must_be_answered(due, "an ack");
                    at += 1;
                }
            }
        }
        let mut at = 0;
        while let Some(change) = self.consumers[index].changes.get_mut(at) {
            match change.answer.try_wait() {
                Some(result) => {
                    let change = self.consumers[index].changes.remove(at);
                    self.changed(index, change, result);
                }
                None => {
                    let due = change.due;
                    self.must_be_answered(due, "a change");
                    at += 1;
                }
            }
        }
        let over = self.sessions.get(&session).is_some_and(|(_, over)| *over);
        let consumer = &mut self.consumers[index];
        consumer.told.retain_mut(|pending| pending.try_wait().is_none());
        if over && (consumer.is_receiving() || consumer.is_acking() || !consumer.told.is_empty()) {
            self.fail("a session that is over owes answers");
        }
        let mut late = false;
        let (now, consumer) = (self.now, &mut self.consumers[index]);
        if let Some((pending, until)) = &mut consumer.closing {
            match pending.try_wait() {
                Some(_) => consumer.closing = None,
                None => late = now > *until,
            }
        }
        if late {
            let due = self.consumers[index].closing.as_ref().map_or(0, |(_, until)| *until);
            self.must_be_answered(due, "a close");
        }
    }

    fn internal(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Internal {
            self.fail("an operation was dropped without an answer");
        }
    }

    fn received(&mut self, index: usize, receive: &Receiving, result: Result<Vec<Arrived>, Error>) {
        let session = self.consumers[index].session;
        let count = result.as_ref().map_or(99, |messages| messages.len() as u64);
        self.note("received", session.0, count);
        self.must_be_answered(receive.due, "a receive");
        let polls = |id| self.calls[id].session == session && self.calls[id].method == Method::ReceiveMessage;
        if self.live.iter().any(polls) {
            self.happened("a poll outlives its receive");
        }
        let messages = match result {
            Ok(messages) => messages,
            Err(error) => {
                self.internal(&error);
                self.happened("a receive fails");
                if self.stage == Stage::Probing && error.kind() != ErrorKind::Closed {
                    self.fail(format!("all is well, and a receive fails: {error}"));
                }
                return;
            }
        };
        match messages.len() {
            0 => self.happened("a receive finds nothing"),
            count if count > receive.max => self.fail("more messages than were asked for"),
            _ => self.happened("a receive brings messages"),
        }
        for Arrived { message, endpoints } in messages {
            let handle = message.system_properties.receipt_handle.clone().unwrap_or_default();
            let Some(handed) = self.depot.handles.get_mut(&handle) else {
                return self.fail("a message that no server handed out");
            };
            if std::mem::replace(&mut handed.given, true) {
                return self.fail("a message is given twice under one handle");
            }
            let uid = handed.uid;
            let stored = &mut self.depot.messages[uid];
            stored.given = true;
            let (topic, at) = (stored.topic, stored.endpoint);
            if !self.consumers[index].topics.contains(&topic) || stored.consumer != index {
                return self.fail("a message of a topic that is not subscribed");
            }
            if self.endpoints[at].address != endpoints {
                return self.fail("a message of another broker");
            }
            self.consumers[index].held.push(Held { uid, topic, handle, endpoints });
        }
    }

    fn acked(&mut self, ack: &Acking, result: Result<Vec<Result<(), Error>>, Error>) {
        self.must_be_answered(ack.due, "an ack");
        let results = match result {
            Ok(results) => results,
            Err(error) => return self.internal(&error),
        };
        self.note("acked", results.len() as u64, results.iter().filter(|result| result.is_ok()).count() as u64);
        if results.len() != ack.handles.len() {
            return self.fail("not one result for each handle");
        }
        for (handle, result) in ack.handles.iter().zip(results) {
            let known = self.depot.handles.get(handle);
            let (acked, refused) = known.map_or((false, true), |handed| (handed.acked, handed.refused));
            match result {
                Ok(()) if !acked => self.fail("an ack is reported that the server did not take"),
                Err(error) if error.code() == Some(40013) => {
                    self.happened("a handle is refused");
                    if !refused {
                        self.fail("an ack is reported as refused that the server did not refuse");
                    }
                }
                Err(error) => {
                    self.internal(&error);
                    if self.stage == Stage::Probing && error.kind() != ErrorKind::Closed {
                        self.fail(format!("all is well, and an ack fails: {error}"));
                    }
                }
                Ok(()) => {}
            }
        }
    }

    fn changed(&mut self, index: usize, change: Changing, result: Result<String, Error>) {
        self.must_be_answered(change.due, "a change");
        match result {
            Ok(handle) => {
                let now_good = self.depot.handles.get(&change.held.handle).and_then(|handed| handed.changed_to.clone());
                if now_good.as_ref() != Some(&handle) {
                    return self.fail("a change gives another handle than the server's");
                }
                self.happened("an invisible duration is changed");
                self.consumers[index].held.push(Held { handle, ..change.held });
            }
            Err(error) => self.internal(&error),
        }
    }

    /// A start failed: by its time, or because of a close, a final answer, or three bad ones for a topic.
    pub(super) fn start_failed(&mut self, session: SessionId, error: &Error) {
        self.happened("a start fails");
        let final_answer = error.recovery() == Recovery::Never;
        let tried = self.route_failures.iter().any(|((of, _), count)| *of == session && *count >= 3);
        let in_time = self.now < self.start_due.get(&session).copied().unwrap_or(0);
        if in_time && error.kind() != ErrorKind::Closed && !final_answer && !tried {
            self.fail(format!("a start fails too early: {error}"));
        }
    }
}
