//! When a transport to an address is replaced by a new one: on the evidence of its heartbeats alone, or because
//! the server asks for it.
//!
//! An address has at most one current *entry*, one generation of the channel to it. Two of its heartbeats in a row
//! past their deadline condemn it, and so does one that is told UNAVAILABLE while the channel still reads READY:
//! then the channel does not know that its connection is gone. A channel that is not READY is dialling by itself
//! and is left to it. Everything else that comes back came over a link that lives.
//!
//! What is true of the entry dies with it: its verdict and its heartbeats. What protects the address outlives it by
//! 30 seconds: that one recovery runs at a time, and when the last one began, so that a route that flaps does not
//! start either anew.
//!
//! The caller drains [`poll_action`](TransportRecovery::poll_action) after every call and at
//! [`poll_timeout`](TransportRecovery::poll_timeout). It gives every heartbeat its deadline, so that each ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Heartbeats in a row past their deadline that condemn an entry.
const THRESHOLD: u32 = 2;
/// How long after a recovery of an address evidence alone does not start another.
const COOLDOWN: Duration = Duration::from_secs(30);
/// How long an address is remembered after its entry is gone.
const MEMORY: Duration = Duration::from_secs(30);

/// When heartbeats are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeartbeatTiming {
    /// From the making of an entry to its first heartbeat.
    pub first: Duration,
    /// From the start of one to the start of the next.
    pub period: Duration,
    /// How long one may take. Early ones start no closer together than this.
    pub deadline: Duration,
}

impl Default for HeartbeatTiming {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), period: Duration::from_secs(10), deadline: Duration::from_secs(3) }
    }
}

/// Names an entry; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId(u64);

/// How a heartbeat ended. `ready` is what the channel's state read at that moment, on the thread that was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeartbeatOutcome {
    /// The server answered that all is well.
    Ok,
    /// Nothing came in time.
    DeadlineExceeded { ready: bool },
    /// gRPC's UNAVAILABLE.
    Unavailable { ready: bool },
    /// Any other status: it came over the link, or never went to it.
    Other,
    /// Whoever sent it is gone: nothing is learnt, and another has to look.
    Abandoned,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action<A> {
    /// Send a heartbeat over this entry now; it counts as started.
    Heartbeat { address: A, entry: EntryId },
    /// Make a new channel in this one's place, then call [`TransportRecovery::replaced`] or
    /// [`TransportRecovery::recovery_failed`].
    Recover { address: A, entry: EntryId, reason: Reason },
}

/// Why a channel is replaced, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Heartbeats in a row were past their deadline.
    Deadlines,
    /// A heartbeat was told UNAVAILABLE while the channel read READY.
    UnavailableWhileReady,
    /// The server asked for it.
    ServerCommand,
}

/// Decides for all addresses of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransportRecovery<A> {
    timing: HeartbeatTiming,
    /// The number of the next entry.
    next_entry: u64,
    entries: BTreeMap<EntryId, Entry<A>>,
    addresses: BTreeMap<A, Guard>,
}

/// An entry that is current.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry<A> {
    address: A,
    verdict: Verdict,
    /// When the latest heartbeat started, and whether it has not ended yet.
    latest: Option<Heartbeat>,
    /// When the next one is due, unless one is still in flight then.
    next: Instant,
    /// When the latest heartbeat that succeeded had started: the link lived after this.
    proved: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heartbeat {
    started: Instant,
    in_flight: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Its heartbeats come back, but for so many latest ones.
    Trusted { late: u32 },
    /// It has to be replaced as soon as that is allowed.
    Condemned { since: Instant, reason: Reason },
}

/// What protects an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Guard {
    /// The recovery under way.
    recovering: Option<Recovery>,
    /// When the last one began.
    last: Option<Instant>,
    /// When the server asked for one that has not begun.
    asked: Option<Instant>,
    /// Since when the address has no entry.
    idle_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recovery {
    /// The entry that is to be replaced.
    entry: EntryId,
    /// Its end, if the entry is gone: nobody may be left to tell of it.
    lapses: Option<Instant>,
}

impl<A: Clone + Ord> TransportRecovery<A> {
    pub(crate) fn new(timing: HeartbeatTiming) -> Self {
        Self { timing, next_entry: 0, entries: BTreeMap::new(), addresses: BTreeMap::new() }
    }

    /// A channel to an address was made. An address that has an entry keeps it.
    pub(crate) fn added(&mut self, address: A, now: Instant) -> EntryId {
        self.forget(now);
        if let Some(entry) = self.current(&address) {
            return entry;
        }
        self.addresses.entry(address.clone()).or_default().idle_since = None;
        let first = now + self.timing.first;
        self.make(address, first)
    }

