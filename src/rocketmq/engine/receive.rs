//! A simple consumer's calls: receive, acknowledge, change the invisible duration.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Action, Arrived, CallEnd, CallId, Handle, ReplyOf, Role, SessionId};
use super::{Engine, Purpose, Timer, closed, malformed, response};
use crate::error::{Error, ErrorKind, Recovery};
use crate::pending::Completion;
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::{code, pb};

/// After the server said that it is too busy; after any other failure.
const THROTTLED_PAUSE: Duration = Duration::from_millis(20);
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// What a poll is for: a broker gives messages of all its queues of a topic to one poll.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PollKey {
    pub topic: String,
    pub broker: String,
    pub address: AddressId,
}

/// What a consumer has under way.
#[derive(Default)]
pub(super) struct Receiver {
    polls: BTreeMap<PollKey, Poll>,
    /// Messages of polls that outlived their receive; the next one gets them.
    buffer: VecDeque<(Instant, Arrived)>,
    cursor: usize,
}

struct Poll {
    call: CallId,
    started: Instant,
    /// As many as it asked for.
    max: usize,
    messages: Vec<Arrived>,
    status: Option<pb::Status>,
    invisible: Duration,
}

pub(super) enum Operation {
    Receive {
        session: SessionId,
        max: usize,
        invisible: Duration,
        /// Until then it waits for messages.
        await_until: Instant,
        reply: ReplyOf<Vec<Arrived>>,
        /// Polls that answered that there is nothing, or failed.
        answered: BTreeSet<PollKey>,
        /// Polls that go again at a time.
        again: BTreeMap<PollKey, Instant>,
        heard: bool,
        failure: Option<Error>,
    },
    Ack {
        session: SessionId,
        due: Instant,
        handles: Vec<Handle>,
        parts: Vec<Part>,
        results: Vec<Option<Result<(), Error>>>,
        reply: Completion<Vec<Result<(), Error>>>,
    },
    Change {
        session: SessionId,
        due: Instant,
        handle: Handle,
        invisible: Duration,
        call: Option<CallId>,
        reply: Completion<String>,
    },
}

/// Handles of one topic and endpoint.
pub(super) struct Part {
    pub indexes: Vec<usize>,
    pub call: Option<CallId>,
    pub done: bool,
}

impl Operation {
    fn session(&self) -> SessionId {
        match self {
            Self::Receive { session, .. } | Self::Ack { session, .. } | Self::Change { session, .. } => *session,
        }
    }
}

