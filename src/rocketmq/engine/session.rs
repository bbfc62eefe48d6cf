//! Sessions: opened when an endpoint works, kept by telemetry streams, closed after their sends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Action, Opened, Role, SessionId, SessionSpec, StreamId};
use super::publish::Publisher;
use super::receive::Receiver;
use super::route::{ROUTE_PERIOD, Route};
use super::settings::{self, Settings};
use super::{Engine, Purpose, Timer, closed};
use crate::error::{Error, ErrorKind, Recovery};
use crate::pending::Completion;
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::{code, pb};

/// Settings are sent again so often.
const SETTINGS_PERIOD: Duration = Duration::from_secs(300);
/// A stream that ended is opened again after this.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// Nobody is kept waiting for longer by a server that does not take leave.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);
/// Route queries for a declared topic before `start` fails.
const START_ATTEMPTS: u32 = 3;

/// A producer or consumer.
pub(super) struct Session {
    pub spec: SessionSpec,
    pub state: State,
    pub settings: Settings,
    pub routes: BTreeMap<String, Route>,
    pub links: BTreeMap<AddressId, Telemetry>,
    pub publisher: Publisher,
    pub receiver: Receiver,
}

pub(super) enum State {
    /// `start` waits for a route and for the first Settings.
    Starting {
        due: Instant,
        reply: Completion<Opened>,
    },
    Open,
    /// Sends are awaited until `flush_until`; the end is told to `replies`.
    Closing {
        flush_until: Instant,
        replies: Vec<Completion<()>>,
    },
}

/// The telemetry stream to an endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Telemetry {
    /// It ended, and is opened again at a time.
    Resting,
    /// Settings are written, and were answered or not.
    Open { stream: StreamId, answered: bool },
}

impl Session {
    /// Endpoints that the session's routes name.
    pub(super) fn addresses(&self) -> BTreeSet<AddressId> {
        self.routes.values().flat_map(|route| route.queues.iter().map(|queue| queue.address)).collect()
    }

    pub(super) fn uses(&self, address: AddressId) -> bool {
        self.links.contains_key(&address)
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    pub(super) fn group(&self) -> Option<&str> {
        match &self.spec.role {
            Role::Producer(_) => None,
            Role::SimpleConsumer(consumer) => Some(&consumer.group),
        }
    }

    pub(super) fn group_resource(&self) -> protobuf::MessageField<pb::Resource> {
        self.group().map(|group| resource(&self.spec.namespace, group)).unwrap_or_default()
    }

    pub(super) fn heartbeat(&self) -> pb::HeartbeatRequest {
        let client_type = match &self.spec.role {
            Role::Producer(_) => pb::ClientType::PRODUCER,
            Role::SimpleConsumer(_) => pb::ClientType::SIMPLE_CONSUMER,
        };
        pb::HeartbeatRequest { group: self.group_resource(), client_type: client_type.into(), ..Default::default() }
    }
}

impl Engine {
    pub(super) fn open_session(
        &mut self,
        now: Instant,
        id: SessionId,
        spec: SessionSpec,
        due: Instant,
        reply: Completion<Opened>,
    ) {
        if self.shutdown.is_some() {
            self.act(Action::SessionClosed { session: id });
            self.act(Action::Opened(reply, Err(closed("client"))));
            return;
        }
        let topics: Vec<String> = match &spec.role {
            Role::Producer(producer) => producer.topics.clone(),
            Role::SimpleConsumer(consumer) => consumer.subscriptions.keys().cloned().collect(),
        };
        let publisher = Publisher::new(&spec.role, self.rng.next_u64());
        let session = Session {
            spec,
            state: State::Starting { due, reply },
            settings: Settings::default(),
            routes: BTreeMap::new(),
            links: BTreeMap::new(),
            publisher,
            receiver: Receiver::default(),
        };
        self.sessions.insert(id, session);
        self.timers.arm(Timer::Session(id), due);
        self.timers.arm(Timer::Routes(id), now + ROUTE_PERIOD);
        self.timers.arm(Timer::Settings(id), now + SETTINGS_PERIOD);
        for topic in &topics {
            self.ask_route(now, id, topic);
        }
        self.started(now, id);
    }

    /// Whether a starting session works by now: all its topics have routes, and one endpoint answered Settings.
    fn started(&mut self, _now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if !matches!(session.state, State::Starting { .. }) || session.routes.values().any(|route| !route.known) {
            return;
        }
        let answered = |link: &Telemetry| matches!(link, Telemetry::Open { answered: true, .. });
        if !session.links.is_empty() && !session.links.values().any(answered) {
            return;
        }
        let opened = Opened { max_body_size: session.settings.max_body_size };
        if let State::Starting { reply, .. } = std::mem::replace(&mut session.state, State::Open) {
            self.timers.cancel(Timer::Session(id));
            self.act(Action::Opened(reply, Ok(opened)));
        }
    }

