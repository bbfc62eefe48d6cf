//! A result that is settled exactly once: [`Pending`] for the one who waits, `Completion` for the one who settles.

use std::fmt;
use std::mem;
use std::time::{Duration, Instant};

use crate::error::{Delivery, Error, ErrorKind};
use crate::runtime::sync::{Arc, Condvar, Mutex, lock, unpoisoned};

/// The result of an operation that is under way.
///
/// It becomes ready exactly once, in the time that the operation promises, whether or not anybody waits: a
/// `Pending` that is dropped withdraws nothing, its result is thrown away. Waiting is allowed on every thread,
/// callback threads included, because results do not pass through callbacks.
///
/// ```
/// # #[cfg(feature = "testkit")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let broker = threadmq::testkit::pulsar::Broker::start()?;
/// # let client = threadmq::pulsar::Client::builder(broker.service_url()).build()?;
/// # let producer = client.producer("numbers").create()?;
/// let first = producer.submit("one")?;
/// let second = producer.submit("two")?;
/// println!("stored as {} and {}", first.wait()?.message_id(), second.wait()?.message_id());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testkit"))]
/// # fn main() {}
/// ```
#[must_use = "the result of the operation, errors included, is known only here"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

/// The other end of a [`Pending`]: whoever owns the operation settles it. Dropped unsettled, it settles itself as
/// `Internal` with delivery `Unknown`, so that nobody waits for ever.
pub(crate) struct Completion<T> {
    shared: Arc<Shared<T>>,
    settled: bool,
}

/// Where the result of an operation goes.
pub(crate) enum Reply<R> {
    /// A closure, run on a callback thread.
    Callback(Box<dyn FnOnce(Result<R, Error>) + Send>),
    /// A caller that waits, or the holder of a [`Pending`].
    Completion(Completion<R>),
    /// The answer was given.
    Answered,
}

/// The one allocation of an operation.
struct Shared<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

enum State<T> {
    /// No result yet; nobody sleeps.
    Open,
    /// No result yet; somebody sleeps and has to be woken.
    Awaited,
    Ready(Result<T, Error>),
    /// The result was taken, or nobody is left who could take it.
    Over,
}

/// Both ends of one result.
pub(crate) fn completion<T>() -> (Completion<T>, Pending<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Open), ready: Condvar::new() });
    (Completion { shared: Arc::clone(&shared), settled: false }, Pending { shared })
}

impl<T> Completion<T> {
    /// Makes the result ready. It is dropped at once if the [`Pending`] is gone.
    pub fn settle(mut self, result: Result<T, Error>) {
        self.fix(result);
    }

    fn fix(&mut self, result: Result<T, Error>) {
        self.settled = true;
        let mut state = lock(&self.shared.state);
        match &*state {
            State::Open => *state = State::Ready(result),
            State::Awaited => {
                *state = State::Ready(result);
                drop(state);
                self.shared.ready.notify_one();
            }
            State::Ready(_) | State::Over => {
                // Dropping a value may run code of others: not under the lock.
                drop(state);
                drop(result);
            }
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if !self.settled {
            let error = Error::new(ErrorKind::Internal, "the operation was dropped without a result");
            self.fix(Err(error.with_delivery(Delivery::Unknown)));
        }
    }
}

impl<T> Pending<T> {
    /// Waits for the result, however long it takes. Every operation has a time limit of its own, after which its
    /// result is an error of kind [`Timeout`](ErrorKind::Timeout), so this returns.
    ///
    /// # Errors
    ///
    /// The operation's own error; [`Misuse`](ErrorKind::Misuse) if the result was already taken by
    /// [`try_wait`](Self::try_wait) or [`wait_timeout`](Self::wait_timeout).
    pub fn wait(self) -> Result<T, Error> {
        let mut state = lock(&self.shared.state);
        loop {
            match mem::replace(&mut *state, State::Over) {
                State::Open | State::Awaited => *state = State::Awaited,
                State::Ready(result) => return result,
                State::Over => return Err(Error::new(ErrorKind::Misuse, "the result was already taken")),
            }
            state = unpoisoned(self.shared.ready.wait(state));
        }
    }

    /// The result if it is ready, without waiting. `None` if it is not, and for ever after it was taken.
    pub fn try_wait(&mut self) -> Option<Result<T, Error>> {
        take_ready(&mut lock(&self.shared.state))
    }

    /// Waits for the result for at most `limit`. `None` if it is not ready by then: the operation goes on, and this
    /// or [`wait`](Self::wait) can be called again. `None` at once if the result was already taken.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<T, Error>> {
        // No deadline if the limit is beyond what the clock can hold.
        let deadline = Instant::now().checked_add(limit);
        let mut state = lock(&self.shared.state);
        loop {
            match &*state {
                State::Open | State::Awaited => {}
                State::Ready(_) | State::Over => return take_ready(&mut state),
            }
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                *state = State::Open;
                return None;
            }
            *state = State::Awaited;
            (state, _) = unpoisoned(self.shared.ready.wait_timeout(state, left));
        }
    }
}