impl Engine {
    pub(super) fn subscribe(
        &mut self,
        now: Instant,
        id: SessionId,
        topic: String,
        filter: Option<pb::FilterExpression>,
        reply: Completion<()>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            self.act(Action::Done(reply, Err(closed("consumer"))));
            return;
        };
        let Role::SimpleConsumer(consumer) = &mut session.spec.role else {
            self.act(Action::Done(reply, Err(Error::new(ErrorKind::Misuse, "subscribe: this is no consumer"))));
            return;
        };
        match filter {
            Some(filter) => {
                consumer.subscriptions.insert(topic.clone(), filter);
                self.ask_route(now, id, &topic);
            }
            None => {
                consumer.subscriptions.remove(&topic);
                session.routes.remove(&topic);
                session.receiver.buffer.retain(|(_, message)| message.message.topic.name != topic);
            }
        }
        self.settings_changed(id);
        self.act(Action::Done(reply, Ok(())));
    }

    pub(super) fn receive(
        &mut self,
        now: Instant,
        id: SessionId,
        max: usize,
        invisible: Duration,
        reply: ReplyOf<Vec<Arrived>>,
    ) {
        let Some(session) = self.sessions.get(&id).filter(|session| !session.is_closing()) else {
            self.act(Action::Received { reply, result: Err(closed("consumer")) });
            return;
        };
        let Role::SimpleConsumer(consumer) = &session.spec.role else {
            let error = Error::new(ErrorKind::Misuse, "receive: this is no consumer");
            self.act(Action::Received { reply, result: Err(error) });
            return;
        };
        let await_until = now + consumer.await_duration;
        let operation = self.id();
        let receive = Operation::Receive {
            session: id,
            max,
            invisible,
            await_until,
            reply,
            answered: BTreeSet::new(),
            again: BTreeMap::new(),
            heard: false,
            failure: None,
        };
        self.operations.insert(operation, receive);
        if self.serve_buffer(now, id) {
            return;
        }
        // The server may answer a little after the await time that it was given.
        self.timers.arm(Timer::Operation(operation), await_until + session_slack(self, id));
        self.start_polls(now, id, operation);
    }

    /// Gives buffered messages to the receive that waits longest. Whether there were any.
    fn serve_buffer(&mut self, now: Instant, id: SessionId) -> bool {
        let waiting = self.operations.iter().find_map(|(number, operation)| match operation {
            Operation::Receive { session, max, .. } if *session == id => Some((*number, *max)),
            _ => None,
        });
        let Some((number, max)) = waiting else { return false };
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let buffer = &mut session.receiver.buffer;
        // What has been here for long may be visible to others again: they get it instead.
        buffer.retain(|(until, _)| *until > now);
        if buffer.is_empty() {
            return false;
        }
        let messages: Vec<Arrived> = buffer.drain(..max.min(buffer.len())).map(|(_, message)| message).collect();
        self.end_receive(number, Ok(messages));
        true
    }

    fn end_receive(&mut self, number: u64, result: Result<Vec<Arrived>, Error>) {
        self.timers.cancel(Timer::Operation(number));
        self.timers.cancel(Timer::Again(number));
        if let Some(Operation::Receive { reply, .. }) = self.operations.remove(&number) {
            self.act(Action::Received { reply, result });
        }
    }

    /// Polls every broker of every subscribed topic, each at most once at a time.
    fn start_polls(&mut self, now: Instant, id: SessionId, number: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Role::SimpleConsumer(consumer) = &session.spec.role else { return };
        let topics: Vec<String> = consumer.subscriptions.keys().cloned().collect();
        if topics.is_empty() {
            let error = Error::new(ErrorKind::Misuse, "receive: the consumer has no subscription");
            self.end_receive(number, Err(error));
            return;
        }
        let mut keys = BTreeSet::new();
        let mut unknown = Vec::new();
        let mut failure = None;
        for topic in &topics {
            match session.routes.get(topic) {
                Some(route) if route.known => {
                    keys.extend(route.readable().map(|queue| PollKey {
                        topic: topic.clone(),
                        broker: queue.broker.clone(),
                        address: queue.address,
                    }));
                }
                Some(route) if route.hopeless().is_some() => failure = route.error.clone(),
                _ => unknown.push(topic.clone()),
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
        let mut keys: Vec<PollKey> = keys.into_iter().collect();
        if let Some(session) = self.sessions.get_mut(&id) {
            session.receiver.cursor = session.receiver.cursor.wrapping_add(1);
            let start = session.receiver.cursor % keys.len().max(1);
            keys.rotate_left(start);
        }
        for key in keys {
            self.start_poll(now, id, number, key);
        }
    }

    fn start_poll(&mut self, now: Instant, id: SessionId, number: u64, key: PollKey) {
        let Some(Operation::Receive { max, invisible, await_until, answered, again, .. }) =
            self.operations.get_mut(&number)
        else {
            return;
        };
        if answered.contains(&key) || again.get(&key).is_some_and(|at| *at > now) {
            return;
        }
        again.remove(&key);
        let (max, invisible) = (*max, *invisible);
        let left = await_until.saturating_duration_since(now);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.receiver.polls.contains_key(&key) {
            return; // of an earlier receive: what it brings is for this one
        }
        let Role::SimpleConsumer(consumer) = &session.spec.role else { return };
        let Some(filter) = consumer.subscriptions.get(&key.topic).cloned() else { return };
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
            invisible_duration: protobuf::MessageField::some(invisible.into()),
            long_polling_timeout: protobuf::MessageField::some(left.into()),
            ..Default::default()
        };
        let timeout = left + session.spec.request_timeout;
        let address = key.address;
        let body = encode(&request);
        let call = self.call(now, id, address, Purpose::Poll(key.clone()), body, timeout);
        if let Some(session) = self.sessions.get_mut(&id) {
            let poll = Poll { call, started: now, max, messages: Vec::new(), status: None, invisible };
            session.receiver.polls.insert(key, poll);
        }
    }

    pub(super) fn poll_frame(&mut self, now: Instant, call: CallId, body: Bytes) {
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
        use pb::receive_message_response::Content;
        match pb::ReceiveMessageResponse::parse_from_bytes(&body).map(|frame| frame.content) {
            Ok(Some(Content::Status(status))) => poll.status = Some(status),
            Ok(Some(Content::Message(_))) if poll.messages.len() >= poll.max => {
                // It might go on for ever. What is not taken comes again when its time is over.
                log::warn!("the server gives more messages than were asked for: the receive is broken off");
                self.forget(call);
                self.poll_ended(now, id, &key, CallEnd::StreamOver);
            }
            Ok(Some(Content::Message(message))) => {
                if let Some(endpoints) = endpoints {
                    poll.messages.push(Arrived { message: Box::new(message), endpoints });
                }
            }
            Ok(Some(Content::DeliveryTimestamp(_))) => {}
            Ok(None) => log::debug!("a frame of an unknown kind in the answer to a receive is ignored"),
            Err(error) => log::warn!("a frame in the answer to a receive cannot be read: {error}"),
        }
    }

    pub(super) fn poll_ended(&mut self, now: Instant, id: SessionId, key: &PollKey, end: CallEnd) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(poll) = session.receiver.polls.remove(key) else { return };
        if !poll.messages.is_empty() {
            // Half of the time that others do not see them is for the way and for the user.
            let until = now + poll.invisible / 2;
            let subscribed = match &session.spec.role {
                Role::SimpleConsumer(consumer) => consumer.subscriptions.contains_key(&key.topic),
                Role::Producer(_) => false,
            };
            if subscribed {
                session.receiver.buffer.extend(poll.messages.into_iter().map(|message| (until, message)));
            }
            while self.serve_buffer(now, id) {}
            return;
        }
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
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| matches!(operation, Operation::Receive { session, .. } if *session == id))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let Some(Operation::Receive { answered, again, heard, failure, await_until, .. }) =
                self.operations.get_mut(&number)
            else {
                continue;
            };
            match &outcome {
                Ok(()) => {
                    *heard = true;
                    // One that came back too soon is not repeated at once: it might do so for ever.
                    let at = poll.started + FAILED_PAUSE;
                    if at <= now || at >= *await_until {
                        answered.insert(key.clone());
                    } else {
                        again.insert(key.clone(), at);
                        self.timers.arm(Timer::Again(number), at);
                    }
                }
                Err(error) => {
                    *failure = Some(error.clone());
                    let at = now + pause;
                    if error.recovery() == Recovery::Never || at >= *await_until {
                        answered.insert(key.clone());
                    } else {
                        again.insert(key.clone(), at);
                        self.timers.arm(Timer::Again(number), at);
                    }
                }
            }
            self.check_receive(now, id, number);
        }
    }

    /// A receive ends without messages when every poll that it waits for has said so.
    fn check_receive(&mut self, now: Instant, id: SessionId, number: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(Operation::Receive { again, heard, failure, answered, await_until, .. }) =
            self.operations.get(&number)
        else {
            return;
        };
        let waits = !again.is_empty() || session.receiver.polls.keys().any(|key| !answered.contains(key));
        if waits {
            return;
        }
        // Shorter than it was asked to: an earlier receive's poll. There is time for another.
        if *heard && failure.is_none() && *await_until > now + FAILED_PAUSE {
            if let Some(Operation::Receive { answered, .. }) = self.operations.get_mut(&number) {
                answered.clear();
            }
            self.start_polls(now, id, number);
            return;
        }
        let result = match failure {
            Some(error) if !heard => Err(error.clone()),
            _ => Ok(Vec::new()),
        };
        self.end_receive(number, result);
    }

    pub(super) fn fail_receives(&mut self, id: SessionId, error: &Error) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| matches!(operation, Operation::Receive { session, .. } if *session == id))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.end_receive(number, Err(error.clone()));
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let polls = std::mem::take(&mut session.receiver.polls);
        polls.into_values().for_each(|poll| self.forget(poll.call));
    }

    /// Routes came, or a receive's pause is over.
    pub(super) fn resume_operations(&mut self, now: Instant, id: SessionId) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.session() == id)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.operation_again(now, number);
        }
    }

    pub(super) fn operation_again(&mut self, now: Instant, number: u64) {
        match self.operations.get(&number) {
            Some(Operation::Receive { session, .. }) => {
                let id = *session;
                self.start_polls(now, id, number);
            }
            Some(Operation::Ack { parts, .. }) => {
                for part in 0..parts.len() {
                    self.start_ack(now, number, part);
                }
            }
            Some(Operation::Change { .. }) => self.start_change(now, number),
            None => {}
        }
    }

    pub(super) fn operation_due(&mut self, now: Instant, number: u64) {
        match self.operations.get(&number) {
            Some(Operation::Receive { session, heard, failure, .. }) => {
                // Silence is no empty queue. What comes slowly is none: the next receive gets it.
                let polls = self.sessions.get(session).into_iter().flat_map(|session| session.receiver.polls.values());
                let coming = polls.into_iter().any(|poll| poll.status.is_some() || !poll.messages.is_empty());
                let silence = || Error::new(ErrorKind::Timeout, "receive: no server answered in time");
                let result = match failure {
                    _ if *heard || coming => Ok(Vec::new()),
                    Some(error) => Err(error.clone()),
                    None => Err(silence()),
                };
                self.end_receive(number, result);
            }
            Some(operation) => {
                let id = operation.session();
                let error = Error::new(ErrorKind::Timeout, "the server did not answer in time");
                self.end_operation(number, &error);
                self.check_closed(now, id);
            }
            None => {}
        }
    }

    /// Answers an operation; what it has no result for gets `error`.
    pub(super) fn end_operation(&mut self, number: u64, error: &Error) {
        self.timers.cancel(Timer::Operation(number));
        self.timers.cancel(Timer::Again(number));
        match self.operations.remove(&number) {
            Some(Operation::Ack { parts, results, reply, .. }) => {
                parts.into_iter().filter_map(|part| part.call).for_each(|call| self.forget(call));
                let results = results.into_iter().map(|result| result.unwrap_or_else(|| Err(error.clone()))).collect();
                self.act(Action::Acked(reply, Ok(results)));
            }
            Some(Operation::Change { call, reply, .. }) => {
                call.into_iter().for_each(|call| self.forget(call));
                self.act(Action::Changed(reply, Err(error.clone())));
            }
            Some(Operation::Receive { reply, .. }) => {
                self.act(Action::Received { reply, result: Err(error.clone()) });
            }
            None => {}
        }
    }

    pub(super) fn has_operations(&self, id: SessionId) -> bool {
        self.operations.values().any(|operation| operation.session() == id)
    }

    pub(super) fn fail_operations(&mut self, id: SessionId, error: &Error) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.session() == id)
            .map(|(number, _)| *number)
            .collect();
        numbers.into_iter().for_each(|number| self.end_operation(number, error));
    }
}

fn session_slack(engine: &Engine, id: SessionId) -> Duration {
    engine.sessions.get(&id).map_or(Duration::ZERO, |session| session.spec.request_timeout)
}
