//! The world: the engine, admission, callers, and the network and proxies that it is to meet, stepped by one seed in
//! virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::consumers::Consumer;
use super::coverage::Coverage;
use super::depot::Depot;
use super::network::{CallState, Endpoint, Link, StreamState};
use super::plan::{BUSY, ConsumerPlan, Fault, Plan, TOPICS, Trigger};
use super::schedule::{MS, Micros, SEC, Schedule, Trace};
use crate::error::Delivery;
use crate::pending::Pending;
use crate::policy::admission::{Admission, Admitted, WaiterId};
use crate::policy::rng::Rng;
use crate::rocketmq::engine::event::{CallEnd, CallId, EntryId, Opened, Outgoing, RpcEvent, SessionId, StreamId};
use crate::rocketmq::engine::{Engine, EngineOptions};

/// A result may be fixed so much after it is due: the driver has to wake up.
pub(super) const TICK: Micros = 50 * MS;

#[derive(Debug)]
pub(super) enum Event {
    Caller(usize),
    /// A message that still stands in the line is taken back.
    Withdraw(usize),
    /// The driver wakes for the engine's timers.
    Wake,
    Rpc(RpcEvent),
    Look(usize),
    Arrive(CallId),
    Answer(CallId, CallEnd),
    CallTimeout(CallId),
    ToStream(StreamId, Bytes),
    Dialled(EntryId, u32),
    Fault(usize),
    /// A fault that waited for somebody to send.
    Strike(usize),
    Mend(Fault),
    Thaw(EntryId),
    Close(usize),
    Consume(usize),
    CloseConsumer(usize, Micros),
    /// Messages come in: consumer, how many, topic, endpoint.
    Feed(usize, u64, usize, usize),
    /// A message that was taken can be seen again.
    Visible(usize),
    PollOver(CallId),
    PollFrame(CallId, Bytes),
    /// A message comes in while all is well: for a consumer, at a place.
    Probe(usize, usize),
    /// By now the user must have this message.
    Found(usize),
    /// A consumer gives a topic up while all is well; by a second later that is told.
    Unsubscribe(usize),
    Told(usize),
    Stage(Stage),
}

/// Whose session it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Producer(usize),
    Consumer(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Busy,
    /// Nothing is broken any more.
    Healed,
    /// Every producer has to pass messages now.
    Probing,
    ShuttingDown,
    Over,
}

/// One call to send.
pub(super) struct Op {
    pub session: SessionId,
    pub group: Option<Arc<str>>,
    pub due: Micros,
    /// Its place once it is admitted.
    pub place: Option<u64>,
    /// It left without being admitted.
    pub withdrawn: bool,
    /// How it was answered: `None` is a receipt.
    pub settled: Option<Option<Delivery>>,
    /// Calls that took it along; those that count as attempts; the step in which one was cancelled.
    pub handed: u32,
    pub counted: u32,
    /// Of these, how many were ended so late that they may have been cut off by a replacement instead.
    pub late: u32,
    pub cancelled_in: u64,
    /// When it was stored, in numbers that rise over all messages.
    pub stored: Vec<u64>,
    pub probe: bool,
}

pub(super) struct Shell {
    pub session: SessionId,
    pub admission: Admission<Outgoing>,
    pub waiters: BTreeMap<WaiterId, usize>,
    pub opening: Option<Pending<Opened>>,
    pub open: bool,
    pub closing: Option<(Pending<()>, Micros)>,
    /// The user closed it, or the client is closed.
    pub done: bool,
    pub left: u32,
    /// The last place that was answered in each group.
    pub answered: BTreeMap<Arc<str>, u64>,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub seed: u64,
    pub at: Micros,
    pub text: String,
    pub lines: Vec<String>,
}

