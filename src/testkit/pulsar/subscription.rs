//! A subscription: what is acknowledged, what is out, what comes next. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::topic::Place;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Exclusive,
    Shared,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) place: Place,
    /// Messages that it may still get. Below zero after a batch larger than what was left.
    permits: i64,
}

/// The next entry, and who gets it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) to: Place,
    pub(super) entry: u64,
    pub(super) redelivery_count: u32,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Outlives its consumers.
    pub(super) durable: bool,
    consumers: Vec<Consumer>,
    /// Which consumer of a shared subscription is next.
    turn: usize,
    /// Where it began.
    start: u64,
    /// Everything below is acknowledged.
    mark_delete: u64,
    /// Acknowledged above that.
    acked: BTreeSet<u64>,
    /// Everything below has been delivered at least once.
    read: u64,
    /// To be delivered again, before anything new.
    again: BTreeSet<u64>,
    /// Not to be delivered yet.
    delayed: BTreeSet<u64>,
    counts: HashMap<u64, u32>,
    /// Delivered and not acknowledged.
    out: BTreeMap<u64, Place>,
}

impl Subscription {
    pub(super) fn new(name: Arc<str>, kind: Kind, durable: bool, start: u64) -> Self {
        Self {
            name,
            kind,
            durable,
            consumers: Vec::new(),
            turn: 0,
            start,
            mark_delete: start,
            acked: BTreeSet::new(),
            read: start,
            again: BTreeSet::new(),
            delayed: BTreeSet::new(),
            counts: HashMap::new(),
            out: BTreeMap::new(),
        }
    }

    pub(super) fn mark_delete(&self) -> u64 {
        self.mark_delete
    }

    pub(super) fn consumers(&self) -> impl Iterator<Item = Place> {
        self.consumers.iter().map(|consumer| consumer.place)
    }

    /// While nobody uses it. An exclusive subscription delays nothing.
    pub(super) fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
        if kind == Kind::Exclusive {
            self.again.append(&mut self.delayed);
        }
    }

    pub(super) fn has_consumers(&self) -> bool {
        !self.consumers.is_empty()
    }

    pub(super) fn add_consumer(&mut self, place: Place) {
        self.consumers.push(Consumer { place, permits: 0 });
    }

    /// What it had and did not acknowledge is delivered again.
    pub(super) fn remove_consumer(&mut self, place: Place) {
        self.consumers.retain(|consumer| consumer.place != place);
        self.redeliver_all(place);
    }

    pub(super) fn add_permits(&mut self, place: Place, permits: u32) {
        for consumer in &mut self.consumers {
            if consumer.place == place {
                consumer.permits = consumer.permits.saturating_add(i64::from(permits));
            }
        }
    }

    /// The next entry below `end`, if somebody may get it. Follow with [`charge`](Self::charge).
    pub(super) fn next(&mut self, end: u64) -> Option<Delivery> {
        let turns = self.consumers.len();
        let turn = (0..turns)
            .map(|step| self.turn.wrapping_add(step) % turns)
            .find(|&turn| self.consumers.get(turn).is_some_and(|consumer| consumer.permits > 0))?;
        let to = self.consumers.get(turn)?.place;
        let entry = self.next_entry(end)?;
        self.turn = turn.wrapping_add(1);
        self.out.insert(entry, to);
        Some(Delivery { to, entry, redelivery_count: self.counts.get(&entry).copied().unwrap_or(0) })
    }

    fn next_entry(&mut self, end: u64) -> Option<u64> {
        if let Some(entry) = self.again.pop_first() {
            return Some(entry);
        }
        while self.read < end {
            let entry = self.read;
            self.read = self.read.saturating_add(1);
            if entry >= self.mark_delete && !self.acked.contains(&entry) {
                return Some(entry);
            }
        }
        None
    }

    /// Puts aside what [`next`](Self::next) gave, until it is [due](Self::due).
    pub(super) fn postpone(&mut self, entry: u64) {
        self.out.remove(&entry);
        self.delayed.insert(entry);
    }

    /// A postponed entry may be delivered now.
    pub(super) fn due(&mut self, entry: u64) {
        if self.delayed.remove(&entry) {
            self.again.insert(entry);
        }
    }

    /// Takes the permits for a delivered entry.
    pub(super) fn charge(&mut self, place: Place, num_messages: u32) {
        for consumer in &mut self.consumers {
            if consumer.place == place {
                consumer.permits = consumer.permits.saturating_sub(i64::from(num_messages));
            }
        }
    }

    pub(super) fn ack(&mut self, entry: u64, end: u64) {
        if entry < self.mark_delete || entry >= end || !self.acked.insert(entry) {
            return;
        }
        self.forget(entry);
        while self.acked.remove(&self.mark_delete) {
            self.mark_delete = self.mark_delete.saturating_add(1);
        }
    }

    /// Everything below `entry`.
    pub(super) fn ack_below(&mut self, entry: u64, end: u64) {
        let entry = entry.min(end);
        if entry <= self.mark_delete {
            return;
        }
        self.mark_delete = entry;
        self.acked = self.acked.split_off(&entry);
        self.again = self.again.split_off(&entry);
        self.delayed = self.delayed.split_off(&entry);
        self.out = self.out.split_off(&entry);
        self.counts.retain(|&counted, _| counted >= entry);
        self.read = self.read.max(entry);
        while self.acked.remove(&self.mark_delete) {
            self.mark_delete = self.mark_delete.saturating_add(1);
        }
    }

    fn forget(&mut self, entry: u64) {
        self.again.remove(&entry);
        self.delayed.remove(&entry);
        self.out.remove(&entry);
        self.counts.remove(&entry);
    }

    /// Delivers entries again that this consumer has.
    pub(super) fn redeliver(&mut self, place: Place, entries: impl Iterator<Item = u64>) {
        for entry in entries {
            if self.out.get(&entry) == Some(&place) {
                self.out.remove(&entry);
                self.again.insert(entry);
                let count = self.counts.entry(entry).or_default();
                *count = count.saturating_add(1);
            }
        }
    }

    /// Delivers again everything that this consumer has.
    pub(super) fn redeliver_all(&mut self, place: Place) {
        let entries: Vec<u64> = self.out.iter().filter(|(_, at)| **at == place).map(|(entry, _)| *entry).collect();
        self.redeliver(place, entries.into_iter());
    }

    /// Starts over at `entry`.
    pub(super) fn seek(&mut self, entry: u64) {
        self.start = entry;
        self.mark_delete = entry;
        self.read = entry;
        self.acked.clear();
        self.again.clear();
        self.delayed.clear();
        self.out.clear();
        self.counts.clear();
    }

    /// Acknowledged entries, in order, from the subscription's start on.
    pub(super) fn acked(&self) -> impl Iterator<Item = u64> {
        (self.start..self.mark_delete).chain(self.acked.iter().copied())
    }
}
