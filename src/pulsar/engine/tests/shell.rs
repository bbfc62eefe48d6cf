//! The client's own threads around the engine: the loop with its phases, the two timer threads.

use std::collections::VecDeque;
use std::time::Instant;

use super::plan::ProducerPlan;
use super::schedule::Micros;
use super::world::{Event, World};
use crate::error::Error;
use crate::pending::{Completion, Pending};
use crate::policy::admission::{Admission, Limits, WaiterId};
use crate::policy::deadline::DeadlineQueue;
use crate::policy::progress::Progress;
use crate::pulsar::engine::event::{
    Command, DeadlineKey, LaneId, LinkId, Outgoing, ProducerId, ProducerOpened, SendReceipt, Watcher,
};
use crate::pulsar::engine::retry;

/// What stands in the loop's inbox.
pub(super) enum Control {
    Key(u64),
    Command(Command),
    Flush(usize),
    CloseProducer { producer: usize, flush_until: Instant, due: Instant, reply: Completion<()> },
    Resolved { link: LinkId, answer: Result<Vec<std::net::SocketAddr>, Error> },
    Connected(LinkId),
    ConnectFailed(LinkId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Control,
    Due,
    Reads,
    User,
    Writes,
}

const PHASES: [Phase; 5] = [Phase::Control, Phase::Due, Phase::Reads, Phase::User, Phase::Writes];

pub(super) struct LoopThread {
    pub parked: bool,
    /// Rises with every wake, so that an earlier alarm is void.
    pub turn: u32,
    pub phase: usize,
    /// Connections with something to read or to write.
    pub readable: Vec<usize>,
    pub writable: Vec<usize>,
}

impl Default for LoopThread {
    fn default() -> Self {
        Self { parked: true, turn: 0, phase: 0, readable: Vec::new(), writable: Vec::new() }
    }
}

pub(super) struct WatcherThread {
    pub inbox: VecDeque<(u64, Option<Instant>)>,
    pub queue: DeadlineQueue<u64>,
    pub parked: bool,
    pub turn: u32,
}

impl Default for WatcherThread {
    fn default() -> Self {
        Self { inbox: VecDeque::new(), queue: DeadlineQueue::new(), parked: true, turn: 0 }
    }
}

/// A callback and what it is to be told.
pub(super) type Called = (Box<dyn FnOnce(Result<SendReceipt, Error>) + Send>, Result<SendReceipt, Error>);

/// Results of a lane on their way to a callback thread; permits come back after it.
pub(super) struct Job {
    pub items: Vec<(u64, Option<Called>)>,
    pub charge: usize,
}

pub(super) struct LaneShell {
    pub id: LaneId,
    pub topic: usize,
    /// Admitted and without a result, in order.
    pub awaiting: VecDeque<u64>,
    pub settled: u64,
    pub last_place: u64,
    pub last_sequence: Option<u64>,
    pub last_called: Option<Micros>,
    /// The lane failed for good.
    pub failed: Option<Error>,
    pub terminal: Option<i32>,
    pub closed: bool,
    pub jobs: VecDeque<Job>,
    /// A callback thread works on it, or it stands in line for one.
    pub queued: bool,
    pub called_back: u64,
    /// What was handed over on the present session: connection and the messages that had no result.
    pub handed_on: Option<(LinkId, u64)>,
    pub handed_through: u64,
    /// Frames by their first sequence id: hash of their bytes.
    pub frames: std::collections::BTreeMap<u64, (u64, u64)>,
}

pub(super) struct ProducerShell {
    pub id: ProducerId,
    pub admission: Admission<Outgoing>,
    pub owners: VecDeque<(WaiterId, usize, u64)>,
    pub progress: Progress<usize>,
    pub lanes: Vec<LaneShell>,
    pub last_admitted: Option<u64>,
    pub opening: Option<(Pending<ProducerOpened>, Micros)>,
    pub open: bool,
    pub close_called: bool,
    pub closes: Vec<(Pending<()>, Micros)>,
    pub flush_until: Micros,
    pub attempted: bool,
}

impl ProducerShell {
    pub(super) fn new(index: usize, first_topic: usize, plan: &ProducerPlan) -> Self {
        let limits = Limits { max_pending: plan.max_pending, send_timeout: plan.send_timeout };
        let lane = |lane| LaneShell {
            id: LaneId((index * 10 + lane + 1) as u64),
            topic: first_topic + lane,
            awaiting: VecDeque::new(),
            settled: 0,
            last_place: 0,
            last_sequence: None,
            last_called: None,
            failed: None,
            terminal: None,
            closed: false,
            jobs: VecDeque::new(),
            queued: false,
            called_back: 0,
            handed_on: None,
            handed_through: 0,
            frames: std::collections::BTreeMap::new(),
        };
        Self {
            id: ProducerId(index as u64 + 1),
            admission: Admission::new(limits, plan.lanes),
            owners: VecDeque::new(),
            progress: Progress::new(),
            lanes: (0..plan.lanes).map(lane).collect(),
            last_admitted: None,
            opening: None,
            open: false,
            close_called: false,
            closes: Vec::new(),
            flush_until: 0,
            attempted: false,
        }
    }
}

impl World {
    pub(super) fn post(&mut self, control: Control) {
        self.control.push_back(control);
        self.wake_loop();
    }

