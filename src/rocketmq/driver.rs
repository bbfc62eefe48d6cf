//! THREAD `tmq-rocketmq`: drives the engine with inboxes, the clock and gRPC. It blocks on its inbox and nowhere
//! else.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Calls, Request, until};
use super::channel::{ChannelOptions, Probed};
use super::credentials::{Signing, Source, Supplied};
use super::engine::event::{Action, CallId, Command, EntryId, Outgoing, RpcEvent, SessionId, Settled};
use super::engine::{Engine, EngineOptions};
use super::identity::Identity;
use super::lane::{Lane, Look};
use super::rpc::RpcSink;
use super::stats::StatsCell;
use crate::error::{Error, ErrorKind};
use crate::pending::Reply;
use crate::policy::admission::Admitted;
use crate::runtime::callback::{CallbackLane, CallbackWork};
use crate::runtime::inbox::Inboxes;
use crate::runtime::nap::Nap;
use crate::threads::Threads;

/// So many actions are carried out before it is looked whether something is due.
const AT_ONCE: usize = 16;

/// How long the driver looks out for the next call of one whom it has just answered, if nothing else is under way.
/// Who sends one message after another comes back within 20 us, about what it takes to wake a thread; most of that
/// is his own waking.
const LOOKOUT: Duration = Duration::from_micros(30);

/// What is posted to the driver and drained first and whole.
///
/// Not bounded by a count of its own: a command belongs to a handle's call or answers a delivery, events belong to
/// calls under way.
pub(super) enum Control {
    Command(Command),
    /// A command of a new session, with what is sent along with its calls, and its producer's results.
    Open(SessionId, Box<Identity>, Option<Arc<Lane>>, Command),
    Rpc(RpcEvent),
    /// What the provider of credentials answered.
    Supplied(Supplied),
    /// What a look at an entry's server brought.
    Probed(EntryId, Probed),
    /// A call is to be looked at.
    Over(CallId, bool),
}

/// How other threads reach the driver.
#[derive(Clone)]
pub(super) struct Post {
    inboxes: Arc<Inboxes<Control, Look>>,
}

impl Post {
    /// Posts a command. After the driver's end it is answered with `Closed`.
    pub(super) fn command(&self, command: Command) {
        self.control(Control::Command(command));
    }

    pub(super) fn control(&self, control: Control) {
        if let Err(control) = self.inboxes.post_control(control) {
            refuse(control);
        }
    }

    pub(super) fn look(&self, session: SessionId) {
        if self.inboxes.post_user(Look(session)).is_err() {
            log::trace!("a message came after the end of the driver");
        }
    }
}

impl RpcSink for Post {
    fn post(&self, event: RpcEvent) {
        self.control(Control::Rpc(event));
    }

    fn leave(&self, event: RpcEvent) {
        if let Err(control) = self.inboxes.leave_control(Control::Rpc(event)) {
            refuse(control);
        }
    }

    fn probed(&self, entry: EntryId, probed: Probed) {
        self.control(Control::Probed(entry, probed));
    }

    fn over(&self, call: CallId, ready: bool) {
        self.control(Control::Over(call, ready));
    }
}

/// Answers what nobody will carry out any more, because the driver is at its end.
fn refuse(control: Control) {
    let error = || Error::new(ErrorKind::Closed, "the client is closed");
    match control {
        Control::Command(command) | Control::Open(_, _, _, command) => match command {
            Command::Open { reply, .. } => reply.settle(Err(error())),
            Command::Subscribe { reply, .. } => reply.settle(Err(error())),
            Command::Receive { reply: Reply::Completion(reply), .. } => reply.settle(Err(error())),
            Command::Receive { reply: Reply::Callback(callback), .. } => {
                // The caller's own thread: there is no other left.
                callback(Err(error()));
            }
            Command::Receive { reply: Reply::Answered, .. } => {}
            Command::Prepared { reply, .. } => reply.settle(Err(error())),
            Command::Describe { reply, .. } => reply.settle(Err(error())),
            Command::Close { reply, .. } => reply.into_iter().for_each(|reply| reply.settle(Ok(()))),
            Command::Shutdown { reply, .. } => reply.settle(Ok(())),
        },
        Control::Rpc(_) | Control::Over(..) | Control::Supplied(_) | Control::Probed(..) => {}
    }
}

