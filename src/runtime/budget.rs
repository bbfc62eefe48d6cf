//! The client's memory, shared by its producers: one atomic word a message; the waiting list has a lock of its own.

use std::sync::{PoisonError, Weak};

use super::permits::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::policy::budget::{Allowance, Claim, Memory, Turn, Turns, Usage};

/// A producer that can be given its turn.
pub(super) trait Producer: Send + Sync {
    /// Admits at most the head of the line. Called with no lock held.
    fn turn(&self) -> Turn;
}

/// The memory of one client.
pub(crate) struct Budget {
    allowance: Allowance,
    word: AtomicU64,
    turns: Mutex<Turns<Weak<dyn Producer>>>,
}

impl Budget {
    /// `limit` is in bytes; `None` means no limit.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { allowance: Allowance::new(limit), word: AtomicU64::new(0), turns: Mutex::new(Turns::new()) }
    }

    /// The bytes in use.
    pub(crate) fn used(&self) -> usize {
        Usage::from_word(self.word.load(Ordering::Relaxed)).used as usize
    }

    /// Puts a producer among those that wait for memory, and serves them: memory may have been freed in between.
    pub(super) fn ask(&self, producer: Weak<dyn Producer>) {
        let mut turns = self.lock();
        turns.ask(producer);
        // From here on whoever gives memory back sees in the word that it has to serve.
        self.word.fetch_or(Usage::CONTENDED, Ordering::AcqRel);
        drop(turns);
        self.serve();
    }

    /// Gives freed memory to the producers that wait, in turn, heads only. No lock may be held.
    pub(super) fn serve(&self) {
        if !self.lock().begin() {
            return;
        }
        while let Some(producer) = self.next() {
            let turn = producer.upgrade().map_or(Turn::Done, |producer| producer.turn());
            if !self.lock().ended(producer, turn) {
                return;
            }
        }
    }

    fn next(&self) -> Option<Weak<dyn Producer>> {
        let mut turns = self.lock();
        let next = turns.next();
        if next.is_none() {
            self.word.fetch_and(!Usage::CONTENDED, Ordering::AcqRel);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, Turns<Weak<dyn Producer>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Budget {
    fn allowance(&self) -> Allowance {
        self.allowance
    }

    fn take(&self, charge: usize, claim: Claim) -> bool {
        let claimed = |word| self.allowance.claim(Usage::from_word(word), charge, claim).map(Usage::word);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, claimed).is_ok()
    }

    fn give_back(&self, charge: usize) -> bool {
        Usage::from_word(self.word.fetch_sub(Usage::step(charge), Ordering::AcqRel)).contended
    }
}
