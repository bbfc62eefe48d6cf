//! Channels: one entry an address at a time, heartbeats on it, and its replacement when they say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use protobuf::Message as _;

use super::event::{Action, CallEnd, EntryId, SessionId};
use super::{Call, DEADLINE_EXCEEDED, Engine, HEARTBEAT_DEADLINE, Purpose, Timer, UNAVAILABLE};
use crate::policy::recovery::{Advice, Heartbeat};
use crate::rocketmq::wire::code;
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

/// The number of an address in this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct AddressId(pub u32);

/// All addresses that the client has met, and the channels to those in use.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    numbers: BTreeMap<Endpoints, AddressId>,
    endpoints: BTreeMap<AddressId, Endpoints>,
    entries: BTreeMap<AddressId, EntryId>,
    of: BTreeMap<EntryId, AddressId>,
    /// Heartbeats of one round on an entry: how many are out, and the best that was heard.
    rounds: BTreeMap<EntryId, Round>,
    next: u32,
}

#[derive(Debug)]
struct Round {
    out: usize,
    best: Option<Heartbeat>,
}

impl Addresses {
    pub(super) fn number(&mut self, endpoints: &Endpoints) -> AddressId {
        if let Some(known) = self.numbers.get(endpoints) {
            return *known;
        }
        let id = AddressId(self.next);
        self.next += 1;
        self.numbers.insert(endpoints.clone(), id);
        self.endpoints.insert(id, endpoints.clone());
        id
    }

    pub(super) fn endpoints(&self, address: AddressId) -> Option<&Endpoints> {
        self.endpoints.get(&address)
    }
}

impl Engine {
    /// The present entry of an address; a new channel if there is none.
    pub(super) fn entry(&mut self, now: Instant, address: AddressId) -> EntryId {
        if let Some(entry) = self.addresses.entries.get(&address) {
            return *entry;
        }
        let entry = self.connect(address);
        self.recovery.added(address.0, entry.0, now);
        self.arm_recovery(now);
        entry
    }

    fn connect(&mut self, address: AddressId) -> EntryId {
        let entry = EntryId(self.id());
        self.addresses.entries.insert(address, entry);
        self.addresses.of.insert(entry, address);
        if let Some(endpoints) = self.addresses.endpoints(address).cloned() {
            // Each new channel begins with another address: the last one may have been the dead one.
            let first = usize::try_from(entry.0 & 0xffff).unwrap_or(0);
            self.act(Action::Connect { entry, endpoints, first });
        }
        entry
    }

    /// No session uses the address any more.
    pub(super) fn retire(&mut self, now: Instant, address: AddressId) {
        let Some(entry) = self.addresses.entries.remove(&address) else { return };
        self.addresses.of.remove(&entry);
        self.addresses.rounds.remove(&entry);
        self.isolated.remove(&address);
        self.recovery.retired(entry.0, now);
        self.act(Action::CloseChannel { entry });
    }

    /// Addresses that no session's route names are given up.
    pub(super) fn retire_unused(&mut self, now: Instant) {
        let used: BTreeSet<AddressId> = self.sessions.values().flat_map(|session| session.addresses()).collect();
        let access = self.addresses.number(&self.options.access.clone());
        let called: BTreeSet<AddressId> = self.calls.values().map(|call| call.address).collect();
        let idle: Vec<AddressId> = self
            .addresses
            .entries
            .keys()
            .filter(|address| !used.contains(address) && !called.contains(address))
            .filter(|address| **address != access || self.sessions.is_empty())
            .copied()
            .collect();
        for address in idle {
            self.retire(now, address);
        }
    }

    /// The policy looks at its clocks: heartbeats that are due go out, kept evidence is acted on.
    pub(super) fn recovery_due(&mut self, now: Instant) {
        while let Some(advice) = self.recovery.poll(now) {
            match advice {
                Advice::Heartbeat { entry } => self.send_heartbeats(now, EntryId(entry)),
                Advice::Recover { address, .. } => self.replace(now, AddressId(address)),
            }
        }
        self.arm_recovery(now);
    }

    pub(super) fn arm_recovery(&mut self, _now: Instant) {
        if let Some(at) = self.recovery.poll_timeout() {
            self.timers.arm(Timer::Recovery, at);
        }
    }

