//! Servers and networks for tests of programs that use threadmq: everything runs inside the test's own process.
//!
//! - [`Network`] stands between a client and a server and breaks the connection in the ways that real networks
//!   do: it cuts, resets, freezes, swallows, slows down.
//!
//! Needs the feature `testkit`, which belongs into a program's `dev-dependencies`.

mod network;

pub use network::{Direction, Network};
