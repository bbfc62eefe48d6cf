//! The end of things that last, the user's opens and closes, and the stages of a run.

use std::sync::Arc;
use std::time::Duration;

use super::caller::{Caller, Way};
use super::fault::Restore;
use super::ops::{Fate, TICK};
use super::plan::CallerPlan;
use super::schedule::{MS, Micros, SEC};
use super::shell::{Control, ProducerShell};
use super::world::{Event, Stage, World};
use crate::pending::completion;
use crate::pulsar::engine::event::{Command, LaneId, ProducerId, ProducerSpec};
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::pb::ProducerAccessMode;

impl World {
    pub(super) fn restore(&mut self, restore: Restore) {
        match restore {
            Restore::Thaw(broker) => {
                self.cluster.brokers[broker].frozen = false;
                for conn in 0..self.conns.len() {
                    if self.conns[conn].host == broker {
                        self.conns[conn].to_broker.held = false;
                        self.arrive_at_broker(conn);
                    }
                }
            }
            Restore::Read(conn) => {
                if !self.cluster.brokers[self.conns[conn].host].frozen {
                    self.conns[conn].to_broker.held = false;
                    self.arrive_at_broker(conn);
                }
            }
            Restore::Up(broker) => self.cluster.brokers[broker].down = false,
            Restore::Lookups => {
                self.cluster.redirects = false;
                self.cluster.lookup_code = None;
                self.cluster.lookup_silent = false;
            }
            Restore::Memory(charge) => {
                self.budget.relieve(charge);
                self.net.pressed -= charge;
                self.after(1, Event::BudgetServe);
            }
            Restore::Latency(conn, more) => self.conns[conn].to_client.latency -= more,
            Restore::Again(fault) if self.stage == Stage::Busy => self.apply(fault),
            Restore::Again(_) => {}
            Restore::CloseProducer(producer, limit) => self.close_producer(producer, limit),
            Restore::OpenProducer(producer) => self.open_producer(producer),
            Restore::OpenApp(app) => self.open_app(app),
            Restore::Answers => self.look_at_answers(),
            Restore::ShutDown(limit) => self.shut_down(limit),
            Restore::Lurking => {
                for fault in std::mem::take(&mut self.lurking) {
                    self.fault(fault);
                }
            }
        }
    }

    /// Creates a producer, or tries it again under new ids.
    pub(super) fn open_producer(&mut self, index: usize) {
        let plan = self.plan.producers[index].clone();
        let attempt = self.producers[index].id.0 / 100;
        let first = self.producers[index].lanes.first().map_or(0, |lane| lane.topic);
        if self.producers[index].opening.is_some() || self.producers[index].attempted {
            self.producers[index] = ProducerShell::new(index, first, &plan);
            self.producers[index].id = ProducerId((attempt + 1) * 100 + index as u64);
            for (at, lane) in self.producers[index].lanes.iter_mut().enumerate() {
                lane.id = LaneId((attempt + 1) * 1_000 + (index * 10 + at + 1) as u64);
            }
        }
        let spec = ProducerSpec {
            name: plan.name.clone(),
            access_mode: if plan.exclusive { ProducerAccessMode::Exclusive } else { ProducerAccessMode::Shared },
            properties: Vec::new(),
            initial_sequence_id: None,
            compression: if plan.compressed { Compression::Lz4 } else { Compression::None },
            batching: plan.batching,
        };
        let (reply, pending) = completion();
        let due = self.now + self.plan.operation_timeout.as_micros() as Micros;
        let shell = &mut self.producers[index];
        shell.attempted = true;
        shell.opening = Some((pending, due + TICK));
        let command = Command::OpenProducer {
            producer: shell.id,
            spec: Arc::new(spec),
            lanes: shell.lanes.iter().map(|lane| (lane.id, self.cluster.topics[lane.topic].name.clone())).collect(),
            due: self.instant(due),
            reply,
        };
        self.post(Control::Command(command));
        self.at(due + TICK + 1, Event::Restore(Restore::Answers));
    }

    /// `close_within(limit)`: flushes until shortly before the limit.
    pub(super) fn close_producer(&mut self, producer: usize, limit: Micros) {
        let shell = &mut self.producers[producer];
        if !shell.open {
            return;
        }
        shell.open = false;
        shell.close_called = true;
        let served = shell.admission.close();
        self.carry_out(producer, served);
        let due = self.now + limit;
        let flush_until = due - (limit / 10).min(100 * MS);
        let (reply, pending) = completion();
        let shell = &mut self.producers[producer];
        shell.flush_until = flush_until;
        shell.closes.push((pending, due + TICK));
        let (flush_until, until) = (self.instant(flush_until), self.instant(due));
        self.post(Control::CloseProducer { producer, flush_until, due: until, reply });
        self.at(due + TICK + 1, Event::Restore(Restore::Answers));
    }

