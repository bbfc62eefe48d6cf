//! Polls: one at a time for each topic and broker, shared by the receives of a consumer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Arrived, CallEnd, CallId, Role, SessionId};
use super::operation::Operation;
use super::receive::Kept;
use super::{Engine, Purpose, Timer, malformed, response};
use crate::error::{Error, ErrorKind, Recovery};
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::{code, frame, pb};

/// After the server said that it is too busy; after any other failure.
const THROTTLED_PAUSE: Duration = Duration::from_millis(20);
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Polls of a broker that find nothing start no closer together than this.
const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// Servers refuse a poll whose call has less time than this.
const SHORTEST_POLL: Duration = Duration::from_secs(5);

/// What a poll is for: a broker gives messages of all its queues of a topic to one poll.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PollKey {
    pub topic: Arc<str>,
    pub broker: String,
    pub address: AddressId,
    /// For how long others do not see what it brings. It is for receives that ask for so long or less.
    pub invisible: Duration,
}

impl PollKey {
    /// The same for a receive that asks for another duration.
    pub(super) fn lasting(&self, invisible: Duration) -> Self {
        Self { invisible, ..self.clone() }
    }
}

pub(super) struct Poll {
    pub call: CallId,
    started: Instant,
    /// As many as it asked for.
    max: usize,
    messages: Vec<Arrived>,
    status: Option<pb::Status>,
}

impl Poll {
    /// The server has begun to answer.
    pub(super) fn has_begun(&self) -> bool {
        self.status.is_some() || !self.messages.is_empty()
    }
}