    /// A topic's route could not be had: while starting that counts.
    pub(super) fn route_failed(&mut self, now: Instant, id: SessionId, topic: &str) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(route) = session.routes.get(topic) else { return };
        let (hopeless, failures, error) = (route.hopeless().is_some(), route.failures, route.error.clone());
        if !matches!(session.state, State::Starting { .. }) {
            return;
        }
        if !hopeless && failures < START_ATTEMPTS {
            self.timers.arm(Timer::Pump(id), route.not_before.unwrap_or(now));
            return;
        }
        if let Some(error) = error {
            self.abort(now, id, &error);
        }
    }

    /// `start` failed: nothing of the session stays.
    fn abort(&mut self, now: Instant, id: SessionId, error: &Error) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let State::Starting { reply, .. } = std::mem::replace(&mut session.state, State::Open) {
            self.act(Action::Opened(reply, Err(error.in_context("start"))));
        }
        self.end_session(id, error);
        self.retire_unused(now);
    }

    /// A route names other endpoints than before: streams to the new ones, farewell to those that left.
    pub(super) fn routes_changed(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.is_closing() {
            return;
        }
        let wanted = session.addresses();
        let known: BTreeSet<AddressId> = session.links.keys().copied().collect();
        for address in wanted.difference(&known) {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.links.insert(*address, Telemetry::Resting);
            }
            self.open_stream(now, id, *address);
        }
        // While one topic's route is being asked for, an endpoint may be wanted that no route names yet.
        let settled = self.sessions.get(&id).is_some_and(|session| session.routes.values().all(|route| route.known));
        if settled {
            for address in known.difference(&wanted) {
                self.leave(id, *address);
            }
            self.retire_unused(now);
        }
        self.started(now, id);
    }

    fn leave(&mut self, id: SessionId, address: AddressId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.timers.cancel(Timer::Renew(id, address));
        if let Some(Telemetry::Open { stream, .. }) = session.links.remove(&address) {
            self.streams.remove(&stream);
            self.act(Action::CancelStream { stream });
        }
    }

    /// Opens the stream to an endpoint; Settings are the first thing that is written on it.
    pub(super) fn open_stream(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let Some(link) = self.sessions.get(&id).and_then(|session| session.links.get(&address)) else { return };
        if *link != Telemetry::Resting {
            return;
        }
        let entry = self.entry(now, address);
        let stream = StreamId(self.id());
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.links.insert(address, Telemetry::Open { stream, answered: false });
        let settings = encode(&settings::ours(&session.spec, &self.options));
        self.streams.insert(stream, (id, address));
        self.act(Action::OpenStream { stream, session: id, entry });
        self.act(Action::WriteStream { stream, body: settings });
    }

    /// The channel was replaced: the stream moves to the new one at once.
    pub(super) fn renew_now(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let Some(link) = self.sessions.get_mut(&id).and_then(|session| session.links.get_mut(&address)) else { return };
        if let Telemetry::Open { stream, .. } = *link {
            *link = Telemetry::Resting;
            self.streams.remove(&stream);
            self.act(Action::CancelStream { stream });
        }
        self.timers.cancel(Timer::Renew(id, address));
        self.open_stream(now, id, address);
    }

    pub(super) fn stream_ended(&mut self, now: Instant, stream: StreamId, reason: &str) {
        let Some((id, address)) = self.streams.remove(&stream) else { return };
        let Some(link) = self.sessions.get_mut(&id).and_then(|session| session.links.get_mut(&address)) else { return };
        log::debug!("telemetry ended and is opened again in {RENEW_PAUSE:?}: {reason}");
        *link = Telemetry::Resting;
        self.timers.arm(Timer::Renew(id, address), now + RENEW_PAUSE);
    }

    fn write_settings(&mut self, id: SessionId, address: Option<AddressId>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let body = encode(&settings::ours(&session.spec, &self.options));
        let streams: Vec<StreamId> = session
            .links
            .iter()
            .filter(|(known, _)| address.is_none_or(|address| address == **known))
            .filter_map(|(_, link)| match link {
                Telemetry::Open { stream, .. } => Some(*stream),
                Telemetry::Resting => None,
            })
            .collect();
        for stream in streams {
            self.act(Action::WriteStream { stream, body: body.clone() });
        }
    }

    /// Every five minutes.
    pub(super) fn resend_settings(&mut self, now: Instant, id: SessionId) {
        if self.sessions.contains_key(&id) {
            self.timers.arm(Timer::Settings(id), now + SETTINGS_PERIOD);
            self.write_settings(id, None);
        }
    }

    /// The server does not know the session: it is told at once.
    pub(super) fn settings_missing(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let resting = self
            .sessions
            .get(&id)
            .and_then(|session| session.links.get(&address))
            .is_some_and(|link| *link == Telemetry::Resting);
        if resting {
            self.timers.cancel(Timer::Renew(id, address));
            self.open_stream(now, id, address);
        } else {
            self.write_settings(id, Some(address));
        }
    }

    /// Subscriptions changed: the server is told at once.
    pub(super) fn settings_changed(&mut self, id: SessionId) {
        self.write_settings(id, None);
    }

    /// A command of the server.
    pub(super) fn telemetry(&mut self, now: Instant, stream: StreamId, body: &[u8]) {
        use pb::telemetry_command::Command;
        let Some((id, address)) = self.streams.get(&stream).copied() else { return };
        let command = match pb::TelemetryCommand::parse_from_bytes(body) {
            Ok(command) => command,
            Err(error) => {
                log::warn!("a telemetry command cannot be read and is ignored: {error}");
                return;
            }
        };
        match command.command {
            Some(Command::Settings(theirs)) => {
                if let Err(error) = code::check(command.status.as_ref(), "settings") {
                    self.settings_refused(now, id, &error);
                    return;
                }
                self.settings_answered(now, id, address, stream, &theirs);
            }
            Some(Command::ReconnectEndpointsCommand(_)) => self.reconnect_asked(now, address),
            Some(Command::PrintThreadStackTraceCommand(asked)) => {
                let trace = pb::ThreadStackTrace {
                    nonce: asked.nonce,
                    thread_stack_trace: Some(self.describe_threads()),
                    ..Default::default()
                };
                self.reply(stream, Command::ThreadStackTrace(trace), None);
            }
            Some(Command::VerifyMessageCommand(asked)) => {
                let result = pb::VerifyMessageResult { nonce: asked.nonce, ..Default::default() };
                let status = pb::Status {
                    code: pb::Code::NOT_IMPLEMENTED.into(),
                    message: "only push consumers verify messages".to_owned(),
                    ..Default::default()
                };
                self.reply(stream, Command::VerifyMessageResult(result), Some(status));
            }
            Some(Command::RecoverOrphanedTransactionCommand(_)) => {
                log::warn!("the server asks for the outcome of a transaction: this session has none");
            }
            Some(Command::NotifyUnsubscribeLiteCommand(_)) => {
                log::warn!("the server ended a lite subscription: this session has none");
            }
            Some(_) | None => log::info!("a telemetry command of an unknown kind is ignored"),
        }
    }

    fn reply(&mut self, stream: StreamId, command: pb::telemetry_command::Command, status: Option<pb::Status>) {
        let answer = pb::TelemetryCommand { command: Some(command), status: status.into(), ..Default::default() };
        let body = encode(&answer);
        self.act(Action::WriteStream { stream, body });
    }

    /// The names of our threads and what each has to do.
    fn describe_threads(&self) -> String {
        format!(
            "tmq-rocketmq: {} sessions, {} calls, {} streams\ntmq-grpc-0: waits for completions\n\
             tmq-supervisor: waits for deadlines\ntmq-sweeper: waits for deadlines\ntmq-callback-N: run callbacks\n",
            self.sessions.len(),
            self.calls.len(),
            self.streams.len()
        )
    }

    fn settings_answered(
        &mut self,
        now: Instant,
        id: SessionId,
        address: AddressId,
        stream: StreamId,
        theirs: &pb::Settings,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let before = session.settings.max_body_size;
        session.settings = Settings::of(theirs);
        let max_body_size = session.settings.max_body_size;
        if let Some(link) = session.links.get_mut(&address) {
            *link = Telemetry::Open { stream, answered: true };
        }
        if before != max_body_size {
            self.act(Action::BodyLimit { session: id, max_body_size });
        }
        self.started(now, id);
        self.pump(now, id);
    }

    fn settings_refused(&mut self, now: Instant, id: SessionId, error: &Error) {
        log::error!("the server refuses the session's settings: {error}");
        let starting = self.sessions.get(&id).is_some_and(|session| matches!(session.state, State::Starting { .. }));
        if starting && error.recovery() == Recovery::Never {
            self.abort(now, id, error);
        }
    }

    pub(super) fn close_session(
        &mut self,
        now: Instant,
        id: SessionId,
        flush_until: Instant,
        reply: Option<Completion<()>>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            if let Some(reply) = reply {
                self.act(Action::Done(reply, Ok(())));
            }
            return;
        };
        match &mut session.state {
            State::Closing { flush_until: known, replies } => {
                *known = (*known).min(flush_until);
                replies.extend(reply);
            }
            State::Starting { .. } => {
                let error = closed("client");
                self.abort(now, id, &error);
                if let Some(reply) = reply {
                    self.act(Action::Done(reply, Ok(())));
                }
                return;
            }
            State::Open => session.state = State::Closing { flush_until, replies: reply.into_iter().collect() },
        }
        self.fail_receives(id, &closed("consumer"));
        self.timers.arm(Timer::Session(id), flush_until);
        self.pump(now, id);
        self.check_closed(now, id);
    }

    /// A closing session is over when its sends and operations are.
    pub(super) fn check_closed(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.is_closing() && session.publisher.is_idle() && !self.has_operations(id) {
            self.farewell(now, id);
            self.end_session(id, &closed("client"));
            self.retire_unused(now);
        }
    }

    /// Best effort: nobody waits for the answer.
    fn farewell(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let request = pb::NotifyClientTerminationRequest { group: session.group_resource(), ..Default::default() };
        let body = encode(&request);
        let timeout = session.spec.request_timeout.min(FAREWELL_TIMEOUT);
        let addresses: Vec<AddressId> = session.links.keys().copied().collect();
        for address in addresses {
            self.call(now, id, address, Purpose::Farewell, body.clone(), timeout);
        }
    }

    pub(super) fn session_due(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        match &session.state {
            State::Starting { due, .. } if *due <= now => {
                let last = session.routes.values().find_map(|route| route.error.clone());
                let hint = self.options.access.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                let text = format!("start: no endpoint answered in time{hint}");
                let error = Error::new(ErrorKind::Timeout, text);
                let error = match last {
                    Some(last) => error.with_source(last),
                    None => error,
                };
                self.abort(now, id, &error);
            }
            State::Closing { flush_until, .. } if *flush_until <= now => {
                let error = closed("client");
                self.fail_sends(now, id, &error);
                self.fail_operations(id, &error);
                self.check_closed(now, id);
            }
            State::Starting { due: at, .. } | State::Closing { flush_until: at, .. } => {
                let at = *at;
                self.timers.arm(Timer::Session(id), at);
            }
            State::Open => {}
        }
    }

    /// Removes a session; what it owes is answered with `error`.
    pub(super) fn end_session(&mut self, id: SessionId, error: &Error) {
        self.fail_receives(id, error);
        self.fail_operations(id, error);
        let Some(mut session) = self.sessions.remove(&id) else { return };
        for settled in session.publisher.fail_all(id, error) {
            self.act(Action::Settle(settled));
        }
        for timer in [Timer::Routes(id), Timer::Settings(id), Timer::Session(id), Timer::Due(id), Timer::Pump(id)] {
            self.timers.cancel(timer);
        }
        for (address, link) in session.links {
            self.timers.cancel(Timer::Renew(id, address));
            if let Telemetry::Open { stream, .. } = link {
                self.streams.remove(&stream);
                self.act(Action::CancelStream { stream });
            }
        }
        let left: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| call.session == id && call.purpose != Purpose::Farewell)
            .map(|(call, _)| *call)
            .collect();
        left.into_iter().for_each(|call| self.forget(call));
        self.act(Action::SessionClosed { session: id });
        match session.state {
            State::Starting { reply, .. } => self.act(Action::Opened(reply, Err(error.clone()))),
            State::Open => {}
            State::Closing { replies, .. } => {
                replies.into_iter().for_each(|reply| self.actions.push_back(Action::Done(reply, Ok(()))));
            }
        }
        self.check_shutdown();
    }

    pub(super) fn shut_down(&mut self, now: Instant, flush_until: Instant, reply: Completion<()>) {
        self.shutdown = Some(reply);
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.close_session(now, id, flush_until, None);
        }
        self.check_shutdown();
    }

    pub(super) fn check_shutdown(&mut self) {
        // Farewells are on their way for a short time.
        if !self.sessions.is_empty() || self.calls.values().any(|call| call.purpose == Purpose::Farewell) {
            return;
        }
        if let Some(reply) = self.shutdown.take() {
            self.act(Action::Done(reply, Ok(())));
            self.act(Action::Finished);
        }
    }
}
