//! Writing is pulled: frames are encoded when their link has room, so that what is due before is left out.

use std::time::Instant;

use super::batch::Readiness;
use super::event::{LaneId, LinkId};
use super::write_buffer::WriteBuffer;
use super::{Engine, LoopTimer};
use crate::policy::now::Now;

impl Engine {
    /// Fills `into` up to `budget` bytes and at most one frame more; control frames first. Returns whether there
    /// is more.
    pub(crate) fn poll_transmit(&mut self, now: Now, link: LinkId, budget: usize, into: &mut WriteBuffer) -> bool {
        loop {
            let Some(connection) = self.links.get_mut(&link) else { return false };
            // A full buffer takes nothing more, so that what a peer does not read gathers where it can be counted.
            if into.len() < budget && !connection.control.is_empty() {
                into.copy(&connection.control);
                connection.control.clear();
            }
            if into.len() >= budget {
                return !connection.ready.is_empty() || !connection.control.is_empty();
            }
            let Some(lane) = connection.ready.pop_front() else { return false };
            if let Some(lane) = self.lanes.get_mut(&lane) {
                lane.scheduled = false;
            }
            self.hand_over(now, link, lane, into);
            self.schedule_lane(now.instant, lane);
        }
    }

    /// Hands one frame of a lane to its link: first those that the link has not had, then a new one.
    fn hand_over(&mut self, now: Now, link: LinkId, id: LaneId, into: &mut WriteBuffer) {
        if !mutant!(SendsWhatIsDue) {
            self.expire_lane(now.instant, id);
        }
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.attachment.link() != Some(link) {
            return;
        }
        let mut handed = 0;
        while handed == 0 {
            let all_handed = lane.handed >= lane.flights.len();
            if all_handed && (lane.readiness(now.instant) != Readiness::Now || !lane.freeze(now, &mut self.writers)) {
                break;
            }
            let Some(flight) = lane.flights.get_mut(lane.handed) else { break };
            lane.handed += 1;
            if flight.outcome.is_none() {
                flight.attempts = flight.attempts.saturating_add(1);
                flight.handed_at = now.instant;
                into.frame(&flight.frame);
                handed = flight.frame.len().max(1);
            }
        }
        // Flights that got their result on the way may be at the front.
        let mut settled = Vec::new();
        lane.settle_front(&mut settled);
        self.settle(now.instant, id, settled);
        if handed > 0 {
            if let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) {
                keepalive.sent(now.instant, handed);
            }
            self.arm_link(link);
        }
    }

    /// Puts a lane into its link's line if it has something to send, or sees to it that it will be when its batch's
    /// delay is over.
    pub(super) fn schedule_lane(&mut self, now: Instant, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.scheduled {
            return;
        }
        let Some(link) = lane.attachment.link() else { return };
        if lane.handed >= lane.flights.len() {
            match lane.readiness(now) {
                Readiness::Now => {}
                Readiness::At(at) => {
                    self.timers.arm(LoopTimer::Batch(id), at);
                    return;
                }
                Readiness::Empty => return,
            }
        }
        if let Some(connection) = self.links.get_mut(&link) {
            lane.scheduled = true;
            connection.ready.push_back(id);
            self.mark_dirty(link);
        }
    }
}
