//! What can go wrong.

use super::cluster::ReceiptFault;
use super::schedule::{MS, Micros, SEC};
use crate::policy::rng::Rng;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    Cut,
    /// The broker closes the connection.
    BrokerCloses,
    /// Bytes disappear: towards the broker, towards the client.
    HalfOpen {
        to_broker: bool,
        to_client: bool,
    },
    Freeze(Micros),
    /// One connection is not read.
    Stall(Micros),
    Slow(Micros),
    Refuse(Micros),
    Black(Micros),
    DeadFirst(Micros),
    RedirectLoop(Micros),
    LookupFails(i32, Micros),
    LookupSilent(Micros),
    ProducerRefused(i32, u32),
    ProducerSilent,
    ProducerLate(Micros),
    StaleClose,
    ConsumerRefused(i32, u32),
    Unload {
        tell: bool,
        away: Micros,
    },
    SendError(i32),
    Receipt(ReceiptFault),
    Restart {
        keep: bool,
        down: Micros,
        away: Micros,
    },
    SmallLimit(i32),
    ClockJump(i64),
    Memory(Micros),
    ResolverSlow(Micros),
    ResolverFails(Micros),
    Stranger(Micros),
    Garbage,
    /// Everything of one lane's broker at once, again and again.
    Flapping(u32),
}

pub(super) const KINDS: [&str; 32] = [
    "cut",
    "broker closes",
    "half-open",
    "freeze",
    "stall",
    "slow",
    "refuse",
    "black hole",
    "dead address",
    "redirect loop",
    "look-up fails",
    "look-up silent",
    "producer refused",
    "producer silent",
    "producer late",
    "stale close",
    "consumer refused",
    "unload, told",
    "unload",
    "send error",
    "receipt lost",
    "receipt twice",
    "receipt late",
    "receipts swapped",
    "restart",
    "small limit",
    "clock jump",
    "memory",
    "slow resolver",
    "no resolver",
    "stranger",
    "garbage, flapping",
];

impl Fault {
    pub(super) fn kind(&self) -> usize {
        match self {
            Self::Cut => 0,
            Self::BrokerCloses => 1,
            Self::HalfOpen { .. } => 2,
            Self::Freeze(_) => 3,
            Self::Stall(_) => 4,
            Self::Slow(_) => 5,
            Self::Refuse(_) => 6,
            Self::Black(_) => 7,
            Self::DeadFirst(_) => 8,
            Self::RedirectLoop(_) => 9,
            Self::LookupFails(..) => 10,
            Self::LookupSilent(_) => 11,
            Self::ProducerRefused(..) => 12,
            Self::ProducerSilent => 13,
            Self::ProducerLate(_) => 14,
            Self::StaleClose => 15,
            Self::ConsumerRefused(..) => 16,
            Self::Unload { tell: true, .. } => 17,
            Self::Unload { .. } => 18,
            Self::SendError(_) => 19,
            Self::Receipt(ReceiptFault::Lose) => 20,
            Self::Receipt(ReceiptFault::Duplicate) => 21,
            Self::Receipt(ReceiptFault::Late(_)) => 22,
            Self::Receipt(ReceiptFault::Swap) => 23,
            Self::Restart { .. } => 24,
            Self::SmallLimit(_) => 25,
            Self::ClockJump(_) => 26,
            Self::Memory(_) => 27,
            Self::ResolverSlow(_) => 28,
            Self::ResolverFails(_) => 29,
            Self::Stranger(_) => 30,
            Self::Garbage | Self::Flapping(_) => 31,
        }
    }
}

