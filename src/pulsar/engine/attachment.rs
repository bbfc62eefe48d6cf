//! How a lane or a consumer's part finds its broker and stays attached: one machine for both.

use std::time::{Duration, Instant};

use super::event::{LaneId, LinkId, PartId};
use super::targets::TargetId;
use crate::error::Error;
use crate::policy::backoff::Backoff;

/// Who is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Lane(LaneId),
    Part(PartId),
}

/// Where an owner is on its way to its broker. Each state holds what is legal there and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting out a backoff.
    Resting { until: Instant },
    /// A look-up is under way.
    Locating,
    /// The broker is known, its link is not up.
    Linking { target: TargetId },
    /// PRODUCER or SUBSCRIBE was sent.
    Opening { link: LinkId, request: u64 },
    /// Attached.
    Open { link: LinkId },
    /// Not attached and not trying: closed or failed for good.
    Ended,
}

/// What a broker named in its close command: go there once, without a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assigned(pub TargetId);

/// The attachment of one owner.
#[derive(Debug)]
pub(super) struct Attachment {
    pub phase: Phase,
    pub backoff: Backoff,
    pub assigned: Option<Assigned>,
    /// When the broker last ended a session by command.
    pub sent_away_at: Option<Instant>,
    /// Whether it was open before; the rules for errors differ.
    pub opened_once: bool,
    /// Producer epoch: one more at each attempt after the first success.
    pub epoch: u64,
    /// When the last session ended: a ghost of it may hold the place at the broker for a while.
    pub lost_at: Option<Instant>,
    /// The last failure, told when the operation times out.
    pub last_error: Option<Error>,
}

/// First and longest pause between tries to attach.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A command to leave that comes this soon after the one before is followed after a pause, and pauses grow from one
/// to the next: brokers that send a topic to each other would keep everybody busy. Longer than [`LONGEST_PAUSE`],
/// so that the pauses themselves do not make it late.
pub(super) const SOON: Duration = Duration::from_secs(30);
/// The longest pause while sends wait.
pub(super) const LONGEST_PAUSE_UNDER_SENDS: Duration = Duration::from_secs(2);

impl Attachment {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Ended,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            assigned: None,
            sent_away_at: None,
            opened_once: false,
            epoch: 0,
            lost_at: None,
            last_error: None,
        }
    }

    /// Whether the broker ended a session by command a short while ago.
    pub(super) fn sent_away_lately(&self, now: Instant) -> bool {
        self.sent_away_at.is_some_and(|at| now.saturating_duration_since(at) < SOON)
    }

    /// It is open: the next outage starts with the shortest pause, unless this one may not last.
    pub(super) fn settled(&mut self, now: Instant) {
        if !self.sent_away_lately(now) {
            self.backoff.reset();
        }
    }

    /// The link that it is open on.
    pub(super) fn link(&self) -> Option<LinkId> {
        match self.phase {
            Phase::Open { link } => Some(link),
            _ => None,
        }
    }

    /// The link that it is open on or opening on.
    pub(super) fn any_link(&self) -> Option<LinkId> {
        match self.phase {
            Phase::Open { link } | Phase::Opening { link, .. } => Some(link),
            _ => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }
}
