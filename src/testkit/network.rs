//! The public side of the faulty network.

mod link;
mod pipe;
mod proxy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded, unbounded};
use mio::Waker;
use parking_lot::Mutex;

use proxy::Proxy;

/// One of the two ways through a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What the client sends.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// A TCP proxy that behaves as badly as it is told to.
///
/// It listens on a local port and passes every connection on to one server, its *upstream*; such a pair of
/// connections is a *link*. Faults are methods: each is in force when the call returns, may be called from any
/// thread, and leaves the other faults as they are. Without faults bytes and half-closes pass unchanged and in
/// order.
///
/// The counts are exact, too: they include every connection and byte that a client or server knows of when it
/// asks. Asking costs a round trip to the network's thread, some ten microseconds.
///
/// A fault concerns bytes that the network has not handed on yet. What a socket of the client or the server has
/// in its buffers by then is theirs.
///
/// A Pulsar client asks its service URL where a topic is and then connects to the address in the answer. The
/// broker must therefore announce [`address`](Self::address) as its own, or the client goes past the network.
///
/// It uses one thread, `tmq-net-PORT`. Dropping the network ends the thread and closes all connections.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use threadmq::testkit::{Direction, Network};
///
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let network = Network::start(server.local_addr()?)?;
/// let mut client = TcpStream::connect(network.address())?;
/// let (mut served, _) = server.accept()?;
///
/// // The server gets the first four bytes, and then the end of the stream.
/// network.cut_after(4, Direction::ToServer);
/// client.write_all(b"ping pong")?;
/// let mut text = String::new();
/// served.read_to_string(&mut text)?;
/// assert_eq!(text, "ping");
/// assert_eq!(network.forwarded(Direction::ToServer), 4);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Network {
    address: SocketAddr,
    orders: Sender<Order>,
    waker: Arc<Waker>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is asked to do, and where it says that it has.
struct Order {
    command: Command,
    done: Sender<io::Result<()>>,
}

enum Command {
    Cut,
    Reset,
    HalfOpen,
    Freeze(bool),
    Listen(bool),
    Stall(Direction, bool),
    Latency(Duration),
    Throttle(Option<u64>),
    CutAfter(u64, Direction),
    Upstream(Vec<SocketAddr>),
    /// Do nothing but what a turn does anyway, so that the counts are up to date.
    Look,
    Stop,
}

/// What the thread tells; written by it alone.
#[derive(Default)]
struct Counts {
    to_server: AtomicU64,
    to_client: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    links: usize,
    accepted: Vec<Instant>,
}

impl Counts {
    fn forwarded(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }
}

impl Network {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `upstream`.
    ///
    /// If `upstream` stands for several addresses, each new link tries them in turn. A server need not be there
    /// yet: a link whose server cannot be reached is reset.
    ///
    /// # Errors
    /// If `upstream` cannot be resolved, or there is no free port or thread.
    pub fn start(upstream: impl ToSocketAddrs) -> io::Result<Self> {
        Self::listen_on((Ipv4Addr::LOCALHOST, 0), upstream)
    }

    /// Like [`start`](Self::start), on an address of your choice; port 0 takes a free one.
    ///
    /// # Errors
    /// As for `start`, and if the address is in use or not of this machine.
    pub fn listen_on(address: impl ToSocketAddrs, upstream: impl ToSocketAddrs) -> io::Result<Self> {
        let upstream = resolve(upstream)?;
        let counts = Arc::new(Counts::default());
        let (orders, inbox) = unbounded();
        let proxy = Proxy::new(&resolve(address)?, upstream, inbox, Arc::clone(&counts))?;
        let (address, waker) = (proxy.address(), proxy.waker());
        let thread = Builder::new().name(format!("tmq-net-{}", address.port())).spawn(move || proxy.run())?;
        Ok(Self { address, orders, waker, counts, thread: Some(thread) })
    }