pub(super) fn random_fault(rng: &mut Rng) -> Fault {
    let short = 200 * MS + rng.below(3 * SEC);
    let long = SEC + rng.below(20 * SEC);
    // Every class: those that are retried mostly, the final ones now and then.
    let mild = [0, 1, 2, 3, 6, 7, 8, 14, 16, 20, 4, 9, 12, 22, 25, 999];
    let hard = [11, 15, 25];
    let code = if rng.chance(1, 12) { hard[rng.below(3) as usize] } else { mild[rng.below(16) as usize] };
    match rng.below(36) {
        0 | 1 => Fault::Cut,
        2 => Fault::BrokerCloses,
        3 | 4 => match rng.below(3) {
            0 => Fault::HalfOpen { to_broker: true, to_client: false },
            1 => Fault::HalfOpen { to_broker: false, to_client: true },
            _ => Fault::HalfOpen { to_broker: true, to_client: true },
        },
        5 => Fault::Freeze(long),
        6 => Fault::Stall(short),
        7 => Fault::Slow(short),
        8 => Fault::Refuse(long),
        9 => Fault::Black(long),
        10 => Fault::DeadFirst(long),
        11 => Fault::RedirectLoop(long),
        12 => Fault::LookupFails(code, long),
        13 => Fault::LookupSilent(long),
        14 => Fault::ProducerRefused(code, 1 + rng.below(3) as u32),
        15 => Fault::ProducerSilent,
        16 => Fault::ProducerLate(long + 5 * SEC),
        17 => Fault::StaleClose,
        18 => Fault::ConsumerRefused([2, 5, 6, 13, 999][rng.below(5) as usize], 1 + rng.below(3) as u32),
        19 => Fault::Unload { tell: true, away: if rng.chance(1, 2) { 0 } else { short } },
        20 => Fault::Unload { tell: false, away: if rng.chance(1, 2) { 0 } else { short } },
        21 => {
            let kinds = if rng.chance(1, 6) { 8 } else { 7 };
            Fault::SendError([2, 6, 9, 22, 0, 999, 7, 15][rng.below(kinds) as usize])
        }
        22 => Fault::Receipt(ReceiptFault::Lose),
        23 => Fault::Receipt(ReceiptFault::Duplicate),
        24 => Fault::Receipt(ReceiptFault::Late(100 * MS + rng.below(8 * SEC))),
        25 => Fault::Receipt(ReceiptFault::Swap),
        26 => Fault::Restart { keep: rng.chance(1, 2), down: long, away: short },
        27 => Fault::SmallLimit(800 + rng.below(4_000) as i32),
        28 => Fault::ClockJump(rng.below(7_200_000_000) as i64 - 3_600_000_000),
        29 => Fault::Memory(long),
        30 => Fault::ResolverSlow(long),
        31 => Fault::ResolverFails(long),
        32 => Fault::Stranger(long * 3),
        _ => match rng.below(2) {
            0 => Fault::Garbage,
            _ => Fault::Flapping(3 + rng.below(8) as u32),
        },
    }
}

/// Faults that last.
pub(super) struct Net {
    pub refuse_until: Vec<Micros>,
    pub black_until: Vec<Micros>,
    pub dead_first_until: Micros,
    pub resolver_slow_until: Micros,
    pub resolver_fails_until: Micros,
    pub smallest_limit: u32,
    pub pressed: usize,
    /// The loop ended by a defect.
    pub internal: bool,
}

impl Net {
    pub(super) fn new(brokers: usize) -> Self {
        Self {
            refuse_until: vec![0; brokers],
            black_until: vec![0; brokers],
            dead_first_until: 0,
            resolver_slow_until: 0,
            resolver_fails_until: 0,
            smallest_limit: u32::MAX,
            pressed: 0,
            internal: false,
        }
    }
}

/// The end of something that lasts, and things that are done at a time.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Restore {
    Thaw(usize),
    Read(usize),
    Up(usize),
    Lookups,
    Memory(usize),
    Latency(usize, Micros),
    Again(Fault),
    CloseProducer(usize, Micros),
    OpenProducer(usize),
    OpenApp(usize),
    ShutDown(Micros),
    /// Faults that found nobody who sends strike now.
    Lurking,
    /// By now the calls that are due must have been answered.
    Answers,
}
