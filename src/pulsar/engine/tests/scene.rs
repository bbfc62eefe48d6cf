//! Small scripted worlds, each for one fact.

use std::time::Duration;

use super::caller::Way;
use super::cluster::{Counts, OpenFault, ReceiptFault};
use super::fault::Fault;
use super::ops::Fate;
use super::plan::Plan;
use super::schedule::Micros;
use super::world::World;
use crate::error::{Delivery, ErrorKind};
use crate::policy::admission::Offer;

pub(super) const TIMED_OUT: Option<Fate> = Some(Fate::Failed(ErrorKind::Timeout, Delivery::Unknown));

pub(super) struct Scene {
    pub world: World,
}

impl Scene {
    /// Opens what the plan names and lets it come to rest.
    pub(super) fn new(change: impl FnOnce(&mut Plan)) -> Self {
        let mut scene = Self::unopened(change);
        scene.run(0.5);
        assert!(scene.world.producers.iter().all(|producer| producer.open), "the producers are open");
        scene
    }

    pub(super) fn unopened(change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan::quiet();
        change(&mut plan);
        Self { world: World::new(plan, true) }
    }

    pub(super) fn run(&mut self, seconds: f64) {
        self.world.run_for(Duration::from_secs_f64(seconds));
        if let Err(failure) = self.world.verdict() {
            panic!("at {} us: {}\n{}", failure.at, failure.text, failure.lines.join("\n"));
        }
    }

    /// Sends a message of this size with a callback; its uid.
    pub(super) fn send(&mut self, size: usize) -> u64 {
        let offer = self.world.offer(0, 0, size, Way::SendWith, false);
        let uid = self.world.ops.len() as u64 - 1;
        match offer {
            Offer::Admitted { look, .. } => {
                if look {
                    self.world.look(0, 0);
                }
            }
            Offer::Refused(error, _) => self.world.returned(uid, &error),
            Offer::Waiting { .. } => unreachable!("it may not wait"),
        }
        uid
    }

    pub(super) fn send_many(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.send(50)).collect()
    }

    pub(super) fn fate(&self, uid: u64) -> Option<Fate> {
        self.world.ops[uid as usize].fate
    }

    pub(super) fn fates(&self, uids: &[u64]) -> Vec<Option<Fate>> {
        uids.iter().map(|uid| self.fate(*uid)).collect()
    }

    pub(super) fn all_stored(&self, uids: &[u64]) -> bool {
        uids.iter().all(|uid| self.fate(*uid) == Some(Fate::Stored))
    }

    /// From the call to the result.
    pub(super) fn took(&self, uid: u64) -> Duration {
        let op = &self.world.ops[uid as usize];
        assert!(op.fate.is_some(), "message {uid} has its result");
        Duration::from_micros(op.fixed_at - op.called_at)
    }

    pub(super) fn counts(&self) -> Counts {
        self.world.cluster.counts.clone()
    }

    /// The connection that the first lane is open on.
    pub(super) fn conn(&self) -> usize {
        let id = self.world.producers[0].lanes[0].id;
        let link = self.world.engine.lanes.get(&id).and_then(|lane| lane.attachment.link());
        self.world.conn_of(link.expect("the lane is open")).expect("its link is open")
    }

    pub(super) fn is_open(&self) -> bool {
        let id = self.world.producers[0].lanes[0].id;
        self.world.engine.lanes.get(&id).is_some_and(|lane| lane.attachment.is_open())
    }

    /// Whether the client gave this connection up.
    pub(super) fn conn_is_left(&self, conn: usize) -> bool {
        !self.world.conns[conn].client_open
    }

    pub(super) fn cut(&mut self) {
        let conn = self.conn();
        self.world.cut(conn);
    }

    pub(super) fn half_open(&mut self) {
        let conn = self.conn();
        self.world.conns[conn].to_broker.swallows = true;
        self.world.conns[conn].to_client.swallows = true;
    }

    pub(super) fn apply(&mut self, fault: Fault) {
        self.world.apply(fault);
    }

    pub(super) fn receipts(&mut self, faults: &[ReceiptFault]) {
        let lane = self.world.producers[0].lanes[0].id.0;
        self.world.cluster.receipt_faults.entry(lane).or_default().extend(faults);
    }

    pub(super) fn opens(&mut self, faults: &[OpenFault]) {
        let lane = self.world.producers[0].lanes[0].id.0;
        self.world.cluster.producer_faults.entry(lane).or_default().extend(faults);
    }

    pub(super) fn send_errors(&mut self, codes: &[i32]) {
        let lane = self.world.producers[0].lanes[0].id.0;
        self.world.cluster.send_errors.entry(lane).or_default().extend(codes);
    }

    pub(super) fn now(&self) -> Micros {
        self.world.now
    }
}

pub(super) fn timeout(plan: &mut Plan, seconds: f64) {
    plan.producers[0].send_timeout = Some(Duration::from_secs_f64(seconds));
}

pub(super) fn batching(plan: &mut Plan, delay: f64) {
    plan.producers[0].batching = Some(crate::pulsar::engine::event::Batching {
        max_messages: 1_000,
        max_bytes: 128 << 10,
        max_delay: Duration::from_secs_f64(delay),
    });
}
