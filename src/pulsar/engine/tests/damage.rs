//! Frames that were damaged on the way: what is lost with them, and what the client can know of it.

use super::cluster::Cluster;
use super::world::World;
use crate::pulsar::engine::event::LinkId;
use crate::pulsar::wire::command::Command;
use crate::pulsar::wire::pb::ServerError;
use crate::pulsar::wire::pb::base_command::Type;

pub(super) const CHECKSUM: i32 = ServerError::ChecksumError as i32;

/// A SEND whose checksum was wrong when it arrived.
#[derive(Debug)]
pub(super) struct Damage {
    pub producer_id: u64,
    /// The sequence id in the answer.
    pub named: u64,
    pub uids: Vec<u64>,
    /// The client got the answer.
    pub told: bool,
    /// It came once more after later ones were stored, and the broker took it for a duplicate.
    pub lost: bool,
}

impl Cluster {
    pub(super) fn is_damaged(&self, uid: u64) -> bool {
        self.damages.iter().any(|damage| damage.uids.contains(&uid))
    }

    /// The client cannot know that this message is lost: no answer to its damaged SEND ever reached it, and what it
    /// got for the next one is what it gets when only a receipt was lost.
    pub(super) fn lost_without_a_trace(&self, uid: u64) -> bool {
        let mine = || self.damages.iter().filter(|damage| damage.uids.contains(&uid));
        mine().any(|damage| damage.lost) && !mine().any(|damage| damage.told)
    }

    /// The client got the answer to a damaged SEND.
    pub(super) fn told_of_damage(&mut self, producer_id: u64, named: u64) {
        let damages = self.damages.iter_mut();
        for damage in damages.filter(|damage| (damage.producer_id, damage.named) == (producer_id, named)) {
            damage.told = true;
        }
    }

    /// The broker takes these for duplicates: those that it never stored were damaged before.
    pub(super) fn taken_for_duplicates(&mut self, uids: &[u64]) {
        for uid in uids.iter().filter(|uid| !self.stored.contains_key(uid)) {
            if !self.is_damaged(*uid) {
                self.violation = Some(format!("message {uid} is taken for a duplicate, and was never here"));
            }
            for damage in self.damages.iter_mut().filter(|damage| damage.uids.contains(uid)) {
                damage.lost = true;
            }
        }
    }
}

impl World {
    /// Remembers that the client knows of a damaged SEND.
    pub(super) fn hear_of_damage(&mut self, link: LinkId, frame: &Command) {
        let Command::Other(command) = frame else { return };
        if command.type_() == Type::SEND_ERROR && self.engine.links.contains_key(&link) {
            let answer = &command.send_error;
            if answer.error.is_some_and(|code| code.value() == CHECKSUM) {
                self.cluster.told_of_damage(answer.producer_id(), answer.sequence_id());
            }
        }
    }
}
