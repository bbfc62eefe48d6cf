//! Sessions: opened when an endpoint works, closed after their sends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::addresses::{AddressId, encode};
use super::event::{Action, Opened, Role, SessionId, SessionSpec, StreamId};
use super::publisher::Publisher;
use super::receive::Receiver;
use super::route::{ROUTE_PERIOD, Route};
use super::settings::Settings;
use super::{Engine, Purpose, Timer, closed};
use crate::error::{Error, ErrorKind};
use crate::pending::Completion;
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::pb;

/// Settings are sent again so often.
pub(super) const SETTINGS_PERIOD: Duration = Duration::from_secs(300);
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
    pub(super) fn started(&mut self, _now: Instant, id: SessionId) {
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
    pub(super) fn abort(&mut self, now: Instant, id: SessionId, error: &Error) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let State::Starting { reply, .. } = std::mem::replace(&mut session.state, State::Open) {
            self.act(Action::Opened(reply, Err(error.in_context("start"))));
        }
        self.end_session(id, error);
        self.retire_unused(now);
        self.check_shutdown();
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
            self.check_shutdown();
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
                let text = format!("no endpoint answered in time; {}", self.options.access.hint());
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

    /// Removes a session; what it owes is answered with `error`. Its channels may go then, and with the last one the
    /// client.
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
                if mutant!(ClosedKeepsItsStreams) {
                    continue;
                }
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
    }

    pub(super) fn shut_down(&mut self, now: Instant, flush_until: Instant, reply: Completion<()>) {
        self.shutdown.get_or_insert_default().push(reply);
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.close_session(now, id, flush_until, None);
        }
        self.check_shutdown();
    }

    pub(super) fn check_shutdown(&mut self) {
        // Farewells are on their way for a short time.
        if self.shutdown.is_none()
            || !self.sessions.is_empty()
            || self.calls.values().any(|call| call.purpose == Purpose::Farewell)
        {
            return;
        }
        if let Some(replies) = self.shutdown.take() {
            replies.into_iter().for_each(|reply| self.act(Action::Done(reply, Ok(()))));
            self.act(Action::Finished);
        }
    }
}
