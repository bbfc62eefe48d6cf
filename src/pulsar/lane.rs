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
    pub(super) fn take(&self, into: &mut Vec<Admitted<Outgoing>>) {
        self.permits.take(self.index, into);
    }

    /// Answers results that are fixed, in their order: waiting callers at once, callbacks by way of the pool. The
    /// loop's.
    pub(super) fn settle(&self, mut settles: Vec<Settle>) {
        let members = || settles.iter().flat_map(|settle| &settle.members);
        let count = members().count();
        // Behind callbacks that still run, permits of messages without one take their turn.
        let at_once = self.running.load(Ordering::Acquire) == 0
            && !members().any(|member| matches!(member.reply, Reply::Callback(_)));
        if at_once {
            self.permits.released(count, members().map(|member| member.charge).sum());
        }
        // Before anybody is answered: who has a receipt reads it in `last_sequence_id`.
        let last = settles.iter().rev().find(|settle| matches!(settle.outcome, Outcome::Stored { .. }));
        if let Some(last) = last.and_then(|settle| settle.members.last()) {
            self.last_stored.fetch_max(i64::try_from(last.sequence_id).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
        let mut stored = None;
        for Settle { members, outcome, .. } in &mut settles {
            for (index, member) in members.iter_mut().enumerate() {
                if let Reply::Completion(_) = member.reply {
                    if let Reply::Completion(completion) = std::mem::replace(&mut member.reply, Reply::Answered) {
                        completion.settle(receipt(outcome, self.partition, index, member.sequence_id));
                    }
                }
            }
            let Some(last) = members.last() else { continue };
            match outcome {
                Outcome::Stored { .. } => stored = Some(last.place),
                Outcome::Failed(error) => {
                    // What a blocking send returns to its caller is told; a flush tells the rest.
                    let untold = members.iter().find(|member| !member.waited_for);
                    self.permits.fixed(self.index, last.place, untold.map(|member| (member.place, error.clone())));
                }
            }
        }
        if let Some(through) = stored {
            self.permits.fixed(self.index, through, None);
        }
        if at_once {
            self.permits.told(self.index, count);
            return;
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let work = Receipts {
            permits: Arc::clone(&self.permits),
            lane: self.index,
            partition: self.partition,
            running: Arc::clone(&self.running),
            left: count,
            settles: settles.into_iter(),
            present: None,
            ran: 0,
            charge: 0,
        };
        self.callbacks.push(Box::new(work));
    }
}

/// The protocol's number of a topic's partition: -1 for none.
pub(super) fn partition_number(topic: &TopicName) -> i32 {
    topic.partition_index().and_then(|index| i32::try_from(index).ok()).unwrap_or(-1)
}

/// What the message at `index` of those that `outcome` is about is answered.
fn receipt(outcome: &Outcome, partition: i32, index: usize, sequence_id: u64) -> Result<SendReceipt, Error> {
    match outcome {
        Outcome::Failed(error) => Err(error.clone()),
        Outcome::Stored { message_id, attempts, first_index, batch_size } => {
            let id = MessageId::new(message_id.ledger as i64, message_id.entry as i64, partition);
            let id = match batch_size {
                Some(size) => id.in_batch((first_index + index) as i32, *size as i32),
                None => id,
            };
            Ok(SendReceipt { message_id: id, sequence_id, attempts: *attempts })
        }
    }
}

/// The callbacks of some neighbouring messages.
struct Receipts {
    permits: Arc<Permits<Outgoing>>,
    lane: usize,
    partition: i32,
    running: Arc<AtomicUsize>,
    /// Callbacks that have not run.
    left: usize,
    settles: std::vec::IntoIter<Settle>,
    present: Option<Present>,
    /// Callbacks that returned since the last turn, and what their messages were charged.
    ran: usize,
    charge: usize,
}

/// The messages of one outcome whose callbacks run now.
struct Present {
    outcome: Outcome,
    /// Index of the next member among those that the outcome is about.
    next: usize,
    members: smallvec::IntoIter<[Member; 1]>,
}

impl Receipts {
    fn next(&mut self) -> Option<(usize, Member)> {
        loop {
            if let Some(present) = &mut self.present {
                if let Some(member) = present.members.next() {
                    present.next += 1;
                    return Some((present.next - 1, member));
                }
            }
            let Settle { members, outcome, .. } = self.settles.next()?;
            self.present = Some(Present { outcome, next: 0, members: members.into_iter() });
        }
    }
}

impl CallbackWork for Receipts {
    fn run_next(&mut self) -> bool {
        let Some((index, member)) = self.next() else { return false };
        // Counted before the call, which may panic: its permit comes back all the same.
        self.left = self.left.saturating_sub(1);
        self.ran += 1;
        self.charge += member.charge;
        if let (Reply::Callback(callback), Some(present)) = (member.reply, &self.present) {
            callback(receipt(&present.outcome, self.partition, index, member.sequence_id));
        }
        true
    }

    fn turn_over(&mut self) {
        if self.ran > 0 {
            if self.left == 0 {
                // Before the permits: who is woken by them may be the next to settle.
                self.running.fetch_sub(1, Ordering::AcqRel);
            }
            self.permits.returned(self.lane, std::mem::take(&mut self.ran), std::mem::take(&mut self.charge));
        }
    }

    fn callbacks(&self) -> usize {
        self.left
    }
}
