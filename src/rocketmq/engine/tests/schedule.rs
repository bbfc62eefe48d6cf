//! Virtual time: what happens next, and a trace of what happened.

use std::collections::BTreeMap;

/// Microseconds since the world began.
pub(super) type Micros = u64;

pub(super) const MS: Micros = 1_000;
pub(super) const SEC: Micros = 1_000_000;

/// Events by time; those of the same time come in an order that the seed decides.
pub(super) struct Schedule<E> {
    events: BTreeMap<(Micros, u32, u64), E>,
    count: u64,
}

impl<E> Schedule<E> {
    pub(super) fn new() -> Self {
        Self { events: BTreeMap::new(), count: 0 }
    }

    pub(super) fn push(&mut self, at: Micros, luck: u32, event: E) {
        self.count += 1;
        self.events.insert((at, luck, self.count), event);
    }

    pub(super) fn pop(&mut self) -> Option<(Micros, E)> {
        self.events.pop_first().map(|((at, _, _), event)| (at, event))
    }

    pub(super) fn next_at(&self) -> Option<Micros> {
        self.events.first_key_value().map(|((at, _, _), _)| *at)
    }
}

/// What happened, as a hash; as text too if somebody wants to read it.
pub(super) struct Trace {
    pub(super) hash: u64,
    pub(super) lines: Option<Vec<String>>,
    pub(super) notes: u64,
}

impl Trace {
    pub(super) fn note(&mut self, at: Micros, what: &'static str, a: u64, b: u64) {
        self.notes += 1;
        for word in [at, what.len() as u64, a, b] {
            self.hash = (self.hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.6} {what} {a} {b}", at as f64 / 1e6));
        }
    }
}
