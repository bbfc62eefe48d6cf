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
            received: 0,
        };
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

    /// The loop tells the engine what was taken since the last time.
    pub(super) fn tell_permits(&mut self, app: usize, part: usize) {
        let now = self.clock();
        let Some(state) = self.apps.get_mut(app).and_then(|app| app.parts.get_mut(part)) else { return };
        let permits = std::mem::take(&mut state.used);
        if permits > 0 {
            let command = Command::Permits { part: state.id, session: state.session, permits };
            self.engine.handle_command(now, command);
        }
    }

    /// The application takes one entry and decides about it.
    pub(super) fn step_app(&mut self, app: usize) {
        let ready: Vec<usize> =
            (0..self.apps[app].parts.len()).filter(|part| !self.apps[app].parts[*part].queue.is_empty()).collect();
        if ready.is_empty() {
            self.apps[app].awake = false;
            return;
        }
        let part = ready[self.rng.below(ready.len() as u64) as usize];
        let (queue_size, cumulative) = (self.apps[app].plan.queue_size, self.apps[app].plan.cumulative);
        self.apps[app].received += 1;
        let state = &mut self.apps[app].parts[part];
        let Some(entry) = state.queue.pop_front() else { return };
        if entry.session != state.session {
            self.fail("an entry of an old session is still in the queue");
            return;
        }
        let first = state.used == 0;
        state.used += entry.messages;
        let (id, tell) = (state.id, state.used * 2 >= queue_size);
        let _ = first;
        if tell {
            self.post(Control::Permits { app, part });
        }
        let message_id = entry.id;
        let calm = self.stage != Stage::Busy;
        let command = if cumulative {
            Command::Ack { part: id, ack: AckCommand::Cumulative(message_id) }
        } else if !calm && self.rng.chance(1, 10) {
            Command::NegativeAck { part: id, message_id }
        } else {
            Command::Ack { part: id, ack: AckCommand::Individual(message_id) }
        };
        self.post(Control::Command(command));
        let delay = match self.rng.below(20) {
            0 if !calm => self.rng.below(2 * SEC),
            _ => self.rng.below(5 * MS),
        };
        self.after(delay, Event::App(app));
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
