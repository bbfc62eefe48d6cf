//! Facts about consumers: sessions, permits, acknowledgements.

use std::time::Duration;

use super::caller::Way;
use super::fault::Fault;
use super::plan::{ConsumerPlan, Plan};
use super::scene::Scene;
use super::world::World;
use crate::policy::admission::Offer;

fn consumer(plan: &mut Plan) {
    plan.consumers = vec![ConsumerPlan {
        topics: vec![0],
        shared: true,
        queue_size: 4,
        ack_group_delay: Duration::from_millis(100),
        nack_delay: Duration::from_secs(1),
        cumulative: false,
    }];
}

fn backlog(world: &World) -> usize {
    let topic = &world.cluster.topics[0];
    topic.subscription.as_ref().map_or(usize::MAX, |subscription| subscription.backlog(topic.entries.len()))
}

/// Acknowledges everything that it takes.
fn steady(scene: &mut Scene) {
    scene.world.stage = super::world::Stage::Healed;
}

#[test]
fn permits_go_round_and_everything_is_acknowledged() {
    let mut scene = Scene::new(consumer);
    steady(&mut scene);
    scene.send_many(50);
    scene.run(5.0);
    assert_eq!((backlog(&scene.world), scene.world.apps[0].received), (0, 50));
}

#[test]
fn an_unload_gives_one_new_subscription() {
    let mut scene = Scene::new(consumer);
    steady(&mut scene);
    scene.apply(Fault::Unload { tell: false, away: 0 });
    let conn = scene.world.conns.len() - 1;
    scene.world.run_for(Duration::from_millis(50));
    scene.world.cut(conn);
    scene.run(2.0);
    scene.send_many(2);
    scene.run(5.0);
    assert!(scene.counts().subscribes <= 3, "{}", scene.counts().subscribes);
    assert_eq!(backlog(&scene.world), 0);
}

#[test]
fn what_was_acknowledged_is_acknowledged_after_a_loss_too() {
    for shared in [true, false] {
        let mut scene = Scene::new(|plan| {
            consumer(plan);
            plan.consumers[0].shared = shared;
            plan.consumers[0].cumulative = !shared;
            plan.consumers[0].ack_group_delay = Duration::from_secs(1);
        });
        steady(&mut scene);
        scene.send_many(4);
        scene.run(0.3);
        assert_eq!((scene.world.apps[0].received, scene.counts().acks), (4, 0));
        scene.cut();
        scene.run(3.0);
        assert_eq!(backlog(&scene.world), 0, "shared {shared}");
    }
}

#[test]
fn a_busy_ghost_of_ours_is_waited_out() {
    let mut scene = Scene::new(|plan| {
        consumer(plan);
        plan.consumers[0].shared = false;
    });
    steady(&mut scene);
    scene.half_open();
    scene.run(80.0);
    scene.send_many(3);
    scene.run(2.0);
    assert_eq!(backlog(&scene.world), 0);
}

fn unsubscribe(scene: &mut Scene) -> crate::pending::Pending<()> {
    let (reply, pending) = crate::pending::completion();
    let (consumer, due) = (scene.world.consumer_id(0), scene.world.instant(scene.now() + 5_000_000));
    let now = scene.world.clock();
    let command = crate::pulsar::engine::event::Command::Unsubscribe { consumer, due, reply };
    scene.world.engine.handle_command(now, command);
    scene.world.drain();
    scene.world.wake_loop();
    pending
}

#[test]
fn unsubscribe_tries_every_part_and_says_which_failed() {
    let mut scene = Scene::new(|plan| {
        consumer(plan);
        plan.brokers = 2;
        plan.producers[0].lanes = 2;
        plan.consumers[0].topics = vec![0, 1];
    });
    steady(&mut scene);
    // The second part is away.
    scene.world.net.refuse_until[1] = 20_000_000;
    let conn = scene.world.conns.iter().position(|conn| conn.host == 1 && conn.client_open).unwrap();
    scene.world.cut(conn);
    scene.run(0.5);
    let mut answer = unsubscribe(&mut scene);
    scene.run(0.5);
    let error = answer.try_wait().expect("the first part has answered").unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Transport);
    let second = &scene.world.cluster.topics[1].name;
    let text = format!("1 of 2 partitions, first on {second}");
    assert!(error.to_string().contains(&text), "{error}");
    assert!(scene.world.cluster.topics[0].subscription.is_none(), "the first part was asked");
    assert!(scene.world.apps[0].parts[0].ended && !scene.world.apps[0].parts[1].ended);
    scene.run(30.0);
    // What is left is received from, and unsubscribed.
    let received = scene.world.apps[0].received;
    for _ in 0..8 {
        let offer = scene.world.offer(0, 1, 50, Way::SendWith, false);
        assert!(matches!(offer, Offer::Admitted { .. }));
        scene.world.look(0, 1);
    }
    scene.run(2.0);
    assert_eq!(scene.world.apps[0].received, received + 8);
    let mut answer = unsubscribe(&mut scene);
    scene.run(0.5);
    answer.try_wait().unwrap().unwrap();
    assert!(scene.world.cluster.topics.iter().all(|topic| topic.subscription.is_none()));
    assert!(scene.world.apps[0].parts.iter().all(|part| part.ended));
}

#[test]
fn a_redelivery_is_asked_for_after_its_delay() {
    let mut scene = Scene::new(consumer);
    steady(&mut scene);
    scene.send_many(1);
    scene.run(0.1);
    let part = scene.world.apps[0].parts[0].id;
    let message_id = super::cluster::Cluster::message_id(0, 0);
    let now = scene.world.clock();
    let nack = crate::pulsar::engine::event::Command::NegativeAck { part, message_id };
    scene.world.engine.handle_command(now, nack);
    scene.world.drain();
    scene.world.wake_loop();
    scene.run(0.9);
    assert_eq!(scene.counts().redelivers, 0);
    scene.run(0.3);
    assert_eq!(scene.counts().redelivers, 1);
}
