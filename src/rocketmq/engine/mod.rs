//! The RocketMQ engine: what a client decides. Pure: time comes in, calls and results leave as actions.
//!
//! A session is one producer or consumer. It keeps a telemetry stream to every endpoint of its routes. Channels are
//! shared by all sessions: one *entry* an address at a time, heartbeats on it are the evidence by which it is
//! replaced.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Delivery, Error, ErrorKind};
use crate::policy::admission::Admitted;
use crate::policy::deadline::DeadlineQueue;
use crate::policy::recovery::{HeartbeatTiming, TransportRecovery};
use crate::policy::rng::Rng;
use crate::rocketmq::wire::code;
use crate::rocketmq::wire::endpoints::Endpoints;

mod addresses;
mod calls;
pub(crate) mod event;
mod operation;
mod poll;
mod prepared;
mod publish;
mod publisher;
mod receive;
mod route;
mod session;
mod settings;
mod telemetry;

pub(crate) use settings::DEFAULT_MAX_BODY_SIZE;

pub(super) use addresses::encode;
use addresses::{AddressId, Addresses};
use calls::{Call, Calls, Purpose};
use event::{Action, CallEnd, CallId, Command, Outgoing, RpcEvent, SessionId, StreamId};
use session::Session;

/// Deadline of a heartbeat.
pub(crate) const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(3);
/// How long after its deadline gRPC may still end a call: one whose request is stuck in a socket that nobody reads it
/// never ends.
const GRACE: Duration = Duration::from_secs(1);
/// A driver that is so late was held up, as it is by a frozen process.
const HELD_UP: Duration = Duration::from_millis(500);
/// Default time for one call to be answered.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// What the engine is told once.
#[derive(Debug, Clone)]
pub(crate) struct EngineOptions {
    /// Where routes are asked for.
    pub access: Endpoints,
    /// Told to servers (`UA.platform`).
    pub platform: String,
    pub seed: u64,
}

/// Counters for users.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineStats {
    /// The longest time from a call to its fixed result.
    pub longest_answer: Duration,
    /// The longest time by which a result was fixed after it was due.
    pub longest_overdue: Duration,
    /// Transports that were replaced.
    pub recoveries: u64,
    /// Heartbeats that were answered well.
    pub heartbeats: u64,
}

/// What waits for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Timer {
    /// Heartbeats, cooldowns.
    Recovery,
    /// Calls that gRPC should have ended.
    Calls,
    /// Routes are asked for again.
    Routes(SessionId),
    /// Settings are sent again.
    Settings(SessionId),
    /// A stream that ended is opened again.
    Renew(SessionId, AddressId),
    /// The session has to be open, or to be closed.
    Session(SessionId),
    /// The oldest send is due.
    Due(SessionId),
    /// Sends that pause, topics whose route is asked for again.
    Pump(SessionId),
    /// A receive, acknowledgement or change.
    Operation(u64),
    /// Part of one goes on.
    Again(u64),
    /// What is remembered of addresses that are out of use.
    Forget,
}

pub(crate) struct Engine {
    options: EngineOptions,
    rng: Rng,
    actions: VecDeque<Action>,
    addresses: Addresses,
    recovery: TransportRecovery<AddressId>,
    calls: Calls,
    streams: BTreeMap<StreamId, (SessionId, AddressId)>,
    sessions: BTreeMap<SessionId, Session>,
    operations: BTreeMap<u64, operation::Operation>,
    /// Endpoints whose last call failed for want of a connection; a good heartbeat takes them off.
    isolated: BTreeSet<AddressId>,
    timers: DeadlineQueue<Timer>,
    next: u64,
    /// When the driver last went on after it had been held up: what came meanwhile may not have been told yet.
    resumed: Option<Instant>,
    /// Who waits for the end.
    shutdown: Option<Vec<crate::pending::Completion<()>>>,
    stats: EngineStats,
}

