//! A gate that can be closed while others are inside, and tells once when the last has left.
//!
//! Count and closed bit are one atomic, so that entering and closing cannot pass each other. Nobody waits: whoever
//! closes either acts at once (nobody is inside) or leaves it to the last who leaves.

use super::sync::{AtomicUsize, Ordering};

const CLOSED: usize = 1;
const ONE_INSIDE: usize = 2;

/// See the module's description. `on_empty` is called at most once.
pub(crate) struct Gate {
    /// The lowest bit is set once closed; the rest counts who is inside.
    state: AtomicUsize,
    on_empty: Box<dyn Fn() + Send + Sync>,
}

/// Being inside. Leaves on drop.
#[must_use = "dropping it leaves the gate at once"]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
}

impl Gate {
    /// `on_empty` runs on the thread that leaves the closed gate last, so it must not block.
    pub fn new(on_empty: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: AtomicUsize::new(0), on_empty: Box::new(on_empty) }
    }

    /// `None` once closed.
    pub fn enter(&self) -> Option<Pass<'_>> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & CLOSED != 0 {
                return None;
            }
            let inside = state.checked_add(ONE_INSIDE)?;
            match self.state.compare_exchange_weak(state, inside, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Pass { gate: self }),
                Err(seen) => state = seen,
            }
        }
    }

    /// Lets nobody in from here on. True if nobody is inside: act now. Otherwise, the last to leave calls
    /// `on_empty`; a later close changes nothing and returns false.
    pub fn close(&self) -> bool {
        // Acquire: what those did who have left is seen by who acts now.
        self.state.fetch_or(CLOSED, Ordering::AcqRel) == 0
    }

    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.gate.state.fetch_sub(ONE_INSIDE, Ordering::AcqRel) == ONE_INSIDE | CLOSED {
            (self.gate.on_empty)();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn counted() -> (Arc<Gate>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let gate = Gate::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        (Arc::new(gate), calls)
    }

    #[test]
    fn closing_an_empty_gate_acts_at_once() {
        let (gate, calls) = counted();
        drop(gate.enter().unwrap());
        assert!(!gate.is_closed());
        assert!(gate.close());
        assert!(!gate.close(), "the second close has nothing to do");
        assert!(gate.is_closed());
        assert!(gate.enter().is_none());
        assert_eq!(calls.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_last_to_leave_a_closed_gate_tells() {
        let (gate, calls) = counted();
        let (first, second) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert!(!gate.close());
        drop(first);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn exactly_one_acts_under_threads() {
        for _ in 0..200 {
            let (gate, calls) = counted();
            let users: Vec<_> = (0..3)
                .map(|_| {
                    let gate = Arc::clone(&gate);
                    thread::spawn(move || while gate.enter().is_some() {})
                })
                .collect();
            thread::yield_now();
            let at_once = usize::from(gate.close());
            users.into_iter().for_each(|user| user.join().unwrap());
            assert_eq!(at_once + calls.load(Ordering::SeqCst), 1);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, atomic::AtomicUsize};
    use loom::thread;

    use super::*;

    #[test]
    fn loom_gate_tells_exactly_once() {
        loom::model(|| {
            let told = Arc::new(AtomicUsize::new(0));
            let work = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&told);
            let (seen, done) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&work));
            let noted = Arc::clone(&seen);
            let gate = Arc::new(Gate::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
                noted.store(done.load(Ordering::Relaxed), Ordering::Relaxed);
            }));
            let users: Vec<_> = (0..2)
                .map(|_| {
                    let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
                    thread::spawn(move || match gate.enter() {
                        Some(_pass) => {
                            work.fetch_add(1, Ordering::Relaxed);
                            1
                        }
                        None => 0,
                    })
                })
                .collect();
            let at_once = gate.close();
            let worked_at_once = work.load(Ordering::Relaxed);
            let entered: usize = users.into_iter().map(|user| user.join().unwrap()).sum();
            assert_eq!(usize::from(at_once) + told.load(Ordering::SeqCst), 1);
            // Whoever acts sees the work of all who were inside.
            let seen = if at_once { worked_at_once } else { seen.load(Ordering::Relaxed) };
            assert_eq!(seen, entered);
            assert!(gate.enter().is_none());
        });
    }
}