    /// Where clients connect to. Stays the same for the life of the network.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// [`address`](Self::address) as the service URL of a Pulsar client, `pulsar://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("pulsar://{}", self.address)
    }

    /// Ends all links in good order: both sides read an end of stream (FIN). Bytes on their way are lost. New
    /// links pass.
    pub fn cut(&self) {
        self.tell(Command::Cut);
    }

    /// Breaks all links: both sides get a connection reset (RST). Bytes on their way are lost. New links pass.
    pub fn reset(&self) {
        self.tell(Command::Reset);
    }

    /// Lets both sides of all present links talk into the void, for good: what they send is read and thrown away,
    /// and if one side closes, the other is not told. New links pass.
    ///
    /// This is what a crashed machine or a firewall that forgot a connection looks like, except that the system's
    /// own TCP acknowledgements still come. [`cut`](Self::cut) and [`reset`](Self::reset) end such links, too.
    pub fn half_open(&self) {
        self.tell(Command::HalfOpen);
    }

    /// Stops everything: nothing is forwarded, neither bytes nor the end of a connection. New connections are
    /// accepted and stay silent; the server does not see them yet.
    pub fn freeze(&self) {
        self.tell(Command::Freeze(true));
    }

    /// Ends a [`freeze`](Self::freeze): what was held is delivered in order, and connections that were made are
    /// passed on. A link that one side has reset meanwhile is reset, and nothing of it is delivered.
    pub fn thaw(&self) {
        self.tell(Command::Freeze(false));
    }

    /// Refuses new connections, as a machine does on which no server runs: the port stays ours, but nobody
    /// listens on it, so that connecting fails at once. Present links stay.
    pub fn refuse(&self) {
        self.tell(Command::Listen(false));
    }

    /// Takes new connections again after [`refuse`](Self::refuse).
    ///
    /// # Errors
    /// If another program took the port in the meantime.
    pub fn accept(&self) -> io::Result<()> {
        self.order(Command::Listen(true))
    }

    /// Stops one direction of all links, present and new: nothing is read from the sender, so that its socket
    /// fills up and its writes block. The other direction passes.
    ///
    /// The system's buffers take some hundred KiB, and more on the sender's own side, before a sender feels it.
    pub fn stall(&self, direction: Direction) {
        self.tell(Command::Stall(direction, true));
    }

    /// Ends a [`stall`](Self::stall): what was held is delivered.
    pub fn resume(&self, direction: Direction) {
        self.tell(Command::Stall(direction, false));
    }

    /// Delays what is sent from now on by this much on its way, in each direction, so that an answer comes after
    /// twice the time. Default zero. Connecting is not delayed.
    ///
    /// A direction of a link has at most 16 MiB on its way; beyond that its sender has to wait.
    pub fn latency(&self, latency: Duration) {
        self.tell(Command::Latency(latency));
    }

    /// Limits each direction of each link to this many bytes a second. `None`, the default, is without limit;
    /// with zero nothing passes.
    pub fn throttle(&self, bytes_per_second: Option<u64>) {
        self.tell(Command::Throttle(bytes_per_second));
    }

    /// Forwards exactly this many more bytes in one direction, counted over all links, and then does what
    /// [`cut`](Self::cut) does. Happens once; a second call before that replaces the first.
    pub fn cut_after(&self, bytes: u64, direction: Direction) {
        self.tell(Command::CutAfter(bytes, direction));
    }

    /// Passes new links on to another server. Present links stay where they are.
    ///
    /// # Errors
    /// If the address cannot be resolved.
    pub fn set_upstream(&self, upstream: impl ToSocketAddrs) -> io::Result<()> {
        self.order(Command::Upstream(resolve(upstream)?))
    }

    /// How many links are open now: accepted, neither closed by the client nor ended by a fault. A half-open link
    /// counts until its client closes it.
    pub fn links(&self) -> usize {
        self.look();
        self.counts.seen.lock().links
    }

    /// How many connections were accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.look();
        self.counts.seen.lock().accepted.len() as u64
    }

    /// When each of the accepted connections came, oldest first: shows a client's backoff.
    pub fn connect_times(&self) -> Vec<Instant> {
        self.look();
        self.counts.seen.lock().accepted.clone()
    }

    /// How many bytes were handed on in one direction since the start, over all links. What was thrown away does
    /// not count.
    pub fn forwarded(&self, direction: Direction) -> u64 {
        self.look();
        self.counts.forwarded(direction).load(Ordering::Acquire)
    }

    /// Lets the thread catch up with what the sockets have seen. A network that has ended keeps its last counts.
    fn look(&self) {
        let _ = self.order(Command::Look);
    }

    fn tell(&self, command: Command) {
        if let Err(error) = self.order(command) {
            log::warn!("testkit network {}: {error}", self.address);
        }
    }

    /// Returns when the thread has carried the command out.
    fn order(&self, command: Command) -> io::Result<()> {
        let (done, answer) = bounded(1);
        let ended = |_| io::Error::other("the network's thread has ended");
        self.orders.send(Order { command, done }).map_err(|_| io::Error::other("the network's thread has ended"))?;
        self.waker.wake()?;
        answer.recv().map_err(ended)?
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let told = self.order(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A thread that could not be told would never end.
            if told.is_ok() || thread.is_finished() {
                // A panic in it has been printed already, and there is nobody to give it to.
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("address", &self.address)
            .field("links", &self.counts.seen.lock().links)
            .finish_non_exhaustive()
    }
}

fn resolve(addresses: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = addresses.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no addresses"));
    }
    Ok(addresses)
}
