//! Which faults met which states, and what else happened: a run that never sees it proves nothing about it.

use std::collections::BTreeMap;

use super::network::Wire;
use super::plan::{Fault, KINDS};
use super::world::{Owner, World};
use crate::rocketmq::engine::session::State;

/// Of sessions, and in the last three columns of channels.
pub(super) const STATES: [&str; 9] =
    ["starting", "idle", "sending", "receiving", "acking", "closing", "dialling", "ready", "dead"];

/// What must have happened.
pub(super) const HAPPENINGS: [&str; 24] = [
    "a channel is replaced: deadlines",
    "a channel is replaced: unavailable",
    "a channel is replaced: the server asks",
    "a call ends that was given up",
    "a frame comes after its call",
    "an endpoint comes back within 30 s",
    "a start fails",
    "a send that was cut off is stored",
    "a send is throttled to its end",
    "a send is stored twice",
    "a poll is throttled",
    "a poll outlives its receive",
    "a route query is cut off",
    "a receive fails",
    "a receive finds nothing",
    "a receive brings messages",
    "a handle is refused",
    "a batch of acks has both results",
    "an invisible duration is changed",
    "a topic is subscribed under a receive",
    "a topic is given up under a receive",
    "a thread stack is told",
    "a dead channel under a session that closes",
    "evidence waits for the end of a cooldown",
];

#[derive(Debug, Clone, Default)]
pub(super) struct Coverage {
    cells: [[u64; STATES.len()]; KINDS.len()],
    happened: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.cells.iter_mut().flatten().zip(other.cells.iter().flatten()) {
            *mine += theirs;
        }
        for (what, count) in &other.happened {
            *self.happened.entry(what).or_default() += count;
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!("{:>17}", "");
        STATES.iter().for_each(|state| text += &format!("{state:>11}"));
        for (kind, cells) in KINDS.iter().zip(&self.cells) {
            text += &format!("\n{kind:>17}");
            cells.iter().for_each(|cell| text += &format!("{cell:>11}"));
        }
        for what in HAPPENINGS {
            text += &format!("\n{:>9} {what}", self.happened.get(what).copied().unwrap_or(0));
        }
        text
    }

    /// What must occur and did not.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> = HAPPENINGS
            .iter()
            .filter(|what| !self.happened.contains_key(*what))
            .map(|what| (*what).to_owned())
            .collect();
        for (kind, cells) in KINDS.iter().zip(&self.cells) {
            let empty = STATES.iter().zip(cells).filter(|(_, cell)| **cell == 0);
            missing.extend(empty.map(|(state, _)| format!("{kind} × {state}")));
        }
        missing
    }
}

impl World {
    pub(super) fn happened(&mut self, what: &'static str) {
        debug_assert!(HAPPENINGS.contains(&what), "{what}");
        *self.coverage.happened.entry(what).or_default() += 1;
    }

    /// A fault meets the states of this moment.
    pub(super) fn meet(&mut self, fault: Fault) {
        let mut met = [0; STATES.len()];
        for (id, session) in &self.engine.sessions {
            let state = match (&session.state, self.sessions[id].0) {
                (State::Starting { .. }, _) => 0,
                (State::Closing { .. }, _) => 5,
                (State::Open, Owner::Producer(_)) if !session.publisher.is_idle() => 2,
                (State::Open, Owner::Consumer(index)) if self.consumers[index].is_acking() => 4,
                (State::Open, Owner::Consumer(index)) if self.consumers[index].is_receiving() => 3,
                (State::Open, _) => 1,
            };
            met[state] += 1;
        }
        for entry in self.current.values() {
            let state = match self.links[entry].wire {
                Wire::Dialling | Wire::Refused => 6,
                Wire::Ready => 7,
                Wire::HalfOpen | Wire::Lying => 8,
            };
            met[state] += 1;
        }
        for (cell, met) in self.coverage.cells[fault.kind()].iter_mut().zip(met) {
            *cell += met;
        }
    }
}
