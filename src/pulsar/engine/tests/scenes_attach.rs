//! Facts about links and sessions: how they are found, lost, and found again.

use std::time::Duration;

use super::cluster::OpenFault;
use super::fault::Fault;
use super::ops::Fate;
use super::scene::{Scene, timeout};
use super::schedule::{MS, SEC};

#[test]
fn a_late_success_closes_the_orphan() {
    let mut scene = Scene::unopened(|plan| plan.operation_timeout = Duration::from_secs(3));
    scene.opens(&[OpenFault::Late(5 * SEC)]);
    // Nobody tries it again.
    scene.world.stage = super::world::Stage::Healed;
    scene.run(4.0);
    assert_eq!(scene.counts().closes, 1, "closed when it was given up");
    scene.run(3.0);
    assert_eq!(scene.counts().closes, 2, "and once more when it came");
    assert!(scene.world.cluster.topics[0].sessions.is_empty());
}

#[test]
fn a_late_success_leaves_a_younger_session_alone() {
    let mut scene = Scene::new(|plan| plan.operation_timeout = Duration::from_secs(3));
    scene.opens(&[OpenFault::Late(5 * SEC)]);
    scene.apply(Fault::Unload { tell: false, away: 0 });
    scene.run(10.0);
    let sent = scene.send(50);
    scene.run(1.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    assert_eq!(scene.world.cluster.topics[0].sessions.len(), 1);
    assert_eq!(scene.counts().closes, 1);
}

#[test]
fn an_assigned_broker_is_used_once_and_without_a_look_up() {
    let mut scene = Scene::new(|plan| plan.brokers = 2);
    let before = scene.counts();
    scene.world.cluster.unload(scene.now(), 0, 1, true, 0);
    scene.world.broker_output();
    scene.run(1.0);
    assert!(scene.is_open());
    let after = scene.counts();
    assert_eq!((after.lookups, after.producers), (before.lookups, before.producers + 1));

    scene.run(31.0);
    let after = scene.counts();
    scene.world.cluster.unload(scene.now(), 0, 0, true, 500 * MS);
    scene.world.broker_output();
    scene.run(3.0);
    assert!(scene.is_open());
    assert!(scene.counts().lookups > after.lookups, "refused there, so it is looked up");
}

/// Each broker sends the topic to the other as soon as it has come.
fn passed_around(scene: &mut Scene, seconds: u64) {
    let end = scene.now() + seconds * SEC;
    while scene.now() < end {
        if scene.is_open() {
            let other = 1 - scene.world.cluster.topics[0].owner;
            scene.world.cluster.unload(scene.now(), 0, other, true, 0);
            scene.world.broker_output();
        }
        scene.run(0.01);
    }
}

#[test]
fn brokers_that_send_a_topic_to_each_other_are_followed_with_growing_pauses() {
    let mut scene = Scene::new(|plan| plan.brokers = 2);
    let before = scene.counts();
    passed_around(&mut scene, 60);
    let after = scene.counts();
    let (tries, lookups) = (after.producers - before.producers, after.lookups - before.lookups);
    assert!((8..=20).contains(&tries), "{tries} tries");
    assert_eq!(lookups, tries - 1, "the first assignment is followed without a look-up");

    // Sends shorten the pause, and are stored when the topic comes by.
    let sent = scene.send(50);
    passed_around(&mut scene, 5);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    assert!(scene.took(sent) < Duration::from_secs(3), "{:?}", scene.took(sent));

    // When it is over, all is as it was: the next assignment is followed at once.
    scene.run(31.0);
    let before = scene.counts();
    let other = 1 - scene.world.cluster.topics[0].owner;
    scene.world.cluster.unload(scene.now(), 0, other, true, 0);
    scene.world.broker_output();
    scene.run(0.05);
    assert!(scene.is_open());
    assert_eq!(scene.counts().lookups, before.lookups);
}

#[test]
fn producer_fenced_is_retried_for_ninety_seconds_after_a_loss_and_then_final() {
    let mut scene = Scene::new(|plan| {
        plan.producers[0].exclusive = true;
        timeout(plan, 300.0);
    });
    scene.world.cluster.topics[0].taken_until = 400 * SEC;
    scene.cut();
    scene.run(1.0);
    let waiting = scene.send(50);
    scene.run(84.0);
    assert_eq!(scene.fate(waiting), None);
    assert!(scene.counts().producers > 30, "under sends it is tried every two seconds");
    scene.run(10.0);
    assert!(matches!(scene.fate(waiting), Some(Fate::Failed(crate::error::ErrorKind::Conflict, _))));
    assert!(scene.world.producers[0].lanes[0].failed.is_some());
}

#[test]
fn an_exclusive_producer_outlives_its_own_ghost() {
    let mut scene = Scene::new(|plan| {
        plan.producers[0].exclusive = true;
        timeout(plan, 120.0);
    });
    let waiting = scene.send(50);
    scene.run(1.0);
    scene.half_open();
    let waiting_too = scene.send(50);
    scene.run(100.0);
    assert!(scene.all_stored(&[waiting, waiting_too]));
}

#[test]
fn a_producer_outlives_its_ghost_though_no_attempt_lasts_as_long_as_the_brokers_check() {
    let mut scene = Scene::new(|plan| {
        plan.producers[0].name = Some("named".into());
        plan.operation_timeout = Duration::from_secs(3);
        timeout(plan, 60.0);
    });
    scene.half_open();
    let sent = scene.send(50);
    // Six seconds until the link is given up, five until the broker knows, and what is left of a pause.
    scene.run(15.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    assert!(scene.took(sent) < Duration::from_secs(14), "{:?}", scene.took(sent));
    assert!(scene.counts().producers >= 3, "the first attempt gave up, a later one joined its question");
}

#[test]
fn a_ghost_that_shows_life_keeps_its_place() {
    let mut scene = Scene::new(|plan| {
        plan.producers[0].name = Some("named".into());
        timeout(plan, 60.0);
    });
    // The old connection only gives: what was sent on it arrives one by one, and its end last.
    let old = scene.conn();
    scene.world.conns[old].to_client.swallows = true;
    scene.world.conns[old].to_broker.latency = 8 * SEC;
    let sent = scene.send(50);
    scene.run(7.0);
    assert!(scene.conn_is_left(old) && !scene.is_open());
    let before = scene.counts().producers;
    scene.run(2.0);
    assert!(!scene.is_open() && scene.counts().producers > before, "refused, and asked again");
    scene.run(12.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
}

#[test]
fn producer_fenced_is_final_at_the_first_create() {
    let mut scene = Scene::unopened(|plan| plan.producers[0].exclusive = true);
    scene.world.cluster.topics[0].taken_until = 400 * SEC;
    scene.world.stage = super::world::Stage::Healed;
    scene.run(1.0);
    assert!(!scene.world.producers[0].open && scene.world.producers[0].opening.is_none());
    assert_eq!(scene.counts().producers, 1);
}

#[test]
fn a_dead_link_is_closed_within_six_seconds_under_sends() {
    let mut scene = Scene::new(|_| {});
    scene.run(7.0);
    scene.half_open();
    let link = scene.conn();
    let sent = scene.send(50);
    scene.run(4.9);
    assert!(scene.world.conns[link].client_open);
    scene.run(1.1);
    assert!(!scene.world.conns[link].client_open, "closed at last");
    scene.run(7.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    assert!(scene.took(sent) < Duration::from_secs(12), "{:?}", scene.took(sent));
}

#[test]
fn an_idle_dead_link_is_closed_after_thirty_three_seconds() {
    let mut scene = Scene::new(|_| {});
    let link = scene.conn();
    scene.half_open();
    scene.run(31.0);
    assert!(scene.world.conns[link].client_open);
    scene.run(3.0);
    assert!(!scene.world.conns[link].client_open);
}

#[test]
fn a_live_link_that_is_only_slow_is_left_alone() {
    let mut scene = Scene::new(|_| {});
    let conn = scene.conn();
    scene.world.conns[conn].to_client.latency = 2_500 * MS;
    let sent = scene.send_many(5);
    scene.run(60.0);
    assert!(scene.all_stored(&sent));
    assert_eq!(scene.counts().connects, 1);
    assert!(scene.counts().pings > 0);
}

#[test]
fn a_redirect_loop_ends_after_twenty_hops() {
    let mut scene = Scene::unopened(|plan| {
        plan.brokers = 2;
        plan.operation_timeout = Duration::from_secs(3);
    });
    scene.world.cluster.redirects = true;
    scene.world.stage = super::world::Stage::Healed;
    scene.run(0.1);
    assert!(scene.counts().lookups <= 21, "{}", scene.counts().lookups);
    scene.run(3.1);
    assert!(scene.world.producers[0].opening.is_none(), "the call has its answer");
    assert!(scene.counts().lookups <= 21 * 6, "tries are spaced by backoff: {}", scene.counts().lookups);
}

#[test]
fn after_a_failed_dial_the_topic_is_looked_up_again() {
    let mut scene = Scene::new(|plan| {
        plan.brokers = 2;
        plan.connection_timeout = Duration::from_secs(1);
    });
    // The first broker dies without a word, and the topic goes to the other one.
    scene.world.net.black_until[0] = 100 * SEC;
    scene.half_open();
    scene.world.cluster.topics[0].owner = 1;
    scene.world.cluster.topics[0].sessions.clear();
    let sent = scene.send(50);
    scene.run(12.0);
    assert_eq!(scene.fate(sent), Some(Fate::Stored));
    let attempts = scene.world.conns.iter().filter(|conn| conn.host == 0).count();
    assert!(attempts <= 4, "{attempts} attempts at the dead broker");
}

#[test]
fn a_second_address_is_tried_when_the_first_does_not_answer() {
    let mut scene = Scene::unopened(|plan| plan.addresses = 2);
    scene.world.net.dead_first_until = 100 * SEC;
    scene.run(0.6);
    assert!(scene.is_open());
    assert_eq!(scene.world.conns.iter().filter(|conn| conn.client_open).count(), 1);
}

#[test]
fn the_last_good_addresses_serve_while_the_resolver_fails() {
    let mut scene = Scene::new(|_| {});
    scene.world.net.resolver_fails_until = 100 * SEC;
    scene.cut();
    scene.run(2.0);
    assert!(scene.is_open());
}

#[test]
fn the_last_chance_comes_before_the_oldest_message_is_due() {
    let mut scene = Scene::new(|plan| timeout(plan, 10.0));
    scene.world.net.refuse_until[0] = scene.now() + 9_700 * MS;
    let sent = scene.send(50);
    scene.world.run_for(Duration::from_micros(200));
    scene.cut();
    scene.run(11.0);
    let lines = scene.world.trace.lines.take().unwrap_or_default();
    assert_eq!(scene.fate(sent), Some(Fate::Stored), "{}", lines.join("\n"));
}
