//! A client's connection and the one to the server that belongs to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use super::pipe::{Head, Pipe};
use super::{Counts, Direction};

/// After a cut, how long to read on: closing a socket with unread bytes would reset it.
const DRAIN: Duration = Duration::from_secs(2);
/// Reads, and writes, of one link and direction in one turn, so that links take turns.
const TURNS: usize = 8;
/// Bounds what a stalled sender can put into our socket. Smaller ones make loopback stutter.
const RECEIVE_BUFFER: usize = 256 << 10;

/// The faults in force.
#[derive(Default)]
pub(super) struct Faults {
    pub frozen: bool,
    pub stalled_to_server: bool,
    pub stalled_to_client: bool,
    pub latency: Duration,
    pub rate: Option<u64>,
    /// Bytes left until the cut.
    pub cut_after: Option<(Direction, u64)>,
}

impl Faults {
    fn stopped(&self, direction: Direction) -> bool {
        self.frozen
            || match direction {
                Direction::ToServer => self.stalled_to_server,
                Direction::ToClient => self.stalled_to_client,
            }
    }

    fn limit(&self, direction: Direction) -> u64 {
        match self.cut_after {
            Some((cut, left)) if cut == direction => left,
            _ => u64::MAX,
        }
    }

    fn forwarded(&mut self, direction: Direction, count: u64) {
        if let Some((cut, left)) = &mut self.cut_after {
            if *cut == direction {
                *left = left.saturating_sub(count);
            }
        }
    }
}

/// What comes next for a link.
pub(super) enum Next {
    /// It has more to do at once.
    More,
    /// It waits for its sockets, and for this time if given.
    Wait(Option<Instant>),
    /// Both sides are done; drop it.
    Over,
}

pub(super) struct Link {
    client: Side,
    server: Side,
    /// Addresses not tried yet.
    untried: VecDeque<SocketAddr>,
    dial: Dial,
    to_server: Pipe,
    to_client: Pipe,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum Dial {
    Due,
    Started,
    Connected,
}

enum State {
    Forwarding,
    /// Half-open: everything is read and thrown away.
    Swallowing,
    /// Cut: both sides were told, and what they still send is thrown away.
    Draining {
        until: Instant,
    },
}

struct Side {
    stream: Option<TcpStream>,
    token: Token,
    readable: bool,
    writable: bool,
    /// The peer has ended its stream or reset it, as far as the system has told.
    closed: bool,
    /// The stream has been read to its end.
    drained: bool,
    failed: bool,
}

impl Link {
    pub(super) fn accept(
        client: TcpStream,
        upstream: &[SocketAddr],
        tokens: (Token, Token),
        registry: &Registry,
        now: Instant,
    ) -> io::Result<Self> {
        let mut link = Self {
            client: Side::new(tokens.0),
            server: Side::new(tokens.1),
            untried: upstream.iter().copied().collect(),
            dial: Dial::Due,
            to_server: Pipe::new(now),
            to_client: Pipe::new(now),
            state: State::Forwarding,
        };
        link.client.open(client, registry)?;
        Ok(link)
    }

    pub(super) fn note(&mut self, event: &Event) {
        if event.token() == self.client.token { self.client.note(event) } else { self.server.note(event) }
    }

    /// Whether the client still has its connection.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Draining { .. }) && !self.client.closed
    }

    pub(super) fn cut(&mut self, now: Instant) {
        if matches!(self.state, State::Draining { .. }) {
            return;
        }
        self.client.end();
        if self.dial == Dial::Connected {
            self.server.end();
        } else {
            self.server.drop_stream();
        }
        self.state = State::Draining { until: now + DRAIN };
    }

    pub(super) fn swallow(&mut self) {
        if matches!(self.state, State::Forwarding) {
            self.state = State::Swallowing;
        }
    }

    /// To be dropped afterwards.
    pub(super) fn reset(&mut self) {
        self.client.reset();
        self.server.reset();
    }

