//! How soon a link that went dead in silence is replaced, wherever in the rhythm of the heartbeats it happens.

use super::*;

/// A link that swallows everything from `dead` on, under calls that begin every `calls`, if any, and each have 3 s.
/// Returns how long the replacement took.
fn time_to_recover(dead_after: Duration, latency: Duration, calls: Option<Duration>) -> Duration {
    let mut scene = Scene::new();
    let dead = scene.now + dead_after;
    let mut flying: Option<(Instant, HeartbeatOutcome)> = None;
    // Calls that went out over the dead link, by their deadlines. A live link answers at once.
    let mut next_call = calls.map(|_| dead);
    let mut pending: Vec<Instant> = Vec::new();
    loop {
        for action in scene.actions() {
            match action {
                Action::Recover { .. } => return scene.now - dead,
                Action::Heartbeat { .. } => {
                    let answered = scene.now + latency;
                    flying = Some(if answered < dead { (answered, Ok) } else { (scene.now + 3 * SECOND, LATE) });
                }
            }
        }
        let due = [scene.recovery.poll_timeout(), flying.map(|(at, _)| at), next_call, pending.first().copied()];
        scene.now = due.into_iter().flatten().min().unwrap();
        if let Some((_, outcome)) = flying.take_if(|(at, _)| *at <= scene.now) {
            scene.recovery.heartbeat_ended(scene.entry, outcome, scene.now);
        }
        if let (Some(at), Some(calls)) = (next_call.filter(|&at| at <= scene.now), calls) {
            pending.push(at + 3 * SECOND);
            next_call = Some(at + calls);
        }
        while pending.first().is_some_and(|&deadline| deadline <= scene.now) {
            let started = pending.remove(0) - 3 * SECOND;
            scene.recovery.hint(scene.entry, started, scene.now);
        }
        assert!(scene.now < dead + 60 * SECOND, "never");
    }
}

fn every_phase(calls: Option<Duration>, limit: Duration) {
    let mut worst = Duration::ZERO;
    for phase in (0..30_000).step_by(37) {
        for latency in [0, 1, 150, 2_900] {
            worst = worst.max(time_to_recover(phase * MS, latency * MS, calls));
        }
    }
    assert!(worst <= limit, "{worst:?}");
    assert!(worst > limit - 2 * SECOND, "the limit is not loose: {worst:?}");
}

#[test]
fn under_sends_within_three_deadlines_and_a_second() {
    every_phase(Some(50 * MS), 10 * SECOND);
}

#[test]
fn after_one_lone_send_as_soon() {
    every_phase(Some(3_600 * SECOND), 10 * SECOND);
}

#[test]
fn idle_within_a_period_two_deadlines_and_a_second() {
    every_phase(None, 17 * SECOND);
}
