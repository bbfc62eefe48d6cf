//! The world: every thread of the client, the network and the brokers, stepped by one seed in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::app::App;
use super::caller::Caller;
use super::cluster::{Cluster, Timer};
use super::coverage::Coverage;
use super::fault::Restore;
use super::memory::Budget;
use super::network::{Conn, Item};
use super::ops::Op;
use super::plan::Plan;
use super::pool::Worker;
use super::schedule::{Micros, SEC, Schedule, Trace};
use super::shell::{Control, LoopThread, ProducerShell, WatcherThread};
use crate::pending::Pending;
use crate::policy::now::Now;
use crate::policy::rng::Rng;
use crate::pulsar::engine::event::{LinkId, Watcher};
use crate::pulsar::engine::{Engine, EngineOptions};
use crate::pulsar::service_url::HostPort;

/// One critical section of somebody.
#[derive(Debug)]
pub(super) enum Event {
    Caller(usize),
    /// A wait of a caller is over, unless it ended before.
    CallerTimeout(usize, u32),
    /// The loop's next phase; void if the loop was woken since.
    Loop(u32),
    Watcher(Watcher, u32),
    /// The look-up thread answers.
    Resolved(LinkId, usize, bool),
    Dialled(usize, bool),
    ToBroker(usize),
    ToClient(usize),
    /// Out of order: on its own way to the client.
    Stray(usize, Box<Item>),
    Broker(Timer),
    Worker(usize),
    BudgetAsk(usize),
    BudgetServe,
    BudgetEnded(usize, crate::policy::budget::Turn),
    /// A lane has something to take.
    Look(usize, usize),
    Fault(usize),
    /// A fault that does not wait any more.
    Strike(usize),
    Restore(Restore),
    App(usize),
    Stage(Stage),
}

/// How a run goes on after the busy time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Busy,
    /// Nothing is broken any more.
    Healed,
    /// Every lane that lives has to pass a message now.
    Probed,
    Closing,
    ShuttingDown,
    Over,
}

/// Where a run went wrong.
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
    pub unix_jump: i64,
    pub events: Schedule<Event>,
    pub trace: Trace,
    pub stage: Stage,
    pub failure: Option<String>,
    pub coverage: Coverage,

    pub engine: Engine,
    pub the_loop: LoopThread,
    pub control: VecDeque<Control>,
    /// Lanes with something to take: producer and lane.
    pub looks: VecDeque<(usize, usize)>,
    pub sockets: VecDeque<Control>,
    pub watchers: [WatcherThread; 2],
    pub producers: Vec<ProducerShell>,
    pub callers: Vec<Caller>,
    pub workers: Vec<Worker>,
    pub lane_queue: VecDeque<(usize, usize)>,
    pub budget: Budget,
    pub ops: Vec<Op>,
    pub apps: Vec<App>,

    pub cluster: Cluster,
    pub conns: Vec<Conn>,
    pub by_link: BTreeMap<LinkId, usize>,
    /// Connections by the broker's end.
    pub by_server: Vec<usize>,
    pub net: super::fault::Net,
    /// Faults that wait for somebody to send.
    pub lurking: Vec<usize>,
    /// Hosts that links are open to, or being made to.
    pub dials: BTreeMap<LinkId, usize>,
    pub last_disturbance: Micros,
    pub finished: bool,
    /// Calls of the user that are not about one producer, and when they must have been answered.
    pub shutdowns: Vec<(Pending<()>, Micros)>,
    pub questions: Vec<(Pending<u32>, Micros)>,
    pub recovered: u64,
}

impl World {
    pub(super) fn new(plan: Plan, text: bool) -> Self {
        let topics: Vec<(String, usize)> = (0..plan.topics())
            .map(|topic| (format!("persistent://public/default/topic-{topic}"), topic % plan.brokers))
            .collect();
        let mut cluster = Cluster::new(plan.brokers, &topics, plan.dedup);
        cluster.either_end = plan.either_end;
        cluster.proxied = plan.proxied;
        let options = EngineOptions {
            service: cluster.brokers.iter().map(|broker| HostPort { host: broker.host.clone(), port: 6650 }).collect(),
            tls: false,
            client_version: "world".into(),
            auth_method: "none".into(),
            auth_data: Vec::new(),
            connection_timeout: plan.connection_timeout,
            operation_timeout: plan.operation_timeout,
            keep_alive: Duration::from_secs(30),
            seed: plan.seed,
        };
        let mut world = Self {
            rng: Rng::new(plan.seed),
            now: 0,
            // Far from zero, so that going back a little is always possible.
            base: Instant::now() + Duration::from_secs(3600),
            unix_jump: 0,
            events: Schedule::new(),
            trace: Trace::new(text),
            stage: Stage::Busy,
            failure: None,
            coverage: Coverage::default(),
            engine: Engine::new(options),
            the_loop: LoopThread::default(),
            control: VecDeque::new(),
            looks: VecDeque::new(),
            sockets: VecDeque::new(),
            watchers: [WatcherThread::default(), WatcherThread::default()],
            producers: Vec::new(),
            callers: Vec::new(),
            workers: vec![Worker::default(), Worker::default()],
            lane_queue: VecDeque::new(),
            budget: Budget::new(plan.memory),
            ops: Vec::new(),
            apps: Vec::new(),
            cluster,
            conns: Vec::new(),
            by_link: BTreeMap::new(),
            by_server: Vec::new(),
            net: super::fault::Net::new(plan.brokers),
            lurking: Vec::new(),
            dials: BTreeMap::new(),
            last_disturbance: 0,
            finished: false,
            shutdowns: Vec::new(),
            questions: Vec::new(),
            recovered: 0,
            plan,
        };
        world.open_everything();
        world
    }

