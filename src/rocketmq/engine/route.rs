//! Where a topic's queues are: asked for at the access point, again every 30 s.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Action, CallEnd, SessionId};
use super::{Engine, Purpose, Timer, malformed, response, with_hint};
use crate::error::{Error, ErrorKind, Recovery};
use crate::pending::Completion;
use crate::rocketmq::message::resource;
use crate::rocketmq::topic::TopicQueue;
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::{code, pb};

/// Between refreshes.
pub(super) const ROUTE_PERIOD: Duration = Duration::from_secs(30);
/// The server's own codes have five digits, those of gRPC two.
const SERVER_CODES: i32 = 10_000;
/// After a failure that may pass.
const ROUTE_PAUSE: Duration = Duration::from_secs(1);

/// A queue of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Queue {
    pub id: i32,
    pub broker: String,
    pub broker_id: i32,
    pub address: AddressId,
    pub readable: bool,
    pub writable: bool,
    pub accepts: Vec<pb::MessageType>,
}

/// What is known of a topic.
#[derive(Debug, Default)]
pub(super) struct Route {
    pub queues: Vec<Queue>,
    /// How many endpoints its writable queues have.
    endpoints: usize,
    /// A query is out.
    pub asked: bool,
    /// It was answered well at least once.
    pub known: bool,
    /// Failures in a row, and the last of them.
    pub failures: u32,
    pub error: Option<Error>,
    /// Not asked for again before.
    pub not_before: Option<Instant>,
}

impl Route {
    /// Queues that take messages: of the brokers' masters.
    pub(super) fn writable(&self) -> impl Iterator<Item = &Queue> + Clone {
        self.queues.iter().filter(|queue| queue.writable && queue.broker_id == 0)
    }

    /// How many endpoints the writable queues have.
    pub(super) fn endpoints(&self) -> usize {
        self.endpoints
    }

    fn set_queues(&mut self, queues: Vec<Queue>) {
        self.queues = queues;
        self.endpoints = self.writable().map(|queue| queue.address).collect::<BTreeSet<_>>().len();
    }

    pub(super) fn readable(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().filter(|queue| queue.readable && queue.broker_id == 0)
    }

    /// No retry changes this.
    pub(super) fn hopeless(&self) -> Option<&Error> {
        self.error.as_ref().filter(|error| !self.known && error.recovery() == Recovery::Never)
    }
}

impl Engine {
    /// Asks for a topic's route, unless it is being asked for.
    pub(super) fn ask_route(&mut self, now: Instant, id: SessionId, topic: &str) {
        let access = self.options.access.clone();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let route = session.routes.entry(topic.to_owned()).or_default();
        if route.asked {
            return;
        }
        if let Some(at) = route.not_before.filter(|at| *at > now) {
            self.timers.arm(Timer::Pump(id), at);
            return;
        }
        route.asked = true;
        let request = pb::QueryRouteRequest {
            topic: resource(&session.spec.namespace, topic),
            endpoints: protobuf::MessageField::some(access.to_proto()),
            ..Default::default()
        };
        let timeout = session.spec.request_timeout;
        let address = self.addresses.number(&access);
        let purpose = Purpose::Route(topic.to_owned());
        self.call(now, id, address, purpose, encode(&request), timeout);
    }

    pub(super) fn route_answered(&mut self, now: Instant, id: SessionId, topic: &str, end: CallEnd) {
        let cut_off = end == CallEnd::Cancelled;
        let answer = self.parse_route(topic, end).map_err(|error| self.explain(error, topic));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(route) = session.routes.get_mut(topic) else { return };
        route.asked = false;
        if cut_off && !mutant!(CutOffRoutesCount) {
            // By a replacement: nobody refused anything, and the new channel is there.
            self.ask_route(now, id, topic);
            return;
        }
        match answer {
            Ok(queues) => {
                route.failures = 0;
                route.error = None;
                route.not_before = None;
                route.known = true;
                route.set_queues(queues);
                self.routes_changed(now, id);
            }
            Err(error) => {
                log::debug!("route of {topic}: {error}");
                route.failures = route.failures.saturating_add(1);
                route.error = Some(error);
                route.not_before = Some(now + ROUTE_PAUSE);
                self.route_failed(now, id, topic);
            }
        }
        self.pump(now, id);
        self.resume_operations(now, id);
    }

