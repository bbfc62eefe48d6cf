//! Whether the machine itself is too busy to keep promises of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A thread that only sleeps, and finds out by how much it is woken too late.
pub struct Canary {
    longest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

const NAP: Duration = Duration::from_millis(5);

impl Canary {
    pub fn start() -> Self {
        let canary = Self { longest: Arc::default(), ended: Arc::default() };
        let (longest, ended) = (Arc::clone(&canary.longest), Arc::clone(&canary.ended));
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                thread::sleep(NAP);
                let late = asleep.elapsed().saturating_sub(NAP);
                longest.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        canary
    }

    /// The longest that a thread of this process which was to run did not.
    pub fn longest_stall(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
