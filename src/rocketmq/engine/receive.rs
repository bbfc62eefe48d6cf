//! A simple consumer's subscriptions and receives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Action, Arrived, ReplyOf, Role, SessionId};
use super::operation::Operation;
use super::poll::{Poll, PollKey};
use super::{Engine, Timer, closed};
use crate::error::{Error, ErrorKind};
use crate::pending::Completion;
use crate::rocketmq::wire::pb;

/// What a consumer has under way.
#[derive(Default)]
pub(super) struct Receiver {
    pub(super) polls: BTreeMap<PollKey, Poll>,
    /// Messages of polls that outlived their receive; the next one gets them.
    pub(super) buffer: VecDeque<Kept>,
    pub(super) cursor: usize,
    /// Receives that wait, in the order in which they began.
    waiting: BTreeSet<u64>,
    /// The same, by how long others are not to see what they get.
    asked: BTreeSet<(Duration, u64)>,
}

/// So many receives of one consumer may wait. They share its polls, so that more get nothing sooner, and each end of a
/// poll looks at all of them.
const MOST_RECEIVES: usize = 1_024;

/// A message that waits for a receive.
pub(super) struct Kept {
    pub(super) topic: Arc<str>,
    /// Then it may be visible to others again: they get it instead.
    pub(super) until: Instant,
    pub(super) invisible: Duration,
    pub(super) arrived: Arrived,
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
        let subscribes = filter.is_some();
        let before = match filter {
            Some(filter) => consumer.subscriptions.insert(topic.clone(), filter.clone()).filter(|old| *old != filter),
            None => consumer.subscriptions.remove(&topic),
        };
        if before.is_some() && !mutant!(GivesUnsubscribed) {
            // What comes from here on is of the new subscription, or of none.
            session.receiver.buffer.retain(|kept| *kept.topic != topic);
            let polls = std::mem::take(&mut session.receiver.polls);
            let (ended, polls): (BTreeMap<_, _>, BTreeMap<_, _>) =
                polls.into_iter().partition(|(key, _)| *key.topic == topic);
            session.receiver.polls = polls;
            ended.into_values().for_each(|poll| self.forget(poll.call));
        }
        if !mutant!(SubscriptionsAreToldLater) {
            self.settings_changed(id);
        }
        self.act(Action::Done(reply, Ok(())));
        if subscribes {
            self.ask_route(now, id, &topic);
        } else if let Some(session) = self.sessions.get_mut(&id) {
            session.routes.remove(&topic);
            self.routes_changed(now, id);
        }
        for number in self.receives(id) {
            self.start_polls(now, id, number);
        }
    }

    /// The receives of a consumer, in the order in which they began.
    pub(super) fn receives(&self, id: SessionId) -> Vec<u64> {
        self.sessions.get(&id).into_iter().flat_map(|session| session.receiver.waiting.iter().copied()).collect()
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
        if session.receiver.waiting.len() >= MOST_RECEIVES {
            let text = format!("receive: {MOST_RECEIVES} receives of this consumer wait already");
            self.act(Action::Received { reply, result: Err(Error::new(ErrorKind::WouldBlock, text)) });
            return;
        }
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
        if let Some(session) = self.sessions.get_mut(&id) {
            session.receiver.waiting.insert(operation);
            session.receiver.asked.insert((invisible, operation));
        }
        self.serve_buffer(now, id);
        if !self.operations.contains_key(&operation) {
            return;
        }
        self.end_short_polls(id, invisible);
        // The server may answer a little after the await time that it was given.
        if !mutant!(ReceivesHaveNoEnd) {
            self.timers.arm(Timer::Operation(operation), await_until + session_slack(self, id));
        }
        self.start_polls(now, id, operation);
    }

    /// Polls that nobody waits for any more must not take what a receive cannot have, because it asks for longer.
    fn end_short_polls(&mut self, id: SessionId, invisible: Duration) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let shortest = session.receiver.asked.first().map_or(invisible, |(invisible, _)| *invisible);
        let polls = std::mem::take(&mut session.receiver.polls);
        let (ended, polls): (BTreeMap<_, _>, BTreeMap<_, _>) =
            polls.into_iter().partition(|(key, _)| key.invisible < shortest);
        session.receiver.polls = polls;
        ended.into_values().for_each(|poll| self.forget(poll.call));
    }

    /// Gives buffered messages to the receives that wait longest.
    pub(super) fn serve_buffer(&mut self, now: Instant, id: SessionId) {
        if self.sessions.get(&id).is_none_or(|session| session.receiver.buffer.is_empty()) {
            return;
        }
        for number in self.receives(id) {
            let Some(Operation::Receive { max, invisible, .. }) = self.operations.get(&number) else { continue };
            let (max, invisible) = (*max, *invisible);
            let Some(session) = self.sessions.get_mut(&id) else { return };
            if session.receiver.buffer.is_empty() {
                return;
            }
            let (mut messages, mut left) = (Vec::new(), VecDeque::new());
            for kept in session.receiver.buffer.drain(..).filter(|kept| kept.until > now) {
                if kept.invisible >= invisible && messages.len() < max {
                    if mutant!(GivesTwice) {
                        left.push_back(Kept { arrived: kept.arrived.clone(), ..kept });
                    }
                    messages.push(kept.arrived);
                } else {
                    left.push_back(kept);
                }
            }
            session.receiver.buffer = left;
            if !messages.is_empty() {
                self.end_receive(number, Ok(messages));
            }
        }
    }

    pub(super) fn end_receive(&mut self, number: u64, result: Result<Vec<Arrived>, Error>) {
        self.timers.cancel(Timer::Operation(number));
        self.timers.cancel(Timer::Again(number));
        if let Some(Operation::Receive { session, invisible, reply, .. }) = self.operations.remove(&number) {
            self.not_waiting(session, number, invisible);
            self.act(Action::Received { reply, result });
        }
    }

    /// A receive has its answer.
    pub(super) fn not_waiting(&mut self, id: SessionId, number: u64, invisible: Duration) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.receiver.waiting.remove(&number);
            session.receiver.asked.remove(&(invisible, number));
        }
    }

    /// A receive ends without messages when every poll that it waits for has said so.
    pub(super) fn check_receive(&mut self, id: SessionId, number: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(Operation::Receive { invisible, again, heard, failure, answered, .. }) = self.operations.get(&number)
        else {
            return;
        };
        let polled = |key: &PollKey| key.invisible >= *invisible && !answered.contains(&key.lasting(*invisible));
        let waits = !again.is_empty()
            || session.receiver.polls.keys().any(polled)
            || session.routes.values().any(|route| !route.known && route.hopeless().is_none());
        if waits {
            return;
        }
        let result = match failure {
            Some(error) if !heard => Err(error.clone()),
            _ => Ok(Vec::new()),
        };
        self.end_receive(number, result);
    }

    pub(super) fn fail_receives(&mut self, id: SessionId, error: &Error) {
        for number in self.receives(id) {
            self.end_receive(number, Err(error.clone()));
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let polls = std::mem::take(&mut session.receiver.polls);
        polls.into_values().for_each(|poll| self.forget(poll.call));
    }
}

fn session_slack(engine: &Engine, id: SessionId) -> Duration {
    engine.sessions.get(&id).map_or(Duration::ZERO, |session| session.spec.request_timeout)
}
