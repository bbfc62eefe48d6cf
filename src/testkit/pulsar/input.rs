//! What reaches the owner of the broker's state.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::state::State;
use crate::pulsar::wire::command::Command;
use crate::pulsar::wire::frame::WireError;

pub(super) enum Input {
    Accepted {
        stream: TcpStream,
        from: SocketAddr,
        at: Instant,
    },
    Read {
        connection: u64,
        at: Instant,
        items: Vec<Incoming>,
    },
    /// The connection's reader has ended by itself.
    Gone {
        connection: u64,
        at: Instant,
        by_reset: bool,
        malformed: Option<WireError>,
    },
    /// From a test.
    Call(Box<dyn FnOnce(&mut State) + Send>),
}

/// One frame.
pub(super) struct Incoming {
    pub(super) command: Command,
    pub(super) size: usize,
    /// Of a SEND: the checksum is right, or was not looked at.
    pub(super) intact: bool,
}
