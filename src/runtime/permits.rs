//! Permits: where users block. One mutex around a producer's [`Admission`], and a place to sleep for each waiter.
//!
//! A waiter leaves its message in the line; whoever returns permits moves what fits, in order, and wakes exactly the
//! owners. Nobody holds the mutex while waiting, waking, calling `look` or dropping what belongs to the user.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use self::sync::{Condvar, Mutex, MutexGuard};
use super::budget::{Budget, Producer};
use crate::error::{Error, ErrorKind, SendError};
use crate::policy::admission::{Admission, Admitted, Call, Decision, Limits, Offer, Served, Ticket, WaiterId};
use crate::policy::budget::{Memory, Turn};
use crate::policy::progress::{Ended, Flushed, Progress, Watched};

/// Locks and atomics that loom can see.
pub(super) mod sync {
    #[cfg(loom)]
    pub(in crate::runtime) use loom::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    };
    #[cfg(not(loom))]
    pub(in crate::runtime) use std::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    };
}

/// A snapshot for tests.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PermitStats {
    /// Messages that hold a permit.
    pub pending: usize,
    /// The bytes they are charged with.
    pub charge: usize,
    /// Calls in the line.
    pub waiting: usize,
    /// Messages admitted since the start.
    pub admitted: u64,
}

/// The permits of one producer.
pub(crate) struct Permits<T> {
    state: Mutex<State<T>>,
    budget: Arc<Budget>,
    look: Box<dyn Fn(usize) + Send + Sync>,
    me: Weak<Self>,
}

struct State<T> {
    admission: Admission<T>,
    /// One for each waiter in the line, in the same order.
    owners: VecDeque<(WaiterId, Arc<Slot<Decision<T>>>)>,
    progress: Progress<Arc<Slot<Option<Error>>>>,
    idle: Vec<Arc<Slot<()>>>,
}

