//! The rules one by one; `random` holds them together.

mod bounds;
mod hints;
mod random;

use super::HeartbeatOutcome::{Abandoned, DeadlineExceeded, Ok, Other, Unavailable};
use super::*;

const LATE: HeartbeatOutcome = DeadlineExceeded { ready: true };
const LATE_DIALLING: HeartbeatOutcome = DeadlineExceeded { ready: false };
const BROKEN: HeartbeatOutcome = Unavailable { ready: true };
const DIALLING: HeartbeatOutcome = Unavailable { ready: false };

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The machine on a clock of its own, with one address under test.
struct Scene {
    recovery: TransportRecovery<&'static str>,
    now: Instant,
    entry: EntryId,
    /// A heartbeat of the entry is in flight.
    flying: bool,
}

impl Scene {
    /// An entry just made.
    fn new() -> Self {
        let now = Instant::now();
        let mut recovery = TransportRecovery::new(HeartbeatTiming::default());
        let entry = recovery.added("a", now);
        Self { recovery, now, entry, flying: false }
    }

    fn wait(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn actions(&mut self) -> Vec<Action<&'static str>> {
        let actions: Vec<_> = std::iter::from_fn(|| self.recovery.poll_action(self.now)).collect();
        self.flying |= actions.contains(&Action::Heartbeat { address: "a", entry: self.entry });
        actions
    }

    /// Goes on until a heartbeat is in flight.
    fn heartbeat(&mut self) -> &mut Self {
        if self.flying {
            return self;
        }
        self.now = self.now.max(self.recovery.poll_timeout().unwrap());
        let entry = self.entry;
        assert_eq!(self.actions(), [Action::Heartbeat { address: "a", entry }]);
        self
    }

    /// The heartbeat in flight ends so: past its deadline after that, else at once.
    fn ends(&mut self, outcome: HeartbeatOutcome) -> &mut Self {
        if matches!(outcome, DeadlineExceeded { .. }) {
            self.wait(3 * SECOND);
        }
        self.recovery.heartbeat_ended(self.entry, outcome, self.now);
        self.flying = false;
        self
    }

    fn beat(&mut self, outcome: HeartbeatOutcome) -> &mut Self {
        self.heartbeat().ends(outcome)
    }

    fn recovers(&mut self, reason: Reason) -> &mut Self {
        let entry = self.entry;
        let recover = self.actions().into_iter().find(|action| matches!(action, Action::Recover { .. }));
        assert_eq!(recover, Some(Action::Recover { address: "a", entry, reason }));
        self
    }

    fn stays(&mut self) -> &mut Self {
        let actions = self.actions();
        assert!(actions.iter().all(|action| !matches!(action, Action::Recover { .. })), "{actions:?}");
        self
    }

    fn replaced(&mut self) -> &mut Self {
        self.entry = self.recovery.replaced(self.entry, self.now).unwrap();
        self.flying = false;
        self
    }

    fn added(&mut self) -> &mut Self {
        self.entry = self.recovery.added("a", self.now);
        self.flying = false;
        self
    }

    /// A recovery of the address is behind us, the new entry had its first good heartbeat.
    fn recovered() -> Self {
        let mut scene = Self::new();
        scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady).replaced().beat(Ok);
        scene
    }
}

#[test]
fn heartbeats_come_after_a_second_and_every_ten() {
    let mut scene = Scene::new();
    let start = scene.now;
    for n in 0..5 {
        scene.heartbeat();
        assert_eq!(scene.now, start + SECOND + 10 * n * SECOND);
        scene.wait(200 * MS).ends(Ok).stays();
    }
}

#[test]
fn two_heartbeats_in_a_row_past_their_deadline_replace_the_channel() {
    let mut scene = Scene::new();
    scene.beat(LATE).stays();
    scene.beat(LATE).recovers(Reason::Deadlines);
}

#[test]
fn one_unavailable_while_ready_replaces_it_at_once() {
    Scene::new().beat(BROKEN).recovers(Reason::UnavailableWhileReady);
}

/// IDLE, CONNECTING, TRANSIENT_FAILURE and SHUTDOWN are all "not READY"; the sixth case is no answer in them.
#[test]
fn a_channel_that_dials_is_left_alone() {
    for outcome in [DIALLING, LATE_DIALLING] {
        let mut scene = Scene::new();
        for _ in 0..20 {
            scene.beat(outcome).stays();
        }
    }
}

#[test]
fn an_answer_of_any_other_kind_is_no_evidence() {
    let mut scene = Scene::new();
    for _ in 0..20 {
        scene.beat(Other).stays();
    }
}