pub(super) struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub now: Micros,
    pub base: Instant,
    pub events: Schedule<Event>,
    pub trace: Trace,
    pub stage: Stage,
    pub failure: Option<String>,
    pub engine: Engine,
    pub shells: Vec<Shell>,
    /// Whose session it is or was, and whether it is over.
    pub sessions: BTreeMap<SessionId, (Owner, bool)>,
    pub ops: Vec<Op>,
    pub by_place: BTreeMap<(SessionId, u64), usize>,
    pub calls: BTreeMap<CallId, CallState>,
    pub streams: BTreeMap<StreamId, StreamState>,
    pub links: BTreeMap<EntryId, Link>,
    /// The present entry of each endpoint, and when evidence last replaced it.
    pub current: BTreeMap<usize, EntryId>,
    pub recovered: BTreeMap<usize, Micros>,
    pub endpoints: Vec<Endpoint>,
    pub stores: u64,
    pub finished: bool,
    pub shutdown: Option<(Pending<()>, Micros)>,
    pub wake_at: Option<Micros>,
    pub coverage: Coverage,
    pub replacements: u64,
    /// Faults that wait for something.
    pub lurking: Vec<(Trigger, usize)>,
    pub consumers: Vec<Consumer>,
    pub depot: Depot,
    pub routes_fail: Option<i32>,
    /// Times that the program did not see.
    pub leaps: Vec<(Micros, Micros)>,
    /// Route queries that failed, by session and topic.
    pub route_failures: BTreeMap<(SessionId, String), u32>,
    pub start_due: BTreeMap<SessionId, Micros>,
    pub steps: u64,
    /// The server asks on this channel: it has to go in this step.
    pub asked_now: Option<EntryId>,
    /// Endpoints whose channel was retired, and when.
    pub retired: BTreeMap<usize, Micros>,
    /// Calls that the engine knows.
    pub live: BTreeSet<CallId>,
}

impl World {
    pub(super) fn new(plan: Plan, text: bool) -> Self {
        let endpoints: Vec<Endpoint> = (0..plan.endpoints).map(Endpoint::new).collect();
        let access = endpoints[plan.endpoints - 1].address.clone();
        let mut world = Self {
            rng: Rng::new(plan.seed),
            now: 0,
            base: Instant::now() + Duration::from_secs(3600),
            events: Schedule::new(),
            trace: Trace { hash: 0, lines: text.then(Vec::new), notes: 0 },
            stage: Stage::Busy,
            failure: None,
            engine: Engine::new(EngineOptions { access, platform: "world".into(), seed: plan.seed }),
            shells: Vec::new(),
            sessions: BTreeMap::new(),
            ops: Vec::new(),
            by_place: BTreeMap::new(),
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            links: BTreeMap::new(),
            current: BTreeMap::new(),
            recovered: BTreeMap::new(),
            endpoints,
            stores: 0,
            finished: false,
            shutdown: None,
            wake_at: None,
            coverage: Coverage::default(),
            replacements: 0,
            lurking: Vec::new(),
            consumers: plan.consumers.iter().map(|_| Consumer::new()).collect(),
            depot: Depot::default(),
            routes_fail: None,
            leaps: Vec::new(),
            route_failures: BTreeMap::new(),
            start_due: BTreeMap::new(),
            steps: 0,
            asked_now: None,
            retired: BTreeMap::new(),
            live: BTreeSet::new(),
            plan,
        };
        for index in 0..world.plan.producers.len() {
            let shell = world.shell(index);
            world.shells.push(shell);
            world.open(index);
            let at = world.rng.below(SEC);
            world.at(at, Event::Caller(index));
            if let Some((at, _)) = world.plan.producers[index].close {
                world.at(at, Event::Close(index));
            }
        }
        for index in 0..world.plan.consumers.len() {
            let at = world.rng.below(3 * SEC);
            world.at(at, Event::Consume(index));
            let ConsumerPlan { feeds, closes, .. } = world.plan.consumers[index].clone();
            for (at, count, topic, endpoint) in feeds {
                world.at(at, Event::Feed(index, count, topic, endpoint));
            }
            for (at, limit) in closes {
                world.at(at, Event::CloseConsumer(index, limit));
            }
        }
        for index in 0..world.plan.faults.len() {
            let at = world.plan.faults[index].0;
            world.at(at, Event::Fault(index));
        }
        let next = if world.plan.ends_in_trouble { Stage::ShuttingDown } else { Stage::Healed };
        world.at(BUSY, Event::Stage(next));
        world
    }

    pub(super) fn instant(&self, at: Micros) -> Instant {
        self.base + Duration::from_micros(at)
    }