    /// Moves what can be moved now.
    pub(super) fn pump(
        &mut self,
        now: Instant,
        faults: &mut Faults,
        counts: &Counts,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Next {
        match self.state {
            State::Forwarding => self.forward(now, faults, counts, registry, scratch),
            State::Swallowing => self.discard(scratch),
            State::Draining { until } if now >= until => Next::Over,
            State::Draining { until } => match self.discard(scratch) {
                Next::Wait(None) => Next::Wait(Some(until)),
                next => next,
            },
        }
    }

    fn forward(
        &mut self,
        now: Instant,
        faults: &mut Faults,
        counts: &Counts,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Next {
        if !faults.frozen {
            self.connect(registry);
        }
        // A reset overtakes bytes: what a side sent before it must not come out later.
        if self.broken(faults) {
            self.reset();
            return Next::Over;
        }
        let up = self.carry(Direction::ToServer, now, faults, counts, scratch);
        let down = self.carry(Direction::ToClient, now, faults, counts, scratch);
        if self.broken(faults) {
            self.reset();
            return Next::Over;
        }
        if self.to_server.is_over() && self.to_client.is_over() {
            return Next::Over;
        }
        match (up, down) {
            (Next::Wait(up), Next::Wait(down)) => Next::Wait(up.into_iter().chain(down).min()),
            _ => Next::More,
        }
    }

    /// Whether a side is gone and the other may know.
    fn broken(&self, faults: &Faults) -> bool {
        (self.client.failed && !faults.stopped(Direction::ToServer))
            || (self.server.failed && !faults.stopped(Direction::ToClient))
    }

    fn connect(&mut self, registry: &Registry) {
        if self.dial == Dial::Started {
            match self.server.connected() {
                Some(Ok(())) => self.dial = Dial::Connected,
                Some(Err(_)) => {
                    self.server.drop_stream();
                    self.dial = Dial::Due;
                }
                None => {}
            }
        }
        while self.dial == Dial::Due {
            let Some(address) = self.untried.pop_front() else {
                self.server.failed = true;
                return;
            };
            let opened = TcpStream::connect(address).and_then(|stream| self.server.open(stream, registry));
            if opened.is_ok() {
                self.dial = Dial::Started;
            }
        }
    }

    fn carry(
        &mut self,
        direction: Direction,
        now: Instant,
        faults: &mut Faults,
        counts: &Counts,
        scratch: &mut [u8],
    ) -> Next {
        if faults.stopped(direction) {
            return Next::Wait(None);
        }
        let connected = self.dial == Dial::Connected;
        let (from, to, pipe) = match direction {
            Direction::ToServer => (&mut self.client, &mut self.server, &mut self.to_server),
            Direction::ToClient => (&mut self.server, &mut self.client, &mut self.to_client),
        };
        let mut turns = TURNS;
        while turns > 0 && from.readable && pipe.has_room(faults.latency) {
            turns -= 1;
            match from.read(scratch) {
                Got::Bytes(bytes) => pipe.push(now, faults.latency, bytes),
                Got::End => pipe.push_end(now, faults.latency),
                Got::Nothing => {}
            }
        }
        if !connected {
            return Next::Wait(None);
        }
        for _ in 0..TURNS {
            match pipe.head(now, faults.rate, faults.limit(direction)) {
                Head::Wait(until) => {
                    let more = from.readable && pipe.has_room(faults.latency);
                    return if more { Next::More } else { Next::Wait(until) };
                }
                Head::End => {
                    to.end();
                    pipe.ended();
                }
                // Only the cut that is about to come leaves nothing to write.
                Head::Bytes([]) => return Next::Wait(None),
                Head::Bytes(bytes) => {
                    if !to.writable {
                        return Next::Wait(None);
                    }
                    let count = to.write(bytes);
                    pipe.written(count);
                    faults.forwarded(direction, count as u64);
                    counts.forwarded(direction).fetch_add(count as u64, std::sync::atomic::Ordering::AcqRel);
                }
            }
        }
        Next::More
    }

    /// Reads both sides and throws it away. Over when both have ended.
    fn discard(&mut self, scratch: &mut [u8]) -> Next {
        for side in [&mut self.client, &mut self.server] {
            for _ in 0..TURNS {
                if side.readable {
                    side.read(scratch);
                }
            }
        }
        if self.client.is_over() && self.server.is_over() {
            return Next::Over;
        }
        if self.client.readable || self.server.readable { Next::More } else { Next::Wait(None) }
    }
}

/// What a read gave.
enum Got<'a> {
    Bytes(&'a [u8]),
    End,
    Nothing,
}

impl Side {
    fn new(token: Token) -> Self {
        Self { stream: None, token, readable: false, writable: false, closed: false, drained: false, failed: false }
    }

    fn open(&mut self, mut stream: TcpStream, registry: &Registry) -> io::Result<()> {
        // Both are niceties; a socket that refuses them works all the same.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_recv_buffer_size(RECEIVE_BUFFER);
        registry.register(&mut stream, self.token, Interest::READABLE | Interest::WRITABLE)?;
        *self = Self { stream: Some(stream), ..Self::new(self.token) };
        Ok(())
    }

    fn note(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed();
        self.writable |= event.is_writable() || event.is_write_closed();
        self.closed |= event.is_read_closed() || event.is_error();
        self.failed |= event.is_error();
    }

    /// Whether a started connection stands, or why not; `None` while it is under way.
    fn connected(&mut self) -> Option<io::Result<()>> {
        let stream = self.stream.as_ref()?;
        if !self.writable && !self.failed {
            return None;
        }
        match stream.take_error() {
            Ok(None) if stream.peer_addr().is_ok() => Some(Ok(())),
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(Err(error)),
        }
    }

    fn read<'a>(&mut self, scratch: &'a mut [u8]) -> Got<'a> {
        let Some(stream) = &mut self.stream else {
            self.readable = false;
            return Got::Nothing;
        };
        match stream.read(scratch) {
            Ok(0) => {
                (self.readable, self.closed, self.drained) = (false, true, true);
                Got::End
            }
            Ok(count) => scratch.get(..count).map_or(Got::Nothing, Got::Bytes),
            Err(error) => {
                self.readable &= error.kind() == ErrorKind::Interrupted;
                self.judge(&error);
                Got::Nothing
            }
        }
    }

    /// How many bytes the socket took.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(stream) = &mut self.stream else {
            self.writable = false;
            return 0;
        };
        match stream.write(bytes) {
            Ok(count) => count,
            Err(error) => {
                self.writable &= error.kind() == ErrorKind::Interrupted;
                self.judge(&error);
                0
            }
        }
    }

    fn judge(&mut self, error: &io::Error) {
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            (self.closed, self.failed) = (true, true);
        }
    }

    /// Tells the peer that nothing more comes.
    fn end(&mut self) {
        if let Some(stream) = &self.stream {
            // Fails if the peer is gone, which is found by reading.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    fn reset(&mut self) {
        if let Some(stream) = self.stream.take() {
            // If this fails, closing sends a FIN instead: the link ends all the same.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }

    fn drop_stream(&mut self) {
        *self = Self::new(self.token);
    }

    /// Nothing more can come.
    fn is_over(&self) -> bool {
        self.stream.is_none() || self.drained || self.failed
    }
}
