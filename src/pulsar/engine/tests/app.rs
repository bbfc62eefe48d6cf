//! An application that receives: its queue, its permits, its acknowledgements.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::ops::TICK;
use super::plan::ConsumerPlan;
use super::schedule::{MS, Micros, SEC};
use super::shell::Control;
use super::world::{Event, Stage, World};
use crate::error::Error;
use crate::pending::{Pending, completion};
use crate::pulsar::engine::event::{AckCommand, Command, ConsumerId, ConsumerSpec, Delivery, PartId};
use crate::pulsar::wire::command::MessageIdData;
use crate::pulsar::wire::payload::parse_entry;
use crate::pulsar::wire::pb::command_subscribe::{InitialPosition, SubType};

pub(super) struct Entry {
    session: u32,
    id: MessageIdData,
    pub messages: u32,
}

pub(super) struct PartShell {
    pub id: PartId,
    pub topic: usize,
    pub session: u32,
    pub queue: VecDeque<Entry>,
    /// Taken by the application and not yet told to the engine.
    pub used: u32,
    pub ended: bool,
    pub largest: u32,
}

pub(super) struct App {
    pub plan: ConsumerPlan,
    pub attempt: u64,
    pub parts: Vec<PartShell>,
    pub opening: Option<(Pending<()>, Micros)>,
    pub open: bool,
    pub closing: Option<(Pending<()>, Micros)>,
    awake: bool,
    /// Being unpacked, outside of the lock.
    taking: Option<(usize, Entry)>,
    /// Decided, and not yet posted.
    posts: VecDeque<Command>,
    pub received: u64,
}

impl World {
    /// Subscribes, or tries it again under new ids.
    pub(super) fn open_app(&mut self, index: usize) {
        let plan = self.plan.consumers[index].clone();
        let attempt = self.apps.get(index).map_or(0, |app| app.attempt + 1);
        let part = |(at, topic): (usize, &usize)| PartShell {
            id: PartId((index * 1000) as u64 + attempt * 10 + at as u64 + 1),
            topic: *topic,
            session: 0,
            queue: VecDeque::new(),
            used: 0,
            ended: false,
            largest: 1,
        };
        let parts: Vec<PartShell> = plan.topics.iter().enumerate().map(part).collect();
        let spec = ConsumerSpec {
            subscription: "model".into(),
            sub_type: if plan.shared { SubType::Shared } else { SubType::Exclusive },
            name: format!("app-{index}"),
            initial_position: InitialPosition::Earliest,
            properties: Vec::new(),
            queue_size: plan.queue_size,
            ack_group_delay: plan.ack_group_delay,
            ack_group_max: 20,
            nack_delay: plan.nack_delay,
        };
        let (reply, pending) = completion();
        let due = self.now + self.plan.operation_timeout.as_micros() as Micros;
        let command = Command::OpenConsumer {
            consumer: ConsumerId(index as u64 * 1000 + attempt + 1),
            spec: Arc::new(spec),
            parts: parts.iter().map(|part| (part.id, self.cluster.topics[part.topic].name.clone())).collect(),
            due: self.instant(due),
            reply,
        };
        let app = App {
            plan,
            attempt,
            parts,
            opening: Some((pending, due + TICK)),
            open: false,
            closing: None,
            awake: false,
            taking: None,
            posts: VecDeque::new(),
            received: 0,
        };
        for part in &app.parts {
            self.cluster.queue_sizes.insert(part.id.0, i64::from(app.plan.queue_size));
        }
        match self.apps.get_mut(index) {
            Some(slot) => *slot = app,
            None => self.apps.push(app),
        }
        self.post(Control::Command(command));
    }

    pub(super) fn consumer_id(&self, app: usize) -> ConsumerId {
        ConsumerId(app as u64 * 1000 + self.apps[app].attempt + 1)
    }

    fn part_at(&self, id: PartId) -> Option<(usize, usize)> {
        self.apps
            .iter()
            .enumerate()
            .find_map(|(app, state)| state.parts.iter().position(|part| part.id == id).map(|part| (app, part)))
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let Some((app, part)) = self.part_at(delivery.part) else {
            self.fail(format!("a delivery for an unknown part {:?}", delivery.part));
            return;
        };
        self.note("deliver", delivery.part.0, delivery.message_id.entry);
        let messages = match parse_entry(delivery.entry) {
            Ok(entry) => entry.metadata.num_messages_in_batch.unwrap_or(1) as u32,
            Err(error) => {
                self.fail(format!("an entry that cannot be read: {error}"));
                return;
            }
        };
        let size = self.apps[app].plan.queue_size;
        let state = &mut self.apps[app].parts[part];
        state.largest = state.largest.max(messages);
        state.queue.push_back(Entry { session: delivery.session, id: delivery.message_id, messages });
        let held: u32 = state.queue.iter().map(|entry| entry.messages).sum::<u32>() + state.used;
        if delivery.session != state.session {
            self.fail(format!(
                "a delivery of session {} in session {}",
                delivery.session, self.apps[app].parts[part].session
            ));
        } else if held >= size + state.largest {
            self.fail(format!("{held} messages in a queue of {size}"));
        }
        self.wake_app(app);
    }

