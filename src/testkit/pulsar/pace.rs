//! How fast the connections of a broker are read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(super) struct Pace {
    state: Mutex<PaceState>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct PaceState {
    frozen: bool,
    bytes_per_second: Option<u64>,
}

/// At a limited pace, a read takes what one of so many parts of a second allows.
const STEPS_PER_SECOND: u64 = 50;

impl Pace {
    pub(super) fn freeze(&self, frozen: bool) {
        self.state.lock().frozen = frozen;
        self.changed.notify_all();
    }

    pub(super) fn limit(&self, bytes_per_second: Option<u64>) {
        self.state.lock().bytes_per_second = bytes_per_second;
        self.changed.notify_all();
    }

    /// Lets the readers look at their `ending` flags.
    pub(super) fn wake(&self) {
        // Under the lock, so that none is between its look and its wait.
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits while frozen. Gives the most that the next read may take; `None` when the connection ends.
    pub(super) fn wait(&self, ending: &AtomicBool, most: usize) -> Option<usize> {
        let mut state = self.state.lock();
        while state.frozen && !ending.load(Ordering::Acquire) {
            self.changed.wait(&mut state);
        }
        if ending.load(Ordering::Acquire) {
            return None;
        }
        let Some(rate) = state.bytes_per_second else {
            return Some(most);
        };
        let step = usize::try_from(rate / STEPS_PER_SECOND).unwrap_or(usize::MAX);
        Some(step.clamp(1, most))
    }

    /// Waits for as long as `read` bytes take at the present pace.
    pub(super) fn spend(&self, ending: &AtomicBool, read: usize) {
        let mut state = self.state.lock();
        let Some(rate) = state.bytes_per_second.map(|rate| rate.max(1)) else {
            return;
        };
        let until = Instant::now() + Duration::from_micros((read as u64).saturating_mul(1_000_000) / rate);
        while state.bytes_per_second.is_some() && !ending.load(Ordering::Acquire) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}
