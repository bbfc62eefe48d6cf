//! What the broker does later.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::state::State;

pub(super) type Job = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Timer>,
    count: u64,
}

struct Timer {
    due: Instant,
    /// Those due at the same instant run in the order in which they were added.
    number: u64,
    job: Job,
}

impl Timers {
    pub(super) fn add(&mut self, due: Instant, job: Job) {
        self.count = self.count.wrapping_add(1);
        self.heap.push(Timer { due, number: self.count, job });
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|timer| timer.due)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<Job> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|timer| timer.job)
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    /// The heap gives the greatest: the earliest is to be that.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}
