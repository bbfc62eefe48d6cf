//! Calls of users that take a while: each ends in an answer by its deadline.

use std::collections::BTreeSet;
use std::time::Instant;

use super::Engine;
use super::attachment::{FIRST_PAUSE, Owner, Phase};
use super::consumer::ConsumerState;
use super::event::{Action, Answer, ConsumerId, DeadlineKey, LaneId, ProducerId};
use super::lookup::Asker;
use super::producer::{ProducerState, client_closed};
use super::requests::Purpose;
use crate::error::{Delivery, Error, ErrorKind, Recovery};
use crate::pending::Completion;
use crate::policy::backoff::Backoff;

/// What a watched operation is about; its deadlines live where its state does.
pub(super) enum Operation {
    Partitions(PartitionsCall),
    Producer(ProducerId),
    Consumer(ConsumerId),
    Shutdown,
}

pub(super) struct PartitionsCall {
    topic: String,
    due: Instant,
    reply: Completion<u32>,
    backoff: Backoff,
    /// Waiting for the next try.
    resting: Option<Instant>,
    last_error: Option<Error>,
}

pub(super) struct Shutdown {
    due: Instant,
    /// Those that wait for it.
    replies: Vec<Completion<()>>,
    finished: bool,
}

impl Engine {
    pub(super) fn new_operation(&mut self, operation: Operation, at: Instant) -> u64 {
        self.next_operation += 1;
        let id = self.next_operation;
        self.operations.insert(id, operation);
        self.watch(DeadlineKey::Operation(id), at);
        id
    }

    pub(super) fn operation_due(&mut self, now: Instant, id: u64) {
        match self.operations.get_mut(&id) {
            Some(Operation::Partitions(_)) => self.partitions_due(now, id),
            Some(Operation::Producer(producer)) => {
                let producer = *producer;
                self.operations.remove(&id);
                self.producer_due(now, producer);
            }
            Some(Operation::Consumer(consumer)) => {
                let consumer = *consumer;
                self.operations.remove(&id);
                self.consumer_due(now, consumer);
            }
            Some(Operation::Shutdown) => {
                self.operations.remove(&id);
                self.shutdown_due(now);
            }
            None => {}
        }
    }

    // Partitions of a topic.

    pub(super) fn ask_partitions(&mut self, now: Instant, topic: String, due: Instant, reply: Completion<u32>) {
        if self.shutdown.is_some() {
            self.act(Action::Answer(Answer::Partitions(reply, Err(client_closed()))));
            return;
        }
        let backoff = Backoff::new(FIRST_PAUSE, super::attachment::LONGEST_PAUSE_UNDER_SENDS);
        let call = PartitionsCall { topic: topic.clone(), due, reply, backoff, resting: None, last_error: None };
        let id = self.new_operation(Operation::Partitions(call), due);
        self.start_lookup(now, Asker::Partitions(id), topic);
    }

    pub(super) fn partitions_known(&mut self, id: u64, partitions: u32) {
        if let Some(Operation::Partitions(call)) = self.operations.remove(&id) {
            self.act(Action::Answer(Answer::Partitions(call.reply, Ok(partitions))));
        }
    }

    pub(super) fn partitions_failed(&mut self, now: Instant, id: u64, error: &Error) {
        use super::retry::{Attempt, Verdict, verdict};
        let Some(Operation::Partitions(call)) = self.operations.get_mut(&id) else { return };
        let final_error = match error.code() {
            Some(code) => matches!(verdict(code, Attempt::Lookup), Verdict::Fail | Verdict::Stop),
            None => error.recovery() == Recovery::Never,
        };
        if final_error {
            if let Some(Operation::Partitions(call)) = self.operations.remove(&id) {
                self.act(Action::Answer(Answer::Partitions(call.reply, Err(error.clone()))));
            }
            return;
        }
        let at = now + call.backoff.next(&mut self.rng);
        call.resting = Some(at);
        call.last_error = Some(error.clone());
        self.watch(DeadlineKey::Operation(id), at);
    }

