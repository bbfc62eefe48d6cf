//! The network's thread: accepts, carries out orders, pumps links.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, Socket, Type};

use super::link::{Faults, Link, Next};
use super::{Command, Counts, Direction, Order};

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Tokens from here on belong to links, two each.
const FIRST_LINK: usize = 2;

/// After an accept that failed, usually for want of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
const BACKLOG: i32 = 1024;

pub(super) struct Proxy {
    poll: Poll,
    waker: Arc<Waker>,
    address: SocketAddr,
    port: Port,
    upstream: Vec<SocketAddr>,
    links: BTreeMap<usize, Link>,
    next_link: usize,
    faults: Faults,
    inbox: Receiver<Order>,
    counts: Arc<Counts>,
    scratch: Vec<u8>,
}

enum Port {
    Listening(TcpListener),
    /// Bound without listening: the port stays ours, and connecting to it fails at once.
    Refusing {
        _reserved: Option<Socket>,
    },
}

impl Proxy {
    pub(super) fn new(
        addresses: &[SocketAddr],
        upstream: Vec<SocketAddr>,
        inbox: Receiver<Order>,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let mut listener = Err(io::Error::new(ErrorKind::InvalidInput, "no address to listen on"));
        for address in addresses {
            listener = listen(*address, &poll);
            if listener.is_ok() {
                break;
            }
        }
        let listener = listener?;
        Ok(Self {
            poll,
            waker,
            address: listener.local_addr()?,
            port: Port::Listening(listener),
            upstream,
            links: BTreeMap::new(),
            next_link: 0,
            faults: Faults::default(),
            inbox,
            counts,
            scratch: vec![0; 64 << 10],
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut timeout = None;
        loop {
            if !self.look(&mut events, timeout) {
                return;
            }
            let orders: Vec<Order> = self.inbox.try_iter().collect();
            // Again, so that an order finds everything that happened to the sockets before it was given.
            if !orders.is_empty() && !self.look(&mut events, Some(Duration::ZERO)) {
                return;
            }
            let now = Instant::now();
            let accepted = self.accept_all(now);
            let mut answers = Vec::new();
            for Order { command, done } in orders {
                if matches!(command, Command::Stop) {
                    // Drops everything; the sender waits for the thread itself.
                    let _ = done.send(Ok(()));
                    return;
                }
                answers.push((done, self.carry_out(now, command)));
            }
            let wait = self.pump_all(now);
            self.counts.seen.lock().links = self.links.values().filter(|link| link.is_open()).count();
            timeout = if accepted.is_ok() { wait } else { Some(wait.unwrap_or(ACCEPT_AGAIN).min(ACCEPT_AGAIN)) };
            for (done, result) in answers {
                // Whoever asked may be gone.
                let _ = done.send(result);
            }
        }
    }

    /// Waits for sockets and orders and notes what the sockets can do. False if that has become impossible.
    fn look(&mut self, events: &mut Events, timeout: Option<Duration>) -> bool {
        match self.poll.poll(events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(error) => {
                log::error!("testkit network {}: {error}", self.address);
                return false;
            }
        }
        for event in &*events {
            let link = event.token().0.checked_sub(FIRST_LINK).map(|index| index / 2);
            if let Some(link) = link.and_then(|id| self.links.get_mut(&id)) {
                link.note(event);
            }
        }
        true
    }

    fn accept_all(&mut self, now: Instant) -> io::Result<()> {
        let Port::Listening(listener) = &self.port else {
            return Ok(());
        };
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(error) => {
                    log::warn!("testkit network {}: accept: {error}", self.address);
                    return Err(error);
                }
            };
            let id = self.next_link;
            self.next_link += 1;
            let first = FIRST_LINK + 2 * id;
            let tokens = (Token(first), Token(first + 1));
            match Link::accept(stream, &self.upstream, tokens, self.poll.registry(), now) {
                Ok(link) => {
                    self.links.insert(id, link);
                    let mut seen = self.counts.seen.lock();
                    seen.accepted.push(now);
                    seen.links += 1;
                }
                Err(error) => log::warn!("testkit network {}: {error}", self.address),
            }
        }
    }

    fn carry_out(&mut self, now: Instant, command: Command) -> io::Result<()> {
        match command {
            Command::Cut => self.links.values_mut().for_each(|link| link.cut(now)),
            Command::Reset => {
                self.links.values_mut().for_each(Link::reset);
                self.links.clear();
            }
            Command::HalfOpen => self.links.values_mut().for_each(Link::swallow),
            Command::Freeze(frozen) => self.faults.frozen = frozen,
            Command::Listen(true) => self.listen()?,
            Command::Listen(false) => self.refuse(),
            Command::Stall(Direction::ToServer, stalled) => self.faults.stalled_to_server = stalled,
            Command::Stall(Direction::ToClient, stalled) => self.faults.stalled_to_client = stalled,
            Command::Latency(latency) => self.faults.latency = latency,
            Command::Throttle(rate) => self.faults.rate = rate,
            Command::CutAfter(bytes, direction) => self.faults.cut_after = Some((direction, bytes)),
            Command::Upstream(addresses) => self.upstream = addresses,
            Command::Look | Command::Stop => {}
        }
        Ok(())
    }

    fn listen(&mut self) -> io::Result<()> {
        if matches!(self.port, Port::Refusing { .. }) {
            self.port = Port::Refusing { _reserved: None };
            self.port = Port::Listening(listen(self.address, &self.poll)?);
        }
        Ok(())
    }

    fn refuse(&mut self) {
        if matches!(self.port, Port::Listening(_)) {
            self.port = Port::Refusing { _reserved: None };
            self.port = Port::Refusing { _reserved: bind(self.address).ok() };
        }
    }

    /// Returns how long nothing needs doing, if sockets and orders are quiet.
    fn pump_all(&mut self, now: Instant) -> Option<Duration> {
        let Self { links, faults, counts, poll, scratch, .. } = self;
        let mut wait: Option<Duration> = None;
        links.retain(|_, link| {
            let due = match link.pump(now, faults, counts, poll.registry(), scratch) {
                Next::More => Some(Duration::ZERO),
                Next::Wait(until) => until.map(|until| until.saturating_duration_since(now)),
                Next::Over => return false,
            };
            wait = wait.into_iter().chain(due).min();
            true
        });
        if matches!(faults.cut_after, Some((_, 0))) {
            faults.cut_after = None;
            links.values_mut().for_each(|link| link.cut(now));
            // The cut links want to be read once more.
            wait = Some(Duration::ZERO);
        }
        wait
    }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // On Unix it lets us come back to our port; on Windows it would let others in.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn listen(address: SocketAddr, poll: &Poll) -> io::Result<TcpListener> {
    let socket = bind(address)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let mut listener = TcpListener::from_std(StdListener::from(socket));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    Ok(listener)
}