pub(super) struct Driver {
    inboxes: Arc<Inboxes<Control, Look>>,
    nap: Nap,
    engine: Engine,
    calls: Calls<Post>,
    lanes: BTreeMap<SessionId, Arc<Lane>>,
    /// Callbacks of receives.
    callbacks: CallbackLane,
    stats: Arc<StatsCell>,
    admitted: Vec<Admitted<Outgoing>>,
    /// What the engine asked for and is not carried out.
    actions: VecDeque<Action>,
    /// Results that are fixed and not told.
    settled: Vec<Settled>,
    /// Sessions that go when the present actions are carried out.
    closed: Vec<SessionId>,
    longest_turn: Duration,
    /// Somebody got what he waited for in this turn.
    told: bool,
    finished: bool,
}

impl Driver {
    /// # Errors
    ///
    /// `Config` for credentials that headers cannot hold.
    pub(super) fn new(
        options: EngineOptions,
        channels: ChannelOptions,
        credentials: Source,
        threads: &Threads,
        stats: Arc<StatsCell>,
    ) -> Result<(Self, Post), Error> {
        let (nap, wake) = Nap::new();
        let inboxes = Inboxes::new(wake);
        let post = Post { inboxes: Arc::clone(&inboxes) };
        let told = post.clone();
        let signing = Signing::new(credentials, move |answer| told.control(Control::Supplied(answer)))?;
        let driver = Self {
            inboxes,
            nap,
            engine: Engine::new(options),
            calls: Calls::new(channels, signing, post.clone()),
            lanes: BTreeMap::new(),
            callbacks: threads.callbacks().lane(),
            stats,
            admitted: Vec::new(),
            actions: VecDeque::new(),
            settled: Vec::new(),
            closed: Vec::new(),
            longest_turn: Duration::ZERO,
            told: false,
            finished: false,
        };
        Ok((driver, post))
    }

