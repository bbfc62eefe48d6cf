//! Servers and networks for tests of programs that use threadmq: everything runs inside the test's own process.
//!
//! [`pulsar::Broker`] is a small Pulsar broker over real TCP, with a script of faults. [`Network`] stands between a
//! client and a server and breaks the connection in the ways that real networks do: it cuts, resets, swallows,
//! freezes, slows down, refuses. It knows no protocol and works for every TCP server.
//!
//! Some advice for tests with faults: call the fault, then wait for what should follow with a generous limit, and
//! assert on counts ([`Network::links`], [`Network::forwarded`]) and results, not on how long something took.
//!
//! Needs the feature `testkit`, which belongs into a program's `dev-dependencies`.

mod network;
pub mod pulsar;
#[cfg(feature = "rocketmq")]
pub mod rocketmq;

pub use network::{Direction, Network};
