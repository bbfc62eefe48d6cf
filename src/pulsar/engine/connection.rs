//! One link as the engine knows it: from the dial to its end.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use super::event::{LaneId, LinkId};
use super::targets::TargetId;
use crate::policy::keepalive::KeepAlive;

pub(super) struct Connection {
    pub target: TargetId,
    pub state: LinkState,
    /// Encoded control frames, acknowledgements and permits, not yet handed to the socket.
    pub control: Vec<u8>,
    /// Lanes that have something to send, each at most once.
    pub ready: VecDeque<LaneId>,
    /// When the supervisor will post this link's key, if it is to.
    pub armed: Option<Instant>,
    pub max_message_size: u32,
    /// Whether the link stands in the engine's list of links with output.
    pub dirty: bool,
    /// An address was tried under the link's own id.
    pub attempted: bool,
    /// PRODUCER requests that were given up: a late success is an orphan to be closed.
    pub orphans: BTreeMap<u64, LaneId>,
}

pub(super) enum LinkState {
    /// Waiting for the host's addresses. After `slow_at` the last good ones are used.
    Resolving { due: Instant, slow_at: Instant },
    /// `trying` are the attempts under way; the next of `rest` joins them at `next_at`, or when one fails.
    Connecting { due: Instant, next_at: Option<Instant>, rest: VecDeque<SocketAddr>, trying: Vec<LinkId> },
    /// CONNECT was sent.
    Handshaking { due: Instant },
    /// CONNECTED was received.
    Ready { keepalive: KeepAlive },
}

impl Connection {
    pub(super) fn new(target: TargetId, state: LinkState) -> Self {
        Self {
            target,
            state,
            control: Vec::new(),
            ready: VecDeque::new(),
            armed: None,
            max_message_size: crate::pulsar::wire::frame::DEFAULT_MAX_MESSAGE_SIZE as u32,
            dirty: false,
            attempted: false,
            orphans: BTreeMap::new(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, LinkState::Ready { .. })
    }

    /// Ready, with nothing to write and no orphan that may still come.
    pub(super) fn is_idle(&self) -> bool {
        self.is_ready() && self.control.is_empty() && self.ready.is_empty() && self.orphans.is_empty()
    }

    pub(super) fn keepalive(&mut self) -> Option<&mut KeepAlive> {
        match &mut self.state {
            LinkState::Ready { keepalive } => Some(keepalive),
            _ => None,
        }
    }

    /// When the link's state wants to be looked at next.
    pub(super) fn next_due(&self) -> Instant {
        match &self.state {
            LinkState::Resolving { due, slow_at } => (*due).min(*slow_at),
            LinkState::Connecting { due, next_at, .. } => next_at.map_or(*due, |at| at.min(*due)),
            LinkState::Handshaking { due } => *due,
            LinkState::Ready { keepalive } => keepalive.next_due(),
        }
    }
}
