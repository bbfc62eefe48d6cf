//! What a seed makes of the world before it begins.

use std::time::Duration;

use super::schedule::{MS, Micros, SEC};
use crate::policy::rng::Rng;

/// How long callers send and faults occur.
pub(super) const BUSY: Micros = 120 * SEC;

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
}

pub(super) const KINDS: [&str; 10] = [
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
        }
    }

    fn random(rng: &mut Rng, endpoints: usize) -> Self {
        let endpoint = rng.below(endpoints as u64) as usize;
        let span = SEC + rng.below(15 * SEC);
        match rng.below(10) {
            0 => {
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
            _ => Self::Leaves { endpoint: rng.below(2) as usize, span: 3 * span },
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
pub(super) struct Plan {
    pub seed: u64,
    /// Two that routes name, and in some worlds one more that is only asked for routes.
    pub endpoints: usize,
    pub latency: Micros,
    pub producers: Vec<ProducerPlan>,
    pub faults: Vec<(Micros, Fault)>,
    /// The client is closed while things are broken.
    pub ends_in_trouble: bool,
}

impl Plan {
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED_0F0F);
        let endpoints = 2 + usize::from(rng.chance(1, 3));
        let count = 1 + rng.below(3);
        let mut producers: Vec<ProducerPlan> =
            (0..count).map(|_| ProducerPlan::random(&mut rng, 320 / count)).collect();
        if count > 1 && rng.chance(1, 3) {
            producers[0].close = Some((rng.below(BUSY), 200 * MS + rng.below(10 * SEC)));
        }
        let count = 5 + rng.below(8);
        let mut faults: Vec<(Micros, Fault)> =
            (0..count).map(|_| (rng.below(BUSY - 5 * SEC), Fault::random(&mut rng, endpoints))).collect();
        faults.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            endpoints,
            latency: 200 + rng.below(20 * MS),
            producers,
            faults,
            ends_in_trouble: rng.chance(1, 5),
        }
    }
}

impl ProducerPlan {
    fn random(rng: &mut Rng, sends: u64) -> Self {
        let timeouts = [1_000, 3_000, 6_000, 10_000, 30_000];
        Self {
            max_attempts: 1 + rng.below(4) as u32,
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
