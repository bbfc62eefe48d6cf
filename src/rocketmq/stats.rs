//! What a client counts, for `Client::stats()`.

use std::time::Duration;

use parking_lot::Mutex;

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
    /// Longest turn of the driver: what it adds to any answer.
    pub loop_lag: Duration,
    /// Transports that were found dead and replaced.
    pub recoveries: u64,
    /// Heartbeats that servers answered well. Each session has one with each endpoint every 10 s.
    pub heartbeats: u64,
    /// Bytes that pending messages are charged with, against the memory limit.
    pub memory_used: usize,
}

/// The driver's figures, readable by all threads. Written once a turn, under a lock that is held for a copy.
#[derive(Default)]
pub(super) struct StatsCell {
    figures: Mutex<(EngineStats, Duration)>,
}

impl StatsCell {
    pub(super) fn publish(&self, engine: EngineStats, loop_lag: Duration) {
        *self.figures.lock() = (engine, loop_lag);
    }

    pub(super) fn read(&self, callback_lag: Duration, callbacks_waiting: usize, memory_used: usize) -> Stats {
        let (engine, loop_lag) = *self.figures.lock();
        Stats {
            longest_answer: engine.longest_answer,
            longest_overdue: engine.longest_overdue,
            callback_lag,
            callbacks_waiting,
            loop_lag,
            recoveries: engine.recoveries,
            heartbeats: engine.heartbeats,
            memory_used,
        }
    }
}