impl<T: Send + 'static> Permits<T> {
    /// `look` says that a lane has gone from nothing to take to something; it is called with no lock held, on
    /// whatever thread caused it, and must neither block nor panic.
    pub(crate) fn new(
        limits: Limits,
        lanes: usize,
        budget: Arc<Budget>,
        look: impl Fn(usize) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let state = State {
            admission: Admission::new(limits, lanes),
            owners: VecDeque::new(),
            progress: Progress::new(),
            idle: Vec::new(),
        };
        let look = Box::new(look);
        Arc::new_cyclic(|me| Self { state: Mutex::new(state), budget, look, me: me.clone() })
    }

    /// The lane's sequence ids go on from here; never backwards. Adds the lane if there is none yet.
    pub(crate) fn open(&self, lane: usize, next_sequence_id: u64) {
        self.lock().admission.open(lane, next_sequence_id);
    }

    /// Admits a message to its lane. Blocks at most until the send timeout after the call if `may_wait` is true,
    /// else fails with `WouldBlock` if there is no room or others wait. The message comes back with every error.
    pub(crate) fn admit(
        &self,
        lane: usize,
        item: T,
        charge: usize,
        sequence: Option<u64>,
        may_wait: bool,
    ) -> Result<Ticket, SendError<T>> {
        let mut state = self.lock();
        // Under the lock, so that the order of the line is the order of the deadlines.
        let now = Instant::now();
        let call = Call { lane, item, charge, sequence };
        match state.admission.offer(now, call, may_wait, &*self.budget) {
            Offer::Admitted { ticket, look } => {
                drop(state);
                if look {
                    (self.look)(lane);
                }
                Ok(ticket)
            }
            Offer::Refused(error, item) => {
                drop(state);
                Err(SendError::new(error, item))
            }
            Offer::Waiting { id, due, ask } => {
                let slot = Slot::new();
                state.owners.push_back((id, Arc::clone(&slot)));
                drop(state);
                if ask {
                    self.budget.ask(self.me.clone());
                }
                self.wait_in_line(id, due, &slot)
            }
        }
    }

    fn wait_in_line(
        &self,
        id: WaiterId,
        due: Option<Instant>,
        slot: &Slot<Decision<T>>,
    ) -> Result<Ticket, SendError<T>> {
        let decision = match slot.wait_until(due) {
            Some(decision) => decision,
            None => match self.withdraw(id) {
                Some(item) => return Err(SendError::new(no_room_in_time(), item)),
                // It was decided before we could take it back, and somebody is on the way to tell us.
                None => slot.wait(),
            },
        };
        match decision {
            Decision::Admitted(ticket) => Ok(ticket),
            Decision::Refused(error, item) => Err(SendError::new(error, item)),
        }
    }

    fn withdraw(&self, id: WaiterId) -> Option<T> {
        let mut state = self.lock();
        let (item, served) = state.admission.withdraw(id, &*self.budget)?;
        if let Ok(at) = state.owners.binary_search_by_key(&id, |(id, _)| *id) {
            state.owners.remove(at);
        }
        self.carry_out(state, served);
        Some(item)
    }

    /// Moves everything admitted to a lane and not yet taken into `into`, in order; swaps if `into` is empty.
    pub(crate) fn take(&self, lane: usize, into: &mut Vec<Admitted<T>>) {
        self.lock().admission.take(lane, into);
    }

    /// The results of all places of the lane up to `through` are fixed. `failure` is the first place that failed
    /// since the last call, if flush is to tell it.
    pub(crate) fn fixed(&self, lane: usize, through: u64, failure: Option<(u64, Error)>) {
        let ended = self.lock().progress.fixed(lane, through, failure);
        tell_flushed(ended);
    }

    /// Permits come back in bulk: `count` messages of a lane, of `charge` bytes altogether. In lane order: a message
    /// without a callback does not come back before an earlier one whose callback has not returned, otherwise a
    /// flush for `Returned` ends too early. Serves the line.
    pub(crate) fn returned(&self, lane: usize, count: usize, charge: usize) {
        self.released(count, charge);
        self.told(lane, count);
    }

    /// The first half of [`returned`](Self::returned): there is room again. For messages without a callback, whose
    /// callers are told between the halves, so that whoever has a result finds its room free.
    pub(crate) fn released(&self, count: usize, charge: usize) {
        let mut state = self.lock();
        let served = state.admission.release(count, charge, &*self.budget);
        let idle = match state.admission.pending() {
            0 => std::mem::take(&mut state.idle),
            _ => Vec::new(),
        };
        self.carry_out(state, served);
        for slot in idle {
            slot.set(());
        }
    }

    /// The second half: nothing of these messages runs or waits any more, as a flush wants to know.
    pub(crate) fn told(&self, lane: usize, count: usize) {
        let ended = self.lock().progress.returned(lane, count as u64);
        tell_flushed(ended);
    }

    /// Waits for everything admitted before the call. Fails with the first failure among it that no earlier flush
    /// has told, or with `Timeout`. Works on after [`close`](Self::close).
    pub(crate) fn wait_flushed(&self, what: Flushed, deadline: Option<Instant>) -> Result<(), Error> {
        let slot = Slot::new();
        let mut state = self.lock();
        let targets = state.admission.last_places();
        let watched = state.progress.watch(what, targets, || Arc::clone(&slot));
        drop(state);
        let failure = match watched {
            Watched::Already(failure) => failure,
            Watched::Waiting(id) => match slot.wait_until(deadline) {
                Some(failure) => failure,
                None if self.lock().progress.unwatch(id) => {
                    return Err(Error::new(ErrorKind::Timeout, "flush did not end in time"));
                }
                None => slot.wait(),
            },
        };
        match failure {
            Some(error) => Err(error.in_context("flush found a message that failed")),
            None => Ok(()),
        }
    }

    /// Every later call is refused with `Closed`, and so is everything in the line. What was admitted stays.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let served = state.admission.close();
        self.carry_out(state, served);
    }

    /// Messages that hold a permit.
    pub(crate) fn pending(&self) -> usize {
        self.lock().admission.pending()
    }

    /// Waits until no message holds a permit. Gives the number of those that still do when the deadline passes.
    /// Without a close before it, new messages can keep it waiting.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> Result<(), usize> {
        let slot = Slot::new();
        let mut state = self.lock();
        if state.admission.pending() == 0 {
            return Ok(());
        }
        state.idle.push(Arc::clone(&slot));
        drop(state);
        if slot.wait_until(deadline).is_some() {
            return Ok(());
        }
        let mut state = self.lock();
        let before = state.idle.len();
        state.idle.retain(|waiting| !Arc::ptr_eq(waiting, &slot));
        match state.idle.len() == before {
            true => Ok(()), // it was reached just now
            false => Err(state.admission.pending()),
        }
    }

    #[cfg(test)]
    pub(crate) fn stats(&self) -> PermitStats {
        let state = self.lock();
        let admission = &state.admission;
        PermitStats {
            pending: admission.pending(),
            charge: admission.charge(),
            waiting: admission.waiting(),
            admitted: admission.total(),
        }
    }

    /// Does what a change calls for, with the lock free.
    fn carry_out(&self, mut state: MutexGuard<'_, State<T>>, served: Served<T>) {
        let decided = served.decided.len().min(state.owners.len());
        let owners: Vec<_> = state.owners.drain(..decided).collect();
        drop(state);
        for lane in served.look {
            (self.look)(lane);
        }
        for ((id, slot), (decided, decision)) in owners.into_iter().zip(served.decided) {
            debug_assert_eq!(id, decided, "owners stand in the order of the line");
            slot.set(decision);
        }
        if served.ask {
            self.budget.ask(self.me.clone());
        } else if served.serve_turns {
            self.budget.serve();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Producer for Permits<T> {
    fn turn(&self) -> Turn {
        let mut state = self.lock();
        let (turn, served) = state.admission.turn(&*self.budget);
        self.carry_out(state, served);
        turn
    }
}

/// What a producer still holds when its last handle goes comes back to the client.
impl<T> Drop for Permits<T> {
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = state.admission.charge();
        drop(state);
        if self.budget.give_back(charge) {
            self.budget.serve();
        }
    }
}

fn tell_flushed(ended: Ended<Arc<Slot<Option<Error>>>>) {
    for (slot, failure) in ended {
        slot.set(failure);
    }
}

fn no_room_in_time() -> Error {
    Error::new(ErrorKind::Timeout, "no room for another pending message within the send timeout")
}

/// A place to sleep for one waiter, until its result is set.
struct Slot<R> {
    result: Mutex<Option<R>>,
    ready: Condvar,
}

impl<R> Slot<R> {
    fn new() -> Arc<Self> {
        Arc::new(Self { result: Mutex::new(None), ready: Condvar::new() })
    }

    fn set(&self, result: R) {
        *self.lock() = Some(result);
        self.ready.notify_one();
    }

    /// `None` if the deadline passes first.
    fn wait_until(&self, deadline: Option<Instant>) -> Option<R> {
        let mut result = self.lock();
        loop {
            if let Some(result) = result.take() {
                return Some(result);
            }
            result = match deadline {
                None => self.ready.wait(result).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.ready.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn wait(&self) -> R {
        let mut result = self.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self.ready.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<R>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
