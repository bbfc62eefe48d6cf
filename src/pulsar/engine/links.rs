//! Links from the dial to their loss, and who is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Engine;
use super::attachment::Owner;
use super::connection::{Connection, LinkState};
use super::event::{Action, DeadlineKey, LinkId};
use super::targets::{Place, TargetId, Waiter};
use crate::error::{Error, ErrorKind};
use crate::policy::keepalive::KeepAlive;
use crate::policy::now::Now;
use crate::pulsar::wire::command as wire;
use crate::pulsar::wire::pb;

/// After this long without an answer from the resolver the last good addresses are used.
const SLOW_LOOKUP: Duration = Duration::from_secs(2);
/// The shortest time that one address of several is given.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

impl Engine {
    /// The ready link of a target, or none: then `waiter` is told when there is one, or when the dial failed.
    pub(super) fn want(&mut self, now: Instant, id: TargetId, waiter: Waiter) -> Option<LinkId> {
        let target = self.targets.get_mut(id)?;
        match target.link {
            Some(link) if self.links.get(&link).is_some_and(Connection::is_ready) => Some(link),
            Some(_) if !mutant!(DialsTwice) => {
                target.wait(waiter);
                None
            }
            _ => {
                target.wait(waiter);
                match target.gated(now) {
                    Some(at) => self.watch(DeadlineKey::Target(id.0), at),
                    None => self.dial(now, id),
                }
                None
            }
        }
    }

    /// The pause after a failed dial is over.
    pub(super) fn target_due(&mut self, now: Instant, id: TargetId) {
        let Some(target) = self.targets.get_mut(id) else { return };
        if target.link.is_some() || target.waiters.is_empty() {
            return;
        }
        match target.gated(now) {
            Some(at) => self.watch(DeadlineKey::Target(id.0), at),
            None => self.dial(now, id),
        }
    }

    /// Sends wait: no pause may be longer than it is under sends, and with `at_once` there is none.
    pub(super) fn hurry(&mut self, now: Instant, at_once: bool) {
        let limit = if at_once { now } else { now + super::attachment::LONGEST_PAUSE_UNDER_SENDS };
        let mut due = Vec::new();
        for (id, target) in self.targets.iter_mut() {
            if target.link.is_none() && !target.waiters.is_empty() && target.not_before.is_some_and(|at| at > limit) {
                target.not_before = Some(limit);
                due.push(id);
            }
        }
        for id in due {
            self.target_due(now, id);
        }
    }

    fn dial(&mut self, now: Instant, id: TargetId) {
        self.next_link += 1;
        let link = LinkId(self.next_link);
        let Some(target) = self.targets.get_mut(id) else { return };
        target.link = Some(link);
        target.not_before = None;
        let host = target.place.physical().clone();
        let due = now + self.options.connection_timeout;
        let slow_at = if self.last_addresses.contains_key(&host) { now + SLOW_LOOKUP } else { due };
        self.links.insert(link, Connection::new(id, LinkState::Resolving { due, slow_at }));
        self.act(Action::Resolve { link, host });
        self.arm_link(link);
    }

    /// The resolver's answer.
    pub(crate) fn handle_resolved(&mut self, now: Now, link: LinkId, answer: Result<Vec<SocketAddr>, Error>) {
        let now = now.instant;
        let Some(connection) = self.links.get(&link) else { return };
        let host = self.targets.get(connection.target).map(|target| target.place.physical().clone());
        let LinkState::Resolving { .. } = connection.state else {
            // The last good addresses are being tried already; the late answer serves the next dial.
            if let (Some(host), Ok(addresses)) = (host, answer) {
                self.last_addresses.insert(host, addresses);
            }
            return;
        };
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                if let Some(host) = host {
                    self.last_addresses.insert(host, addresses.clone());
                }
                self.connect(now, link, addresses.into());
            }
            Ok(_) => self.fail_link(now, link, Error::new(ErrorKind::Transport, "the host name has no address"), false),
            Err(error) => match host.and_then(|host| self.last_addresses.get(&host).cloned()) {
                Some(addresses) => self.connect(now, link, addresses.into()),
                None => self.fail_link(now, link, error, false),
            },
        }
    }

    /// Tries the first of `addresses`; the others follow if it fails.
    fn connect(&mut self, now: Instant, link: LinkId, mut addresses: VecDeque<SocketAddr>) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let due = match connection.state {
            LinkState::Resolving { due, .. } | LinkState::Connecting { due, .. } => due,
            _ => return,
        };
        let Some(address) = addresses.pop_front() else {
            self.fail_link(now, link, Error::new(ErrorKind::Transport, "no address accepts connections"), false);
            return;
        };
        let tries = u32::try_from(addresses.len() + 1).unwrap_or(u32::MAX);
        let share = (due.saturating_duration_since(now) / tries).max(SHORTEST_ATTEMPT);
        connection.state = LinkState::Connecting { due, attempt_due: (now + share).min(due), rest: addresses };
        self.act(Action::Connect { link, address });
        self.arm_link(link);
    }

    /// The socket is connected: the handshake begins.
    pub(crate) fn handle_connected(&mut self, now: Now, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let LinkState::Connecting { due, .. } = connection.state else { return };
        connection.state = LinkState::Handshaking { due };
        let through = self.targets.get(connection.target).and_then(|target| match &target.place {
            Place::Proxied { broker, .. } => Some(broker.to_string()),
            Place::Direct(_) => None,
        });
        let hello = wire::connect(
            &self.options.client_version,
            &self.options.auth_method,
            &self.options.auth_data,
            through.as_deref(),
        );
        wire::encode(&hello, &mut connection.control);
        let _ = now;
        self.mark_dirty(link);
    }

    /// The connection attempt to the present address failed.
    pub(crate) fn handle_connect_failed(&mut self, now: Now, link: LinkId, error: Error) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let LinkState::Connecting { rest, .. } = &mut connection.state else { return };
        let rest = std::mem::take(rest);
        if rest.is_empty() {
            self.fail_link(now.instant, link, error, false);
        } else {
            self.connect(now.instant, link, rest);
        }
    }

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

    fn link_ready(&mut self, now: Instant, link: LinkId, max_message_size: i32) {
        let keep_alive = self.options.keep_alive;
        let Some(connection) = self.links.get_mut(&link) else { return };
        if let Ok(size @ 1..) = u32::try_from(max_message_size) {
            connection.max_message_size = size;
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
                    self.connect(now, link, known.unwrap_or_default().into());
                }
            }
            LinkState::Connecting { due, attempt_due, rest } => {
                if now >= *due || (now >= *attempt_due && rest.is_empty()) {
                    let error = Error::new(ErrorKind::Timeout, "the connection was not made in time");
                    self.fail_link(now, link, error, false);
                } else if now >= *attempt_due {
                    let rest = std::mem::take(rest);
                    self.connect(now, link, rest);
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
