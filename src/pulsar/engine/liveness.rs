//! Pings, pongs, and links that do not answer.

use std::time::Instant;

use super::Engine;
use super::event::LinkId;
use crate::error::{Error, ErrorKind};
use crate::policy::keepalive::Verdict;
use crate::pulsar::wire::command as wire;

/// Control bytes behind which no more PONGs are put: the peer that pings so much has some on their way already.
const ENOUGH_CONTROL: usize = 4096;

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
        if connection.control.len() < ENOUGH_CONTROL {
            wire::encode_pong(&mut connection.control);
        }
        self.mark_dirty(link);
    }

    pub(super) fn ponged(&mut self, now: Instant, link: LinkId) {
        if let Some(keepalive) = self.links.get_mut(&link).and_then(|connection| connection.keepalive()) {
            keepalive.pong(now);
        }
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
    }
}
