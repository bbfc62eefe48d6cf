//! Single interleavings.

use std::time::Duration;

use super::plan::{Fault, Plan, ProducerPlan};
use super::schedule::{MS, Micros, SEC};
use super::world::{Event, Stage, World};
use crate::error::Delivery;

/// A world in which nobody sends by himself and the faults come at their times.
fn quiet(faults: Vec<(Micros, Fault)>) -> World {
    let producer = ProducerPlan {
        max_attempts: 1,
        in_flight: 100,
        max_pending: 100,
        send_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(3),
        groups: 1,
        sends: 0,
        burst: 1,
        close: None,
    };
    let plan = Plan {
        seed: 7,
        endpoints: 2,
        latency: MS,
        producers: vec![producer],
        consumers: Vec::new(),
        faults: Vec::new(),
        ends_in_trouble: false,
    };
    let mut world = World::new(plan, true);
    // Nobody else calls, and no fault lurks.
    world.shells[0].done = true;
    world.plan.faults = faults;
    for index in 0..world.plan.faults.len() {
        let at = world.plan.faults[index].0;
        world.at(at, Event::Strike(index));
    }
    world
}

fn run_until(world: &mut World, at: Micros) {
    while world.events.next_at().is_some_and(|next| next <= at) {
        assert!(world.step());
        assert_eq!(world.failure, None, "{:?}", world.trace.lines);
    }
    world.now = at;
}

fn both(fault: impl Fn(usize) -> Fault, at: Micros) -> Vec<(Micros, Fault)> {
    vec![(at, fault(0)), (at, fault(1))]
}

#[test]
fn what_a_replacement_cuts_off_is_no_attempt() {
    let mut faults = both(|endpoint| Fault::HalfOpen { endpoint, thaw: None }, 5 * SEC);
    faults.extend(both(|endpoint| Fault::AsksToReconnect { endpoint }, 6 * SEC));
    let mut world = quiet(faults);
    run_until(&mut world, 5 * SEC + 500 * MS);
    (0..8).for_each(|_| world.send(0, false));
    run_until(&mut world, 9 * SEC);
    assert_eq!(world.replacements, 2);
    assert!(world.ops.iter().all(|op| op.settled == Some(None)), "one attempt is allowed, and none was used up");
    assert!(world.ops.iter().any(|op| op.handed == 2));
}

#[test]
fn an_expiry_during_a_call_is_in_doubt_and_frees_the_group() {
    let mut world = quiet(both(|endpoint| Fault::LosesAnswers { endpoint, span: 60 * SEC }, 5 * SEC));
    world.plan.producers[0].request_timeout = Duration::from_secs(30);
    run_until(&mut world, 5 * SEC + 500 * MS);
    (0..8).for_each(|_| world.send(0, false));
    run_until(&mut world, 16 * SEC);
    let unanswered = |op: &super::world::Op| {
        op.settled == Some(Some(Delivery::Unknown)) || op.settled == Some(Some(Delivery::NotSent))
    };
    assert!(world.ops.iter().all(unanswered));
    assert!(world.ops.iter().all(|op| op.stored.is_empty() || op.settled == Some(Some(Delivery::Unknown))));
}

#[test]
fn a_close_during_start_leaves_nothing() {
    let mut world = quiet(Vec::new());
    world.close(0);
    run_until(&mut world, SEC);
    assert!(world.engine.sessions.is_empty() && world.engine.calls.is_empty() && world.current.is_empty());
}

#[test]
fn after_the_last_producer_no_channel_stays() {
    let mut world = quiet(Vec::new());
    run_until(&mut world, 5 * SEC);
    assert_eq!(world.current.len(), 2);
    world.close(0);
    run_until(&mut world, 8 * SEC);
    assert!(world.current.is_empty());
    assert_eq!(world.stage, Stage::Busy);
}
