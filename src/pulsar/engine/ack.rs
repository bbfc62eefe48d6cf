//! Acknowledgements, grouped; and requests for redelivery, each after its own delay.

use std::time::Instant;

use super::event::{AckCommand, Action, PartId};
use super::{Engine, LoopTimer};
use crate::pulsar::wire::command::{self as wire, Ack, MessageIdData};
use crate::pulsar::wire::pb::command_subscribe::SubType;

/// Ids in one frame at most: a long outage may gather more than a frame may hold.
const MOST_IDS: usize = 1000;

/// Acknowledgements of a part that were not written yet. They outlive a link: what the user acknowledged stays
/// acknowledged, and is written when the part is attached again.
#[derive(Debug, Default)]
pub(super) struct AckGroup {
    individual: Vec<MessageIdData>,
    cumulative: Option<MessageIdData>,
}

impl AckGroup {
    fn is_empty(&self) -> bool {
        self.individual.is_empty() && self.cumulative.is_none()
    }
}

impl Engine {
    pub(super) fn acknowledge(&mut self, now: Instant, id: PartId, ack: AckCommand) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        match ack {
            AckCommand::Individual(message_id) => part.acks.individual.push(message_id),
            AckCommand::Cumulative(message_id) => {
                let newer = part.acks.cumulative.as_ref().is_none_or(|known| position(known) < position(&message_id));
                if newer {
                    part.acks.cumulative = Some(message_id);
                }
            }
            AckCommand::Invalid { message_id, error } => {
                let link = part.attachment.link();
                let ack = Ack {
                    consumer_id: id.0,
                    cumulative: false,
                    message_ids: vec![message_id],
                    validation_error: Some(error as i32),
                    request_id: None,
                };
                if let Some(link) = link {
                    if let Some(connection) = self.links.get_mut(&link) {
                        wire::encode_ack(&ack, &mut connection.control);
                    }
                    self.mark_dirty(link);
                }
                return;
            }
        }
        if part.acks.individual.len() >= part.spec.ack_group_max || part.spec.ack_group_delay.is_zero() {
            self.flush_acks(id);
        } else {
            let at = now + part.spec.ack_group_delay;
            self.timers.arm(LoopTimer::AckGroup(id), at);
        }
    }

    /// Writes what is grouped, if the part is attached; else it waits until it is.
    pub(super) fn flush_acks(&mut self, id: PartId) {
        self.timers.cancel(LoopTimer::AckGroup(id));
        let Some(part) = self.parts.get_mut(&id) else { return };
        let Some(link) = part.attachment.link() else { return };
        if part.acks.is_empty() {
            return;
        }
        let Some(connection) = self.links.get_mut(&link) else { return };
        if let Some(message_id) = part.acks.cumulative.take() {
            // Everything up to it is acknowledged by it.
            part.acks.individual.retain(|other| position(other) > position(&message_id));
            let ack = Ack {
                consumer_id: id.0,
                cumulative: true,
                message_ids: vec![message_id],
                validation_error: None,
                request_id: None,
            };
            wire::encode_ack(&ack, &mut connection.control);
        }
        for ids in std::mem::take(&mut part.acks.individual).chunks(MOST_IDS) {
            let ack = Ack {
                consumer_id: id.0,
                cumulative: false,
                message_ids: ids.to_vec(),
                validation_error: None,
                request_id: None,
            };
            wire::encode_ack(&ack, &mut connection.control);
        }
        self.mark_dirty(link);
    }

    pub(super) fn negative_ack(&mut self, now: Instant, id: PartId, message_id: MessageIdData) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let at = now + part.spec.nack_delay;
        part.next_redelivery += 1;
        part.redelivery.insert((at, part.next_redelivery), message_id);
        self.timers.arm(LoopTimer::Redelivery(id), at);
    }

    /// Asks for what is due. A detached part keeps it: the broker delivers again by itself after the next
    /// subscription, and is asked once more when it is due.
    pub(super) fn redeliver_due(&mut self, now: Instant, id: PartId) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let Some(link) = part.attachment.link() else { return };
        let later = part.redelivery.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut part.redelivery, later);
        if let Some(((at, _), _)) = part.redelivery.first_key_value() {
            self.timers.arm(LoopTimer::Redelivery(id), *at);
        }
        if due.is_empty() {
            return;
        }
        let mut ids: Vec<MessageIdData> = due.into_values().collect();
        ids.sort_by_key(position);
        ids.dedup_by_key(|id| position(id));
        let shared = matches!(part.spec.sub_type, SubType::Shared | SubType::Key_Shared);
        let epoch = part.epoch.saturating_add(1);
        if !shared {
            // The broker redelivers everything to the one active consumer: what it queued before is void.
            part.session = part.session.wrapping_add(1);
            part.epoch = epoch;
            let session = part.session;
            self.act(Action::ResetPart { part: id, session, refund: true });
        }
        let Some(connection) = self.links.get_mut(&link) else { return };
        if shared {
            for ids in ids.chunks(MOST_IDS) {
                wire::encode(&wire::redeliver(id.0, ids), &mut connection.control);
            }
        } else {
            let mut command = wire::redeliver(id.0, &[]);
            command.redeliverUnacknowledgedMessages.mut_or_insert_default().consumer_epoch = Some(epoch);
            wire::encode(&command, &mut connection.control);
        }
        self.mark_dirty(link);
    }
}

/// Where an entry stands in its topic.
fn position(id: &MessageIdData) -> (u64, u64) {
    (id.ledger, id.entry)
}
