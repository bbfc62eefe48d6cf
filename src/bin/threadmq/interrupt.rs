//! Ctrl-C: once ends in good order, twice at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::outcome::Failure;

static STOPPED: AtomicBool = AtomicBool::new(false);
/// Whoever sleeps waits here; the lock guards nothing but the moment between the look and the sleep.
static SLEEP: Mutex<()> = Mutex::new(());
static WAKE: Condvar = Condvar::new();

/// Also catches the signal that asks a process to end.
pub fn install() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if STOPPED.swap(true, Ordering::AcqRel) {
            std::process::exit(130);
        }
        eprintln!("threadmq: stopping; press Ctrl-C once more to quit at once");
        drop(SLEEP.lock().unwrap_or_else(PoisonError::into_inner));
        WAKE.notify_all();
    })
    .map_err(|error| Failure::of("Ctrl-C cannot be caught", &error))
}

/// Whether the user wants it to end.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Acquire)
}

/// Sleeps until then, for ever without a time. False if it was cut short by Ctrl-C.
pub fn sleep_until(due: Option<Instant>) -> bool {
    let mut guard = SLEEP.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if stopped() {
            return false;
        }
        guard = match due {
            None => WAKE.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return true;
                }
                WAKE.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}