fn take_ready<T>(state: &mut State<T>) -> Option<Result<T, Error>> {
    match mem::replace(state, State::Over) {
        State::Ready(result) => Some(result),
        State::Over => None,
        open => {
            *state = open;
            None
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let state = mem::replace(&mut *lock(&self.shared.state), State::Over);
        drop(state);
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc as StdArc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn failure() -> Error {
        Error::new(ErrorKind::Broker, "refused")
    }

    #[test]
    fn a_result_settled_before_or_after_the_wait_arrives() {
        let (completion, pending) = completion();
        completion.settle(Ok(1));
        assert_eq!(pending.wait().unwrap(), 1);

        let (completion, pending) = super::completion();
        let waiter = thread::spawn(move || pending.wait());
        completion.settle(Err::<i32, _>(failure()));
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Broker);
    }

    #[test]
    fn a_dropped_completion_settles_as_unknown() {
        let (completion, pending) = completion::<()>();
        let waiter = thread::spawn(move || pending.wait());
        drop(completion);
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Internal, Delivery::Unknown));
    }

    #[test]
    fn a_panic_in_the_owner_settles_too() {
        let (completion, pending) = completion::<()>();
        let owner = thread::spawn(move || {
            let _completion = completion;
            panic!("defect");
        });
        assert!(owner.join().is_err());
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Internal);
    }

    #[test]
    fn the_result_is_given_once() {
        let (completion, mut pending) = completion();
        assert!(pending.try_wait().is_none());
        assert!(pending.wait_timeout(Duration::from_millis(1)).is_none());
        completion.settle(Ok(5));
        assert_eq!(pending.try_wait().unwrap().unwrap(), 5);
        assert!(pending.try_wait().is_none());
        assert!(pending.wait_timeout(LONG).is_none(), "and does not wait for what cannot come");
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Misuse);
    }

    #[test]
    fn a_timed_wait_is_woken_by_the_result() {
        for limit in [LONG, Duration::MAX] {
            let (completion, mut pending) = completion();
            let started = Instant::now();
            let waiter = thread::spawn(move || pending.wait_timeout(limit));
            completion.settle(Ok(()));
            waiter.join().unwrap().expect("ready").unwrap();
            assert!(started.elapsed() < LONG);
        }
    }

    #[test]
    fn an_unwanted_result_is_dropped() {
        let value = StdArc::new(());
        let (completion, pending) = completion();
        drop(pending);
        completion.settle(Ok(StdArc::clone(&value)));
        assert_eq!(StdArc::strong_count(&value), 1);

        let (completion, pending) = super::completion();
        completion.settle(Ok(StdArc::clone(&value)));
        drop(pending);
        assert_eq!(StdArc::strong_count(&value), 1);
    }

    #[test]
    fn a_pending_can_change_threads() {
        fn assert_send_sync<T: Send + Sync>() {}
        assert_send_sync::<Pending<u64>>();
        assert_send_sync::<Completion<u64>>();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    #[test]
    fn loom_completion_wakes_the_waiter() {
        loom::model(|| {
            let (completion, pending) = completion();
            let settler = thread::spawn(move || completion.settle(Ok(7)));
            assert_eq!(pending.wait().unwrap(), 7);
            settler.join().unwrap();
        });
    }

    #[test]
    fn loom_completion_dropped_unsettled_wakes_the_waiter() {
        loom::model(|| {
            let (completion, pending) = completion::<u32>();
            let owner = thread::spawn(move || drop(completion));
            assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Internal);
            owner.join().unwrap();
        });
    }

    #[test]
    fn loom_completion_after_a_try_wakes_the_waiter() {
        loom::model(|| {
            let (completion, mut pending) = completion();
            let settler = thread::spawn(move || completion.settle(Ok(7)));
            let value = match pending.try_wait() {
                Some(result) => result.unwrap(),
                None => pending.wait().unwrap(),
            };
            assert_eq!(value, 7);
            settler.join().unwrap();
        });
    }

    /// The result is dropped exactly once, by the settler or with the `Pending`; loom's Arc reports a leak.
    #[test]
    fn loom_completion_of_a_dropped_pending_drops_the_result() {
        loom::model(|| {
            let value = loom::sync::Arc::new(());
            let (completion, pending) = completion();
            let kept = value.clone();
            let settler = thread::spawn(move || completion.settle(Ok(kept)));
            drop(pending);
            settler.join().unwrap();
            assert_eq!(loom::sync::Arc::strong_count(&value), 1);
        });
    }
}