    fn open_everything(&mut self) {
        let mut first = 0;
        for index in 0..self.plan.producers.len() {
            let shell = ProducerShell::new(index, first, &self.plan.producers[index]);
            first += shell.lanes.len();
            self.producers.push(shell);
            self.open_producer(index);
        }
        for index in 0..self.plan.consumers.len() {
            self.open_app(index);
        }
        for index in 0..self.plan.callers.len() {
            self.callers.push(Caller::new(&self.plan.callers[index]));
            let at = self.rng.below(SEC);
            self.at(at, Event::Caller(index));
        }
        for index in 0..self.plan.faults.len() {
            let at = self.plan.faults[index].0;
            self.at(at, Event::Fault(index));
        }
        self.at(super::plan::BUSY - SEC, Event::Restore(Restore::Lurking));
        for (at, producer, limit) in self.plan.closes.clone() {
            self.at(at, Event::Restore(Restore::CloseProducer(producer, limit)));
        }
        if !self.plan.scripted {
            let next = if self.plan.ends_in_trouble { Stage::ShuttingDown } else { Stage::Healed };
            self.at(super::plan::BUSY, Event::Stage(next));
        }
    }

    /// A time as the engine knows it.
    pub(super) fn instant(&self, at: Micros) -> Instant {
        self.base + Duration::from_micros(at)
    }

    pub(super) fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.base).as_micros() as Micros
    }

    pub(super) fn clock(&self) -> Now {
        let unix_ms = (1_700_000_000_000 + (self.now / 1_000) as i64 + self.unix_jump).max(0) as u64;
        Now { instant: self.instant(self.now), unix_ms }
    }

    pub(super) fn at(&mut self, at: Micros, event: Event) {
        let luck = self.rng.next_u64() as u32;
        self.events.push(at.max(self.now), luck, event);
    }

    pub(super) fn after(&mut self, delay: Micros, event: Event) {
        self.at(self.now + delay, event);
    }

    /// How long a thread needs to go on: mostly next to nothing, now and then the scheduler is busy.
    pub(super) fn pause(&mut self) -> Micros {
        match self.rng.below(100) {
            0 => self.rng.below(10_000),
            1..=5 => self.rng.below(1_000),
            _ => self.rng.below(60),
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

    /// One event. False when there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some((at, event)) = self.events.pop() else { return false };
        self.now = at.max(self.now);
        match event {
            Event::Caller(caller) => self.step_caller(caller),
            Event::CallerTimeout(caller, turn) => self.caller_timeout(caller, turn),
            Event::Loop(turn) => self.step_loop(turn),
            Event::Watcher(watcher, turn) => self.step_watcher(watcher, turn),
            Event::Resolved(link, host, ok) => self.resolved(link, host, ok),
            Event::Dialled(conn, ok) => self.dialled(conn, ok),
            Event::ToBroker(conn) => self.arrive_at_broker(conn),
            Event::ToClient(conn) => self.arrive_at_client(conn),
            Event::Stray(conn, item) => self.stray(conn, *item),
            Event::Broker(timer) => self.broker_timer(timer),
            Event::Worker(worker) => self.step_worker(worker),
            Event::BudgetAsk(producer) => self.budget_ask(producer),
            Event::BudgetServe => self.budget_serve(),
            Event::BudgetEnded(producer, turn) => self.budget_ended(producer, turn),
            Event::Look(producer, lane) => self.look(producer, lane),
            // Most of them strike while somebody sends.
            Event::Fault(fault) if self.rng.chance(2, 3) => self.lurking.push(fault),
            Event::Fault(fault) | Event::Strike(fault) => self.fault(fault),
            Event::Restore(restore) => self.restore(restore),
            Event::App(app) => self.step_app(app),
            Event::Stage(stage) => self.enter(stage),
        }
        if let Some(text) = self.cluster.violation.take() {
            self.fail(text);
        }
        true
    }

    /// Runs to the end, or to the first thing that is wrong.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        while self.failure.is_none() && self.stage != Stage::Over {
            if self.trace.notes > 2_000_000 {
                self.fail("the world does not come to rest");
            }
            if !self.step() {
                self.fail(format!("nothing happens any more in {:?}", self.stage));
            }
        }
        self.verdict()
    }

    /// Runs for a while; for scenarios.
    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time.as_micros() as Micros;
        while self.failure.is_none() && self.events.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    pub(super) fn verdict(&mut self) -> Result<(), Failure> {
        match self.failure.take() {
            None => Ok(()),
            Some(text) => Err(Failure {
                seed: self.plan.seed,
                at: self.now,
                text,
                lines: self.trace.lines.take().unwrap_or_default(),
            }),
        }
    }
}