    /// An entry is out of use. What it or its recovery does from here on changes nothing.
    pub(crate) fn retired(&mut self, entry: EntryId, now: Instant) {
        self.forget(now);
        let Some(Entry { address, .. }) = self.entries.remove(&entry) else { return };
        if let Some(guard) = self.addresses.get_mut(&address) {
            guard.asked = None;
            guard.idle_since = Some(now);
            if let Some(recovery) = &mut guard.recovering {
                recovery.lapses.get_or_insert(now + MEMORY);
            }
        }
    }

    /// The heartbeat of an entry ended.
    pub(crate) fn heartbeat_ended(&mut self, entry: EntryId, outcome: HeartbeatOutcome, now: Instant) {
        let deadline = self.timing.deadline;
        let Some(entry) = self.entries.get_mut(&entry) else { return };
        let Some(heartbeat) = entry.latest.as_mut().filter(|heartbeat| heartbeat.in_flight) else { return };
        heartbeat.in_flight = false;
        let started = heartbeat.started;
        entry.verdict = entry.verdict.after(outcome, now);
        match outcome {
            HeartbeatOutcome::Ok => entry.proved = Some(started),
            HeartbeatOutcome::DeadlineExceeded { .. } | HeartbeatOutcome::Abandoned => {
                entry.bring_forward(now, deadline);
            }
            HeartbeatOutcome::Unavailable { .. } | HeartbeatOutcome::Other => {}
        }
    }

    /// An ordinary call over an entry, begun at `call_started`, ended past its deadline or UNAVAILABLE while the
    /// channel read READY: a heartbeat should have a look, if none has had since.
    pub(crate) fn hint(&mut self, entry: EntryId, call_started: Instant, now: Instant) {
        let deadline = self.timing.deadline;
        let Some(entry) = self.entries.get_mut(&entry) else { return };
        let looked_since = |started: Instant| started > call_started;
        let in_flight = entry.latest.filter(|heartbeat| heartbeat.in_flight).map(|heartbeat| heartbeat.started);
        if !in_flight.is_some_and(looked_since) && !entry.proved.is_some_and(looked_since) {
            entry.bring_forward(now, deadline);
        }
    }

    /// The server asks for a new connection to an address. False if there is none to replace, or if that is being
    /// done already.
    pub(crate) fn server_command(&mut self, address: &A, now: Instant) -> bool {
        self.forget(now);
        let is_current = self.current(address).is_some();
        match self.addresses.get_mut(address) {
            Some(guard) if is_current && guard.recovering.is_none() => {
                guard.asked = Some(now);
                true
            }
            _ => false,
        }
    }

    /// A recovery has a new channel. The entry to publish it under, or none if the one that it was to replace is
    /// out of use by now: then the channel is to be dropped.
    pub(crate) fn replaced(&mut self, entry: EntryId, now: Instant) -> Option<EntryId> {
        if !self.finish(entry) {
            return None;
        }
        let Entry { address, .. } = self.entries.remove(&entry)?;
        // Its first heartbeat does not wait: the sooner it is known that the new link lives, the better.
        Some(self.make(address, now))
    }

    /// A recovery made no channel. The entry stays; its next recovery waits for new evidence and the cooldown.
    pub(crate) fn recovery_failed(&mut self, entry: EntryId) {
        self.finish(entry);
    }

    /// Until when an address without an entry is remembered, if it is.
    pub(crate) fn remembered_until(&self, address: &A) -> Option<Instant> {
        self.addresses.get(address)?.idle_since.map(|since| since + MEMORY)
    }

