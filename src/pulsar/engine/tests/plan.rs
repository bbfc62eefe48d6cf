//! What a seed makes of the world before it begins: producers, callers, brokers, the user's options.

use std::time::Duration;

use super::fault::{Fault, random_fault};
use super::schedule::{MS, Micros, SEC};
use crate::policy::rng::Rng;
use crate::pulsar::engine::event::Batching;

/// How long callers send and faults occur.
pub(super) const BUSY: Micros = 120 * SEC;

#[derive(Debug, Clone)]
pub(super) struct ProducerPlan {
    pub lanes: usize,
    pub name: Option<String>,
    pub exclusive: bool,
    pub batching: Option<Batching>,
    pub compressed: bool,
    pub max_pending: Option<usize>,
    pub send_timeout: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct ConsumerPlan {
    /// Topics, by index.
    pub topics: Vec<usize>,
    pub shared: bool,
    pub queue_size: u32,
    pub ack_group_delay: Duration,
    pub nack_delay: Duration,
    /// Acknowledges cumulatively.
    pub cumulative: bool,
}

#[derive(Debug, Clone)]
pub(super) struct CallerPlan {
    pub sends: u32,
    /// Sends that follow each other at once.
    pub burst: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub seed: u64,
    pub brokers: usize,
    pub addresses: usize,
    /// Brokers are reached through those that are asked.
    pub proxied: bool,
    pub dedup: bool,
    pub either_end: bool,
    pub memory: Option<usize>,
    pub latency: Micros,
    /// What a socket takes before the peer reads.
    pub window: usize,
    /// What a link's buffer takes.
    pub budget: usize,
    pub connection_timeout: Duration,
    pub operation_timeout: Duration,
    pub slow_callbacks: bool,
    pub producers: Vec<ProducerPlan>,
    pub consumers: Vec<ConsumerPlan>,
    pub callers: Vec<CallerPlan>,
    pub faults: Vec<(Micros, Fault)>,
    /// Producers that the user closes in the middle.
    pub closes: Vec<(Micros, usize, Micros)>,
    /// The client is closed while things are broken.
    pub ends_in_trouble: bool,
    /// A scenario decides what happens.
    pub scripted: bool,
}

impl Plan {
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED_5EED);
        let brokers = 2 + rng.below(2) as usize;
        let producers: Vec<ProducerPlan> = (0..3 + rng.below(2)).map(|at| ProducerPlan::random(&mut rng, at)).collect();
        let topics: usize = producers.iter().map(|producer| producer.lanes).sum();
        let consumers = (0..rng.below(3)).map(|at| ConsumerPlan::random(&mut rng, at as usize, topics)).collect();
        let callers = 4 + rng.below(3);
        let each = 340 / callers as u32 + 1;
        let faults = 5 + rng.below(9);
        let mut faults: Vec<(Micros, Fault)> =
            (0..faults).map(|_| (SEC + rng.below(BUSY - 10 * SEC), random_fault(&mut rng))).collect();
        let ends_in_trouble = rng.chance(1, 5);
        if ends_in_trouble {
            faults.extend((0..3).map(|_| (BUSY - 3 * SEC + rng.below(4 * SEC), random_fault(&mut rng))));
        }
        faults.sort_by_key(|(at, _)| *at);
        let mut closes = Vec::new();
        if rng.chance(1, 4) {
            closes.push((10 * SEC + rng.below(BUSY - 20 * SEC), rng.below(3) as usize, 200 * MS + rng.below(20 * SEC)));
        }
        Self {
            seed,
            brokers,
            addresses: 1 + rng.below(2) as usize,
            proxied: rng.chance(1, 10),
            dedup: rng.chance(1, 3),
            either_end: rng.chance(1, 2),
            memory: if rng.chance(1, 2) { Some(6_000 + rng.below(20_000) as usize) } else { Some(64 << 20) },
            latency: 100 + rng.below(20 * MS),
            window: 2_000 + rng.below(30_000) as usize,
            budget: 600 + rng.below(8_000) as usize,
            connection_timeout: Duration::from_secs(2 + rng.below(9)),
            operation_timeout: Duration::from_secs(if rng.chance(1, 3) { 30 } else { 3 + rng.below(10) }),
            slow_callbacks: rng.chance(1, 3),
            producers,
            consumers,
            callers: (0..callers).map(|_| CallerPlan { sends: each, burst: 1 + rng.below(25) as u32 }).collect(),
            faults,
            closes,
            ends_in_trouble,
            scripted: false,
        }
    }

    /// A quiet world for a scenario: one broker, one producer with one lane, nobody who calls.
    pub(super) fn quiet() -> Self {
        Self {
            seed: 1,
            brokers: 1,
            addresses: 1,
            proxied: false,
            dedup: false,
            either_end: false,
            memory: None,
            latency: MS,
            window: 1 << 20,
            budget: 128 << 10,
            connection_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(30),
            slow_callbacks: false,
            producers: vec![ProducerPlan {
                lanes: 1,
                name: None,
                exclusive: false,
                batching: None,
                compressed: false,
                max_pending: None,
                send_timeout: Some(Duration::from_secs(30)),
            }],
            consumers: Vec::new(),
            callers: Vec::new(),
            faults: Vec::new(),
            closes: Vec::new(),
            ends_in_trouble: false,
            scripted: true,
        }
    }

    pub(super) fn topics(&self) -> usize {
        self.producers.iter().map(|producer| producer.lanes).sum()
    }
}

impl ProducerPlan {
    fn random(rng: &mut Rng, index: u64) -> Self {
        let timeouts = [1_000, 2_000, 5_000, 10_000, 30_000];
        let batching = Batching {
            max_messages: 2 + rng.below(30) as usize,
            max_bytes: 600 + rng.below(4_000) as usize,
            max_delay: Duration::from_millis(rng.below(40)),
        };
        Self {
            lanes: 1 + rng.below(2) as usize,
            name: rng.chance(1, 2).then(|| format!("named-{index}")),
            exclusive: rng.chance(1, 4),
            batching: rng.chance(2, 3).then_some(batching),
            compressed: rng.chance(1, 6),
            max_pending: rng.chance(2, 3).then(|| 2 + rng.below(20) as usize),
            send_timeout: Some(Duration::from_millis(timeouts[rng.below(5) as usize])),
        }
    }
}

impl ConsumerPlan {
    fn random(rng: &mut Rng, index: usize, topics: usize) -> Self {
        let shared = rng.chance(1, 2);
        // One subscription a topic: consumer 0 takes even topics, consumer 1 odd ones.
        let topics: Vec<usize> = (0..topics).filter(|topic| topic % 2 == index).take(2).collect();
        Self {
            topics,
            shared,
            queue_size: 1 + rng.below(40) as u32,
            ack_group_delay: Duration::from_millis(rng.below(200)),
            nack_delay: Duration::from_millis(100 + rng.below(3_000)),
            cumulative: !shared && rng.chance(1, 2),
        }
    }
}