    /// Runs until the client is closed. A panic in it is a defect of ours: everything owed is answered even then.
    pub(super) fn run(mut self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.turns())) {
            log::error!("the driver ended by a defect: {}", crate::runtime::thread::panic_text(&*panic));
            self.inboxes.close();
            for lane in self.lanes.values() {
                lane.permits.close();
            }
            let rescued = catch_unwind(AssertUnwindSafe(|| {
                self.take_all(Instant::now());
                self.engine.abandon();
                self.act();
            }));
            if rescued.is_err() {
                log::error!("the driver could not answer what it owed");
            }
        }
        self.inboxes.close();
        let mut left = Vec::new();
        self.inboxes.drain_control(&mut left);
        left.into_iter().for_each(refuse);
    }

    fn turns(&mut self) {
        let mut control = Vec::new();
        let mut looks = Vec::new();
        while !self.finished {
            let due = [self.engine.poll_timeout(), self.calls.poll_timeout()].into_iter().flatten().min();
            let called_soon = std::mem::take(&mut self.told) && self.calls.is_idle();
            let lookout = if called_soon { LOOKOUT } else { Duration::ZERO };
            self.nap.sleep(&self.inboxes, due, lookout);
            let now = Instant::now();
            self.inboxes.drain_control(&mut control);
            for item in control.drain(..) {
                self.control(now, item);
            }
            self.engine.handle_timeout(now);
            self.act();
            self.calls.due(now);
            self.inboxes.drain_user(&mut looks);
            for Look(session) in looks.drain(..) {
                // Not the turn's start: a message may have been admitted after it.
                self.take(Instant::now(), session);
            }
            self.calls.clear();
            self.longest_turn = self.longest_turn.max(now.elapsed());
            self.stats.publish(self.engine.stats(), self.longest_turn);
        }
    }

    fn control(&mut self, now: Instant, item: Control) {
        match item {
            Control::Command(command) => {
                // A close speaks of what was admitted before it.
                match &command {
                    Command::Close { session, .. } => self.take(now, *session),
                    Command::Shutdown { .. } => self.take_all(now),
                    _ => {}
                }
                self.engine.handle_command(now, command);
            }
            Control::Open(session, identity, lane, command) => {
                self.calls.add(session, *identity);
                self.lanes.extend(lane.map(|lane| (session, lane)));
                self.engine.handle_command(now, command);
            }
            Control::Rpc(event) => {
                if let Some(event) = self.calls.arrived(now, event) {
                    self.engine.handle_rpc(now, event);
                }
            }
            Control::Supplied(answer) => self.calls.supplied(now, answer),
            Control::Probed(entry, probed) => self.calls.probed(now, entry, probed),
            Control::Over(call, ready) => {
                if let Some(event) = self.calls.look(now, call, ready) {
                    self.engine.handle_rpc(now, event);
                }
                // What ended together is told together.
                return;
            }
        }
        self.act();
    }

    fn take(&mut self, now: Instant, session: SessionId) {
        let Some(lane) = self.lanes.get(&session) else { return };
        lane.take(&mut self.admitted);
        if !self.admitted.is_empty() {
            self.engine.handle_admitted(now, session, &mut self.admitted);
            self.act();
        }
    }

    fn take_all(&mut self, now: Instant) {
        for session in self.lanes.keys().copied().collect::<Vec<_>>() {
            self.take(now, session);
        }
    }

    /// Carries out what the engine asked for.
    fn act(&mut self) {
        loop {
            while let Some(action) = self.engine.poll_action() {
                match action {
                    Action::Settle(settled) => self.settled.push(settled),
                    other => self.actions.push_back(other),
                }
            }
            // Before anything else: nobody waits for his result until many calls are started, and a close ends after
            // the results that it waited for.
            self.tell();
            if self.actions.is_empty() {
                break;
            }
            for _ in 0..AT_ONCE {
                let Some(action) = self.actions.pop_front() else { break };
                self.carry_out(action);
            }
            // All sends of a replaced connection start anew in one turn, while others run out of time.
            let now = Instant::now();
            if !self.actions.is_empty() && self.engine.poll_timeout().is_some_and(|due| due <= now) {
                self.engine.handle_timeout(now);
            }
        }
        for session in self.closed.drain(..) {
            self.lanes.remove(&session);
            self.calls.remove(session);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Connect { entry, endpoints, first } => {
                self.calls.connect(Instant::now(), entry, endpoints, first);
            }
            Action::CloseChannel { entry } => self.calls.close(entry),
            Action::Call { call, session, entry, method, body, timeout } => {
                let now = Instant::now();
                self.calls.call(now, call, Request { session, entry, method, body, due: until(now, timeout) });
            }
            Action::CancelCall { call } => self.calls.cancel(call),
            Action::OpenStream { stream, session, entry } => {
                self.calls.open_stream(Instant::now(), stream, session, entry);
            }
            Action::WriteStream { stream, body } => self.calls.write(stream, body),
            Action::CancelStream { stream } => self.calls.cancel_stream(stream),
            Action::Settle(settled) => self.settled.push(settled),
            Action::Received { reply, result } => match reply {
                Reply::Completion(reply) => {
                    self.told = true;
                    reply.settle(result);
                }
                Reply::Callback(callback) => {
                    self.callbacks.push(Box::new(Once(Some(Box::new(move || callback(result))))));
                }
                Reply::Answered => {}
            },
            Action::Opened(reply, result) => reply.settle(result),
            Action::Answered(reply, result) => {
                self.told = true;
                reply.settle(result);
            }
            Action::Described(reply, result) => reply.settle(result),
            Action::Done(reply, result) => reply.settle(result),
            Action::BodyLimit { session, max_body_size } => {
                if let Some(lane) = self.lanes.get(&session) {
                    lane.max_body_size.store(max_body_size, std::sync::atomic::Ordering::Relaxed);
                }
            }
            Action::SessionClosed { session } => self.session_closed(session),
            Action::Recovered => {}
            Action::Finished => self.finished = true,
        }
    }

    /// Answers the results that are fixed, those of neighbours of one producer together.
    fn tell(&mut self) {
        self.told |= !self.settled.is_empty();
        let mut settled = self.settled.drain(..).peekable();
        while let Some(session) = settled.peek().map(|settled| settled.session) {
            let neighbours = std::iter::from_fn(|| settled.next_if(|settled| settled.session == session));
            match self.lanes.get(&session) {
                Some(lane) => lane.settle(neighbours),
                None => neighbours.for_each(drop),
            }
        }
    }

    /// Nothing is admitted any more; what was admitted last is turned away. The session itself goes when that is
    /// settled.
    fn session_closed(&mut self, session: SessionId) {
        self.closed.push(session);
        let Some(lane) = self.lanes.get(&session) else { return };
        lane.permits.close();
        lane.take(&mut self.admitted);
        if !self.admitted.is_empty() {
            self.engine.handle_admitted(Instant::now(), session, &mut self.admitted);
        }
    }
}

/// One callback of a receive.
struct Once(Option<Box<dyn FnOnce() + Send>>);

impl CallbackWork for Once {
    fn run_next(&mut self) -> bool {
        self.0.take().map(|run| run()).is_some()
    }

    fn turn_over(&mut self) {}
}
