//! One partition of a producer: messages waiting to be encoded, batches waiting for their receipt, and the
//! results, which are always fixed in the order of admission.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::attachment::Attachment;
use super::event::{LaneId, Member, Members, Outcome, Outgoing, ProducerId, ProducerSpec, Settle};
use crate::error::{Delivery, Error, ErrorKind};
use crate::policy::admission::Admitted;
use crate::pulsar::wire::command::{MessageIdData, SendReceipt};

pub(super) struct Lane {
    pub id: LaneId,
    pub producer: ProducerId,
    pub spec: Arc<ProducerSpec>,
    pub topic: String,
    pub attachment: Attachment,
    /// The name given by the user or by the broker.
    pub name: Option<String>,
    pub topic_epoch: Option<u64>,
    /// Admitted and not yet encoded. A message that is due is left out, whatever its link does.
    pub queue: VecDeque<Waiting>,
    /// Estimated bytes of the queue as batches, and how many of it cannot be batched.
    pub queue_bytes: usize,
    pub lone: usize,
    /// Encoded and handed to a link at least once, oldest first.
    pub flights: VecDeque<Flight>,
    /// How many of the flights were handed to the present link.
    pub handed: usize,
    /// Messages up to this place do not wait for their batch to fill.
    pub flush_through: u64,
    /// When the sweeper will post this lane's key, if it is to.
    pub armed: Option<Instant>,
    /// Whether the lane stands in its link's line.
    pub scheduled: bool,
    /// The largest message that the broker accepts.
    pub limit: usize,
    /// Why it can never be attached again.
    pub failed: Option<Error>,
}

/// A message that is not encoded yet.
pub(super) struct Waiting {
    pub message: Admitted<Outgoing>,
    /// The bytes that it takes in a batch, at most.
    pub size: usize,
    /// It cannot share a batch.
    pub alone: bool,
}

/// A frame and the messages in it. Frozen: it is resent whole and unchanged.
pub(super) struct Flight {
    pub sequence_id: u64,
    pub highest_sequence_id: u64,
    pub frame: Bytes,
    /// Bytes that the broker compares with its limit.
    pub size: usize,
    /// How many messages are in the frame; those that timed out since are no longer members.
    pub count: usize,
    pub members: Members,
    pub attempts: u32,
    /// The broker refused it before, and it was sent once more.
    pub refused: bool,
    pub handed_at: Instant,
    /// Fixed out of turn; settled when all before it are.
    pub outcome: Option<Outcome>,
}

/// What a receipt meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Matched {
    /// It completed the front, handed over at this time.
    Front(Instant),
    /// It is for something that has its result already.
    Stale,
    /// It is for something behind the front: the front's receipt is lost.
    Ahead,
}

impl Lane {
    /// When the oldest message without a result is due.
    pub(super) fn oldest_due(&self) -> Option<Instant> {
        let flying = self.flights.front().and_then(|flight| flight.members.first()).map(|member| member.due);
        flying.or_else(|| self.queue.front().map(|waiting| waiting.message.ticket.due)).flatten()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty()
    }

    /// The link is gone or the session is over: everything without a receipt is to be handed over anew.
    pub(super) fn unhand(&mut self) {
        self.handed = if mutant!(ResendsFromTheSecond) { self.flights.len().min(1) } else { 0 };
        self.scheduled = false;
    }

    pub(super) fn receipt(&mut self, receipt: &SendReceipt, into: &mut Vec<Settle>) -> Matched {
        let Some(front) = self.flights.front_mut() else { return Matched::Stale };
        if receipt.sequence_id < front.sequence_id && !mutant!(OldReceiptCounts) {
            return Matched::Stale;
        }
        // Brokers name either end of a batch.
        if receipt.sequence_id > front.highest_sequence_id {
            return Matched::Ahead;
        }
        let unknown_place = MessageIdData::new(u64::MAX, u64::MAX);
        let message_id = receipt.message_id.clone().unwrap_or_else(|| unknown_place.clone());
        front.outcome = Some(if front.refused && message_id == unknown_place {
            // It may take the id for known only because it stored later ones meanwhile.
            let text = format!("send to {}: the broker refused it once, and then took it for a duplicate", self.topic);
            Outcome::Failed(Error::new(ErrorKind::Broker, text).with_delivery(Delivery::Unknown))
        } else {
            Outcome::Stored {
                message_id,
                attempts: front.attempts,
                first_index: front.count.saturating_sub(front.members.len()),
                batch_size: Some(front.count).filter(|count| *count > 1),
            }
        });
        let handed_at = front.handed_at;
        self.settle_front(into);
        Matched::Front(handed_at)
    }

    /// The broker refused the flight that has `sequence_id` at either end. Whether it was found.
    pub(super) fn refused(&mut self, sequence_id: u64, error: &Error, into: &mut Vec<Settle>) -> bool {
        let found = self.flights.iter_mut().find(|flight| {
            flight.outcome.is_none() && (flight.sequence_id == sequence_id || flight.highest_sequence_id == sequence_id)
        });
        let Some(flight) = found else { return false };
        // Over several attempts the worst fate counts: an earlier one may have been stored.
        let delivery = if flight.attempts > 1 { Delivery::Unknown } else { Delivery::Refused };
        flight.outcome = Some(Outcome::Failed(error.with_delivery(delivery).with_attempts(flight.attempts)));
        self.settle_front(into);
        true
    }