    /// Takes the answers that have come, and misses those that should have.
    pub(super) fn look_at_answers(&mut self) {
        self.look_at_questions();
        let now = self.now;
        for index in 0..self.producers.len() {
            if let Some((mut pending, by)) = self.producers[index].opening.take() {
                match pending.try_wait() {
                    Some(Ok(opened)) => {
                        let shell = &mut self.producers[index];
                        shell.open = !shell.close_called;
                        for (lane, state) in opened.lanes.iter().enumerate() {
                            shell.admission.open(lane, state.next_sequence_id);
                        }
                    }
                    Some(Err(_)) if self.stage == Stage::Busy => {
                        let delay = SEC + self.rng.below(3 * SEC);
                        self.after(delay, Event::Restore(Restore::OpenProducer(index)));
                    }
                    Some(Err(_)) => {}
                    None if now > by => self.fail(format!("producer {index} was not created in time")),
                    None => self.producers[index].opening = Some((pending, by)),
                }
            }
            for (mut pending, by) in std::mem::take(&mut self.producers[index].closes) {
                match pending.try_wait() {
                    Some(_) => {
                        let owed = self.producers[index].lanes.iter().any(|lane| !lane.awaiting.is_empty());
                        if owed {
                            self.fail(format!("producer {index} is closed and owes results"));
                        }
                    }
                    None if now > by => self.fail(format!("producer {index} did not close in time")),
                    None => self.producers[index].closes.push((pending, by)),
                }
            }
        }
        for index in 0..self.apps.len() {
            if let Some((mut pending, by)) = self.apps[index].opening.take() {
                match pending.try_wait() {
                    Some(Ok(())) => self.apps[index].open = true,
                    Some(Err(_)) if self.stage == Stage::Busy => {
                        let delay = SEC + self.rng.below(3 * SEC);
                        self.after(delay, Event::Restore(Restore::OpenApp(index)));
                    }
                    Some(Err(_)) => {}
                    None if now > by => self.fail(format!("app {index} was not subscribed in time")),
                    None => self.apps[index].opening = Some((pending, by)),
                }
            }
            if let Some((mut pending, by)) = self.apps[index].closing.take() {
                match pending.try_wait() {
                    Some(_) => {}
                    None if now > by => self.fail(format!("app {index} did not close in time")),
                    None => self.apps[index].closing = Some((pending, by)),
                }
            }
        }
    }

    /// Closes the client; also once more with another limit.
    pub(super) fn shut_down(&mut self, limit: Micros) {
        let due = self.now + limit;
        let flush_until = due - (limit / 10).min(100 * MS);
        for producer in 0..self.producers.len() {
            let shell = &mut self.producers[producer];
            let earlier = if shell.close_called { shell.flush_until } else { Micros::MAX };
            shell.flush_until = flush_until.min(earlier);
            shell.open = false;
            shell.close_called = true;
            let served = shell.admission.close();
            self.carry_out(producer, served);
        }
        let (reply, pending) = completion();
        self.shutdowns.push((pending, due + TICK));
        let (flush_until, until) = (self.instant(flush_until), self.instant(due));
        self.post(Control::Command(Command::Shutdown { flush_until, due: until, reply }));
        self.at(due + TICK + 1, Event::Restore(Restore::Answers));
    }

    /// A call that asks for the partitions of a topic.
    pub(super) fn ask_partitions(&mut self) {
        let due = self.now + self.plan.operation_timeout.as_micros() as Micros;
        let (reply, pending) = completion();
        self.questions.push((pending, due + TICK));
        let topic = self.cluster.topics[0].name.clone();
        let command = Command::Partitions { topic, due: self.instant(due), reply };
        self.post(Control::Command(command));
        self.at(due + TICK + 1, Event::Restore(Restore::Answers));
    }

    fn look_at_questions(&mut self) {
        let now = self.now;
        for (mut pending, by) in std::mem::take(&mut self.questions) {
            match pending.try_wait() {
                Some(_) => {}
                None if now > by => self.fail("nobody says how many partitions there are"),
                None => self.questions.push((pending, by)),
            }
        }
        for (mut pending, by) in std::mem::take(&mut self.shutdowns) {
            match pending.try_wait() {
                Some(_) => {
                    if let Some(uid) = self.ops.iter().position(|op| op.place > 0 && op.fate.is_none()) {
                        self.fail(format!("the client is closed and owes message {uid} its result"));
                    }
                }
                None if now > by => self.fail("the client did not close in time"),
                None => self.shutdowns.push((pending, by)),
            }
        }
    }