    pub(super) fn wake_loop(&mut self) {
        if self.the_loop.parked {
            self.the_loop.parked = false;
            self.the_loop.turn += 1;
            let delay = self.pause();
            self.after(delay, Event::Loop(self.the_loop.turn));
        }
    }

    fn has_work(&self, phase: Phase) -> bool {
        match phase {
            Phase::Control => !self.control.is_empty(),
            Phase::Due => self.engine.poll_timeout().is_some_and(|at| at <= self.instant(self.now)),
            Phase::Reads => !self.sockets.is_empty() || !self.the_loop.readable.is_empty(),
            Phase::User => !self.looks.is_empty(),
            Phase::Writes => !self.the_loop.writable.is_empty(),
        }
    }

    pub(super) fn step_loop(&mut self, turn: u32) {
        if turn != self.the_loop.turn {
            return;
        }
        self.the_loop.parked = false;
        let from = self.the_loop.phase;
        // The rest of this turn first, then the next turn.
        let next = (from..PHASES.len()).chain(0..from).find(|phase| self.has_work(PHASES[*phase]));
        let Some(at) = next else {
            self.park();
            return;
        };
        match PHASES[at] {
            Phase::Control => self.loop_control(),
            Phase::Due => {
                let now = self.clock();
                self.engine.handle_timeout(now);
                self.drain();
            }
            Phase::Reads => self.loop_reads(),
            Phase::User => self.loop_user(),
            Phase::Writes => self.loop_writes(),
        }
        self.check_step();
        self.the_loop.phase = (at + 1) % PHASES.len();
        let delay = if self.rng.chance(1, 200) { self.rng.below(5_000) } else { self.rng.below(20) };
        self.after(delay, Event::Loop(self.the_loop.turn));
    }

    fn park(&mut self) {
        self.the_loop.parked = true;
        self.the_loop.phase = 0;
        self.check_rest();
        if let Some(at) = self.engine.poll_timeout() {
            let at = self.micros(at) + 1;
            let delay = self.pause();
            self.at(at + delay, Event::Loop(self.the_loop.turn));
        }
    }

    fn loop_control(&mut self) {
        for control in std::mem::take(&mut self.control) {
            self.handle_control(control);
        }
    }