    /// A try is not over, but something went wrong in it.
    pub(super) fn partitions_delayed(&mut self, id: u64, error: &Error) {
        if let Some(Operation::Partitions(call)) = self.operations.get_mut(&id) {
            call.last_error = Some(error.clone());
        }
    }

    fn partitions_due(&mut self, now: Instant, id: u64) {
        let Some(Operation::Partitions(call)) = self.operations.get_mut(&id) else { return };
        if now >= call.due {
            self.forget_lookups(Asker::Partitions(id));
            if let Some(Operation::Partitions(call)) = self.operations.remove(&id) {
                let error = operation_timeout(&format!("partitions of {}", call.topic), call.last_error.as_ref());
                self.act(Action::Answer(Answer::Partitions(call.reply, Err(error))));
            }
        } else if call.resting.is_some_and(|at| now >= at) {
            call.resting = None;
            let (topic, due) = (call.topic.clone(), call.due);
            self.start_lookup(now, Asker::Partitions(id), topic);
            self.watch(DeadlineKey::Operation(id), due);
        } else {
            let at = call.resting.map_or(call.due, |at| at.min(call.due));
            self.watch(DeadlineKey::Operation(id), at);
        }
    }

    // Opening.

    /// An owner that was never attached cannot be: the call that wanted it fails.
    pub(super) fn creation_failed(&mut self, now: Instant, owner: Owner, error: &Error) {
        match owner {
            Owner::Lane(lane) => {
                if let Some(producer) = self.lanes.get(&lane).map(|lane| lane.producer) {
                    self.abort_producer(now, producer, error);
                }
            }
            Owner::Part(part) => {
                if let Some(consumer) = self.parts.get(&part).map(|part| part.consumer) {
                    self.abort_consumer(now, consumer, error);
                }
            }
        }
    }

    fn producer_due(&mut self, now: Instant, id: ProducerId) {
        let Some(producer) = self.producers.get(&id) else { return };
        match &producer.state {
            ProducerState::Opening { due, .. } if now >= *due => {
                let stuck = producer.lanes.iter().find_map(|lane| {
                    let lane = self.lanes.get(lane)?;
                    (!lane.attachment.is_open()).then(|| (lane.topic.clone(), lane.attachment.last_error.clone()))
                });
                let (topic, last) = stuck.unwrap_or_default();
                let error = operation_timeout(&format!("producer on {topic}"), last.as_ref());
                self.abort_producer(now, id, &error);
            }
            ProducerState::Opening { due, .. } => {
                let due = *due;
                self.new_operation(Operation::Producer(id), due);
            }
            ProducerState::Open => {}
            ProducerState::Closing { flush_until, due, .. } => {
                let (flush_until, due) = (*flush_until, *due);
                if now >= due {
                    self.answer_closed(now, id);
                    self.producer_gone(id);
                } else if now >= flush_until {
                    self.answer_closed(now, id);
                    if self.producers.contains_key(&id) {
                        self.new_operation(Operation::Producer(id), due);
                    }
                } else {
                    self.new_operation(Operation::Producer(id), flush_until);
                }
            }
        }
    }

    // Closing producers.

    pub(super) fn close_producer(
        &mut self,
        now: Instant,
        id: ProducerId,
        flush_until: Instant,
        due: Instant,
        reply: Option<Completion<()>>,
    ) {
        let Some(producer) = self.producers.get_mut(&id) else {
            if let Some(reply) = reply {
                self.act(Action::Answer(Answer::Done(reply, Ok(()))));
            }
            return;
        };
        match &mut producer.state {
            ProducerState::Closing { flush_until: earlier, due: earlier_due, replies } => {
                *earlier = flush_until.min(*earlier);
                *earlier_due = due.min(*earlier_due);
                replies.extend(reply);
            }
            state => {
                let closing = ProducerState::Closing { flush_until, due, replies: reply.into_iter().collect() };
                if let ProducerState::Opening { reply, .. } = std::mem::replace(state, closing) {
                    self.act(Action::Answer(Answer::ProducerOpened(reply, Err(client_closed()))));
                }
            }
        }
        self.new_operation(Operation::Producer(id), flush_until);
        self.flush_producer(now, id);
        self.leave_if_quiet(now, id);
    }

