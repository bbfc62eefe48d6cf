//! The broker, driven over a socket.

mod client;
mod connections;
mod consuming;
mod log;
mod producing;
mod requests;

use std::time::Duration;

/// Longer than anything takes on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time for what must not happen.
const A_WHILE: Duration = Duration::from_millis(150);
