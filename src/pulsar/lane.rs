//! A producer's lane as its handle and the loop share it, and the work that runs its callbacks.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::engine::event::{LaneId, Member, Outcome, Outgoing, Reply, SendReceipt, Settle};
use super::message_id::MessageId;
use super::topic::TopicName;
use crate::error::Error;
use crate::policy::admission::Admitted;
use crate::runtime::callback::{CallbackLane, CallbackWork};
use crate::runtime::permits::Permits;

/// One lane outside the engine. The loop writes, handles read.
pub(super) struct Lane {
    pub id: LaneId,
    /// Its index in the producer's permits.
    pub index: usize,
    /// The partition that it is, -1 for a topic without; brokers leave it out of receipts.
    partition: i32,
    pub permits: Arc<Permits<Outgoing>>,
    callbacks: CallbackLane,
    /// Works with callbacks that have not all returned: while there are any, permits of messages without a
    /// callback take their turn behind them.
    running: Arc<AtomicUsize>,
    /// The largest message that the broker accepts now, in bytes.
    pub max_message_size: AtomicU32,
    /// The highest sequence id that the broker stored; -1 for none.
    pub last_stored: AtomicI64,
    /// Why the lane takes no more messages.
    pub failed: OnceLock<Error>,
}

impl Lane {
    pub(super) fn new(
        id: LaneId,
        index: usize,
        topic: &TopicName,
        permits: Arc<Permits<Outgoing>>,
        callbacks: CallbackLane,
    ) -> Self {
        Self {
            id,
            index,
            partition: partition_number(topic),
            permits,
            callbacks,
            running: Arc::new(AtomicUsize::new(0)),
            max_message_size: AtomicU32::new(u32::MAX),
            last_stored: AtomicI64::new(-1),
            failed: OnceLock::new(),
        }
    }

    /// What was admitted and not taken yet. The loop's.
    pub(super) fn take(&self) -> Vec<Admitted<Outgoing>> {
        let mut messages = Vec::new();
        self.permits.take(self.index, &mut messages);
        messages
    }

    /// Answers results that are fixed: waiting callers at once, callbacks by way of the pool. The loop's.
    pub(super) fn settle(&self, settle: Settle) {
        let Settle { members, outcome, .. } = settle;
        let Some(last) = members.last() else { return };
        let through = last.place;
        let failure = match &outcome {
            // What a blocking send returns to its caller is told; a flush tells the rest.
            Outcome::Failed(error) => {
                members.iter().find(|member| !member.waited_for).map(|member| (member.place, error.clone()))
            }
            Outcome::Stored { .. } => {
                self.last_stored.fetch_max(i64::try_from(last.sequence_id).unwrap_or(i64::MAX), Ordering::Relaxed);
                None
            }
        };
        let mut work = Receipts {
            permits: Arc::clone(&self.permits),
            lane: self.index,
            partition: self.partition,
            running: Arc::clone(&self.running),
            members: Vec::new().into_iter(),
            next: 0,
            outcome,
            ran: 0,
            charge: 0,
        };
        let mut members = members;
        let mut callbacks = 0;
        for (index, member) in members.iter_mut().enumerate() {
            if let Reply::Callback(_) = member.reply {
                callbacks += 1;
            } else if let Reply::Completion(completion) = std::mem::replace(&mut member.reply, Reply::Answered) {
                completion.settle(work.result(index, member.sequence_id));
            }
        }
        self.permits.fixed(self.index, through, failure);
        if callbacks == 0 && self.running.load(Ordering::Acquire) == 0 {
            let charge = members.iter().map(|member| member.charge).sum();
            self.permits.returned(self.index, members.len(), charge);
            return;
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        work.members = members.into_iter();
        self.callbacks.push(Box::new(work));
    }
}

/// The protocol's number of a topic's partition: -1 for none.
pub(super) fn partition_number(topic: &TopicName) -> i32 {
    topic.partition_index().and_then(|index| i32::try_from(index).ok()).unwrap_or(-1)
}

/// The callbacks of some neighbouring messages with one outcome.
struct Receipts {
    permits: Arc<Permits<Outgoing>>,
    lane: usize,
    partition: i32,
    running: Arc<AtomicUsize>,
    members: std::vec::IntoIter<Member>,
    /// Index of the next member among those that the outcome is about.
    next: usize,
    outcome: Outcome,
    /// Callbacks that returned since the last turn, and what their messages were charged.
    ran: usize,
    charge: usize,
}

impl Receipts {
    fn result(&self, index: usize, sequence_id: u64) -> Result<SendReceipt, Error> {
        match &self.outcome {
            Outcome::Failed(error) => Err(error.clone()),
            Outcome::Stored { message_id, attempts, first_index, batch_size } => {
                let id = MessageId::new(message_id.ledger as i64, message_id.entry as i64, self.partition);
                let id = match batch_size {
                    Some(size) => id.in_batch((first_index + index) as i32, *size as i32),
                    None => id,
                };
                Ok(SendReceipt { message_id: id, sequence_id, attempts: *attempts })
            }
        }
    }
}

impl CallbackWork for Receipts {
    fn run_next(&mut self) -> bool {
        let Some(member) = self.members.next() else { return false };
        let index = self.next;
        self.next += 1;
        // Counted before the call, which may panic: its permit comes back all the same.
        self.ran += 1;
        self.charge += member.charge;
        if let Reply::Callback(callback) = member.reply {
            callback(self.result(index, member.sequence_id));
        }
        true
    }

    fn turn_over(&mut self) {
        if self.ran > 0 {
            if self.members.len() == 0 {
                // Before the permits: who is woken by them may be the next to settle.
                self.running.fetch_sub(1, Ordering::AcqRel);
            }
            self.permits.returned(self.lane, std::mem::take(&mut self.ran), std::mem::take(&mut self.charge));
        }
    }

    fn callbacks(&self) -> usize {
        self.members.len()
    }
}