impl Engine {
    pub(crate) fn new(options: EngineOptions) -> Self {
        Self {
            rng: Rng::new(options.seed),
            options,
            actions: VecDeque::new(),
            addresses: Addresses::default(),
            recovery: TransportRecovery::new(HeartbeatTiming::default()),
            calls: Calls::default(),
            streams: BTreeMap::new(),
            sessions: BTreeMap::new(),
            operations: BTreeMap::new(),
            isolated: BTreeSet::new(),
            timers: DeadlineQueue::new(),
            next: 1,
            resumed: None,
            shutdown: None,
            stats: EngineStats::default(),
        }
    }

    /// A call of a user.
    pub(crate) fn handle_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Open { session, spec, due, reply } => self.open_session(now, session, *spec, due, reply),
            Command::Subscribe { session, topic, filter, reply } => self.subscribe(now, session, topic, filter, reply),
            Command::Receive { session, max, invisible, reply } => self.receive(now, session, max, invisible, reply),
            Command::Prepared { session, method, calls, due, reply } => {
                self.prepared(now, session, method, calls, due, reply);
            }
            Command::Describe { session, topic, reply } => self.describe(session, &topic, reply),
            Command::Close { session, flush_until, reply } => self.close_session(now, session, flush_until, reply),
            Command::Shutdown { flush_until, reply } => self.shut_down(now, flush_until, reply),
        }
    }

    /// Messages admitted to a producer, in order. They are taken out; the vector's room stays with the caller.
    pub(crate) fn handle_admitted(&mut self, now: Instant, session: SessionId, messages: &mut Vec<Admitted<Outgoing>>) {
        self.admitted(now, session, messages);
    }

    /// What became of a call or stream. Late ones, of calls that were forgotten, change nothing.
    pub(crate) fn handle_rpc(&mut self, now: Instant, event: RpcEvent) {
        match event {
            RpcEvent::Ended { call, ready, end } => {
                if let Some(ended) = self.calls.remove(&call) {
                    self.call_ended(now, ended, ready, end);
                }
            }
            RpcEvent::Frame { call, body } => self.poll_frame(now, call, body),
            RpcEvent::StreamFrame { stream, body } => self.telemetry(now, stream, &body),
            RpcEvent::StreamEnded { stream, reason } => self.stream_ended(now, stream, &reason),
        }
    }

    fn call_ended(&mut self, now: Instant, call: Call, ready: bool, end: CallEnd) {
        let (session, address) = (call.session, call.address);
        self.judge(now, &call, &end);
        match call.purpose {
            Purpose::Route(ref topic) => self.route_answered(now, call.session, topic, end),
            Purpose::Heartbeat => self.heartbeat_ended(now, &call, ready, end),
            Purpose::Send(place) => self.send_ended(now, &call, place, end),
            Purpose::Poll(ref key) => self.poll_ended(now, call.session, key, end),
            Purpose::Prepared(_, operation, part) => self.part_ended(now, operation, part, end),
            Purpose::Farewell => {}
        }
        let last = !self.calls.any_at(address);
        if last && self.sessions.get(&session).is_none_or(|session| !session.uses(address)) {
            // It may have been the last thing that needed its channel.
            self.retire_unused(now);
        }
        self.check_shutdown();
    }

    /// Everything that is due by `now`. Early calls do nothing, late ones are safe.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.timers.next_due().is_some_and(|due| now > due + HELD_UP) {
            self.resumed = Some(now);
        }
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Recovery => self.recovery_due(now),
                Timer::Calls => self.calls_due(now),
                Timer::Routes(session) => self.refresh_routes(now, session),
                Timer::Settings(session) => self.resend_settings(now, session),
                Timer::Renew(session, address) => self.open_stream(now, session, address),
                Timer::Session(session) => self.session_due(now, session),
                Timer::Due(session) => self.expire_sends(now, session),
                Timer::Pump(session) => self.pump(now, session),
                Timer::Operation(operation) => self.operation_due(now, operation),
                Timer::Again(operation) => self.operation_again(now, operation),
                Timer::Forget => self.forget_due(now),
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// What the driver is to do next.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.stats
    }

    /// The driver ends by a defect: everything owed is answered.
    pub(crate) fn abandon(&mut self) {
        let error = Error::new(ErrorKind::Internal, "the driver of the client ended by a defect");
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end_session(session, &error);
        }
        for reply in self.shutdown.take().into_iter().flatten() {
            self.act(Action::Done(reply, Ok(())));
        }
        self.act(Action::Finished);
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Starts a call on the present channel of an address.
    fn call(
        &mut self,
        now: Instant,
        session: SessionId,
        address: AddressId,
        purpose: Purpose,
        body: Bytes,
        timeout: Duration,
    ) -> CallId {
        let entry = self.entry(now, address);
        let method = purpose.method();
        let call = CallId(self.id());
        let deadline = now + timeout;
        self.calls.insert(call, Call { session, entry, address, started: now, deadline, purpose });
        self.timers.arm(Timer::Calls, deadline + GRACE);
        self.act(Action::Call { call, session, entry, method, body, timeout });
        call
    }

    /// Ends what gRPC did not end by its deadline. The connection under it counts as READY: a call that waits for one
    /// is ended in time.
    fn calls_due(&mut self, now: Instant) {
        if let Some(until) = self.resumed.map(|at| at + GRACE).filter(|until| now < *until) {
            // A process that stood still finds all its calls past their deadlines, and their answers are on the way.
            self.timers.arm(Timer::Calls, until);
            return;
        }
        let overdue: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| call.deadline + GRACE <= now).map(|(id, _)| *id).collect();
        for id in overdue {
            let Some(call) = self.calls.remove(&id) else { continue };
            self.act(Action::CancelCall { call: id });
            self.call_ended(now, call, true, past_deadline());
        }
        if let Some(next) = self.calls.values().map(|call| call.deadline + GRACE).min() {
            self.timers.arm(Timer::Calls, next);
        }
    }

    /// The send that this call is for is over. If the call was, too, that is a hint as any other.
    fn give_up(&mut self, now: Instant, id: CallId) {
        match self.calls.get(&id) {
            Some(call) if call.deadline <= now => {
                let Some(call) = self.calls.remove(&id) else { return };
                self.act(Action::CancelCall { call: id });
                self.judge(now, &call, &past_deadline());
            }
            _ => self.forget(id),
        }
    }

    /// Nobody waits for it any more: its end will change nothing.
    fn forget(&mut self, call: CallId) {
        let Some(known) = self.calls.remove(&call) else { return };
        self.act(Action::CancelCall { call });
        if known.purpose == Purpose::Heartbeat {
            self.heartbeat_forgotten(&known);
        }
    }
}

