//! The network: connections as two pipes of frames, with whatever can happen to them.

use std::collections::VecDeque;

use super::schedule::Micros;
use crate::pulsar::engine::event::LinkId;
use crate::pulsar::wire::command::Command;

/// What travels.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Frame(Box<Command>, usize),
    /// The other end closed; nothing follows.
    End,
    /// The other end closed by reset: what was not read is lost.
    Reset,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub queue: VecDeque<(Micros, Item)>,
    /// Bytes that the reader has not read.
    pub bytes: usize,
    last_at: Micros,
    /// Everything disappears without a trace.
    pub swallows: bool,
    /// The reader does not read.
    pub held: bool,
    pub latency: Micros,
}

impl Pipe {
    /// Puts something in, to arrive after the latency and in order. When, if it arrives.
    pub(super) fn push(&mut self, now: Micros, delay: Micros, item: Item) -> Option<Micros> {
        if self.swallows {
            return None;
        }
        if let Item::Frame(_, size) = &item {
            self.bytes += size;
        }
        let at = (now + self.latency + delay).max(self.last_at);
        self.last_at = at;
        self.queue.push_back((at, item));
        Some(at)
    }

    /// The next thing that has arrived.
    pub(super) fn pop(&mut self, now: Micros) -> Option<Item> {
        let unread_reset = self.queue.iter().any(|(at, item)| *at <= now && matches!(item, Item::Reset));
        if unread_reset {
            self.queue.clear();
            self.bytes = 0;
            return Some(Item::Reset);
        }
        if self.held || self.queue.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, item) = self.queue.pop_front()?;
        if let Item::Frame(_, size) = &item {
            self.bytes = self.bytes.saturating_sub(*size);
        }
        Some(item)
    }

    pub(super) fn lose(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }
}

/// The client's end of one connection attempt and what it became.
pub(super) struct Conn {
    pub link: LinkId,
    pub host: usize,
    /// The broker's end, once connected.
    pub server: Option<usize>,
    pub client_open: bool,
    pub to_broker: Pipe,
    pub to_client: Pipe,
    /// Handed over by the engine and not yet taken by the socket.
    pub out: VecDeque<(Box<Command>, usize)>,
    pub out_bytes: usize,
    /// The engine has more for this link.
    pub more: bool,
    /// What the socket takes before the peer reads.
    pub capacity: usize,
    /// Read from the socket by the client's loop, not yet handled.
    pub arrived: VecDeque<Item>,
    /// A fault touched it or its broker, so the engine may have reasons to give it up.
    pub touched: bool,
    pub greeted: bool,
}

impl Conn {
    pub(super) fn new(link: LinkId, host: usize, latency: Micros, capacity: usize) -> Self {
        let pipe = || Pipe { latency, ..Pipe::default() };
        Self {
            link,
            host,
            server: None,
            client_open: true,
            to_broker: pipe(),
            to_client: pipe(),
            out: VecDeque::new(),
            out_bytes: 0,
            more: false,
            capacity,
            arrived: VecDeque::new(),
            touched: false,
            greeted: false,
        }
    }
}