#[test]
fn whatever_else_comes_back_clears_the_count() {
    for outcome in [Ok, Other, DIALLING, LATE_DIALLING] {
        let mut scene = Scene::new();
        for _ in 0..5 {
            scene.beat(LATE).stays().beat(outcome).stays();
        }
        scene.beat(LATE).stays().beat(LATE).recovers(Reason::Deadlines);
    }
}

#[test]
fn one_that_was_given_up_changes_nothing_and_is_followed_by_another() {
    let mut scene = Scene::new();
    scene.beat(LATE).heartbeat();
    let started = scene.now;
    scene.ends(Abandoned).stays().heartbeat();
    assert_eq!(scene.now, started + 3 * SECOND, "not only after a whole period");
    scene.ends(LATE).recovers(Reason::Deadlines);
    // Kept evidence is kept.
    let mut scene = Scene::recovered();
    scene.beat(BROKEN).stays().beat(Abandoned).wait(COOLDOWN).recovers(Reason::UnavailableWhileReady);
}

#[test]
fn a_recovery_clears_the_count() {
    let mut scene = Scene::new();
    scene.beat(LATE).beat(LATE).recovers(Reason::Deadlines);
    scene.recovery.recovery_failed(scene.entry);
    scene.beat(LATE).wait(COOLDOWN).stays();
}

#[test]
fn a_late_heartbeat_brings_the_next_one_forward() {
    let mut scene = Scene::new();
    scene.beat(LATE);
    let ended = scene.now;
    scene.heartbeat();
    assert_eq!(scene.now, ended);
}

#[test]
fn evidence_in_the_cooldown_is_kept_and_acted_on_at_its_end() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    let last = scene.now;
    scene.replaced().beat(BROKEN).stays();
    scene.now = last + COOLDOWN - MS;
    scene.stays();
    assert_eq!(scene.recovery.poll_timeout(), Some(last + COOLDOWN));
    scene.now = last + COOLDOWN;
    scene.recovers(Reason::UnavailableWhileReady);
}

#[test]
fn after_the_cooldown_evidence_acts_at_once() {
    let mut scene = Scene::recovered();
    while scene.now < scene.recovery.addresses["a"].last.unwrap() + COOLDOWN {
        scene.beat(Ok);
    }
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
}

#[test]
fn kept_evidence_is_dropped_when_the_link_shows_life() {
    // Not only a success: a refusal came over the link too, and a channel that dials has given the link up.
    for outcome in [Ok, Other, DIALLING, LATE_DIALLING] {
        let mut scene = Scene::recovered();
        scene.beat(BROKEN).stays().beat(outcome).wait(COOLDOWN).stays();
    }
    for outcome in [LATE, BROKEN] {
        let mut scene = Scene::recovered();
        scene.beat(BROKEN).stays().beat(outcome).wait(COOLDOWN).recovers(Reason::UnavailableWhileReady);
    }
}

#[test]
fn the_server_s_command_bypasses_the_cooldown() {
    let mut scene = Scene::recovered();
    assert!(scene.recovery.server_command(&"a", scene.now));
    scene.recovers(Reason::ServerCommand);
    // And starts it anew.
    let asked = scene.now;
    scene.replaced().beat(BROKEN).stays();
    scene.now = asked + COOLDOWN - MS;
    scene.stays().wait(MS).recovers(Reason::UnavailableWhileReady);
}

#[test]
fn nothing_bypasses_a_recovery_under_way() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    assert!(!scene.recovery.server_command(&"a", scene.now));
    scene.stays().beat(BROKEN).wait(10 * COOLDOWN).stays();
    assert!(!scene.recovery.server_command(&"a", scene.now));
    scene.stays().replaced().stays();
}

#[test]
fn triggers_that_compete_start_one_recovery() {
    let mut scene = Scene::new();
    scene.heartbeat();
    for _ in 0..32 {
        assert!(scene.recovery.server_command(&"a", scene.now));
        scene.recovery.heartbeat_ended(scene.entry, BROKEN, scene.now);
        scene.recovery.hint(scene.entry, scene.now, scene.now);
    }
    scene.recovers(Reason::ServerCommand).stays().replaced().stays().wait(9 * SECOND).stays();
}

#[test]
fn a_command_for_an_unknown_address_does_nothing() {
    let mut scene = Scene::new();
    assert!(!scene.recovery.server_command(&"b", scene.now));
    scene.recovery.retired(scene.entry, scene.now);
    assert!(!scene.recovery.server_command(&"a", scene.now));
    assert_eq!(scene.wait(COOLDOWN).actions(), []);
}

#[test]
fn a_failed_recovery_frees_the_guard_and_keeps_the_entry() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    let last = scene.now;
    scene.recovery.recovery_failed(scene.entry);
    assert!(scene.recovery.is_current(scene.entry));
    scene.beat(BROKEN).stays();
    scene.now = last + COOLDOWN;
    scene.recovers(Reason::UnavailableWhileReady);
}

