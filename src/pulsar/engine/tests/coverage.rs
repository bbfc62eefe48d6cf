//! Which faults met which states: a run that never sees a meeting proves nothing about it.

use super::fault::{Fault, KINDS};
use super::world::World;
use crate::pulsar::engine::attachment::Phase;
use crate::pulsar::wire::command::Command;
use crate::pulsar::wire::pb::base_command::Type;

pub(super) const STATES: [&str; 7] = ["resting", "locating", "linking", "opening", "open idle", "open busy", "ended"];

/// Faults by the states of lanes and parts that they met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    pub cells: Vec<[u64; STATES.len()]>,
}

impl Coverage {
    pub(super) fn add(&mut self, other: &Self) {
        if self.cells.len() < other.cells.len() {
            self.cells.resize(other.cells.len(), [0; STATES.len()]);
        }
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!("{:>18}", "");
        for state in STATES {
            text += &format!("{state:>11}");
        }
        text.push('\n');
        for (kind, cells) in KINDS.iter().zip(&self.cells) {
            text += &format!("{kind:>18}");
            for cell in cells {
                text += &format!("{cell:>11}");
            }
            text.push('\n');
        }
        text
    }

    /// Cells that must occur and did not. A lane that has ended is past all faults.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (at, kind) in KINDS.iter().enumerate() {
            for (state, name) in STATES.iter().enumerate().take(STATES.len() - 1) {
                if self.cells.get(at).is_none_or(|cells| cells[state] == 0) {
                    missing.push(format!("{kind} × {name}"));
                }
            }
        }
        missing
    }
}

impl World {
    /// A fault meets the states of this moment.
    pub(super) fn meet(&mut self, fault: &Fault) {
        let kind = fault.kind();
        if self.coverage.cells.len() < KINDS.len() {
            self.coverage.cells.resize(KINDS.len(), [0; STATES.len()]);
        }
        let lanes = self.engine.lanes.values().map(|lane| (lane.attachment.phase, lane.is_idle()));
        let parts = self.engine.parts.values().map(|part| (part.attachment.phase, true));
        for (phase, idle) in lanes.chain(parts) {
            let state = match phase {
                Phase::Resting { .. } => 0,
                Phase::Locating => 1,
                Phase::Linking { .. } => 2,
                Phase::Opening { .. } => 3,
                Phase::Open { .. } if idle => 4,
                Phase::Open { .. } => 5,
                Phase::Ended => 6,
            };
            self.coverage.cells[kind][state] += 1;
        }
    }
}

/// A number for the trace.
pub(super) fn frame_kind(frame: &Command) -> u64 {
    match frame {
        Command::Send(_) => 1,
        Command::SendReceipt(receipt) => 1_000 + receipt.sequence_id,
        Command::Message(_) => 2,
        Command::Ack(_) => 3,
        Command::Flow { .. } => 4,
        Command::Ping => 5,
        Command::Pong => 6,
        Command::Other(command) => {
            let owner = match command.type_() {
                Type::PRODUCER => command.producer.producer_id(),
                Type::CLOSE_PRODUCER => command.close_producer.producer_id(),
                Type::SUBSCRIBE => command.subscribe.consumer_id(),
                Type::CLOSE_CONSUMER => command.close_consumer.consumer_id(),
                _ => 0,
            };
            1_000_000 * owner + 100 + command.type_() as u64
        }
        Command::Unknown(_) => 7,
    }
}