    pub(super) fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.base).as_micros() as Micros
    }

    pub(super) fn at(&mut self, at: Micros, event: Event) {
        let luck = self.rng.next_u64() as u32;
        self.events.push(at.max(self.now), luck, event);
    }

    pub(super) fn after(&mut self, delay: Micros, event: Event) {
        self.at(self.now + delay, event);
    }

    /// How long a thread needs to go on.
    pub(super) fn pause(&mut self) -> Micros {
        match self.rng.below(50) {
            0 => self.rng.below(20 * MS),
            _ => self.rng.below(80),
        }
    }

    pub(super) fn note(&mut self, what: &'static str, a: u64, b: u64) {
        self.trace.note(self.now, what, a, b);
    }

    pub(super) fn fail(&mut self, text: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(text.into());
        }
    }

    /// Lets the engine do something, and carries out what it asks for.
    pub(super) fn engine(&mut self, act: impl FnOnce(&mut Engine, Instant)) {
        let now = self.instant(self.now);
        act(&mut self.engine, now);
        self.carry_out();
        if let Some(at) = self.engine.poll_timeout() {
            let at = self.micros(at).max(self.now);
            if self.wake_at.is_none_or(|known| at < known || known < self.now) {
                self.wake_at = Some(at);
                let late = self.pause();
                self.at(at + late, Event::Wake);
            }
        }
    }

    pub(super) fn step(&mut self) -> bool {
        let Some((at, event)) = self.events.pop() else { return false };
        self.now = at.max(self.now);
        self.steps += 1;
        self.dead_under_close();
        match event {
            Event::Caller(index) => self.caller(index),
            Event::Withdraw(op) => self.withdraw(op),
            Event::Wake => {
                self.wake_at = None;
                self.engine(|engine, now| engine.handle_timeout(now));
            }
            Event::Rpc(event) => self.deliver(event),
            Event::Look(index) => self.look(index),
            Event::Arrive(call) => self.arrive(call),
            Event::Answer(call, end) => self.answer(call, end),
            Event::CallTimeout(call) => {
                self.end_call(call, CallEnd::Failed { code: 4, message: "late".into() });
            }
            Event::ToStream(stream, body) => self.written_to_stream(stream, &body),
            Event::Dialled(entry, generation) => self.dialled(entry, generation),
            Event::Fault(index) => match Trigger::random(&mut self.rng) {
                Some(trigger) => self.lurking.push((trigger, index)),
                None => self.fault(index),
            },
            Event::Strike(index) => self.fault(index),
            Event::Consume(index) => self.consume(index),
            Event::CloseConsumer(index, limit) => self.close_consumer(index, limit),
            Event::Feed(index, count, topic, endpoint) => {
                for _ in 0..count {
                    self.feed(index, topic, endpoint);
                }
            }
            Event::Visible(uid) => self.visible(uid),
            Event::PollOver(call) => self.poll_over(call),
            Event::PollFrame(call, body) => self.poll_frame(call, body),
            Event::Found(uid) => {
                if !self.depot.messages[uid].given {
                    self.fail(format!("message {uid} was not found within one await time"));
                }
            }
            Event::Mend(fault) => self.mend(fault),
            Event::Thaw(entry) => self.thaw(entry),
            Event::Close(index) => self.close(index),
            Event::Probe(index, place) => {
                let uid = self.feed(index, place / 2, place % 2);
                // Servers refuse polls of less than 5 s: a receive that has less left goes without them.
                let wait = self.plan.consumers[index].wait.as_micros() as Micros;
                self.after(wait.min(5 * SEC + 500 * MS), Event::Found(uid));
            }
            Event::Unsubscribe(index) => {
                if self.consumers[index].open && self.consumers[index].topics.len() == TOPICS.len() {
                    self.unsubscribe(index, 1);
                    self.after(SEC, Event::Told(index));
                }
            }
            Event::Told(index) => self.check_told(index),
            Event::Stage(stage) => self.enter(stage),
        }
        self.look_after();
        true
    }

    /// Runs to the end, or to the first thing that is wrong.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        while self.failure.is_none() && self.stage != Stage::Over {
            if self.trace.notes > 400_000 {
                self.fail("the world does not come to rest");
            }
            if !self.step() {
                self.fail(format!("nothing happens any more in {:?}", self.stage));
            }
        }
        if self.failure.is_none() {
            self.verdict();
        }
        match self.failure.take() {
            None => Ok(()),
            Some(text) => {
                let lines = self.trace.lines.take().unwrap_or_default();
                Err(Failure { seed: self.plan.seed, at: self.now, text, lines })
            }
        }
    }

    pub(super) fn take(&mut self, index: usize) -> Vec<Admitted<Outgoing>> {
        let mut taken = Vec::new();
        self.shells[index].admission.take(0, &mut taken);
        taken
    }
}