    /// What to do about a failure that users meet first.
    fn explain(&self, error: Error, topic: &str) -> Error {
        let server_spoke = error.code().is_some_and(|code| code >= SERVER_CODES);
        if error.code() == Some(pb::Code::TOPIC_NOT_FOUND as i32) {
            let hint = format!(
                "topics are not created through gRPC: create it with mqadmin updateTopic -n <name server> \
                 -c <cluster> -t {topic} -a +message.type=NORMAL (or FIFO, DELAY)"
            );
            with_hint(error, &hint)
        } else if !server_spoke && self.addresses_unproved() {
            with_hint(error, &self.options.access.hint())
        } else {
            error
        }
    }

    pub(super) fn describe(&mut self, id: SessionId, topic: &str, reply: Completion<Vec<TopicQueue>>) {
        let route = self.sessions.get(&id).and_then(|session| session.routes.get(topic));
        let queue = |queue: &Queue| TopicQueue {
            id: queue.id,
            broker: queue.broker.clone(),
            endpoints: self.addresses.endpoints(queue.address).map(ToString::to_string).unwrap_or_default(),
            readable: queue.readable,
            writable: queue.writable,
            accepts: queue.accepts.iter().map(|kind| format!("{kind:?}")).collect(),
        };
        let result = match route.filter(|route| route.known) {
            Some(route) => Ok(route.queues.iter().map(queue).collect()),
            None => Err(Error::new(ErrorKind::NotFound, format!("topic {topic}: no route is known"))),
        };
        self.act(Action::Described(reply, result));
    }

    /// No route was ever had: what is at the access point may be no proxy.
    fn addresses_unproved(&self) -> bool {
        !self.sessions.values().any(|session| session.routes.values().any(|route| route.known))
    }

    fn parse_route(&mut self, topic: &str, end: CallEnd) -> Result<Vec<Queue>, Error> {
        let what = format!("route of {topic}");
        let body = response(end, &what)?;
        let answer = pb::QueryRouteResponse::parse_from_bytes(&body).map_err(|error| malformed(&what, error))?;
        code::check(answer.status.as_ref(), &what)?;
        let mut queues = Vec::with_capacity(answer.message_queues.len());
        for queue in &answer.message_queues {
            let Some(broker) = queue.broker.as_ref() else { continue };
            let endpoints = match broker.endpoints.as_ref().map(Endpoints::from_proto) {
                Some(Ok(endpoints)) => endpoints,
                Some(Err(error)) => return Err(malformed(&what, error)),
                None => continue,
            };
            let permission = queue.permission.enum_value_or_default();
            queues.push(Queue {
                id: queue.id,
                broker: broker.name.clone(),
                broker_id: broker.id,
                address: self.addresses.number(&endpoints),
                readable: matches!(permission, pb::Permission::READ | pb::Permission::READ_WRITE),
                writable: matches!(permission, pb::Permission::WRITE | pb::Permission::READ_WRITE),
                accepts: queue.accept_message_types.iter().map(|kind| kind.enum_value_or_default()).collect(),
            });
        }
        if queues.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("{what}: it has no queues")));
        }
        Ok(queues)
    }

    /// Every 30 s: all routes again. The servers are told the settings again too: one may have refused them.
    pub(super) fn refresh_routes(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let topics: Vec<String> = session.routes.keys().cloned().collect();
        self.timers.arm(Timer::Routes(id), now + ROUTE_PERIOD);
        self.settings_changed(id);
        for topic in topics {
            self.ask_route(now, id, &topic);
        }
    }
}
