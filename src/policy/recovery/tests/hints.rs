//! What ordinary calls may do: bring the next heartbeat forward, and nothing else.

use super::*;

#[test]
fn a_hint_brings_the_next_heartbeat_to_now() {
    let mut scene = Scene::new();
    scene.beat(Ok).wait(4 * SECOND);
    let (entry, now) = (scene.entry, scene.now);
    scene.recovery.hint(entry, now - 3 * SECOND, now);
    assert_eq!(scene.actions(), [Action::Heartbeat { address: "a", entry }]);
    // Also before the first one.
    let mut scene = Scene::new();
    let (entry, now) = (scene.entry, scene.now);
    scene.recovery.hint(entry, now, now);
    assert_eq!(scene.actions(), [Action::Heartbeat { address: "a", entry }]);
}

#[test]
fn a_hint_is_ignored_once_a_heartbeat_has_looked_since() {
    let mut scene = Scene::new();
    let call = scene.now;
    scene.heartbeat();
    let regular = scene.recovery.poll_timeout();
    scene.recovery.hint(scene.entry, call, scene.now);
    scene.ends(Ok);
    scene.recovery.hint(scene.entry, call, scene.now);
    assert_eq!(scene.actions(), []);
    assert_eq!(regular, None, "one is in flight");
    assert_eq!(scene.recovery.poll_timeout(), Some(call + 11 * SECOND));
}

#[test]
fn a_hint_counts_if_the_heartbeat_started_first_or_did_not_succeed() {
    let mut scene = Scene::new();
    scene.heartbeat();
    let started = scene.now;
    // Begun with the heartbeat, or after it: what the heartbeat shows, it does not show of this.
    scene.recovery.hint(scene.entry, started, started);
    scene.ends(Ok).heartbeat();
    assert_eq!(scene.now, started + 3 * SECOND);
    scene.ends(Other);
    let call = started + SECOND;
    scene.recovery.hint(scene.entry, call, scene.now);
    scene.heartbeat();
    assert_eq!(scene.now, started + 6 * SECOND, "the one that looked did not succeed");
}

#[test]
fn early_heartbeats_keep_their_distance() {
    let mut scene = Scene::new();
    scene.heartbeat().ends(Ok);
    let mut started = scene.now;
    for _ in 0..10 {
        for _ in 0..100 {
            scene.wait(MS);
            scene.recovery.hint(scene.entry, scene.now, scene.now);
            assert_eq!(scene.actions(), []);
        }
        scene.heartbeat().ends(Ok);
        assert_eq!(scene.now, started + 3 * SECOND);
        started = scene.now;
    }
}

#[test]
fn hints_alone_never_replace_a_channel() {
    let mut scene = Scene::new();
    for _ in 0..1_000 {
        scene.wait(100 * MS);
        scene.recovery.hint(scene.entry, scene.now - 100 * MS, scene.now);
        scene.stays();
        scene.recovery.heartbeat_ended(scene.entry, Ok, scene.now);
        scene.stays();
    }
}
