//! Peers that send nonsense: truncated, oversized, contradictory and random frames, other protocols, answers without
//! end. The client must never panic and never hang, `create` fails in time with an error that says why, other links
//! go on, and memory stays bounded.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

#[path = "../apart/mod.rs"]
mod apart;
mod bystander;
mod consuming;
mod creating;
mod floods;
mod frames;
mod liar;
mod sending;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything takes on a loaded machine; never waited out when all is well.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an answer may be late by on a loaded machine.
const SLACK: Duration = Duration::from_secs(5);
/// What a process may grow by, in KiB.
const GROWTH: u64 = 64 * 1024;
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(600);

/// Runs a test in a process of its own. In the end no thread of the library may have panicked, and the process may not
/// have grown.
fn apart(test: &str, body: impl FnOnce()) {
    apart::apart(test, GROWTH, HANGS, || {
        static PANICS: AtomicUsize = AtomicUsize::new(0);
        let printed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("tmq-")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            printed(info);
        }));
        body();
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a thread of the library panicked");
    });
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Numbers that are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
