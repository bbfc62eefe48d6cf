//! Long seeded histories of everything that can happen, and what must hold in all of them.

use std::collections::BTreeMap;

use super::*;
use crate::policy::rng::Rng;

const ADDRESSES: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 3_000;

/// What is remembered of an address to judge the machine by.
#[derive(Default)]
struct Seen {
    entry: Option<EntryId>,
    recovering: Option<EntryId>,
    /// When that counts no longer, because its entry is gone.
    lapses: Option<Instant>,
    last_recovery: Option<Instant>,
    /// The server has asked since the last recovery began.
    asked: bool,
}

struct History {
    rng: Rng,
    recovery: TransportRecovery<&'static str>,
    now: Instant,
    seen: BTreeMap<&'static str, Seen>,
    /// Heartbeats in flight: when each started.
    flying: BTreeMap<EntryId, Instant>,
    /// Entries that had a heartbeat that did not succeed.
    suspects: Vec<EntryId>,
    recoveries: [usize; 3],
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            recovery: TransportRecovery::new(HeartbeatTiming::default()),
            now: Instant::now(),
            seen: ADDRESSES.map(|address| (address, Seen::default())).into(),
            flying: BTreeMap::new(),
            suspects: Vec::new(),
            recoveries: [0; 3],
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            self.drain();
        }
    }

    fn step(&mut self) {
        let address = ADDRESSES[self.rng.below(3) as usize];
        let entry = self.seen[address].entry;
        match (self.rng.below(16), entry) {
            (0, None) => {
                let entry = self.recovery.added(address, self.now);
                self.known(address).entry = Some(entry);
            }
            (1, Some(entry)) if self.rng.chance(1, 8) => {
                self.recovery.retired(entry, self.now);
                let lapses = self.now + MEMORY;
                let seen = self.known(address);
                (seen.entry, seen.asked) = (None, false);
                if seen.recovering.is_some() {
                    seen.lapses.get_or_insert(lapses);
                }
            }
            (2, Some(_)) if self.rng.chance(1, 8) => {
                let accepted = self.recovery.server_command(&address, self.now);
                let seen = self.known(address);
                assert_eq!(accepted, seen.recovering.is_none());
                seen.asked |= accepted;
            }
            (3 | 4, Some(entry)) => {
                let started = self.now - MS * self.rng.below(6_000) as u32;
                self.recovery.hint(entry, started, self.now);
            }
            (5..=9, _) => self.end_a_heartbeat(),
            (10, _) => self.end_a_recovery(address),
            _ => self.pass_time(),
        }
    }

    fn known(&mut self, address: &'static str) -> &mut Seen {
        let seen = self.seen.get_mut(address).unwrap();
        if seen.lapses.is_some_and(|lapses| lapses <= self.now) {
            (seen.recovering, seen.lapses) = (None, None);
        }
        seen
    }

    /// Any that flies, also one of an entry that is gone by now. Addresses have their own temper, so that some
    /// entries have a clean record.
    fn end_a_heartbeat(&mut self) {
        let flying: Vec<EntryId> = self.flying.keys().copied().collect();
        if flying.is_empty() {
            return;
        }
        let entry = flying[self.rng.below(flying.len() as u64) as usize];
        let started = self.flying.remove(&entry).unwrap();
        let good = entry.0 % 3 == 0 || self.rng.chance(1, 4);
        let outcome = match self.rng.below(8) {
            _ if good => Ok,
            0 => Other,
            1 => DIALLING,
            2 => LATE_DIALLING,
            3 => BROKEN,
            4 => Abandoned,
            _ => LATE,
        };
        if matches!(outcome, DeadlineExceeded { .. }) {
            self.now = self.now.max(started + 3 * SECOND);
        }
        if outcome != Ok {
            self.suspects.push(entry);
        }
        self.recovery.heartbeat_ended(entry, outcome, self.now);
    }

    fn end_a_recovery(&mut self, address: &'static str) {
        let seen = self.known(address);
        let Some(old) = seen.recovering.take() else { return };
        seen.lapses = None;
        if self.rng.chance(1, 3) {
            self.recovery.recovery_failed(old);
            return;
        }
        let new = self.recovery.replaced(old, self.now);
        let seen = self.known(address);
        assert_eq!(new.is_some(), seen.entry == Some(old), "publishes exactly if the entry is current");
        seen.entry = new.or(seen.entry);
    }

    /// Sometimes to the next thing due, sometimes a little, sometimes far beyond.
    fn pass_time(&mut self) {
        self.now = match self.rng.below(8) {
            0..=4 => self.recovery.poll_timeout().map_or(self.now, |due| due.max(self.now)),
            5 | 6 => self.now + MS * self.rng.below(2_000) as u32,
            _ => self.now + SECOND * self.rng.below(40) as u32,
        };
    }

    fn drain(&mut self) {
        for _ in 0..100 {
            let Some(action) = self.recovery.poll_action(self.now) else {
                let due = self.recovery.poll_timeout();
                assert!(due.is_none_or(|due| due > self.now), "what is due has been said");
                return;
            };
            match action {
                Action::Heartbeat { address, entry } => {
                    assert_eq!(self.seen[address].entry, Some(entry));
                    assert!(self.flying.insert(entry, self.now).is_none(), "one heartbeat at a time");
                }
                Action::Recover { address, entry, reason } => self.judge(address, entry, reason),
            }
        }
        panic!("does not come to rest");
    }

    fn judge(&mut self, address: &'static str, entry: EntryId, reason: Reason) {
        let is_suspect = self.suspects.contains(&entry);
        let now = self.now;
        let seen = self.known(address);
        assert_eq!(seen.entry, Some(entry), "of the current entry");
        assert!(seen.recovering.is_none(), "one in progress at most");
        assert_eq!(reason == Reason::ServerCommand, seen.asked);
        if !seen.asked {
            assert!(seen.last_recovery.is_none_or(|last| now >= last + COOLDOWN), "not in the cooldown");
            assert!(is_suspect, "not of an entry whose heartbeats all succeeded");
        }
        (seen.recovering, seen.last_recovery, seen.asked) = (Some(entry), Some(now), false);
        self.recoveries[reason as usize] += 1;
    }
}

#[test]
fn whatever_happens() {
    let mut recoveries = [0; 3];
    for seed in 0..300 {
        let mut history = History::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run()));
        assert!(run.is_ok(), "seed {seed}");
        for (all, these) in recoveries.iter_mut().zip(history.recoveries) {
            *all += these;
        }
    }
    assert!(recoveries.iter().all(|&count| count > 300), "each reason often enough: {recoveries:?}");
}
