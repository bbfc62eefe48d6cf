//! What happens to the receipts of a topic. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use super::topic::Place;
use crate::pulsar::wire::command::SendReceipt;

/// A receipt, and the producer session that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) to: Place,
    /// Tells a session from a later one with the same numbers.
    pub(super) session: u64,
    pub(super) body: SendReceipt,
}

#[derive(Debug, Default)]
pub(super) struct ReceiptScript {
    pub(super) hold: bool,
    pub(super) held: VecDeque<Receipt>,
    /// So many of the next are lost.
    pub(super) drop: u64,
    pub(super) delay: Option<Duration>,
    pub(super) duplicate: bool,
    reorder: bool,
    /// Waits for the next one, which overtakes it.
    overtaken: Option<Receipt>,
    /// States the last sequence id of a batch where the first belongs.
    pub(super) by_highest: bool,
    /// SENDs still to come, the one to refuse included, and the code.
    refusals: Vec<(u64, i32)>,
}

impl ReceiptScript {
    /// Whether the next SEND is to be refused, and how.
    pub(super) fn refusal(&mut self) -> Option<i32> {
        if self.refusals.is_empty() {
            return None;
        }
        let mut code = None;
        self.refusals.retain_mut(|(left, with)| {
            *left = left.saturating_sub(1);
            if *left == 0 {
                code = code.or(Some(*with));
            }
            *left > 0
        });
        code
    }

    /// Refuses the `nth` SEND from now; 1 is the next.
    pub(super) fn refuse(&mut self, nth: u64, code: i32) {
        self.refusals.push((nth.max(1), code));
    }

    /// Nothing special to do.
    pub(super) fn is_plain(&self) -> bool {
        !(self.hold || self.drop > 0 || self.delay.is_some() || self.duplicate || self.reorder || self.by_highest)
    }

    /// What leaves now (or after the delay) when a message has been stored.
    pub(super) fn pass(&mut self, mut receipt: Receipt) -> Vec<Receipt> {
        if self.by_highest {
            if let Some(highest) = receipt.body.highest_sequence_id {
                receipt.body.sequence_id = highest;
            }
        }
        if self.drop > 0 {
            self.drop -= 1;
            return Vec::new();
        }
        if self.hold {
            self.held.push_back(receipt);
            return Vec::new();
        }
        let mut leaving = vec![receipt];
        if self.reorder {
            match self.overtaken.take() {
                Some(overtaken) => leaving.push(overtaken),
                None => {
                    self.overtaken = leaving.pop();
                    return leaving;
                }
            }
        }
        if self.duplicate {
            leaving = leaving.into_iter().flat_map(|receipt| [receipt.clone(), receipt]).collect();
        }
        leaving
    }

    /// Turns the order of each two receipts around. Off: gives the one that was waiting.
    pub(super) fn reorder(&mut self, on: bool) -> Option<Receipt> {
        self.reorder = on;
        if on { None } else { self.overtaken.take() }
    }

    /// Ends the holding and gives what was held.
    pub(super) fn release(&mut self) -> Vec<Receipt> {
        self.hold = false;
        self.held.drain(..).collect()
    }

    /// Takes one held receipt out.
    pub(super) fn release_one(&mut self, sequence_id: u64) -> Option<Receipt> {
        let at = self.held.iter().position(|receipt| receipt.body.sequence_id == sequence_id)?;
        self.held.remove(at)
    }
}