#[test]
fn late_heartbeats_of_a_replaced_or_retired_entry_change_nothing() {
    let mut scene = Scene::new();
    scene.heartbeat();
    assert!(scene.recovery.server_command(&"a", scene.now));
    scene.recovers(Reason::ServerCommand);
    let old = scene.entry;
    scene.replaced();
    let before = scene.recovery.clone();
    for outcome in [LATE, LATE, BROKEN, Ok, Other, DIALLING] {
        scene.recovery.heartbeat_ended(old, outcome, scene.now);
    }
    scene.recovery.hint(old, scene.now, scene.now);
    scene.recovery.recovery_failed(old);
    assert_eq!(scene.recovery.replaced(old, scene.now), None);
    assert_eq!(scene.recovery, before);
    assert!(!scene.recovery.is_current(old) && scene.recovery.is_current(scene.entry));

    scene.heartbeat();
    scene.recovery.retired(scene.entry, scene.now);
    let before = scene.recovery.clone();
    scene.recovery.heartbeat_ended(scene.entry, BROKEN, scene.now);
    scene.recovery.retired(scene.entry, scene.now);
    assert_eq!(scene.recovery, before);
    assert_eq!(scene.actions(), []);
}

#[test]
fn a_heartbeat_ends_once() {
    let mut scene = Scene::new();
    scene.beat(LATE);
    scene.recovery.heartbeat_ended(scene.entry, LATE, scene.now);
    scene.stays();
}

#[test]
fn a_recovery_that_outlives_its_entry_publishes_nothing() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    scene.recovery.retired(scene.entry, scene.now);
    assert_eq!(scene.recovery.replaced(scene.entry, scene.now), None);
    assert_eq!(scene.wait(COOLDOWN).actions(), []);
    assert_eq!(scene.recovery.poll_timeout(), None);
}

#[test]
fn guard_and_cooldown_outlive_a_route_that_flaps() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    let (old, last) = (scene.entry, scene.now);
    for _ in 0..10 {
        let entry = scene.entry;
        scene.recovery.retired(entry, scene.now);
        scene.wait(500 * MS);
        scene.added();
        assert_ne!(scene.entry, entry);
        scene.wait(500 * MS);
    }
    // The recovery of the first entry is still under way.
    assert!(!scene.recovery.server_command(&"a", scene.now));
    assert_eq!(scene.recovery.replaced(old, scene.now), None);
    // And the last one is not 30 seconds ago yet.
    scene.beat(BROKEN).stays();
    scene.now = last + COOLDOWN - MS;
    scene.stays().wait(MS).recovers(Reason::UnavailableWhileReady);
}

#[test]
fn the_verdict_dies_with_its_entry() {
    let mut scene = Scene::recovered();
    scene.beat(BROKEN).stays();
    scene.recovery.retired(scene.entry, scene.now);
    scene.added();
    for _ in 0..10 {
        scene.beat(Ok).stays();
    }
}

#[test]
fn a_guard_whose_entry_is_gone_lapses() {
    let mut scene = Scene::new();
    scene.beat(BROKEN).recovers(Reason::UnavailableWhileReady);
    scene.recovery.retired(scene.entry, scene.now);
    let retired = scene.now;
    scene.added().beat(BROKEN);
    scene.now = retired + MEMORY - MS;
    scene.stays();
    // Nobody has ever told how the recovery of the old entry ended.
    scene.wait(MS).recovers(Reason::UnavailableWhileReady);
}

#[test]
fn addresses_are_forgotten() {
    let mut scene = Scene::new();
    for n in 0..1_000 {
        let entry = scene.recovery.added(if n % 2 == 0 { "b" } else { "c" }, scene.now);
        scene.recovery.retired(entry, scene.now);
        scene.wait(SECOND);
    }
    scene.recovery.retired(scene.entry, scene.now);
    scene.wait(MEMORY).actions();
    assert!(scene.recovery.addresses.is_empty() && scene.recovery.entries.is_empty());
}

#[test]
fn an_address_keeps_the_entry_that_it_has() {
    let mut scene = Scene::new();
    assert_eq!(scene.recovery.added("a", scene.now), scene.entry);
}

#[test]
fn addresses_do_not_know_each_other() {
    let mut scene = Scene::new();
    let other = scene.recovery.added("b", scene.now);
    scene.wait(SECOND);
    assert_eq!(scene.actions().len(), 2);
    scene.ends(BROKEN).recovers(Reason::UnavailableWhileReady);
    scene.recovery.heartbeat_ended(other, BROKEN, scene.now);
    let reason = Reason::UnavailableWhileReady;
    assert_eq!(scene.actions(), [Action::Recover { address: "b", entry: other, reason }]);
}