    fn wake_app(&mut self, app: usize) {
        if !std::mem::replace(&mut self.apps[app].awake, true) {
            let delay = self.pause();
            self.after(delay, Event::App(app));
        }
    }

    pub(super) fn reset_part(&mut self, id: PartId, session: u32, refund: bool) {
        let Some((app, part)) = self.part_at(id) else { return };
        self.note("reset part", id.0, u64::from(session));
        let state = &mut self.apps[app].parts[part];
        let rises = session > state.session;
        let dropped: u32 = state.queue.drain(..).map(|entry| entry.messages).sum();
        let permits = dropped + std::mem::take(&mut state.used);
        state.session = session;
        if !rises {
            self.fail("a session that does not rise");
        }
        if refund && permits > 0 {
            self.post(Control::Command(Command::Permits { part: id, session, permits }));
        }
    }

    pub(super) fn part_ended(&mut self, id: PartId, error: &Error) {
        let Some((app, part)) = self.part_at(id) else { return };
        self.note("part ended", id.0, error.code().unwrap_or(-1) as u64);
        self.apps[app].parts[part].ended = true;
    }

    /// One critical section of the application's thread: posts, takes an entry, or decides about what it took.
    pub(super) fn step_app(&mut self, app: usize) {
        let delay = self.pause();
        if let Some(command) = self.apps[app].posts.pop_front() {
            self.post(Control::Command(command));
            self.after(delay, Event::App(app));
            return;
        }
        if let Some((part, entry)) = self.apps[app].taking.take() {
            self.unpacked(app, part, entry);
            let calm = self.stage != Stage::Busy;
            let think = match self.rng.below(20) {
                0 if !calm => self.rng.below(2 * SEC),
                1..=9 => self.rng.below(5 * MS),
                _ => 0,
            };
            self.after(delay + think, Event::App(app));
            return;
        }
        let ready: Vec<usize> =
            (0..self.apps[app].parts.len()).filter(|part| !self.apps[app].parts[*part].queue.is_empty()).collect();
        if ready.is_empty() {
            self.apps[app].awake = false;
            return;
        }
        let part = ready[self.rng.below(ready.len() as u64) as usize];
        if let Some(entry) = self.apps[app].parts[part].queue.pop_front() {
            self.apps[app].taking = Some((part, entry));
        }
        self.after(delay, Event::App(app));
    }

    /// The application has an entry in its hands: permits first, then what becomes of it.
    fn unpacked(&mut self, app: usize, part: usize, entry: Entry) {
        let (queue_size, cumulative) = (self.apps[app].plan.queue_size, self.apps[app].plan.cumulative);
        let nacks = self.stage == Stage::Busy && !cumulative && self.rng.chance(1, 8);
        self.apps[app].received += 1;
        let state = &mut self.apps[app].parts[part];
        let id = state.id;
        if entry.session != state.session {
            // Void; the broker delivers it anew.
            let command = Command::Permits { part: id, session: entry.session, permits: entry.messages };
            self.apps[app].posts.push_back(command);
            return;
        }
        state.used += entry.messages;
        if state.used >= (queue_size / 2).max(1) {
            let permits = std::mem::take(&mut state.used);
            self.apps[app].posts.push_back(Command::Permits { part: id, session: entry.session, permits });
        }
        let message_id = entry.id;
        self.apps[app].posts.push_back(if cumulative {
            Command::Ack { part: id, ack: AckCommand::Cumulative(message_id) }
        } else if nacks {
            Command::NegativeAck { part: id, message_id }
        } else {
            Command::Ack { part: id, ack: AckCommand::Individual(message_id) }
        });
    }

    pub(super) fn close_app(&mut self, app: usize, limit: Duration) {
        let (reply, pending) = completion();
        let due = self.now + limit.as_micros() as Micros;
        self.apps[app].closing = Some((pending, due + TICK));
        self.apps[app].open = false;
        let consumer = self.consumer_id(app);
        let due = self.instant(due);
        self.post(Control::Command(Command::CloseConsumer { consumer, due, reply: Some(reply) }));
    }
}
