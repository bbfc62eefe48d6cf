//! How the world does what goes wrong.

use super::cluster::OpenFault;
use super::fault::{Fault, Restore};
use super::network::Item;
use super::schedule::{Micros, SEC};
use super::world::{Event, World};
use crate::pulsar::wire::command::Command;

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
