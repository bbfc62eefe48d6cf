//! Channels: one entry an address at a time, heartbeats on it, and its replacement when they say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use protobuf::Message as _;

use super::event::{Action, CallEnd, EntryId, SessionId};
use super::{Call, DEADLINE_EXCEEDED, Engine, HEARTBEAT_DEADLINE, Purpose, Timer, UNAVAILABLE};
use crate::policy::recovery::{Action as Advice, HeartbeatOutcome, Reason};
use crate::rocketmq::wire::code;
use crate::rocketmq::wire::endpoints::Endpoints;
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
    /// Heartbeats of one round on an entry: how many are out, and the best that was heard.
    rounds: BTreeMap<EntryId, Round>,
    next: u32,
    /// Channels made so far: each begins with another address of its endpoints.
    made: usize,
}

#[derive(Debug)]
struct Round {
    started: Instant,
    out: usize,
    best: Option<HeartbeatOutcome>,
}

impl Addresses {
    /// The round that a heartbeat belongs to. One good answer ends a round; those that come after it are not of the
    /// next.
    fn round_of(&mut self, call: &Call) -> Option<&mut Round> {
        self.rounds.get_mut(&call.entry).filter(|round| round.started == call.started)
    }

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

    fn forget(&mut self, address: AddressId) {
        if let Some(endpoints) = self.endpoints.remove(&address) {
            self.numbers.remove(&endpoints);
        }
    }

    /// Nothing is kept of any address.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.endpoints.is_empty() && self.entries.is_empty() && self.rounds.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len().max(self.endpoints.len())
    }
}

impl Engine {
    /// The present entry of an address; a new channel if there is none.
    pub(super) fn entry(&mut self, now: Instant, address: AddressId) -> EntryId {
        if let Some(entry) = self.addresses.entries.get(&address) {
            return *entry;
        }
        let entry = self.recovery.added(address, now);
        self.connect(address, entry);
        self.arm_recovery();
        entry
    }

    fn connect(&mut self, address: AddressId, entry: EntryId) {
        self.addresses.entries.insert(address, entry);
        if let Some(endpoints) = self.addresses.endpoints(address).cloned() {
            // The last one may have been the dead one.
            let first = self.addresses.made;
            self.addresses.made = first.wrapping_add(1);
            self.act(Action::Connect { entry, endpoints, first });
        }
    }

    /// No session uses the address any more.
    pub(super) fn retire(&mut self, now: Instant, address: AddressId) {
        let Some(entry) = self.addresses.entries.remove(&address) else { return };
        self.addresses.rounds.remove(&entry);
        self.isolated.remove(&address);
        self.recovery.retired(entry, now);
        self.act(Action::CloseChannel { entry });
    }

    /// Addresses that no session's route names, and that are not the access point of any, are given up.
    pub(super) fn retire_unused(&mut self, now: Instant) {
        let mut used: BTreeSet<AddressId> = self.sessions.values().flat_map(|session| session.addresses()).collect();
        // A stream stays where it is while one of its session's routes is not known.
        used.extend(self.sessions.values().flat_map(|session| session.links.keys().copied()));
        used.extend(self.calls.addresses());
        if !self.sessions.is_empty() {
            let access = self.options.access.clone();
            used.insert(self.addresses.number(&access));
        }
        let idle: Vec<AddressId> =
            self.addresses.entries.keys().filter(|address| !used.contains(address)).copied().collect();
        idle.into_iter().for_each(|address| self.retire(now, address));
        self.forget_addresses(now, &used);
    }

    /// Addresses that nobody uses lose their numbers, as soon as nothing protects them any more.
    fn forget_addresses(&mut self, now: Instant, used: &BTreeSet<AddressId>) {
        let known = self.addresses.endpoints.keys();
        let unused: Vec<AddressId> = known.filter(|address| !used.contains(address)).copied().collect();
        for address in unused.into_iter().filter(|_| !mutant!(KeepsAddresses)) {
            match self.recovery.remembered_until(&address) {
                Some(until) if until > now => drop(self.timers.arm(Timer::Forget, until)),
                _ => self.addresses.forget(address),
            }
        }
    }

