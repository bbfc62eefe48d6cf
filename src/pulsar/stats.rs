//! What a client counts, for `Client::stats()`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::engine::EngineStats;

/// Figures of a client since it was built. Times are the longest seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Longest time from the call of a send to its result being fixed.
    pub longest_answer: Duration,
    /// Longest time by which a result was fixed after its send timeout. Promised: at most 100 ms.
    pub longest_overdue: Duration,
    /// Longest time that a callback waited for a callback thread after its result was fixed.
    pub callback_lag: Duration,
    /// Callbacks that wait for a callback thread now.
    pub callbacks_waiting: usize,
    /// Longest turn of the event loop: what it adds to any answer.
    pub loop_lag: Duration,
    /// Connections that were lost and replaced.
    pub recoveries: u64,
    /// Connections closed because the broker did not answer on them.
    pub dead_links: u64,
    /// Bytes that pending messages are charged with, against the memory limit.
    pub memory_used: usize,
}

/// The loop's figures, readable by all threads.
#[derive(Debug, Default)]
pub(super) struct StatsCell {
    longest_answer: AtomicU64,
    longest_overdue: AtomicU64,
    loop_lag: AtomicU64,
    recoveries: AtomicU64,
    dead_links: AtomicU64,
}

impl StatsCell {
    pub(super) fn publish(&self, engine: EngineStats, loop_lag: Duration) {
        self.longest_answer.store(micros(engine.longest_answer), Ordering::Relaxed);
        self.longest_overdue.store(micros(engine.longest_overdue), Ordering::Relaxed);
        self.loop_lag.store(micros(loop_lag), Ordering::Relaxed);
        self.recoveries.store(engine.recoveries, Ordering::Relaxed);
        self.dead_links.store(engine.dead_links, Ordering::Relaxed);
    }

    pub(super) fn read(&self, callback_lag: Duration, callbacks_waiting: usize, memory_used: usize) -> Stats {
        let duration = |cell: &AtomicU64| Duration::from_micros(cell.load(Ordering::Relaxed));
        Stats {
            longest_answer: duration(&self.longest_answer),
            longest_overdue: duration(&self.longest_overdue),
            callback_lag,
            callbacks_waiting,
            loop_lag: duration(&self.loop_lag),
            recoveries: self.recoveries.load(Ordering::Relaxed),
            dead_links: self.dead_links.load(Ordering::Relaxed),
            memory_used,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
