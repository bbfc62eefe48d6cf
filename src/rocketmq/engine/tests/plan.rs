//! What a seed makes of the world before it begins.

use std::time::Duration;

use super::schedule::{MS, Micros, SEC};
use crate::policy::rng::Rng;

/// How long callers send and faults occur.
pub(super) const BUSY: Micros = 120 * SEC;

/// Topics that consumers may subscribe to.
pub(super) const TOPICS: [&str; 2] = ["in-0", "in-1"];

/// What a lurking fault waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    Send,
    Receive,
    Ack,
    Open,
    Close,
}

impl Trigger {
    pub(super) fn random(rng: &mut Rng) -> Option<Self> {
        match rng.below(9) {
            0..=2 => Some(Self::Send),
            3 => Some(Self::Receive),
            4 => Some(Self::Ack),
            5 => Some(Self::Open),
            6 => Some(Self::Close),
            _ => None,
        }
    }
}

/// What goes wrong. The numbers are endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Present connections carry nothing more, and still read READY; they come back after a time, or never.
    HalfOpen {
        endpoint: usize,
        thaw: Option<Micros>,
    },
    /// Connections break and new ones are refused for a time. Settings are forgotten.
    Restart {
        endpoint: usize,
        down: Micros,
    },
    /// Calls in flight end UNAVAILABLE while the channel still reads READY.
    Lies {
        endpoint: usize,
    },
    Slow {
        endpoint: usize,
        by: Micros,
        span: Micros,
    },
    /// Requests arrive, answers do not.
    LosesAnswers {
        endpoint: usize,
        span: Micros,
    },
    /// Sends are answered with a code and not stored.
    Status {
        endpoint: usize,
        code: i32,
        span: Micros,
    },
    ForgetsSettings {
        endpoint: usize,
    },
    EndsStreams {
        endpoint: usize,
    },
    AsksToReconnect {
        endpoint: usize,
    },
    /// Routes do not name it for a time.
    Leaves {
        endpoint: usize,
        span: Micros,
    },
    /// Settings are answered with a code, and not taken.
    RefusesSettings {
        endpoint: usize,
        code: i32,
        span: Micros,
    },
    /// Settings are answered late.
    DelaysSettings {
        endpoint: usize,
        by: Micros,
        span: Micros,
    },
    /// Route queries are answered with a code.
    RoutesFail {
        code: i32,
        span: Micros,
    },
    /// The program stands still.
    Leap {
        by: Micros,
    },
    /// Commands that only some sessions know, and bytes that nobody does.
    OddCommands {
        endpoint: usize,
    },
    /// The broker forgets who holds which message.
    Expires {
        endpoint: usize,
    },
}

pub(super) const KINDS: [&str; 16] = [
    "half-open",
    "restart",
    "lies",
    "slow",
    "lost answers",
    "status",
    "forgets",
    "ends streams",
    "reconnect",
    "leaves",
    "settings refused",
    "settings late",
    "routes fail",
    "leap",
    "odd commands",
    "handles expire",
];

impl Fault {
    pub(super) fn kind(self) -> usize {
        match self {
            Self::HalfOpen { .. } => 0,
            Self::Restart { .. } => 1,
            Self::Lies { .. } => 2,
            Self::Slow { .. } => 3,
            Self::LosesAnswers { .. } => 4,
            Self::Status { .. } => 5,
            Self::ForgetsSettings { .. } => 6,
            Self::EndsStreams { .. } => 7,
            Self::AsksToReconnect { .. } => 8,
            Self::Leaves { .. } => 9,
            Self::RefusesSettings { .. } => 10,
            Self::DelaysSettings { .. } => 11,
            Self::RoutesFail { .. } => 12,
            Self::Leap { .. } => 13,
            Self::OddCommands { .. } => 14,
            Self::Expires { .. } => 15,
        }
    }

