//! Sockets of the client in the model network, and what arrives at either end.

use std::net::SocketAddr;

use super::cluster::{Out, Timer};
use super::network::{Conn, Item};
use super::schedule::{MS, SEC};
use super::shell::Control;
use super::world::{Event, Stage, World};
use crate::error::{Error, ErrorKind};
use crate::pulsar::engine::event::LinkId;
use crate::pulsar::service_url::HostPort;

impl World {
    pub(super) fn resolve(&mut self, link: LinkId, host: &HostPort) {
        let Some(broker) = self.cluster.brokers.iter().position(|broker| broker.host == host.host) else {
            self.fail(format!("a look-up of {host}, which nobody named"));
            return;
        };
        self.note("resolve", link.0, broker as u64);
        // Through a proxy there is one for each broker behind it, and only CONNECT tells.
        let other = self.dials.iter().find(|(_, to)| **to == broker && !self.plan.proxied);
        if let Some(other) = other {
            self.fail(format!("{link:?} is made to broker {broker} beside {other:?}"));
        }
        self.dials.insert(link, broker);
        let ok = self.now >= self.net.resolver_fails_until;
        let delay =
            if self.now < self.net.resolver_slow_until { self.rng.below(15 * SEC) } else { self.rng.below(5 * MS) };
        self.after(delay, Event::Resolved(link, broker, ok));
    }

    pub(super) fn resolved(&mut self, link: LinkId, host: usize, ok: bool) {
        let answer = if ok {
            Ok((0..self.plan.addresses).map(|at| address(host, at)).collect())
        } else {
            Err(Error::new(ErrorKind::Transport, "no such host, or nobody who knows"))
        };
        self.post(Control::Resolved { link, answer });
    }

    pub(super) fn dial(&mut self, link: LinkId, to: SocketAddr) {
        let (host, at) = match to {
            SocketAddr::V4(v4) => (usize::from(v4.ip().octets()[2]), usize::from(v4.ip().octets()[3])),
            SocketAddr::V6(_) => (0, 0),
        };
        self.note("dial", link.0, host as u64);
        if let Some(earlier) = self.by_link.get(&link).copied() {
            self.conns[earlier].client_open = false;
        }
        let jitter = self.rng.below(self.plan.latency / 2 + 1);
        let conn = Conn::new(link, host, self.plan.latency + jitter, self.plan.window);
        self.conns.push(conn);
        self.by_link.insert(link, self.conns.len() - 1);
        let conn = self.conns.len() - 1;
        if self.now < self.net.black_until[host] || (self.now < self.net.dead_first_until && at == 0) {
            self.conns[conn].touched = true;
            return;
        }
        let delay = 2 * self.conns[conn].to_broker.latency;
        let refused = self.cluster.brokers[host].down || self.now < self.net.refuse_until[host];
        self.after(delay, Event::Dialled(conn, !refused));
    }

    pub(super) fn dialled(&mut self, conn: usize, ok: bool) {
        let (link, host) = (self.conns[conn].link, self.conns[conn].host);
        if !self.conns[conn].client_open {
            return;
        }
        if !ok || self.cluster.brokers[host].down {
            self.socket_event(Control::ConnectFailed(link));
            return;
        }
        let server = self.cluster.accept(host);
        self.by_server.push(conn);
        let state = &mut self.conns[conn];
        state.server = Some(server);
        state.to_broker.held = self.cluster.brokers[host].frozen;
        state.touched |= state.to_broker.held;
        self.socket_event(Control::Connected(link));
    }

    pub(super) fn close_link(&mut self, link: LinkId, reset: bool) {
        self.dials.remove(&link);
        self.note("close link", link.0, u64::from(reset));
        let Some(conn) = self.by_link.remove(&link) else { return };
        let state = &mut self.conns[conn];
        let spotless = state.greeted && !state.touched && state.to_broker.queue.len() < 1_000;
        let spotless = spotless && state.server.is_some_and(|server| !self.cluster.conns[server].touched);
        let state = &mut self.conns[conn];
        state.client_open = false;
        state.out.clear();
        let item = if reset { Item::Reset } else { Item::End };
        if let Some(at) = state.to_broker.push(self.now, 0, item) {
            self.at(at, Event::ToBroker(conn));
        }
        let wanted = matches!(self.stage, Stage::ShuttingDown | Stage::Over) || self.plan.scripted;
        if spotless && !wanted {
            self.fail(format!("{link:?} was given up, and nothing was wrong with it"));
        }
    }

