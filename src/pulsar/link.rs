//! One socket: bytes in and out, never waiting.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use super::engine::write_buffer::{SLICES, WriteBuffer};
use super::wire::frame::next_frame;
use crate::error::{Error, ErrorKind};

/// Bytes asked of the socket at a time.
pub(super) const READ_CHUNK: usize = 64 * 1024;
/// Bytes that one link may read in one turn of the loop, so that it starves nobody.
const READ_TURN: usize = 1024 * 1024;
/// The kernel gives up on unacknowledged data after this long; pings find a dead peer earlier.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// A socket and its buffers.
pub(super) struct Link {
    stream: TcpStream,
    peer: SocketAddr,
    connected: bool,
    /// The socket may have bytes that were not read yet.
    pub readable: bool,
    /// The peer has closed its side, so that the end of the stream stands behind the bytes.
    pub ended: bool,
    /// The socket took everything that it was offered.
    pub writable: bool,
    read: BytesMut,
    pub write: WriteBuffer,
}

/// How a turn of reading ended.
pub(super) enum ReadTurn {
    /// Nothing more now.
    Drained,
    /// The link used up its turn.
    More,
    /// The socket is over; frames read before are still good.
    Lost(Error),
}

impl Link {
    /// Starts to connect; the socket becomes writable when it is.
    pub(super) fn connect(registry: &Registry, token: Token, address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            stream,
            peer: address,
            connected: false,
            readable: false,
            ended: false,
            writable: false,
            read: BytesMut::new(),
            write: WriteBuffer::default(),
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// The socket became writable or broke: whether it is connected now, or why it cannot be.
    pub(super) fn finish_connect(&mut self) -> Result<bool, Error> {
        let failed =
            |error: io::Error| Error::new(ErrorKind::Transport, format!("connect to {}", self.peer)).with_source(error);
        if let Some(error) = self.stream.take_error().map_err(failed)? {
            return Err(failed(error));
        }
        match self.stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(failed(error)),
        }
        self.connected = true;
        self.writable = true;
        self.readable = true;
        let socket = SockRef::from(&self.stream);
        let tuned = socket.set_tcp_nodelay(true);
        #[cfg(target_os = "linux")]
        let tuned = tuned.and_then(|()| socket.set_tcp_user_timeout(Some(USER_TIMEOUT)));
        if let Err(error) = tuned {
            log::debug!("socket options for {}: {error}", self.peer);
        }
        Ok(true)
    }

    /// Reads what there is, up to a turn's worth. `chunk` is where the socket writes; what it holds is of no account.
    pub(super) fn read(&mut self, chunk: &mut [u8]) -> ReadTurn {
        let mut taken = 0;
        while taken < READ_TURN {
            match self.stream.read(chunk) {
                Ok(0) => return ReadTurn::Lost(self.lost("the broker closed the connection")),
                Ok(count) => {
                    let bytes = chunk.get(..count).unwrap_or_default();
                    self.read.extend_from_slice(bytes);
                    taken += count;
                    // A short read took all there was; what comes later raises an event of its own. Only an end of
                    // the stream that was told with these bytes is told once.
                    if count < chunk.len() && !self.ended {
                        self.readable = false;
                        return ReadTurn::Drained;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return ReadTurn::Drained;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return ReadTurn::Lost(self.lost("the connection was lost").with_source(error));
                }
            }
        }
        ReadTurn::More
    }

    /// The next whole frame of what was read.
    pub(super) fn next_frame(&mut self, limit: usize) -> Result<Option<Bytes>, Error> {
        next_frame(&mut self.read, limit).map_err(|error| {
            let context = format!("from {}", self.peer);
            Error::from(error).in_context(&context)
        })
    }

    /// Offers the write buffer to the socket until it is empty or the socket is full.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        while self.writable && !self.write.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.write.slices(&mut slices);
            match self.stream.write_vectored(slices.get(..count).unwrap_or_default()) {
                Ok(0) => return Err(self.lost("the connection takes no more bytes")),
                Ok(written) => self.write.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost("the connection was lost").with_source(error)),
            }
        }
        Ok(())
    }

    /// Drops the socket; by reset if asked, so that the kernel does not go on delivering what it holds.
    pub(super) fn close(mut self, registry: &Registry, reset: bool) {
        if reset {
            if let Err(error) = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)) {
                log::debug!("reset of the link to {}: {error}", self.peer);
            }
        }
        if let Err(error) = registry.deregister(&mut self.stream) {
            log::debug!("closing the link to {}: {error}", self.peer);
        }
    }

    fn lost(&self, what: &str) -> Error {
        Error::new(ErrorKind::Transport, format!("{what}: {}", self.peer))
    }
}
