//! The user's side: producers that open, send, wait in line and close.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protobuf::Message as _;

use super::plan::{BUSY, Trigger};
use super::schedule::{MS, SEC};
use super::world::{Event, Op, Owner, Shell, Stage, World};
use crate::pending::{Reply, completion};
use crate::policy::admission::{Admission, Call, Decision, Limits, Offer, Served};
use crate::policy::budget::{Allowance, Claim, Memory};
use crate::rocketmq::engine::event::{Command, Outgoing, ProducerSpec, Role, SessionId, SessionSpec};
use crate::rocketmq::wire::pb;

/// Memory without a limit.
pub(super) struct Endless;

impl Memory for Endless {
    fn allowance(&self) -> Allowance {
        Allowance::new(None)
    }

    fn take(&self, _charge: usize, _claim: Claim) -> bool {
        true
    }

    fn give_back(&self, _charge: usize) -> bool {
        false
    }
}

impl World {
    pub(super) fn shell(&self, index: usize) -> Shell {
        let plan = &self.plan.producers[index];
        let limits = Limits { max_pending: Some(plan.max_pending), send_timeout: Some(plan.send_timeout) };
        Shell {
            session: SessionId(0),
            admission: Admission::new(limits, 1),
            waiters: BTreeMap::new(),
            opening: None,
            open: false,
            closing: None,
            done: false,
            left: plan.sends,
            answered: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, index: usize) {
        let session = SessionId(self.sessions.len() as u64 + 1);
        self.sessions.insert(session, (Owner::Producer(index), false));
        self.start_due.insert(session, self.now + 30 * SEC);
        let left = self.shells[index].left;
        let (reply, pending) = completion();
        self.shells[index] = Shell { session, opening: Some(pending), left, ..self.shell(index) };
        let plan = &self.plan.producers[index];
        let role = Role::Producer(ProducerSpec {
            topics: vec!["normal".into(), "fifo".into()],
            max_attempts: plan.max_attempts,
            in_flight: plan.in_flight,
            stop_failed_groups: false,
        });
        let spec = SessionSpec { namespace: String::new(), request_timeout: plan.request_timeout, role };
        let due = self.instant(self.now + 30 * SEC);
        self.note("open", session.0, 0);
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Open { session, spec: Box::new(spec), due, reply });
        });
        self.trigger(Trigger::Open);
    }

    /// Faults that lurk for this strike soon.
    pub(super) fn trigger(&mut self, trigger: Trigger) {
        let (strike, lurk): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.lurking).into_iter().partition(|(waits_for, _)| *waits_for == trigger);
        self.lurking = lurk;
        for (_, fault) in strike {
            let delay = self.rng.below(3 * self.plan.latency);
            self.after(delay, Event::Strike(fault));
        }
    }

    pub(super) fn caller(&mut self, index: usize) {
        let shell = &self.shells[index];
        if shell.done || self.stage == Stage::Over {
            return;
        }
        if !shell.open {
            if shell.opening.is_none() {
                self.open(index);
            }
            return self.after(500 * MS, Event::Caller(index));
        }
        let burst = if self.stage == Stage::Busy { self.plan.producers[index].burst } else { 1 };
        for _ in 0..burst.min(self.shells[index].left.max(1)) {
            self.send(index, false);
        }
        let plan = &self.plan.producers[index];
        let mean = 2 * BUSY * u64::from(plan.burst) / u64::from(plan.sends.max(1));
        let pause = if self.rng.chance(1, 6) { 2 * mean } else { self.rng.below(mean) };
        self.after(pause, Event::Caller(index));
    }

    pub(super) fn send(&mut self, index: usize, probe: bool) {
        let uid = self.ops.len();
        let plan = &self.plan.producers[index];
        let (groups, timeout) = (plan.groups, plan.send_timeout.as_micros() as u64);
        let group: Option<Arc<str>> =
            (groups > 0 && self.rng.chance(2, 3)).then(|| format!("group-{}", self.rng.below(groups)).into());
        let (topic, kind) = match group {
            Some(_) => ("fifo", pb::MessageType::FIFO),
            None => ("normal", pb::MessageType::NORMAL),
        };
        let properties = pb::SystemProperties { message_id: uid.to_string(), ..Default::default() };
        let message = pb::Message {
            topic: crate::rocketmq::message::resource("", topic),
            system_properties: protobuf::MessageField::some(properties),
            ..Default::default()
        };
        let request = pb::SendMessageRequest { messages: vec![message], ..Default::default() };
        let item = Outgoing {
            topic: topic.into(),
            kind,
            group: group.clone(),
            resumes: false,
            request: Bytes::from(request.write_to_bytes().unwrap()),
            reply: Reply::Answered,
            body_size: 10,
        };
        let session = self.shells[index].session;
        let now = self.instant(self.now);
        let due = self.now + timeout;
        self.note("send", uid as u64, session.0);
        self.shells[index].left = self.shells[index].left.saturating_sub(1);
        let mut op = Op {
            session,
            group,
            due,
            place: None,
            withdrawn: false,
            settled: None,
            handed: 0,
            counted: 0,
            late: 0,
            cancelled_in: u64::MAX,
            stored: Vec::new(),
            probe,
        };
        let call = Call { lane: 0, item, charge: 300, sequence: None };
        match self.shells[index].admission.offer(now, call, true, &Endless) {
            Offer::Admitted { ticket, look } => {
                op.place = Some(ticket.place);
                self.by_place.insert((session, ticket.place), uid);
                if look {
                    let pause = self.pause();
                    self.after(pause, Event::Look(index));
                }
            }
            Offer::Waiting { id, .. } => {
                self.shells[index].waiters.insert(id, uid);
                self.at(due, Event::Withdraw(uid));
            }
            Offer::Refused(..) => op.withdrawn = true,
        }
        self.ops.push(op);
    }

    pub(super) fn withdraw(&mut self, uid: usize) {
        let Owner::Producer(index) = self.owner_of(self.ops[uid].session) else { return };
        let shell = &mut self.shells[index];
        let Some(id) = shell.waiters.iter().find(|(_, op)| **op == uid).map(|(id, _)| *id) else { return };
        let Some((_, served)) = shell.admission.withdraw(id, &Endless) else { return };
        shell.waiters.remove(&id);
        self.ops[uid].withdrawn = true;
        self.served(index, served);
    }

    pub(super) fn served(&mut self, index: usize, served: Served<Outgoing>) {
        let session = self.shells[index].session;
        for (id, decision) in served.decided {
            let Some(uid) = self.shells[index].waiters.remove(&id) else { continue };
            match decision {
                Decision::Admitted(ticket) => {
                    self.ops[uid].place = Some(ticket.place);
                    self.by_place.insert((session, ticket.place), uid);
                }
                Decision::Refused(..) => self.ops[uid].withdrawn = true,
            }
        }
        if !served.look.is_empty() {
            let pause = self.pause();
            self.after(pause, Event::Look(index));
        }
    }

    pub(super) fn look(&mut self, index: usize) {
        let mut taken = self.take(index);
        let session = self.shells[index].session;
        if !taken.is_empty() {
            self.engine(|engine, now| engine.handle_admitted(now, session, &mut taken));
        }
    }

    /// The user closes a producer, at whatever point it is.
    pub(super) fn close(&mut self, index: usize) {
        self.look(index);
        let limit = self.plan.producers[index].close.map_or(SEC, |(_, limit)| limit);
        let (reply, pending) = completion();
        let shell = &mut self.shells[index];
        shell.done = true;
        shell.closing = Some((pending, self.now + limit));
        let session = shell.session;
        let flush_until = self.instant(self.now + limit);
        self.note("close", session.0, limit);
        self.engine(|engine, now| {
            engine.handle_command(now, Command::Close { session, flush_until, reply: Some(reply) });
        });
        self.trigger(Trigger::Close);
    }
}