    /// The broker refused the flight that has `sequence_id` at either end, and it is sent once more.
    pub(super) fn refused_once(&mut self, sequence_id: u64) {
        for flight in &mut self.flights {
            flight.refused |= flight.sequence_id == sequence_id || flight.highest_sequence_id == sequence_id;
        }
    }

    /// Results at the front leave in order.
    pub(super) fn settle_front(&mut self, into: &mut Vec<Settle>) {
        while self.flights.front().is_some_and(|flight| flight.outcome.is_some()) {
            let Some(flight) = self.flights.pop_front() else { return };
            self.handed = self.handed.saturating_sub(1);
            if let Some(outcome) = flight.outcome {
                into.push(Settle { lane: self.id, members: flight.members, outcome });
            }
        }
    }

    /// Fixes the result of everything that is due. Only what is due fails: the rest of a batch goes on.
    pub(super) fn expire(&mut self, now: Instant, into: &mut Vec<Settle>) {
        while let Some(front) = self.flights.front_mut() {
            let count = front.members.iter().take_while(|member| due(member.due, now)).count();
            if count == 0 {
                return;
            }
            let members: Members = front.members.drain(..count).collect();
            let emptied = front.members.is_empty();
            let fate = if mutant!(DoubtIsDenied) { Delivery::NotSent } else { Delivery::Unknown };
            let error = timeout(&self.topic, &members).with_delivery(fate).with_attempts(front.attempts);
            into.push(Settle { lane: self.id, members, outcome: Outcome::Failed(error) });
            if !emptied {
                return;
            }
            // Nobody waits for it any more, so it is not resent; a late receipt is older than the next front.
            self.flights.pop_front();
            self.handed = self.handed.saturating_sub(1);
            self.settle_front(into);
        }
        let count = self.queue.iter().take_while(|waiting| due(waiting.message.ticket.due, now)).count();
        if count > 0 {
            let members = self.take_queue(count);
            let error = timeout(&self.topic, &members);
            into.push(Settle { lane: self.id, members, outcome: Outcome::Failed(error) });
        }
    }

    /// Everything ends with `error`; what was handed to a link is in doubt.
    pub(super) fn fail_all(&mut self, error: &Error, into: &mut Vec<Settle>) {
        for flight in self.flights.drain(..) {
            let unsent = if flight.attempts > 0 { Delivery::Unknown } else { Delivery::NotSent };
            let error = error.with_delivery(unsent).with_attempts(flight.attempts);
            let outcome = flight.outcome.unwrap_or(Outcome::Failed(error));
            into.push(Settle { lane: self.id, members: flight.members, outcome });
        }
        self.handed = 0;
        let count = self.queue.len();
        if count > 0 {
            let members = self.take_queue(count);
            let outcome = Outcome::Failed(error.with_delivery(Delivery::NotSent));
            into.push(Settle { lane: self.id, members, outcome });
        }
    }

    /// The broker announced a limit: what is larger is settled, in its turn.
    pub(super) fn limited(&mut self, limit: usize, into: &mut Vec<Settle>) {
        self.limit = limit;
        for flight in self.flights.iter_mut().filter(|flight| flight.outcome.is_none() && flight.size > limit) {
            let error = too_large(&self.topic, flight.size, limit);
            let error = error.with_delivery(Delivery::Unknown).with_attempts(flight.attempts);
            flight.outcome = Some(Outcome::Failed(error));
        }
        self.settle_front(into);
    }

    /// Takes the first `count` messages off the queue, dropping their contents.
    pub(super) fn take_queue(&mut self, count: usize) -> Members {
        let count = count.min(self.queue.len());
        let mut members = Members::with_capacity(count);
        for waiting in self.queue.drain(..count) {
            self.queue_bytes = self.queue_bytes.saturating_sub(waiting.size);
            self.lone = self.lone.saturating_sub(usize::from(waiting.alone));
            members.push(Member::of(waiting.message));
        }
        members
    }
}

fn due(due: Option<Instant>, now: Instant) -> bool {
    let now = if mutant!(DueIsEarly) { now + Duration::from_secs(1) } else { now };
    due.is_some_and(|due| due <= now)
}

fn timeout(topic: &str, members: &[Member]) -> Error {
    let allowed = members
        .first()
        .and_then(|member| Some(member.due?.saturating_duration_since(member.called_at)))
        .unwrap_or(Duration::ZERO);
    Error::new(ErrorKind::Timeout, format!("send to {topic} was not acknowledged within {allowed:?}"))
}

pub(super) fn too_large(topic: &str, size: usize, limit: usize) -> Error {
    Error::new(ErrorKind::TooLarge, format!("message of {size} bytes to {topic}: the broker accepts {limit} bytes"))
}