    /// What has no result by the end of the flush gets `Closed`.
    fn answer_closed(&mut self, now: Instant, id: ProducerId) {
        let Some(producer) = self.producers.get(&id) else { return };
        for lane in producer.lanes.clone() {
            let Some(state) = self.lanes.get_mut(&lane) else { continue };
            let text = format!("the producer on {} was closed before the message was acknowledged", state.topic);
            let mut settled = Vec::new();
            state.fail_all(&Error::new(ErrorKind::Closed, text), &mut settled);
            self.settle(now, lane, settled);
        }
        self.leave_if_quiet(now, id);
    }

    /// Results of a lane were fixed: a producer that closes may be done with its flush.
    pub(super) fn lane_quiet(&mut self, now: Instant, lane: LaneId) {
        if let Some(producer) = self.lanes.get(&lane).map(|lane| lane.producer) {
            self.leave_if_quiet(now, producer);
        }
    }

    fn leave_if_quiet(&mut self, now: Instant, id: ProducerId) {
        let Some(producer) = self.producers.get(&id) else { return };
        let ProducerState::Closing { .. } = producer.state else { return };
        let lanes = producer.lanes.clone();
        if lanes.iter().any(|lane| self.lanes.get(lane).is_some_and(|lane| !lane.is_idle())) {
            return;
        }
        let asked = self.requests.values().filter_map(|request| match request.purpose {
            Purpose::CloseLane(lane) => Some(lane),
            _ => None,
        });
        let asked: BTreeSet<LaneId> = asked.collect();
        for lane in lanes {
            let ended = self.lanes.get(&lane).is_none_or(|lane| lane.attachment.phase == Phase::Ended);
            if !asked.contains(&lane) && (ended || !self.leave_lane(now, lane, Purpose::CloseLane(lane))) {
                self.lane_left(now, lane);
            }
        }
    }

    /// Tells the broker, if it has one, that the lane closes. Whether an answer is awaited.
    pub(super) fn leave_lane(&mut self, now: Instant, id: LaneId, purpose: Purpose) -> bool {
        let Some(lane) = self.lanes.get(&id) else { return false };
        let phase = lane.attachment.phase;
        self.end_attachment(Owner::Lane(id));
        match phase {
            Phase::Open { link } => {
                self.send_close_producer(now, link, id, purpose);
                true
            }
            Phase::Opening { link, request } => {
                self.requests.remove(&request);
                self.give_up_open(now, Owner::Lane(id), link, request);
                false
            }
            _ => false,
        }
    }