impl Engine {
    /// Polls every broker of every subscribed topic, each at most once at a time.
    pub(super) fn start_polls(&mut self, now: Instant, id: SessionId, number: u64) {
        let Some(Operation::Receive { invisible, .. }) = self.operations.get(&number) else { return };
        let invisible = *invisible;
        let Some(session) = self.sessions.get(&id) else { return };
        let Role::SimpleConsumer(consumer) = &session.spec.role else { return };
        let topics: Vec<Arc<str>> = consumer.subscriptions.keys().map(|topic| Arc::from(topic.as_str())).collect();
        if topics.is_empty() {
            let error = Error::new(ErrorKind::Misuse, "receive: the consumer has no subscription");
            self.end_receive(number, Err(error));
            return;
        }
        let mut keys = BTreeSet::new();
        let mut unknown = Vec::new();
        let mut failure = None;
        for topic in &topics {
            match session.routes.get(&**topic) {
                Some(route) if route.known => {
                    keys.extend(route.readable().map(|queue| PollKey {
                        topic: Arc::clone(topic),
                        broker: queue.broker.clone(),
                        address: queue.address,
                        invisible,
                    }));
                }
                Some(route) if route.hopeless().is_some() => failure = route.error.clone(),
                _ => unknown.push(Arc::clone(topic)),
            }
        }
        for topic in &unknown {
            self.ask_route(now, id, topic);
        }
        if keys.is_empty() && unknown.is_empty() {
            let text = "receive: no queue can be read";
            let error = failure.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, text));
            self.end_receive(number, Err(error.in_context("receive")));
            return;
        }
        if let Some(Operation::Receive { again, answered, .. }) = self.operations.get_mut(&number) {
            again.retain(|key, _| keys.contains(key) && !answered.contains(key));
        }
        let mut keys: Vec<PollKey> = keys.into_iter().collect();
        if let Some(session) = self.sessions.get_mut(&id) {
            session.receiver.cursor = session.receiver.cursor.wrapping_add(1);
            let start = session.receiver.cursor % keys.len().max(1);
            keys.rotate_left(start);
        }
        keys.truncate(if mutant!(PollsOneBroker) { 1 } else { usize::MAX });
        for key in keys {
            self.start_poll(now, id, number, key);
        }
        if let Some(Operation::Receive { again, .. }) = self.operations.get(&number) {
            if let Some(at) = again.values().min() {
                self.timers.arm(Timer::Again(number), *at);
            }
        }
        self.check_receive(id, number);
    }

    fn start_poll(&mut self, now: Instant, id: SessionId, number: u64, key: PollKey) {
        let Some(Operation::Receive { max, await_until, answered, again, .. }) = self.operations.get_mut(&number)
        else {
            return;
        };
        if answered.contains(&key) || again.get(&key).is_some_and(|at| *at > now) {
            return;
        }
        again.remove(&key);
        let max = *max;
        let left = await_until.saturating_duration_since(now);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let longer = session.receiver.polls.range(key.clone()..).next();
        if longer.is_some_and(|(other, _)| other.lasting(key.invisible) == key) {
            return; // of an earlier receive: what it brings is for this one
        }
        if left + session.spec.request_timeout < SHORTEST_POLL {
            // What is left of the receive is not worth a refusal.
            if let Some(Operation::Receive { answered, .. }) = self.operations.get_mut(&number) {
                answered.insert(key);
            }
            return;
        }
        let Role::SimpleConsumer(consumer) = &session.spec.role else { return };
        let Some(filter) = consumer.subscriptions.get(&*key.topic).cloned() else { return };
        let namespace = &session.spec.namespace;
        let queue = pb::MessageQueue {
            topic: resource(namespace, &key.topic),
            // Any queue of the broker.
            id: -1,
            broker: protobuf::MessageField::some(pb::Broker { name: key.broker.clone(), ..Default::default() }),
            ..Default::default()
        };
        let request = pb::ReceiveMessageRequest {
            group: resource(namespace, &consumer.group),
            message_queue: protobuf::MessageField::some(queue),
            filter_expression: protobuf::MessageField::some(filter),
            batch_size: i32::try_from(max).unwrap_or(i32::MAX),
            invisible_duration: protobuf::MessageField::some(key.invisible.into()),
            long_polling_timeout: protobuf::MessageField::some(left.into()),
            ..Default::default()
        };
        let timeout = left + session.spec.request_timeout;
        let address = key.address;
        let body = encode(&request);
        let call = self.call(now, id, address, Purpose::Poll(key.clone()), body, timeout);
        if let Some(session) = self.sessions.get_mut(&id) {
            let poll = Poll { call, started: now, max, messages: Vec::new(), status: None };
            session.receiver.polls.insert(key, poll);
        }
    }

    pub(super) fn poll_frame(&mut self, now: Instant, call: CallId, frame: Bytes) {
        let Some((id, key)) = self.calls.get(&call).and_then(|known| match &known.purpose {
            Purpose::Poll(key) => Some((known.session, key.clone())),
            _ => None,
        }) else {
            return;
        };
        let endpoints = self.addresses.endpoints(key.address).cloned();
        let Some(poll) = self.sessions.get_mut(&id).and_then(|session| session.receiver.polls.get_mut(&key)) else {
            return;
        };
        if frame::is_message(&frame) {
            if poll.messages.len() >= poll.max {
                // It might go on for ever. What is not taken comes again when its time is over.
                log::warn!("the server gives more messages than were asked for: the receive is broken off");
                self.forget(call);
                self.poll_ended(now, id, &key, CallEnd::StreamOver);
            } else if let Some(endpoints) = endpoints {
                poll.messages.push(Arrived { frame, endpoints });
            }
            return;
        }
        use pb::receive_message_response::Content;
        match pb::ReceiveMessageResponse::parse_from_bytes(&frame).map(|frame| frame.content) {
            Ok(Some(Content::Status(status))) => poll.status = Some(status),
            Ok(Some(Content::Message(_) | Content::DeliveryTimestamp(_))) => {}
            Ok(None) => log::debug!("a frame of an unknown kind in the answer to a receive is ignored"),
            Err(error) => log::warn!("a frame in the answer to a receive cannot be read: {error}"),
        }
    }

    pub(super) fn poll_ended(&mut self, now: Instant, id: SessionId, key: &PollKey, end: CallEnd) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(poll) = session.receiver.polls.remove(key) else { return };
        if !poll.messages.is_empty() {
            // Half of the time that others do not see them is for the way and for the user.
            let until = now + key.invisible / 2;
            let keep = |arrived| Kept { topic: Arc::clone(&key.topic), until, invisible: key.invisible, arrived };
            let kept = poll.messages.into_iter().map(keep);
            session.receiver.buffer.extend(kept);
            self.serve_buffer(now, id);
            // Those that got nothing wait on.
            for number in self.receives(id) {
                self.start_polls(now, id, number);
            }
            return;
        }
        let request_timeout = session.spec.request_timeout;
        let what = format!("receive from {}", key.topic);
        let outcome = match end {
            CallEnd::StreamOver => match &poll.status {
                Some(status) if code::is_nothing_found(status.code.value()) => Ok(()),
                Some(status) => code::check(Some(status), &what),
                None => Err(malformed(&what, "it has no status")),
            },
            CallEnd::NotStarted(fault) => Err(fault.error(&what)),
            CallEnd::Cancelled => {
                Err(Error::new(ErrorKind::Unavailable, format!("{what}: the connection was replaced")))
            }
            end => response(end, &what).map(|_| ()),
        };
        if outcome.as_ref().is_err_and(|error| error.code().is_some_and(code::is_settings_missing)) {
            self.settings_missing(now, id, key.address);
        }
        let pause = match &outcome {
            Err(error) if error.kind() == ErrorKind::Throttled => THROTTLED_PAUSE,
            _ => FAILED_PAUSE,
        };
        for number in self.receives(id) {
            let Some(Operation::Receive { invisible, answered, again, heard, failure, await_until, .. }) =
                self.operations.get_mut(&number)
            else {
                continue;
            };
            if *invisible > key.invisible {
                continue;
            }
            let key = key.lasting(*invisible);
            let at = match &outcome {
                Ok(()) => {
                    *heard = true;
                    // It was shorter than this receive waits: an earlier one's, or cut short by the server.
                    let at = now.max(poll.started + EMPTY_PAUSE);
                    let left = await_until.saturating_duration_since(at) + request_timeout;
                    (left >= SHORTEST_POLL && !mutant!(PollsOnce)).then_some(at)
                }
                Err(error) => {
                    *failure = Some(error.clone());
                    (error.recovery() != Recovery::Never).then_some(now + pause)
                }
            };
            match at.filter(|at| *at < *await_until) {
                Some(at) => drop(again.insert(key, at)),
                None => drop(answered.insert(key)),
            }
            self.start_polls(now, id, number);
        }
    }
}
