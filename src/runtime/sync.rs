//! The locks and atomics that loom can see: std's, or loom's under `cfg(loom)`.
//!
//! `inbox` and `Completion` use only these, so that loom tries all interleavings of the files that
//! ship. To run it (other threads of the crate keep their usual types and are not modelled):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
//!     cargo test --release --lib --no-default-features loom
//! ```
//!
//! The directory of its own keeps the flag from rebuilding everything else.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
use std::sync::{LockResult, PoisonError};

/// Locks, also if a thread panicked inside: the data behind these locks is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// What a lock or wait returned, also if a thread panicked inside.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