    pub(super) fn handle_control(&mut self, control: Control) {
        let now = self.clock();
        match control {
            Control::Key(packed) => {
                self.note("key", packed >> 56, packed & 0xff_ffff);
                if let Some(key) = DeadlineKey::unpack(packed) {
                    self.engine.handle_deadline(now, key);
                }
            }
            Control::Command(command) => {
                if let Command::Shutdown { .. } = command {
                    for producer in 0..self.producers.len() {
                        self.take_all(producer);
                    }
                }
                self.engine.handle_command(now, command);
            }
            Control::Flush(producer) => {
                self.take_all(producer);
                let producer = self.producers[producer].id;
                self.engine.handle_command(now, Command::Flush { producer });
            }
            Control::CloseProducer { producer, flush_until, due, reply } => {
                // Everything that was admitted belongs to the flush, whether the loop has looked or not.
                self.take_all(producer);
                self.note("close", producer as u64, 0);
                let producer = self.producers[producer].id;
                let reply = Some(reply);
                self.engine.handle_command(now, Command::CloseProducer { producer, flush_until, due, reply });
            }
            Control::Resolved { link, answer } => self.engine.handle_resolved(now, link, answer),
            Control::Connected(link) => self.engine.handle_connected(now, link),
            Control::ConnectFailed(link) => {
                let error = Error::new(crate::error::ErrorKind::Transport, "connection refused");
                self.engine.handle_connect_failed(now, link, error);
            }
        }
        self.drain();
    }

    pub(super) fn take_all(&mut self, producer: usize) {
        for lane in 0..self.producers[producer].lanes.len() {
            self.take_lane(producer, lane);
        }
    }

    fn loop_user(&mut self) {
        let turns = 1 + self.rng.below(3);
        for _ in 0..turns {
            let Some((producer, lane)) = self.looks.pop_front() else { return };
            self.take_lane(producer, lane);
        }
    }

    /// Takes what was admitted to a lane and gives it to the engine, or answers it if the lane is over.
    pub(super) fn take_lane(&mut self, producer: usize, lane: usize) {
        let now = self.clock();
        let shell = &mut self.producers[producer];
        let mut messages = Vec::new();
        shell.admission.take(lane, &mut messages);
        if messages.is_empty() {
            return;
        }
        self.trace.note(self.now, "take", producer as u64 * 10 + lane as u64, messages.len() as u64);
        let id = self.producers[producer].lanes[lane].id;
        self.engine.handle_admitted(now, id, &mut messages);
        self.drain();
    }

    // The timer threads.

    /// Posts a key to its timer thread: to be armed, or cancelled.
    pub(super) fn watch(&mut self, key: DeadlineKey, at: Option<Instant>) {
        let index = Self::watcher(key.watcher());
        self.watchers[index].inbox.push_back((key.pack(), at));
        if self.watchers[index].parked {
            self.watchers[index].parked = false;
            self.watchers[index].turn += 1;
            let turn = self.watchers[index].turn;
            let delay = self.pause();
            self.after(delay, Event::Watcher(key.watcher(), turn));
        }
    }

    fn watcher(watcher: Watcher) -> usize {
        match watcher {
            Watcher::Supervisor => 0,
            Watcher::Sweeper => 1,
        }
    }

    pub(super) fn step_watcher(&mut self, watcher: Watcher, turn: u32) {
        let index = Self::watcher(watcher);
        if self.watchers[index].turn != turn {
            return;
        }
        let now = self.instant(self.now);
        let thread = &mut self.watchers[index];
        for (key, at) in thread.inbox.drain(..) {
            match at {
                Some(at) => thread.queue.arm(key, at),
                None => thread.queue.cancel(key),
            };
        }
        let mut fired = Vec::new();
        while let Some(key) = thread.queue.pop_due(now) {
            fired.push(key);
        }
        thread.parked = true;
        if let Some(at) = thread.queue.next_due() {
            let at = self.micros(at);
            let delay = self.pause();
            self.at(at + delay, Event::Watcher(watcher, turn));
        }
        for key in fired {
            self.post(Control::Key(key));
        }
    }

    /// Whether a key will be posted at or before this time, or is on its way.
    pub(super) fn armed_by(&self, key: DeadlineKey, at: Instant) -> bool {
        let packed = key.pack();
        let thread = &self.watchers[Self::watcher(key.watcher())];
        thread.inbox.iter().any(|(other, due)| *other == packed && due.is_some_and(|due| due <= at))
            || thread.queue.due_of(packed).is_some_and(|due| due <= at)
            || self.control.iter().any(|control| matches!(control, Control::Key(other) if *other == packed))
    }
}

/// Whether a lane that gets this code when it comes back is over.
pub(super) fn ends_a_lane(code: i32) -> bool {
    retry::verdict(code, retry::Attempt::Reconnect) == retry::Verdict::Stop
}
