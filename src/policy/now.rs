//! One reading of both clocks, taken by a shell and handed to pure code.

use std::time::Instant;

/// One moment, on the clock that never jumps and on the one that people read.
///
/// Deadlines use `instant` alone; `unix_ms` is for time stamps that leave the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    pub instant: Instant,
    /// Milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
}
