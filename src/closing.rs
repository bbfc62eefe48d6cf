//! Closing within a limit: what the handles and clients of both systems do in the same way.
//!
//! A close is started, the client's loop answers it by the limit, callbacks return, and then, if it is a client that
//! closes, the loop's thread and the client's other threads end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};
use crate::pending::{Completion, Pending, completion};
use crate::policy::limits::deadline;
use crate::runtime::callback::on_callback_thread;
use crate::runtime::permits::Permits;
use crate::runtime::thread::Ending;
use crate::threads::Threads;

/// How long `close` of clients, producers and consumers may take.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(30);
/// How long after the limit the answer of a busy loop may come.
const LATE: Duration = Duration::from_secs(1);

/// A close that was started. Dropped, it goes on by itself.
pub(crate) struct Closing {
    pub due: Instant,
    answer: Pending<()>,
}

impl Closing {
    /// `post` tells the loop, whose answer settles the completion.
    pub(crate) fn start(limit: Duration, post: impl FnOnce(Instant, Completion<()>)) -> Self {
        let now = Instant::now();
        let (reply, answer) = completion();
        post(now, reply);
        Self { due: deadline(now, limit), answer }
    }

    /// Waits for the loop's answer; false if there is none. A loop that is gone has answered.
    ///
    /// `WouldBlock` on a callback thread, which the close may have to wait for.
    pub(crate) fn wait(&mut self) -> Result<bool, Error> {
        if on_callback_thread() {
            return Err(Error::new(
                ErrorKind::WouldBlock,
                "close was called on a callback thread: it is started and goes on by itself",
            ));
        }
        let left = self.due.saturating_duration_since(Instant::now());
        Ok(self.answer.wait_timeout(left + LATE).is_some())
    }
}

/// What of a client ends with its close.
pub(crate) struct ClientEnd<T> {
    closed: AtomicBool,
    producers: Mutex<Vec<Weak<Permits<T>>>>,
    event_loop: Mutex<Option<Ending>>,
    /// What its system calls the loop.
    loop_name: &'static str,
    /// Whether the threads are this client's alone, so that they end with it.
    owns_threads: bool,
}

impl<T: Send + 'static> ClientEnd<T> {
    pub(crate) fn new(event_loop: Ending, loop_name: &'static str, owns_threads: bool) -> Self {
        Self {
            closed: AtomicBool::new(false),
            producers: Mutex::new(Vec::new()),
            event_loop: Mutex::new(Some(event_loop)),
            loop_name,
            owns_threads,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the client is closed"));
        }
        Ok(())
    }

    /// A producer's sends, which end with the client.
    pub(crate) fn register(&self, permits: &Arc<Permits<T>>) {
        let mut producers = self.producers.lock();
        producers.retain(|known| known.strong_count() > 0);
        producers.push(Arc::downgrade(permits));
    }

    fn producers(&self) -> Vec<Arc<Permits<T>>> {
        self.producers.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Nothing is accepted any more.
    pub(crate) fn refuse(&self) {
        self.closed.store(true, Ordering::Release);
        self.producers().iter().for_each(|permits| permits.close());
    }

    /// Waits for the rest once the loop has answered. `returned` waits for a producer's callbacks, and gives the
    /// number of those that are left.
    pub(crate) fn wait(
        &self,
        due: Instant,
        threads: &Threads,
        returned: impl Fn(&Permits<T>) -> Result<(), usize>,
    ) -> Result<(), Error> {
        let left: usize = self.producers().iter().map(|permits| returned(permits).err().unwrap_or(0)).sum();
        if left > 0 {
            return Err(callbacks_left(left));
        }
        // Before the threads that the loop needs to come to its end. Another close may wait for it too.
        let grace = due.max(Instant::now()) + LATE;
        if !self.loop_gone_by(grace) {
            return Err(Error::new(ErrorKind::Timeout, format!("close: the {} has not ended yet", self.loop_name)));
        }
        if self.owns_threads {
            // All callbacks have returned, so the threads end by themselves; the limit may be over by now.
            threads.shutdown_within(grace).map_err(callbacks_left)?;
        }
        Ok(())
    }

    fn loop_gone_by(&self, deadline: Instant) -> bool {
        let Some(mut slot) = self.event_loop.try_lock_until(deadline) else { return false };
        let Some(ending) = slot.take() else { return true };
        match ending.join_by(deadline) {
            Ok(()) => true,
            Err(ending) => {
                *slot = Some(ending);
                false
            }
        }
    }
}

pub(crate) fn callbacks_left(count: usize) -> Error {
    Error::new(ErrorKind::Timeout, format!("close: {count} callbacks have not returned yet; they still run once each"))
}