/// Statuses of gRPC that say something about the transport.
const DEADLINE_EXCEEDED: i32 = 4;
const UNAVAILABLE: i32 = 14;
const CANCELLED: i32 = 1;

fn past_deadline() -> CallEnd {
    CallEnd::Failed { code: DEADLINE_EXCEEDED, message: "the deadline is over".to_owned() }
}

/// The body of a response, or why there is none.
fn response(end: CallEnd, what: &str) -> Result<Bytes, Error> {
    match end {
        CallEnd::Response(body) => Ok(body),
        CallEnd::Failed { code, message } => Err(code::grpc_error(code, what, &message, message.clone())),
        CallEnd::NotStarted(fault) => Err(fault.error(what)),
        CallEnd::Cancelled => Err(code::grpc_error(CANCELLED, what, "the connection was replaced", "cancelled")),
        CallEnd::StreamOver => Err(malformed(what, "a stream where one answer is due")),
    }
}

/// The server answered what cannot be read.
pub(super) fn malformed(what: &str, source: impl Into<Box<dyn std::error::Error + std::marker::Send + Sync>>) -> Error {
    Error::new(ErrorKind::Protocol, format!("{what}: the answer cannot be read"))
        .with_source(source)
        .with_delivery(Delivery::Unknown)
}

/// The same error with `hint` after its text. Keeps the original as the source.
fn with_hint(error: Error, hint: &str) -> Error {
    let (delivery, attempts) = (error.delivery(), error.attempts());
    let hinted = Error::new(error.kind(), format!("{error}; {hint}")).with_recovery(error.recovery());
    let hinted = match error.code() {
        Some(code) => hinted.with_code(code),
        None => hinted,
    };
    hinted.with_source(error).with_delivery(delivery).with_attempts(attempts)
}

fn closed(what: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("the {what} is closed"))
}

#[cfg(test)]
mod tests;
