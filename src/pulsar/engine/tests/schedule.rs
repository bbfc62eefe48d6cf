//! Virtual time: what happens next, and a trace of what happened.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Microseconds since the world began.
pub(super) type Micros = u64;

pub(super) const MS: Micros = 1_000;
pub(super) const SEC: Micros = 1_000_000;

struct Entry<E> {
    at: Micros,
    /// Events of the same time come in an order that the seed decides.
    tie: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.tie) == (other.at, other.tie)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.tie).cmp(&(self.at, self.tie))
    }
}

/// Events by time.
pub(super) struct Schedule<E> {
    heap: BinaryHeap<Entry<E>>,
    count: u32,
}

impl<E> Schedule<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::with_capacity(256), count: 0 }
    }

    pub(super) fn push(&mut self, at: Micros, luck: u32, event: E) {
        self.count = self.count.wrapping_add(1);
        self.heap.push(Entry { at, tie: (u64::from(luck) << 32) | u64::from(self.count), event });
    }

    pub(super) fn pop(&mut self) -> Option<(Micros, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    pub(super) fn next_at(&self) -> Option<Micros> {
        self.heap.peek().map(|entry| entry.at)
    }
}

/// What happened, as a hash; as text too if somebody wants to read it.
pub(super) struct Trace {
    hash: u64,
    pub(super) lines: Option<Vec<String>>,
    pub(super) notes: u64,
}

impl Trace {
    pub(super) fn new(text: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: text.then(Vec::new), notes: 0 }
    }

    pub(super) fn note(&mut self, at: Micros, what: &'static str, a: u64, b: u64) {
        self.notes += 1;
        let mut mixed = self.hash ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ what.len() as u64 ^ (a << 8)).wrapping_mul(0x0000_0100_0000_01B3);
        mixed = (mixed ^ (mixed >> 29) ^ b).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.hash = mixed ^ (mixed >> 32) ^ u64::from(what.as_bytes().first().copied().unwrap_or(0));
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.6} {what} {a} {b}", at as f64 / 1e6));
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}
