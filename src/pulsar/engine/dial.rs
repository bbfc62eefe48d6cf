//! Dials: the name, its addresses, and one socket in the end.
//!
//! The addresses of a name are tried one after the other, each a little after the one before and while that still
//! tries (RFC 8305); the first that connects wins, and the others are closed. One time limit holds for all.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Engine;
use super::connection::{Connection, LinkState};
use super::event::{Action, DeadlineKey, LinkId};
use super::targets::{Place, TargetId, Waiter};
use crate::error::{Error, ErrorKind};
use crate::policy::now::Now;
use crate::pulsar::wire::command as wire;

/// After this long without an answer from the resolver the last good addresses are used.
const SLOW_LOOKUP: Duration = Duration::from_secs(2);
/// How long an address is given before the next is tried too: what RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(250);

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
                self.connect(now, link, addresses);
            }
            Ok(_) => self.fail_link(now, link, Error::new(ErrorKind::Transport, "the host name has no address"), false),
            Err(error) => match host.and_then(|host| self.last_addresses.get(&host).cloned()) {
                Some(addresses) => self.connect(now, link, addresses),
                None => self.fail_link(now, link, error, false),
            },
        }
    }

    /// The addresses are known, by the resolver or from before.
    pub(super) fn connect(&mut self, now: Instant, link: LinkId, addresses: Vec<SocketAddr>) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let LinkState::Resolving { due, .. } = connection.state else { return };
        let rest = in_turns(addresses);
        connection.state = LinkState::Connecting { due, next_at: None, rest, trying: Vec::new() };
        self.try_next(now, link);
    }

    /// Tries the next address of a dial, beside those that are tried already.
    pub(super) fn try_next(&mut self, now: Instant, link: LinkId) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let LinkState::Connecting { next_at, rest, trying, .. } = &mut connection.state else { return };
        *next_at = None;
        let Some(address) = rest.pop_front() else {
            if trying.is_empty() {
                let error = Error::new(ErrorKind::Transport, "no address accepts connections");
                self.fail_link(now, link, error, false);
            }
            return;
        };
        if !rest.is_empty() {
            *next_at = Some(now + HEAD_START);
        }
        // The first attempt has the dial's own id; another that wins gives its id to the link.
        let attempt = if connection.attempted {
            self.next_link += 1;
            LinkId(self.next_link)
        } else {
            link
        };
        connection.attempted = true;
        trying.push(attempt);
        if attempt != link {
            self.attempts.insert(attempt, link);
        }
        self.act(Action::Connect { link: attempt, address });
        self.arm_link(link);
    }

    /// A socket is connected: the others of its dial end, and the handshake begins.
    pub(crate) fn handle_connected(&mut self, now: Now, attempt: LinkId) {
        let dial = self.attempts.get(&attempt).copied().unwrap_or(attempt);
        let Some(connection) = self.links.get(&dial) else { return };
        let LinkState::Connecting { due, trying, .. } = &connection.state else { return };
        if !trying.contains(&attempt) {
            return;
        }
        let (due, own_tries) = (*due, trying.contains(&dial));
        let Some(mut connection) = self.links.remove(&dial) else { return };
        self.attempts.remove(&attempt);
        self.end_attempts(attempt, &connection);
        connection.state = LinkState::Handshaking { due };
        if dial != attempt {
            if !own_tries {
                // It failed before; now that the link has another id, nothing of it stays.
                self.act(Action::CloseLink { link: dial, reset: false });
            }
            connection.armed = None;
            connection.dirty = false;
            if let Some(target) = self.targets.get_mut(connection.target) {
                target.link = Some(attempt);
            }
        }
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
        self.links.insert(attempt, connection);
        self.arm_link(attempt);
        self.mark_dirty(attempt);
    }

    /// An attempt failed: the next address is tried at once, and the dial fails with the last.
    pub(crate) fn handle_connect_failed(&mut self, now: Now, attempt: LinkId, error: Error) {
        let dial = self.attempts.remove(&attempt).unwrap_or(attempt);
        let Some(connection) = self.links.get_mut(&dial) else { return };
        let LinkState::Connecting { rest, trying, .. } = &mut connection.state else { return };
        let before = trying.len();
        trying.retain(|other| *other != attempt);
        if trying.len() == before {
            return;
        }
        let (last, over) = (rest.is_empty(), trying.is_empty());
        if attempt != dial {
            self.act(Action::CloseLink { link: attempt, reset: false });
        }
        match (last, over) {
            (false, _) => self.try_next(now.instant, dial),
            (true, true) => self.fail_link(now.instant, dial, error, false),
            (true, false) => {}
        }
    }

    /// Closes the attempts of a dial, but not `kept`.
    pub(super) fn end_attempts(&mut self, kept: LinkId, connection: &Connection) {
        let LinkState::Connecting { trying, .. } = &connection.state else { return };
        for attempt in trying.iter().filter(|attempt| **attempt != kept) {
            self.attempts.remove(attempt);
            self.act(Action::CloseLink { link: *attempt, reset: false });
        }
    }
}

/// The resolver's order, but families take turns, so that one that leads nowhere costs one head start.
fn in_turns(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first = addresses.first().map(SocketAddr::is_ipv6);
    let (same, other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| Some(address.is_ipv6()) == first);
    let mut queues = [same, other];
    let mut all = VecDeque::new();
    while queues.iter().any(|queue| !queue.is_empty()) {
        all.extend(queues.iter_mut().filter_map(VecDeque::pop_front));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_the_order_in_each_stays() {
        let order = |addresses: &[&str]| -> Vec<String> {
            let addresses = addresses.iter().map(|one| one.parse().unwrap()).collect();
            in_turns(addresses).into_iter().map(|one| one.to_string()).collect()
        };
        assert_eq!(
            order(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "1.1.1.2:1"]),
            ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "[::3]:1"]
        );
        assert_eq!(order(&["1.1.1.1:1", "[::1]:1", "1.1.1.2:1"]), ["1.1.1.1:1", "[::1]:1", "1.1.1.2:1"]);
        assert_eq!(order(&[]), [] as [&str; 0]);
    }
}