    pub(super) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.note("stage", stage as u64, 0);
        match stage {
            Stage::Busy => {}
            Stage::Healed => {
                for broker in 0..self.plan.brokers {
                    self.restore(Restore::Up(broker));
                    self.restore(Restore::Thaw(broker));
                    self.net.refuse_until[broker] = 0;
                    self.net.black_until[broker] = 0;
                }
                for conn in 0..self.conns.len() {
                    self.restore(Restore::Read(conn));
                }
                self.restore(Restore::Lookups);
                self.net.dead_first_until = 0;
                self.net.resolver_slow_until = 0;
                self.net.resolver_fails_until = 0;
                self.cluster.producer_faults.clear();
                self.cluster.consumer_faults.clear();
                self.cluster.send_errors.clear();
                self.cluster.receipt_faults.clear();
                for topic in &mut self.cluster.topics {
                    topic.taken_until = 0;
                    topic.away_until = 0;
                }
                self.broker_output();
                self.after(95 * SEC, Event::Stage(Stage::Probed));
            }
            Stage::Probed => {
                self.probe();
                self.after(31 * SEC, Event::Stage(Stage::Closing));
            }
            Stage::Closing => {
                self.check_recovered();
                for producer in 0..self.producers.len() {
                    let limit = SEC + self.rng.below(10 * SEC);
                    if self.rng.chance(3, 4) {
                        self.close_producer(producer, limit);
                    }
                }
                for app in 0..self.apps.len() {
                    if self.apps[app].open && self.rng.chance(3, 4) {
                        self.close_app(app, Duration::from_secs(5));
                    }
                }
                self.after(12 * SEC, Event::Stage(Stage::ShuttingDown));
            }
            Stage::ShuttingDown => {
                self.look_at_answers();
                let limit = 200 * MS + self.rng.below(15 * SEC);
                self.shut_down(limit);
                if self.rng.chance(1, 3) {
                    let sooner = self.rng.below(limit);
                    self.after(sooner / 2, Event::Restore(Restore::ShutDown(limit - sooner)));
                }
                self.after(limit + 25 * SEC, Event::Stage(Stage::Over));
            }
            Stage::Over => {
                self.look_at_answers();
                self.check_end();
            }
        }
    }

    /// One message through every lane that lives.
    pub(super) fn probe(&mut self) {
        for producer in 0..self.producers.len() {
            if !self.producers[producer].open {
                continue;
            }
            for lane in 0..self.producers[producer].lanes.len() {
                if self.producers[producer].lanes[lane].failed.is_some() {
                    continue;
                }
                // A caller like any other: what was admitted or waits before it comes first.
                let caller = self.callers.len();
                self.callers.push(Caller::new(&CallerPlan { sends: 0, burst: 0 }));
                let offer = self.offer(producer, lane, 40, Way::SendWith, true);
                if let Some(op) = self.ops.last_mut() {
                    op.probe = true;
                }
                self.offered(caller, producer, lane, Way::SendWith, offer);
            }
        }
    }

    /// Long after the last fault everything works again.
    fn check_recovered(&mut self) {
        let failed = (0..self.ops.len()).find(|uid| {
            let op = &self.ops[*uid];
            op.probe && op.fate != Some(Fate::Stored) && self.producers[op.producer].lanes[op.lane].failed.is_none()
        });
        if let Some(uid) = failed {
            let op = &self.ops[uid];
            let text = format!("lane {}/{} did not recover: probe {uid} is {:?}", op.producer, op.lane, op.fate);
            self.fail(text);
        }
        for app in 0..self.apps.len() {
            for part in 0..self.apps[app].parts.len() {
                self.check_backlog(app, part);
            }
        }
    }

    fn check_backlog(&mut self, app: usize, part: usize) {
        let state = &self.apps[app].parts[part];
        if state.ended || !self.apps[app].open {
            return;
        }
        let topic = &self.cluster.topics[state.topic];
        let size = i64::from(self.apps[app].plan.queue_size);
        let Some(subscription) = &topic.subscription else {
            self.fail(format!("app {app} has no subscription at topic {}", state.topic));
            return;
        };
        let backlog = subscription.backlog(topic.entries.len());
        let queued: u32 = state.queue.iter().map(|entry| entry.messages).sum();
        let held = i64::from(queued + state.used);
        match subscription.session {
            _ if backlog > 0 => {
                let states: Vec<_> = subscription.states.iter().enumerate().rev().take(4).collect();
                let text = format!(
                    "topic {}: {backlog} of {} entries are not acknowledged, the last are {states:?}, session {:?}",
                    state.topic,
                    topic.entries.len(),
                    subscription.session
                );
                self.fail(text);
            }
            None => self.fail(format!("app {app} is not subscribed at topic {}", state.topic)),
            Some(reader) if reader.permits + held != size => {
                let text = format!("{} permits at the broker and {held} in the queue of {size}", reader.permits);
                self.fail(text);
            }
            Some(_) => {}
        }
    }
}
