//! What can go wrong, and how the world does it.

use super::cluster::{OpenFault, ReceiptFault};
use super::network::Item;
use super::schedule::{MS, Micros, SEC};
use super::world::{Event, World};
use crate::policy::rng::Rng;
use crate::pulsar::wire::command::Command;

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
    match rng.below(32) {
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
        30 => match rng.below(3) {
            0 => Fault::ResolverSlow(long),
            1 => Fault::ResolverFails(long),
            _ => Fault::Stranger(long * 3),
        },
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
    /// By now the calls that are due must have been answered.
    Answers,
}

impl World {
    pub(super) fn fault(&mut self, index: usize) {
        let fault = self.plan.faults[index].1.clone();
        self.apply(fault);
    }

    pub(super) fn apply(&mut self, fault: Fault) {
        self.note("fault", fault.kind() as u64, 0);
        if let Some(lines) = &mut self.trace.lines {
            lines.push(format!("{:>12.6} {fault:?}", self.now as f64 / 1e6));
        }
        self.last_disturbance = self.last_disturbance.max(self.now + 30 * SEC);
        self.meet(&fault);
        self.inflict(fault);
        self.broker_output();
    }

    /// A connection that is open at both ends; one that is used, rather.
    fn some_conn(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..self.conns.len())
            .filter(|conn| {
                let conn = &self.conns[*conn];
                conn.client_open && conn.server.is_some_and(|server| self.cluster.conns[server].open)
            })
            .collect();
        (!open.is_empty()).then(|| open[self.rng.below(open.len() as u64) as usize])
    }

    fn some_broker(&mut self) -> usize {
        self.rng.below(self.plan.brokers as u64) as usize
    }

    fn some_lane(&mut self) -> (u64, usize) {
        let lanes: Vec<(u64, usize)> =
            self.producers.iter().flat_map(|shell| shell.lanes.iter().map(|lane| (lane.id.0, lane.topic))).collect();
        lanes[self.rng.below(lanes.len() as u64) as usize]
    }

    fn inflict(&mut self, fault: Fault) {
        match fault {
            Fault::Cut => {
                if let Some(conn) = self.some_conn() {
                    self.cut(conn);
                }
            }
            Fault::BrokerCloses => {
                if let Some(server) = self.some_conn().and_then(|conn| self.conns[conn].server) {
                    self.cluster.drop_conn(self.now, server);
                }
            }
            Fault::HalfOpen { to_broker, to_client } => {
                if let Some(conn) = self.some_conn() {
                    let state = &mut self.conns[conn];
                    state.touched = true;
                    state.to_broker.swallows |= to_broker;
                    state.to_client.swallows |= to_client;
                }
            }
            Fault::Stall(time) => {
                if let Some(conn) = self.some_conn() {
                    self.conns[conn].to_broker.held = true;
                    self.conns[conn].touched = true;
                    self.after(time, Event::Restore(Restore::Read(conn)));
                }
            }
            Fault::Slow(time) => {
                if let Some(conn) = self.some_conn() {
                    let state = &mut self.conns[conn];
                    state.to_client.latency += time;
                    state.touched = true;
                    self.after(10 * SEC, Event::Restore(Restore::Latency(conn, time)));
                }
            }
            Fault::Garbage => {
                if let Some(conn) = self.some_conn() {
                    let frame = match self.rng.below(3) {
                        0 => Command::Unknown(77),
                        1 => Command::Flow { consumer_id: 1, permits: 1 },
                        _ => Command::Other(Box::new(crate::pulsar::wire::command::success(u64::MAX))),
                    };
                    self.conns[conn].touched = true;
                    self.conns[conn].arrived.push_back(Item::Frame(Box::new(frame), 0));
                    self.the_loop.readable.push(conn);
                    self.wake_loop();
                }
            }
            Fault::Flapping(left) => {
                for conn in 0..self.conns.len() {
                    if self.conns[conn].client_open && self.rng.chance(2, 3) {
                        self.cut(conn);
                    }
                }
                if left > 0 {
                    let pause = self.rng.below(3 * SEC);
                    self.after(pause, Event::Restore(Restore::Again(Fault::Flapping(left - 1))));
                }
            }
            Fault::ClockJump(jump) => self.unix_jump += jump,
            Fault::Memory(time) => {
                if let Some(limit) = self.plan.memory {
                    let charge = limit - self.rng.below(limit as u64 / 4) as usize;
                    self.budget.press(charge);
                    self.net.pressed += charge;
                    self.after(time, Event::Restore(Restore::Memory(charge)));
                }
            }
            Fault::ResolverSlow(time) => self.net.resolver_slow_until = self.now + time,
            Fault::ResolverFails(time) => self.net.resolver_fails_until = self.now + time,
            Fault::DeadFirst(time) => {
                self.net.dead_first_until = self.now + time;
                self.cut_all();
            }
            broker => self.inflict_on_broker(broker),
        }
    }

    fn cut_all(&mut self) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].client_open && self.rng.chance(1, 2) {
                self.cut(conn);
            }
        }
    }

    fn inflict_on_broker(&mut self, fault: Fault) {
        let broker = self.some_broker();
        let until = |time: Micros, now: Micros| now + time;
        match fault {
            Fault::Freeze(time) => {
                self.cluster.brokers[broker].frozen = true;
                for conn in self.conns.iter_mut().filter(|conn| conn.host == broker) {
                    conn.to_broker.held = true;
                    conn.touched = true;
                }
                self.after(time, Event::Restore(Restore::Thaw(broker)));
            }
            Fault::Refuse(time) => {
                self.net.refuse_until[broker] = until(time, self.now);
                self.cut_all();
            }
            Fault::Black(time) => {
                self.net.black_until[broker] = until(time, self.now);
                for conn in self.conns.iter_mut().filter(|conn| conn.host == broker) {
                    conn.touched = true;
                    conn.to_broker.swallows = true;
                    conn.to_client.swallows = true;
                }
            }
            Fault::Restart { keep, down, away } => {
                self.cluster.stop(self.now, broker, keep, away);
                self.after(down, Event::Restore(Restore::Up(broker)));
            }
            Fault::SmallLimit(limit) => {
                self.cluster.brokers[broker].max_message_size = limit;
                for conn in 0..self.conns.len() {
                    if self.conns[conn].host == broker && self.conns[conn].client_open {
                        self.cut(conn);
                    }
                }
            }
            Fault::RedirectLoop(time) => {
                self.cluster.redirects = true;
                self.seekers(time);
            }
            Fault::LookupFails(code, time) => {
                self.cluster.lookup_code = Some(code);
                self.seekers(time);
            }
            Fault::LookupSilent(time) => {
                self.cluster.lookup_silent = true;
                self.seekers(time);
            }
            other => self.inflict_on_lane(other),
        }
    }

    /// Look-ups are broken for a while, and somebody needs one.
    fn seekers(&mut self, time: Micros) {
        self.after(time, Event::Restore(Restore::Lookups));
        self.cut_all();
    }

    fn inflict_on_lane(&mut self, fault: Fault) {
        let (lane, topic) = self.some_lane();
        match fault {
            Fault::ProducerRefused(code, times) => {
                let faults = std::iter::repeat_n(OpenFault::Refuse(code), times as usize);
                self.cluster.producer_faults.entry(lane).or_default().extend(faults);
                self.move_topic(topic, false, 0);
            }
            Fault::ProducerSilent => self.open_fault(lane, topic, OpenFault::Silent),
            Fault::ProducerLate(time) => self.open_fault(lane, topic, OpenFault::Late(time)),
            Fault::StaleClose => self.open_fault(lane, topic, OpenFault::CloseAfter),
            Fault::ConsumerRefused(code, times) => {
                let parts = self.apps.iter().flat_map(|app| app.parts.iter().map(|part| (part.id.0, part.topic)));
                if let Some((part, topic)) = parts.last() {
                    let faults = std::iter::repeat_n(OpenFault::Refuse(code), times as usize);
                    self.cluster.consumer_faults.entry(part).or_default().extend(faults);
                    self.move_topic(topic, false, 0);
                }
            }
            Fault::Unload { tell, away } => self.move_topic(topic, tell, away),
            Fault::SendError(code) => {
                self.cluster.terminated_by(code, topic);
                self.cluster.send_errors.entry(lane).or_default().push_back(code);
            }
            Fault::Receipt(fault) => {
                let times = 1 + self.rng.below(4) as usize;
                let faults = std::iter::repeat_n(fault, times);
                self.cluster.receipt_faults.entry(lane).or_default().extend(faults);
            }
            Fault::Stranger(time) => {
                self.cluster.topics[topic].taken_until = self.now + time;
                self.move_topic(topic, false, 0);
            }
            _ => {}
        }
    }

    fn open_fault(&mut self, lane: u64, topic: usize, fault: OpenFault) {
        self.cluster.producer_faults.entry(lane).or_default().push_back(fault);
        self.move_topic(topic, false, 0);
    }

    fn move_topic(&mut self, topic: usize, tell: bool, away: Micros) {
        let up: Vec<usize> = (0..self.plan.brokers).filter(|broker| !self.cluster.brokers[*broker].down).collect();
        if let Some(to) = up.get(self.rng.below(up.len() as u64) as usize) {
            self.cluster.unload(self.now, topic, *to, tell, away);
        }
    }
}