    pub(super) fn arrive_at_broker(&mut self, conn: usize) {
        let Some(server) = self.conns[conn].server else { return };
        while let Some(item) = self.conns[conn].to_broker.pop(self.now) {
            match item {
                Item::Frame(frame, _) => {
                    if self.cluster.conns[server].open {
                        let link = self.conns[conn].link.0;
                        self.note("  at broker", link, super::coverage::frame_kind(&frame));
                        self.cluster.frame(self.now, &mut self.rng, server, *frame);
                    }
                }
                Item::End | Item::Reset => self.cluster.ended(self.now, server),
            }
        }
        self.broker_output();
        let state = &self.conns[conn];
        let next = state.to_broker.queue.front().map(|(at, _)| *at).filter(|_| !state.to_broker.held);
        if let Some(at) = next {
            self.at(at, Event::ToBroker(conn));
        }
        let state = &self.conns[conn];
        if state.client_open && (!state.out.is_empty() || state.more) && state.to_broker.bytes < state.capacity {
            self.want_write(conn);
            self.wake_loop();
        }
    }

    /// What the brokers want done.
    pub(super) fn broker_output(&mut self) {
        for out in std::mem::take(&mut self.cluster.out) {
            match out {
                Out::Frame { conn, delay, frame } => {
                    let conn = self.by_server[conn];
                    let item = Item::Frame(Box::new(frame), 64);
                    if let Some(at) = self.conns[conn].to_client.push(self.now, delay, item) {
                        self.at(at, Event::ToClient(conn));
                    }
                }
                Out::Late { conn, delay, frame } => {
                    let conn = self.by_server[conn];
                    let delay = delay + self.conns[conn].to_client.latency;
                    self.after(delay, Event::Stray(conn, Box::new(Item::Frame(Box::new(frame), 64))));
                }
                Out::Close { conn } => {
                    let conn = self.by_server[conn];
                    self.conns[conn].touched = true;
                    let item = if self.rng.chance(1, 2) { Item::End } else { Item::Reset };
                    if let Some(at) = self.conns[conn].to_client.push(self.now, 0, item) {
                        self.at(at, Event::ToClient(conn));
                    }
                }
                Out::Timer { at, timer } => self.at(at, Event::Broker(timer)),
            }
        }
    }

    pub(super) fn arrive_at_client(&mut self, conn: usize) {
        let mut any = false;
        while let Some(item) = self.conns[conn].to_client.pop(self.now) {
            any = true;
            if self.conns[conn].client_open {
                self.conns[conn].arrived.push_back(item);
            }
        }
        if any {
            self.readable(conn);
        }
        if let Some(at) = self.conns[conn].to_client.queue.front().map(|(at, _)| *at) {
            self.at(at, Event::ToClient(conn));
        }
    }

    fn readable(&mut self, conn: usize) {
        if self.conns[conn].client_open && !self.the_loop.readable.contains(&conn) {
            self.the_loop.readable.push(conn);
            self.wake_loop();
        }
    }

    /// A frame that took its own time.
    pub(super) fn stray(&mut self, conn: usize, item: Item) {
        if self.conns[conn].client_open && !self.conns[conn].to_client.swallows {
            self.conns[conn].arrived.push_back(item);
            self.readable(conn);
        }
    }

    pub(super) fn broker_timer(&mut self, timer: Timer) {
        let (Timer::Liveness { conn, .. } | Timer::KeepAlive { conn } | Timer::Held { conn }) = timer;
        if self.cluster.brokers[self.cluster.conns[conn].broker].frozen {
            self.after(SEC, Event::Broker(timer));
            return;
        }
        self.cluster.timer(self.now, timer);
        self.broker_output();
    }

    /// Cuts a connection: both ends see a reset, what is under way is lost.
    pub(super) fn cut(&mut self, conn: usize) {
        let now = self.now;
        let state = &mut self.conns[conn];
        state.touched = true;
        state.to_broker.lose();
        state.to_client.lose();
        let to_broker = state.to_broker.push(now, 0, Item::Reset);
        let to_client = state.to_client.push(now, 0, Item::Reset);
        if let Some(at) = to_broker {
            self.at(at, Event::ToBroker(conn));
        }
        if let Some(at) = to_client {
            self.at(at, Event::ToClient(conn));
        }
    }
}

pub(super) fn address(host: usize, at: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, host as u8, at as u8], 6650))
}
