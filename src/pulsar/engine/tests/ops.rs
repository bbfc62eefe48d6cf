//! Every call to send, from the offer to its answer, and what must hold of it.

use super::schedule::{MS, Micros, SEC};
use super::shell::Job;
use super::world::World;
use crate::error::{Delivery, Error, ErrorKind};
use crate::pending::Pending;
use crate::policy::admission::Ticket;
use crate::pulsar::engine::event::{LaneId, Member, Outcome, Reply, SendReceipt, Settle};
use crate::pulsar::message_id::MessageId;

/// Results are fixed at most this long after the send timeout.
pub(super) const TICK: Micros = 100 * MS;

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Stored,
    Failed(ErrorKind, Delivery),
    /// Not admitted: the message came back.
    Returned(ErrorKind),
}

pub(super) struct Op {
    pub producer: usize,
    pub lane: usize,
    pub called_at: Micros,
    pub due: Option<Micros>,
    pub size: usize,
    /// In the lane; 0 until admitted.
    pub place: u64,
    pub sequence_id: u64,
    /// The engine gave it to a link.
    pub handed: bool,
    pub fate: Option<Fate>,
    pub fixed_at: Micros,
    pub called_back: bool,
    pub pending: Option<Pending<SendReceipt>>,
    /// Its place in the batch that it was sent in, and the batch's size.
    pub in_batch: Option<(usize, usize)>,
    /// Sent when everything has to work.
    pub probe: bool,
}

impl World {
    /// The permit of a message is known: called in the step that gives it.
    pub(super) fn admitted(&mut self, uid: u64, ticket: &Ticket) {
        let due = ticket.due.map(|due| self.micros(due));
        let called_at = self.micros(ticket.called_at);
        let op = &mut self.ops[uid as usize];
        let shell = &mut self.producers[op.producer];
        let lane = &mut shell.lanes[op.lane];
        let wrong = if op.place != 0 || op.fate.is_some() {
            Some("admitted twice or after its answer")
        } else if shell.last_admitted.is_some_and(|last| last >= uid) {
            Some("admitted out of turn: first come, first served")
        } else if ticket.lane != op.lane || ticket.place != lane.last_place + 1 {
            Some("its place does not follow the last one")
        } else if lane.last_sequence.is_some_and(|last| ticket.sequence_id <= last) {
            Some("its sequence id does not rise")
        } else if called_at != op.called_at {
            Some("its time does not count from the call")
        } else if lane.last_called.is_some_and(|last| called_at < last) {
            Some("the order of the lane is not the order of the deadlines")
        } else {
            None
        };
        shell.last_admitted = Some(uid);
        lane.last_place = ticket.place;
        lane.last_sequence = Some(ticket.sequence_id);
        lane.last_called = Some(called_at);
        lane.awaiting.push_back(uid);
        op.place = ticket.place;
        op.sequence_id = ticket.sequence_id;
        op.due = due;
        self.note("admitted", uid, ticket.place);
        if let Some(wrong) = wrong {
            self.fail(format!("message {uid}: {wrong}"));
        }
    }

    /// A call gave its message back.
    pub(super) fn returned(&mut self, uid: u64, error: &Error) {
        let now = self.now;
        let op = &mut self.ops[uid as usize];
        let overdue = op.due.is_some_and(|due| now > due + TICK);
        let twice = op.fate.is_some();
        op.fate = Some(Fate::Returned(error.kind()));
        op.fixed_at = now;
        let handed = op.handed;
        self.note("returned", uid, error.kind() as u64);
        if overdue || twice || handed || error.delivery() != Delivery::NotSent {
            self.fail(format!(
                "message {uid} came back late, twice, after it was sent, or with a wrong fate: {error:?}"
            ));
        }
    }

    /// Results leave the engine.
    pub(super) fn settled(&mut self, settle: Settle) {
        let Some((producer, lane)) = self.lane_at(settle.lane) else {
            self.fail(format!("a result for an unknown lane {:?}", settle.lane));
            return;
        };
        let Settle { members, outcome, .. } = settle;
        self.note("settle", (producer * 10 + lane) as u64, members.len() as u64);
        if members.is_empty() {
            self.fail("a result without members");
            return;
        }
        let mut job = Job { items: Vec::with_capacity(members.len()), charge: 0 };
        let mut failure = None;
        let mut through = 0;
        for (index, member) in members.into_iter().enumerate() {
            job.charge += member.charge;
            through = member.place;
            let Some(uid) = self.fix(producer, lane, &member, &outcome) else { return };
            let result = match &outcome {
                Outcome::Stored { message_id, attempts, first_index, batch_size } => {
                    let in_batch = batch_size.map(|size| (first_index + index, size));
                    if self.ops[uid as usize].in_batch != in_batch {
                        let text = format!("message {uid} is told to be {in_batch:?} of its batch");
                        self.fail(text);
                    }
                    Ok(SendReceipt {
                        message_id: MessageId::new(message_id.ledger as i64, message_id.entry as i64, -1),
                        sequence_id: member.sequence_id,
                        attempts: *attempts,
                    })
                }
                Outcome::Failed(error) => {
                    failure.get_or_insert((member.place, error.clone()));
                    Err(error.clone())
                }
            };
            match member.reply {
                Reply::Callback(callback) => job.items.push((uid, Some((callback, result)))),
                Reply::Answered => self.fail("the engine answered by itself"),
                Reply::Completion(completion) => {
                    completion.settle(result);
                    job.items.push((uid, None));
                    self.answer_ready(uid);
                }
            }
        }
        let ended = self.producers[producer].progress.fixed(lane, through, failure);
        for (caller, failure) in ended {
            self.flushed(caller, failure.as_ref());
        }
        let shell = &mut self.producers[producer].lanes[lane];
        let silent = job.items.iter().all(|(_, called)| called.is_none());
        if silent && shell.jobs.is_empty() && !shell.queued {
            // No callback of the lane is under way: the loop gives the permits back by itself.
            self.give_back(producer, lane, job.items.len(), job.charge);
            return;
        }
        shell.jobs.push_back(job);
        self.lane_ready(producer, lane);
    }