    fn random(rng: &mut Rng, endpoints: usize) -> Self {
        let endpoint = rng.below(endpoints as u64) as usize;
        let span = SEC + rng.below(15 * SEC);
        match rng.below(17) {
            0 | 16 => {
                let thaw = rng.chance(1, 2).then(|| SEC + rng.below(12 * SEC));
                Self::HalfOpen { endpoint, thaw }
            }
            1 => Self::Restart { endpoint, down: rng.below(6 * SEC) },
            2 => Self::Lies { endpoint },
            3 => Self::Slow { endpoint, by: 100 * MS + rng.below(5 * SEC), span },
            4 => Self::LosesAnswers { endpoint, span },
            5 => {
                let codes = [42900, 50001, 40015, 50400, 40003];
                Self::Status { endpoint, code: codes[rng.below(5) as usize], span: span / 4 }
            }
            6 => Self::ForgetsSettings { endpoint },
            7 => Self::EndsStreams { endpoint },
            8 => Self::AsksToReconnect { endpoint },
            9 => Self::Leaves { endpoint: rng.below(2) as usize, span: 3 * span },
            10 => {
                let codes = [50001, 42900, 40300, 50400];
                Self::RefusesSettings { endpoint, code: codes[rng.below(4) as usize], span }
            }
            11 => Self::DelaysSettings { endpoint, by: 100 * MS + rng.below(8 * SEC), span },
            12 => {
                let codes = [50001, 42900, 50400, 40402];
                Self::RoutesFail { code: codes[rng.below(4) as usize], span: span / 2 }
            }
            13 => Self::Leap { by: if rng.chance(1, 5) { rng.below(600 * SEC) } else { rng.below(20 * SEC) } },
            14 => Self::OddCommands { endpoint },
            _ => Self::Expires { endpoint },
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct ProducerPlan {
    pub max_attempts: u32,
    pub in_flight: usize,
    pub max_pending: usize,
    pub send_timeout: Duration,
    pub request_timeout: Duration,
    pub groups: u64,
    pub sends: u32,
    pub burst: u32,
    /// The user closes it then, and gives it so long.
    pub close: Option<(Micros, Micros)>,
}

#[derive(Debug, Clone)]
pub(super) struct ConsumerPlan {
    /// How long a receive waits.
    pub wait: Duration,
    pub request_timeout: Duration,
    pub invisible: Duration,
    /// Receives at a time.
    pub parallel: usize,
    /// When messages come in: so many, to a topic at an endpoint.
    pub feeds: Vec<(Micros, u64, usize, usize)>,
    /// The user closes it then, and gives it so long; after a while it is opened again.
    pub closes: Vec<(Micros, Micros)>,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub seed: u64,
    /// Two that routes name, and in some worlds one more that is only asked for routes.
    pub endpoints: usize,
    pub latency: Micros,
    pub producers: Vec<ProducerPlan>,
    pub consumers: Vec<ConsumerPlan>,
    pub faults: Vec<(Micros, Fault)>,
    /// The client is closed while things are broken.
    pub ends_in_trouble: bool,
}

impl Plan {
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED_0F0F);
        let endpoints = 2 + usize::from(rng.chance(1, 3));
        let count = 3 + rng.below(2);
        let mut producers: Vec<ProducerPlan> =
            (0..count).map(|_| ProducerPlan::random(&mut rng, 480 / count)).collect();
        if rng.chance(1, 3) {
            producers[0].close = Some((rng.below(BUSY), 200 * MS + rng.below(10 * SEC)));
        }
        let consumers = (0..rng.below(3)).map(|_| ConsumerPlan::random(&mut rng)).collect();
        let count = 5 + rng.below(8);
        let mut faults: Vec<(Micros, Fault)> =
            (0..count).map(|_| (rng.below(BUSY - 5 * SEC), Fault::random(&mut rng, endpoints))).collect();
        let ends_in_trouble = rng.chance(1, 5);
        if ends_in_trouble {
            let last = |rng: &mut Rng| (BUSY - 3 * SEC + rng.below(4 * SEC), Fault::random(rng, endpoints));
            faults.extend((0..3).map(|_| last(&mut rng)).collect::<Vec<_>>());
            if rng.chance(1, 3) {
                // Everything is dead when the client closes, and its sends do not give up.
                faults.extend((0..2).map(|endpoint| (BUSY - 2 * SEC, Fault::HalfOpen { endpoint, thaw: None })));
                for producer in &mut producers {
                    (producer.max_attempts, producer.send_timeout) = (20, Duration::from_secs(30));
                }
            }
        }
        faults.sort_by_key(|(at, _)| *at);
        Self { seed, endpoints, latency: 200 + rng.below(20 * MS), producers, consumers, faults, ends_in_trouble }
    }
}

impl ConsumerPlan {
    fn random(rng: &mut Rng) -> Self {
        let feed = |rng: &mut Rng| (rng.below(BUSY), 1 + rng.below(5), rng.below(2) as usize, rng.below(2) as usize);
        let close = |rng: &mut Rng| (rng.below(BUSY - 15 * SEC), 200 * MS + rng.below(8 * SEC));
        let mut closes: Vec<(Micros, Micros)> = (0..rng.below(4)).map(|_| close(rng)).collect();
        closes.sort_unstable();
        Self {
            wait: Duration::from_secs(5 + rng.below(12)),
            request_timeout: Duration::from_millis(1_000 + rng.below(3_000)),
            invisible: Duration::from_secs(10 + rng.below(10)),
            parallel: 1 + rng.below(3) as usize,
            feeds: (0..20 + rng.below(30)).map(|_| feed(rng)).collect(),
            closes,
        }
    }
}

impl ProducerPlan {
    fn random(rng: &mut Rng, sends: u64) -> Self {
        let timeouts = [1_000, 3_000, 6_000, 10_000, 30_000];
        Self {
            max_attempts: if rng.chance(1, 6) { 10 } else { 1 + rng.below(4) as u32 },
            in_flight: 1 + rng.below(8) as usize,
            max_pending: 2 + rng.below(30) as usize,
            send_timeout: Duration::from_millis(timeouts[rng.below(5) as usize]),
            request_timeout: Duration::from_millis(1_000 + rng.below(3_000)),
            groups: rng.below(4),
            sends: sends as u32 + 1,
            burst: 1 + rng.below(12) as u32,
            close: None,
        }
    }
}
