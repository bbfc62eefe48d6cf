//! Links from the handshake to their loss, and who is told.

use std::time::Instant;

use super::Engine;
use super::attachment::Owner;
use super::connection::LinkState;
use super::event::{Action, DeadlineKey, LinkId};
use super::targets::Waiter;
use crate::error::{Error, ErrorKind};
use crate::policy::keepalive::KeepAlive;
use crate::policy::now::Now;
use crate::pulsar::wire::command as wire;
use crate::pulsar::wire::pb;

/// The most that a broker's own limit is believed: what a peer may have us hold for one frame, or make of one
/// compressed body, hangs on it.
const MOST_MESSAGE_SIZE: u32 = 256 * 1024 * 1024;

impl Engine {
    /// The socket was lost, or the peer broke the protocol on it.
    pub(crate) fn handle_link_lost(&mut self, now: Now, link: LinkId, error: Error) {
        self.fail_link(now.instant, link, error, false);
    }

    /// A frame during the handshake.
    pub(super) fn handshake_frame(&mut self, now: Instant, link: LinkId, frame: wire::Command) {
        let wire::Command::Other(command) = frame else {
            let error = Error::new(ErrorKind::Protocol, "the peer sent another command where CONNECTED was due");
            self.fail_link(now, link, error, false);
            return;
        };
        match command.type_() {
            pb::base_command::Type::CONNECTED => {
                let size = command.connected.max_message_size();
                self.link_ready(now, link, size);
            }
            pb::base_command::Type::ERROR => {
                let error = crate::pulsar::wire::code::server_error(
                    command.error.error.map_or(0, |code| code.value()),
                    "connect",
                    command.error.message(),
                );
                self.fail_link(now, link, error, false);
            }
            pb::base_command::Type::AUTH_CHALLENGE => {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "the broker asks for an authentication dialogue, which this client cannot hold",
                );
                self.fail_link(now, link, error, false);
            }
            _ => {
                let error = Error::new(ErrorKind::Protocol, "the peer sent another command where CONNECTED was due");
                self.fail_link(now, link, error, false);
            }
        }
    }

    /// What the broker states takes effect if it is positive, as in other clients; 0 and below mean nothing.
    fn link_ready(&mut self, now: Instant, link: LinkId, max_message_size: i32) {
        let keep_alive = self.options.keep_alive;
        let Some(connection) = self.links.get_mut(&link) else { return };
        if let Ok(size @ 1..) = u32::try_from(max_message_size) {
            connection.max_message_size = size.min(MOST_MESSAGE_SIZE);
        }
        connection.state = LinkState::Ready { keepalive: KeepAlive::new(keep_alive, now) };
        let id = connection.target;
        self.arm_link(link);
        let Some(target) = self.targets.get_mut(id) else { return };
        if std::mem::take(&mut target.lost) {
            self.stats.recoveries += 1;
            self.act(Action::Recovered);
        }
        let Some(target) = self.targets.get_mut(id) else { return };
        for waiter in std::mem::take(&mut target.waiters) {
            match waiter {
                Waiter::Owner(owner) => self.linked(now, owner, link),
                Waiter::Lookup(lookup) => self.lookup_linked(now, lookup, link),
            }
        }
    }

    /// Dial, handshake or liveness of a link is due.
    pub(super) fn link_due(&mut self, now: Instant, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        connection.armed = None;
        match &mut connection.state {
            LinkState::Resolving { due, slow_at } => {
                let (due, slow_at, id) = (*due, *slow_at, connection.target);
                if now >= due {
                    let error = Error::new(ErrorKind::Timeout, "the host name was not resolved in time");
                    self.fail_link(now, link, error, false);
                } else if now >= slow_at {
                    let host = self.targets.get(id).map(|target| target.place.physical().clone());
                    let known = host.and_then(|host| self.last_addresses.get(&host).cloned());
                    self.connect(now, link, known.unwrap_or_default());
                }
            }
            LinkState::Connecting { due, next_at, .. } => {
                if now >= *due {
                    let error = Error::new(ErrorKind::Timeout, "the connection was not made in time");
                    self.fail_link(now, link, error, false);
                } else if next_at.is_some_and(|at| now >= at) {
                    self.try_next(now, link);
                }
            }
            LinkState::Handshaking { due } => {
                if now >= *due {
                    let error = Error::new(ErrorKind::Timeout, "the broker did not complete the handshake in time");
                    self.fail_link(now, link, error, true);
                }
            }
            LinkState::Ready { .. } => self.check_liveness(now, link),
        }
        self.arm_link(link);
    }

    /// The link ends: its requests fail, its owners are detached, its waiters are told.
    pub(super) fn fail_link(&mut self, now: Instant, link: LinkId, error: Error, reset: bool) {
        let Some(connection) = self.links.remove(&link) else { return };
        self.act(Action::CloseLink { link, reset });
        self.end_attempts(link, &connection);
        let was_ready = connection.is_ready();
        let sends_wait = self.sends_wait();
        let mut waiters = Vec::new();
        if let Some(target) = self.targets.get_mut(connection.target) {
            let peer = target.place.physical().to_string();
            log::info!("link to {peer} ended: {error}");
            target.lost |= was_ready;
            target.failed(now, sends_wait, &mut self.rng);
            waiters = std::mem::take(&mut target.waiters);
        }
        let requests: Vec<u64> =
            self.requests.iter().filter(|(_, request)| request.link == link).map(|(id, _)| *id).collect();
        for request in requests {
            self.request_failed(now, request, &error);
        }
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.attachment.link() == Some(link)).map(|(id, _)| *id);
        let owners: Vec<Owner> = lanes
            .map(Owner::Lane)
            .chain(
                self.parts
                    .iter()
                    .filter(|(_, part)| part.attachment.link() == Some(link))
                    .map(|(id, _)| Owner::Part(*id)),
            )
            .collect();
        for owner in owners {
            self.detached(now, owner, &error);
        }
        self.service_link_failed(connection.target);
        for waiter in waiters {
            match waiter {
                Waiter::Owner(owner) => self.link_failed(now, owner, &error),
                Waiter::Lookup(lookup) => self.lookup_link_failed(now, lookup, &error),
            }
        }
    }

    /// Looks at the link again no later than its state wants, unless a post is on its way already.
    pub(super) fn arm_link(&mut self, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let due = connection.next_due();
        if connection.armed.is_none_or(|armed| due < armed) {
            connection.armed = Some(due);
            self.watch(DeadlineKey::Link(link), due);
        }
    }

    /// The driver could not take everything that a link has to transmit: it is named again.
    pub(crate) fn want_transmit(&mut self, link: LinkId) {
        self.mark_dirty(link);
    }

    pub(super) fn mark_dirty(&mut self, link: LinkId) {
        if let Some(connection) = self.links.get_mut(&link) {
            if !connection.dirty {
                connection.dirty = true;
                self.dirty.push(link);
            }
        }
    }
}
