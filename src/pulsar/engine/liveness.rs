//! Pings, pongs, and links that do not answer.

use std::time::Instant;

use super::Engine;
use super::event::LinkId;
use crate::error::{Error, ErrorKind};
use crate::policy::keepalive::Verdict;
use crate::pulsar::wire::command as wire;

/// Control bytes that may wait for a peer which does not read, before its PINGs go unanswered.
const MOST_UNREAD: usize = 256 * 1024;

impl Engine {
    pub(super) fn check_liveness(&mut self, now: Instant, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let Some(keepalive) = connection.keepalive() else { return };
        match keepalive.verdict(now) {
            Verdict::Wait(_) => {}
            Verdict::Ping => {
                wire::encode_ping(&mut connection.control);
                self.mark_dirty(link);
            }
            Verdict::Dead => {
                self.stats.dead_links += 1;
                let error = Error::new(ErrorKind::Transport, "the broker did not answer a ping in time");
                // By reset: a peer that was only frozen must not work off what we have already resent elsewhere.
                self.fail_link(now, link, error, true);
            }
        }
    }

    pub(super) fn pinged(&mut self, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        // Answers to a peer that asks and asks and reads nothing would fill the memory.
        if connection.control.len() < MOST_UNREAD {
            wire::encode_pong(&mut connection.control);
            self.mark_dirty(link);
        }
    }

    pub(super) fn ponged(&mut self, now: Instant, link: LinkId) {
        let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) else { return };
        if !keepalive.is_checking() {
            return;
        }
        let requests = self.requests.values().filter(|request| request.link == link).count();
        let lanes = self.lanes.values().filter(|lane| lane.attachment.link() == Some(link));
        let unanswered = requests + lanes.map(|lane| lane.handed).sum::<usize>();
        if let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) {
            keepalive.pong(now, unanswered as u64);
        }
        // While something else is unanswered, the next look comes before the one that the check had set.
        self.arm_link(link);
    }

    /// A frame that answers nothing: it only buys a check some time.
    pub(super) fn heard(&mut self, now: Instant, link: LinkId) {
        if let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) {
            keepalive.heard(now);
        }
    }

    /// An answer to something handed over at `sent_at`, if that is known.
    pub(super) fn heard_answer(&mut self, now: Instant, link: LinkId, sent_at: Option<Instant>) {
        if let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) {
            keepalive.answered(now, sent_at);
        }
        self.arm_link(link);
    }
}