    /// The broker has let the lane go, or there is none to ask.
    pub(super) fn lane_left(&mut self, _now: Instant, id: LaneId) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let producer = lane.producer;
        if !lane.is_idle() {
            return;
        }
        self.lanes.remove(&id);
        self.act(Action::LaneClosed { lane: id });
        let alive = self
            .producers
            .get(&producer)
            .is_some_and(|producer| producer.lanes.iter().any(|lane| self.lanes.contains_key(lane)));
        if !alive {
            self.producer_gone(producer);
        }
    }

    fn producer_gone(&mut self, id: ProducerId) {
        let Some(producer) = self.producers.remove(&id) else { return };
        for lane in producer.lanes {
            if self.lanes.remove(&lane).is_some() {
                self.act(Action::LaneClosed { lane });
            }
        }
        if let ProducerState::Closing { replies, .. } = producer.state {
            for reply in replies {
                self.act(Action::Answer(Answer::Done(reply, Ok(()))));
            }
        }
        self.check_shutdown();
    }

    // Closing the client.

    pub(super) fn shut_down(&mut self, now: Instant, flush_until: Instant, due: Instant, reply: Completion<()>) {
        // Several closes wait for the same end; the earliest limit counts.
        match &mut self.shutdown {
            Some(shutdown) if shutdown.finished => {
                self.act(Action::Answer(Answer::Done(reply, Ok(()))));
                return;
            }
            Some(shutdown) => {
                shutdown.due = due.min(shutdown.due);
                shutdown.replies.push(reply);
            }
            None => self.shutdown = Some(Shutdown { due, replies: vec![reply], finished: false }),
        }
        self.new_operation(Operation::Shutdown, due);
        let calls: Vec<u64> = self.operations.keys().copied().collect();
        for id in calls {
            if let Some(Operation::Partitions(_)) = self.operations.get(&id) {
                self.forget_lookups(Asker::Partitions(id));
                if let Some(Operation::Partitions(call)) = self.operations.remove(&id) {
                    self.act(Action::Answer(Answer::Partitions(call.reply, Err(client_closed()))));
                }
            }
        }
        for producer in self.producers.keys().copied().collect::<Vec<_>>() {
            self.close_producer(now, producer, flush_until, due, None);
        }
        for consumer in self.consumers.keys().copied().collect::<Vec<_>>() {
            self.close_consumer(now, consumer, due, None);
        }
        self.check_shutdown();
    }

    fn shutdown_due(&mut self, now: Instant) {
        let Some(shutdown) = &self.shutdown else { return };
        if now < shutdown.due {
            let due = shutdown.due;
            self.new_operation(Operation::Shutdown, due);
            return;
        }
        self.fail_everything(now, &client_closed());
    }

    /// Nothing is owed any more: the links go, and the loop may end.
    pub(super) fn check_shutdown(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        if !self.producers.is_empty() || !self.consumers.is_empty() {
            return;
        }
        if std::mem::replace(&mut shutdown.finished, true) {
            return;
        }
        let replies = std::mem::take(&mut shutdown.replies);
        for link in self.links.keys().chain(self.attempts.keys()).copied().collect::<Vec<_>>() {
            self.act(Action::CloseLink { link, reset: false });
        }
        self.links.clear();
        self.attempts.clear();
        self.requests.clear();
        self.lookups.clear();
        for reply in replies {
            self.act(Action::Answer(Answer::Done(reply, Ok(()))));
        }
        self.act(Action::Finished);
    }

    /// Answers everything that is owed with `error`, and ends.
    pub(super) fn fail_everything(&mut self, now: Instant, error: &Error) {
        for id in self.producers.keys().copied().collect::<Vec<_>>() {
            let Some(producer) = self.producers.get_mut(&id) else { continue };
            let lanes = producer.lanes.clone();
            if let ProducerState::Opening { .. } = producer.state {
                self.abort_producer(now, id, error);
                continue;
            }
            for lane in lanes {
                let Some(state) = self.lanes.get_mut(&lane) else { continue };
                let mut settled = Vec::new();
                state.fail_all(error, &mut settled);
                self.settle(now, lane, settled);
                self.act(Action::LaneFailed { lane, error: error.clone() });
            }
            self.producer_gone(id);
        }
        for id in self.consumers.keys().copied().collect::<Vec<_>>() {
            match self.consumers.get(&id).map(|consumer| &consumer.state) {
                Some(ConsumerState::Opening { .. }) => self.abort_consumer(now, id, error),
                _ => self.consumer_gone(id, error),
            }
        }
        let calls = std::mem::take(&mut self.operations);
        for call in calls.into_values() {
            if let Operation::Partitions(call) = call {
                self.act(Action::Answer(Answer::Partitions(call.reply, Err(error.clone()))));
            }
        }
        self.check_shutdown();
    }
}

/// A call ran out of time; what went wrong last is its source.
pub(super) fn operation_timeout(operation: &str, last: Option<&Error>) -> Error {
    let error = match last {
        Some(last) => Error::new(ErrorKind::Timeout, format!("{operation}: not done in time, last: {last}"))
            .with_source(last.clone()),
        None => Error::new(ErrorKind::Timeout, format!("{operation}: not done in time")),
    };
    error.with_delivery(Delivery::Unknown)
}