    pub(super) fn forget_due(&mut self, now: Instant) {
        self.recovery_due(now);
        self.retire_unused(now);
    }

    /// The policy looks at its clocks: heartbeats that are due go out, condemned channels are replaced.
    pub(super) fn recovery_due(&mut self, now: Instant) {
        while let Some(advice) = self.recovery.poll_action(now) {
            match advice {
                Advice::Heartbeat { address, entry } => self.send_heartbeats(now, address, entry),
                Advice::Recover { address, entry, reason } => self.replace(now, address, entry, reason),
            }
        }
        self.arm_recovery();
    }

    fn arm_recovery(&mut self) {
        if let Some(at) = self.recovery.poll_timeout() {
            self.timers.arm(Timer::Recovery, at);
        }
    }

    /// One heartbeat of each session that knows the address: they are one round, and the best answer counts.
    fn send_heartbeats(&mut self, now: Instant, address: AddressId, entry: EntryId) {
        // Those that are closing too: a dead link must not hold up their last sends.
        let mut sessions: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| session.uses(address)).map(|(id, _)| *id).collect();
        if sessions.is_empty() {
            // An access point that no route names: one speaks for all, so that a dead link to it is found too.
            sessions.extend(self.sessions.keys().copied().take(1));
        }
        sessions.retain(|id| !mutant!(ClosingIsSilent) || self.sessions.get(id).is_some_and(|one| !one.is_closing()));
        if sessions.is_empty() {
            // Nobody is there to speak for: nothing is learnt.
            self.recovery.heartbeat_ended(entry, HeartbeatOutcome::Abandoned, now);
            return;
        }
        self.addresses.rounds.insert(entry, Round { started: now, out: sessions.len(), best: None });
        for id in sessions {
            let Some(session) = self.sessions.get(&id) else { continue };
            let body = encode(&session.heartbeat());
            self.call(now, id, address, Purpose::Heartbeat, body, HEARTBEAT_DEADLINE);
        }
    }

    pub(super) fn heartbeat_ended(&mut self, now: Instant, call: &Call, ready: bool, end: CallEnd) {
        if self.addresses.entries.get(&call.address) != Some(&call.entry) {
            return; // of a channel that was replaced or retired
        }
        let mut good = false;
        let outcome = match &end {
            CallEnd::Response(body) => {
                let status = pb::HeartbeatResponse::parse_from_bytes(body).ok().and_then(|answer| answer.status.0);
                let code = status.map(|status| status.code.value());
                if code.is_some_and(code::is_settings_missing) {
                    self.settings_missing(now, call.session, call.address);
                }
                good = code.is_some_and(code::is_success);
                if good { HeartbeatOutcome::Ok } else { HeartbeatOutcome::Other }
            }
            CallEnd::Failed { code: DEADLINE_EXCEEDED, .. } => HeartbeatOutcome::DeadlineExceeded { ready },
            CallEnd::Failed { code: UNAVAILABLE, .. } => HeartbeatOutcome::Unavailable { ready },
            _ => HeartbeatOutcome::Other,
        };
        self.stats.heartbeats += u64::from(good);
        if good && self.isolated.remove(&call.address) {
            self.pump_all(now);
        }
        let Some(round) = self.addresses.round_of(call) else { return };
        round.out = round.out.saturating_sub(1);
        let best = match round.best {
            Some(best) if rank(best) <= rank(outcome) => best,
            _ => outcome,
        };
        round.best = Some(best);
        // A good answer is enough; a bad one has to wait for the others.
        if best == HeartbeatOutcome::Ok || round.out == 0 {
            self.addresses.rounds.remove(&call.entry);
            self.recovery.heartbeat_ended(call.entry, best, now);
            self.recovery_due(now);
        }
    }

    /// A heartbeat ends with its session: its round does not wait for it.
    pub(super) fn heartbeat_forgotten(&mut self, call: &Call) {
        let Some(round) = self.addresses.round_of(call) else { return };
        round.out = round.out.saturating_sub(1);
        if round.out == 0 {
            let best = round.best.unwrap_or(HeartbeatOutcome::Abandoned);
            self.addresses.rounds.remove(&call.entry);
            self.recovery.heartbeat_ended(call.entry, best, call.started);
            self.arm_recovery();
        }
    }

    /// What the end of an ordinary call says of its channel: at most a hint.
    pub(super) fn judge(&mut self, now: Instant, call: &Call, end: &CallEnd) {
        let transport = match end {
            CallEnd::Failed { code, .. } => {
                matches!(*code, DEADLINE_EXCEEDED | UNAVAILABLE) || mutant!(ThrottlingIsolates)
            }
            CallEnd::NotStarted(fault) => fault.is_of_transport(),
            CallEnd::Response(_) => mutant!(RefusalsIsolate),
            _ => false,
        };
        let current = self.addresses.entries.get(&call.address) == Some(&call.entry);
        if !transport || !current || call.purpose == Purpose::Heartbeat {
            return;
        }
        self.isolated.insert(call.address);
        // Where the channel is dialling, the heartbeat that comes forward condemns nothing: it is what takes the
        // endpoint off the list again.
        self.recovery.hint(call.entry, call.started, now);
        if mutant!(HintsReplace) {
            self.recovery.server_command(&call.address, now);
        }
        self.recovery_due(now);
    }

    /// The server asks for a new connection.
    pub(super) fn reconnect_asked(&mut self, now: Instant, address: AddressId) {
        if !self.recovery.server_command(&address, now) {
            log::info!("the server asks for a new connection where there is none, or where one is being made");
        }
        self.recovery_due(now);
    }

    /// A new channel takes the place of the old one, whose calls are cancelled and whose streams are opened anew.
    /// Connecting does not wait, so that there is no moment between the old entry and the new one.
    fn replace(&mut self, now: Instant, address: AddressId, old: EntryId, reason: Reason) {
        if self.sessions.is_empty() {
            // Only farewells are left: a closed client makes no channels.
            self.recovery.recovery_failed(old);
            return;
        }
        let Some(entry) = self.recovery.replaced(old, now) else { return };
        log::warn!(
            "the connection to {} is replaced by a new one: {reason:?}",
            self.addresses.endpoints(address).map(|endpoints| endpoints.target(0)).unwrap_or_default()
        );
        self.addresses.rounds.remove(&old);
        self.connect(address, entry);
        self.stats.recoveries += 1;
        self.act(Action::Recovered);
        // Streams first: their Settings are the first thing that the new connection carries.
        let sessions: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| session.uses(address)).map(|(id, _)| *id).collect();
        for session in sessions {
            self.renew_now(now, session, address);
        }
        let cut: Vec<_> = self.calls.iter().filter(|(_, call)| call.entry == old).map(|(id, _)| *id).collect();
        let cut = if mutant!(ReplacedKeepsItsCalls) { Vec::new() } else { cut };
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
    }
}

/// The best of a round is the lowest: one that was answered proves more than one that was not.
fn rank(outcome: HeartbeatOutcome) -> u8 {
    match outcome {
        HeartbeatOutcome::Ok => 0,
        HeartbeatOutcome::Other => 1,
        HeartbeatOutcome::Unavailable { ready: false } => 2,
        HeartbeatOutcome::DeadlineExceeded { .. } => 3,
        HeartbeatOutcome::Unavailable { ready: true } => 4,
        HeartbeatOutcome::Abandoned => 5,
    }
}

pub(in crate::rocketmq) fn encode(message: &impl protobuf::Message) -> bytes::Bytes {
    // Only a message with unset required fields cannot be written, and this syntax has none.
    message.write_to_bytes().map(bytes::Bytes::from).unwrap_or_default()
}