    /// One heartbeat of each session that knows the address: they are one round, and the best answer counts.
    fn send_heartbeats(&mut self, now: Instant, entry: EntryId) {
        let Some(address) = self.addresses.of.get(&entry).copied() else { return };
        let sessions: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.uses(address) && !session.is_closing())
            .map(|(id, _)| *id)
            .collect();
        if sessions.is_empty() {
            self.recovery.skipped(entry.0, now);
            return;
        }
        self.recovery.started(entry.0, now);
        self.addresses.rounds.insert(entry, Round { out: sessions.len(), best: None });
        for id in sessions {
            let Some(session) = self.sessions.get(&id) else { continue };
            let body = encode(&session.heartbeat());
            self.call(now, id, address, Purpose::Heartbeat, Method::Heartbeat, body, HEARTBEAT_DEADLINE);
        }
    }

    pub(super) fn heartbeat_ended(&mut self, now: Instant, call: &Call, ready: bool, end: CallEnd) {
        if self.addresses.of.get(&call.entry) != Some(&call.address) {
            return; // of a channel that was replaced or retired
        }
        let mut settings_missing = false;
        let outcome = match &end {
            CallEnd::Response(body) => {
                let status = pb::HeartbeatResponse::parse_from_bytes(body).ok().and_then(|answer| answer.status.0);
                settings_missing = status.is_some_and(|status| code::is_settings_missing(status.code.value()));
                Heartbeat::Ok
            }
            CallEnd::Failed { code: DEADLINE_EXCEEDED, .. } => Heartbeat::DeadlineExceeded,
            CallEnd::Failed { code: UNAVAILABLE, .. } => Heartbeat::Unavailable { ready },
            _ => Heartbeat::Other,
        };
        if settings_missing {
            self.settings_missing(now, call.session, call.address);
        }
        let Some(round) = self.addresses.rounds.get_mut(&call.entry) else { return };
        round.out = round.out.saturating_sub(1);
        round.best = Some(round.best.take().map_or(outcome, |best| best.min(outcome)));
        // The first good answer is enough; a bad one has to wait for the others.
        if outcome == Heartbeat::Ok || round.out == 0 {
            let best = round.best.unwrap_or(outcome);
            self.addresses.rounds.remove(&call.entry);
            self.recovery.ended(call.entry.0, best, now);
            if best == Heartbeat::Ok && self.isolated.remove(&call.address) {
                self.pump_all(now);
            }
            self.recovery_due(now);
        }
    }

    /// What the end of an ordinary call says of its channel: at most a hint.
    pub(super) fn judge(&mut self, now: Instant, call: &Call, ready: bool, end: &CallEnd) {
        let (transport, hint) = match end {
            CallEnd::Failed { code: DEADLINE_EXCEEDED, .. } => (true, true),
            CallEnd::Failed { code: UNAVAILABLE, .. } => (true, ready),
            CallEnd::NotStarted => (true, false),
            _ => (false, false),
        };
        if !transport || self.addresses.entries.get(&call.address) != Some(&call.entry) {
            return;
        }
        if self.isolated.insert(call.address) {
            self.recovery.isolated(call.entry.0, now);
        }
        if hint && call.purpose != Purpose::Heartbeat {
            self.recovery.hint(call.entry.0, call.started, now);
        }
        self.arm_recovery(now);
    }

    /// The server asks for a new connection.
    pub(super) fn reconnect_asked(&mut self, now: Instant, address: AddressId) {
        self.recovery.commanded(address.0, now);
        self.recovery_due(now);
    }

    /// A new channel takes the place of the old one, whose calls are cancelled and whose streams are opened anew.
    /// Connecting does not wait, so that there is no moment between the old entry and the new one.
    fn replace(&mut self, now: Instant, address: AddressId) {
        let Some(old) = self.addresses.entries.get(&address).copied() else { return };
        log::warn!(
            "the connection to {} is dead by its heartbeats: a new one replaces it",
            self.addresses.endpoints(address).map(|endpoints| endpoints.target(0)).unwrap_or_default()
        );
        self.addresses.of.remove(&old);
        self.addresses.rounds.remove(&old);
        let entry = self.connect(address);
        self.recovery.replaced(address.0, entry.0, now);
        self.stats.recoveries += 1;
        self.act(Action::Recovered);
        // Streams first: their Settings are the first thing that the new connection carries.
        let sessions: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| session.uses(address)).map(|(id, _)| *id).collect();
        for session in sessions {
            self.renew_now(now, session, address);
        }
        let cut: Vec<_> = self.calls.iter().filter(|(_, call)| call.entry == old).map(|(id, _)| *id).collect();
        for id in cut {
            let Some(call) = self.calls.remove(&id) else { continue };
            self.act(Action::CancelCall { call: id });
            match call.purpose {
                Purpose::Heartbeat | Purpose::Farewell => {}
                _ => self.call_ended(now, call, false, CallEnd::Cancelled),
            }
        }
        self.act(Action::CloseChannel { entry: old });
        self.isolated.remove(&address);
        self.pump_all(now);
        self.arm_recovery(now);
    }
}

pub(super) fn encode(message: &impl protobuf::Message) -> bytes::Bytes {
    // Only a message with unset required fields cannot be written, and this syntax has none.
    message.write_to_bytes().map(bytes::Bytes::from).unwrap_or_default()
}