    /// Whether nothing is remembered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.addresses.is_empty()
    }

    /// Whether an entry is the one in use for its address.
    #[cfg(test)]
    pub(crate) fn is_current(&self, entry: EntryId) -> bool {
        self.entries.contains_key(&entry)
    }

    /// What there is to do at `now`; called until it says nothing.
    pub(crate) fn poll_action(&mut self, now: Instant) -> Option<Action<A>> {
        self.forget(now);
        for (&id, entry) in &mut self.entries {
            let Some(guard) = self.addresses.get_mut(&entry.address) else { continue };
            if let Some((_, reason)) = guard.may_recover_at(entry.verdict).filter(|&(at, _)| at <= now) {
                *guard = Guard {
                    recovering: Some(Recovery { entry: id, lapses: None }),
                    last: Some(now),
                    asked: None,
                    idle_since: None,
                };
                entry.verdict = Verdict::Trusted { late: 0 };
                return Some(Action::Recover { address: entry.address.clone(), entry: id, reason });
            }
            if entry.heartbeat_at().is_some_and(|at| at <= now) {
                entry.latest = Some(Heartbeat { started: now, in_flight: true });
                entry.next = now + self.timing.period;
                return Some(Action::Heartbeat { address: entry.address.clone(), entry: id });
            }
        }
        None
    }

    /// When [`poll_action`](Self::poll_action) has something to say next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.entries.values().flat_map(|entry| {
            let guard = self.addresses.get(&entry.address);
            // A guard that nobody frees is waited for: evidence may stand behind it.
            let lapse = guard.and_then(|guard| guard.recovering).and_then(|recovery| recovery.lapses);
            let recovery = guard.and_then(|guard| guard.may_recover_at(entry.verdict)).map(|(at, _)| at);
            [lapse, recovery, entry.heartbeat_at()]
        });
        due.flatten().min()
    }

    fn make(&mut self, address: A, next: Instant) -> EntryId {
        let id = EntryId(self.next_entry);
        self.next_entry += 1;
        let verdict = Verdict::Trusted { late: 0 };
        self.entries.insert(id, Entry { address, verdict, latest: None, next, proved: None });
        id
    }

    fn current(&self, address: &A) -> Option<EntryId> {
        self.entries.iter().find(|(_, entry)| entry.address == *address).map(|(&id, _)| id)
    }

    /// Frees the guard that the recovery of an entry holds; false if it holds none.
    fn finish(&mut self, entry: EntryId) -> bool {
        let held = |guard: &&mut Guard| guard.recovering.is_some_and(|recovery| recovery.entry == entry);
        self.addresses.values_mut().find(held).is_some_and(|guard| guard.recovering.take().is_some())
    }

    /// Drops what has been kept long enough.
    fn forget(&mut self, now: Instant) {
        self.addresses.retain(|_, guard| {
            if guard.recovering.and_then(|recovery| recovery.lapses).is_some_and(|lapses| lapses <= now) {
                guard.recovering = None;
            }
            guard.idle_since.is_none_or(|since| now < since + MEMORY)
        });
    }
}

impl<A> Entry<A> {
    /// The next heartbeat comes now, but early ones keep their distance.
    fn bring_forward(&mut self, now: Instant, deadline: Duration) {
        let soonest = self.latest.map_or(now, |heartbeat| now.max(heartbeat.started + deadline));
        self.next = self.next.min(soonest);
    }

    fn heartbeat_at(&self) -> Option<Instant> {
        if self.latest.is_some_and(|heartbeat| heartbeat.in_flight) { None } else { Some(self.next) }
    }
}

impl Verdict {
    fn after(self, outcome: HeartbeatOutcome, now: Instant) -> Self {
        let condemned = |reason| match self {
            Self::Condemned { .. } => self,
            Self::Trusted { .. } => Self::Condemned { since: now, reason },
        };
        match (outcome, self) {
            (HeartbeatOutcome::DeadlineExceeded { ready: true }, Self::Trusted { late })
                if late + 1 < if mutant!(OneLateHeartbeatIsEnough) { 1 } else { THRESHOLD } =>
            {
                Self::Trusted { late: if mutant!(LateHeartbeatsAreForgiven) { 0 } else { late + 1 } }
            }
            (HeartbeatOutcome::DeadlineExceeded { ready: true }, _) => condemned(Reason::Deadlines),
            (HeartbeatOutcome::Abandoned, _) => self,
            (HeartbeatOutcome::Unavailable { ready: true }, _) => condemned(Reason::UnavailableWhileReady),
            _ => Self::Trusted { late: 0 },
        }
    }
}

impl Guard {
    /// When the address's entry, which is judged so, may be replaced, if at all, and why. May lie in the past.
    fn may_recover_at(&self, verdict: Verdict) -> Option<(Instant, Reason)> {
        if self.recovering.is_some() {
            return None;
        }
        match (self.asked, verdict) {
            (Some(asked), _) if mutant!(TheServerHasToWait) => {
                Some((self.last.map_or(asked, |last| asked.max(last + COOLDOWN)), Reason::ServerCommand))
            }
            (Some(asked), _) => Some((asked, Reason::ServerCommand)),
            (None, Verdict::Condemned { since, reason }) => {
                let last = self.last.filter(|_| !mutant!(RecoversInTheCooldown));
                Some((last.map_or(since, |last| since.max(last + COOLDOWN)), reason))
            }
            (None, Verdict::Trusted { .. }) => None,
        }
    }
}

#[cfg(test)]
mod tests;