    /// One result is fixed: it is the only one, in its turn, in time, and true.
    fn fix(&mut self, producer: usize, lane: usize, member: &Member, outcome: &Outcome) -> Option<u64> {
        let now = self.now;
        let shell = &mut self.producers[producer].lanes[lane];
        let Some(uid) = shell.awaiting.pop_front() else {
            self.fail(format!("a result for place {} of a lane that owes none", member.place));
            return None;
        };
        shell.settled += 1;
        let expected = shell.settled;
        let may_close = self.producers[producer].close_called && now >= self.producers[producer].flush_until;
        let op = &self.ops[uid as usize];
        let mut wrong = None;
        if member.place != expected || op.place != expected || member.sequence_id != op.sequence_id {
            wrong = Some(format!("place {} settled where {expected} was the next", member.place));
        } else if op.fate.is_some() {
            wrong = Some("settled twice".into());
        } else if op.due.is_some_and(|due| now > due + TICK) {
            wrong = Some(format!("fixed {} us after its deadline", now - op.due.unwrap_or(now)));
        }
        let fate = match outcome {
            Outcome::Stored { .. } => Fate::Stored,
            Outcome::Failed(error) => Fate::Failed(error.kind(), error.delivery()),
        };
        if wrong.is_none() {
            wrong = self.untrue(uid, fate, outcome, may_close);
        }
        self.note("fixed", uid, matches!(fate, Fate::Stored).into());
        let op = &mut self.ops[uid as usize];
        op.fate = Some(fate);
        op.fixed_at = now;
        if let Some(wrong) = wrong {
            self.fail(format!("message {uid} of lane {producer}/{lane}: {wrong} ({fate:?})"));
        }
        Some(uid)
    }

    /// What is wrong with a result, if anything.
    fn untrue(&self, uid: u64, fate: Fate, outcome: &Outcome, may_close: bool) -> Option<String> {
        let op = &self.ops[uid as usize];
        let code = match outcome {
            Outcome::Failed(error) => error.code(),
            Outcome::Stored { .. } => None,
        };
        let Fate::Failed(kind, delivery) = fate else {
            let stored = self.cluster.stored.contains_key(&uid);
            return (!stored && !self.cluster.lost_without_a_trace(uid)).then(|| "told Ok, and not stored".into());
        };
        match delivery {
            Delivery::NotSent if op.handed => return Some("told NotSent, and it was handed over".into()),
            Delivery::Unknown | Delivery::Refused if !op.handed => {
                return Some("in doubt, and it was never sent".into());
            }
            Delivery::Refused if self.cluster.stored.contains_key(&uid) => {
                return Some("refused, and it is stored".into());
            }
            _ => {}
        }
        match kind {
            ErrorKind::Timeout if op.due.is_none_or(|due| self.now < due) => Some("timed out before its time".into()),
            ErrorKind::Timeout if self.calm_since(op.called_at) => Some("timed out though nothing was wrong".into()),
            ErrorKind::Timeout => None,
            ErrorKind::Closed => (!may_close).then(|| "closed, and nobody closed".into()),
            ErrorKind::TooLarge => {
                let least = self.net.smallest_limit;
                (!op.handed && op.size + 100 < least as usize).then(|| format!("too large with {} bytes", op.size))
            }
            _ if code.is_some_and(super::shell::ends_a_lane) => None,
            _ if self.cluster.refused.contains(&uid) => None,
            _ if code == Some(8) => None,
            ErrorKind::Internal if self.net.internal => None,
            ErrorKind::Broker if self.cluster.is_damaged(uid) => None,
            _ => Some(format!("an error that nothing explains: {code:?}")),
        }
    }

    /// Whether nothing was broken from well before this time on.
    fn calm_since(&self, at: Micros) -> bool {
        self.last_disturbance + 80 * SEC < at
    }

    pub(super) fn lane_at(&self, id: LaneId) -> Option<(usize, usize)> {
        self.producers.iter().enumerate().find_map(|(producer, shell)| {
            shell.lanes.iter().position(|lane| lane.id == id).map(|lane| (producer, lane))
        })
    }
}
