//! The threads that clients can share.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Recovery};
use crate::runtime::callback::CallbackPool;
use crate::runtime::deadlines::DeadlineThread;
use crate::runtime::lookup::Resolver;
use crate::runtime::{supervisor, sweeper};

/// The most callback threads that can be asked for.
const MOST_CALLBACK_THREADS: usize = 256;

/// The threads that every client needs beside its own event loops. Clones are the same threads.
///
/// | thread | number | what it does |
/// |---|---|---|
/// | `tmq-supervisor` | 1 | says when heartbeats, keep-alives, reconnections and periodic duties are due |
/// | `tmq-sweeper` | 1 | says when sends and requests have used up their time |
/// | `tmq-callback-N` | [`callback_threads`](ThreadsBuilder::callback_threads), 2 by default | runs callbacks, nothing else |
/// | `tmq-lookup` | 1, when first needed | turns host names into addresses |
///
/// A client that is built without `Threads` starts some for itself and ends them when it closes. Give the same
/// `Threads` to several clients, of either system, so that the number of threads in the process stays the same.
/// Clients that share them share the callback threads too: a callback of one that blocks for long can delay the
/// start of callbacks of another, but never an answer to a blocking call.
///
/// The threads end when the last clone and the last client that uses them are gone and all queued callbacks have
/// run. Nothing waits for that end.
///
/// ```
/// # #[cfg(feature = "testkit")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use threadmq::Threads;
/// use threadmq::pulsar::Client;
///
/// let threads = Threads::builder().callback_threads(4).build()?;
/// let orders = Client::builder("pulsar://orders:6650").threads(&threads).build()?;
/// let audit = Client::builder("pulsar://audit:6650").threads(&threads).build()?;
/// orders.close()?;
/// audit.close()?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testkit"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Threads {
    inner: Arc<Inner>,
}

struct Inner {
    supervisor: DeadlineThread,
    sweeper: DeadlineThread,
    callbacks: CallbackPool,
    resolver: Resolver,
    callback_threads: usize,
}

impl Threads {
    /// Starts with the defaults.
    pub fn builder() -> ThreadsBuilder {
        ThreadsBuilder { callback_threads: 2 }
    }

    pub(crate) fn supervisor(&self) -> &DeadlineThread {
        &self.inner.supervisor
    }

    pub(crate) fn sweeper(&self) -> &DeadlineThread {
        &self.inner.sweeper
    }

    pub(crate) fn callbacks(&self) -> &CallbackPool {
        &self.inner.callbacks
    }

    /// Callbacks that are inside code of users now. When the last one that was queued has just returned it may still
    /// be counted.
    pub(crate) fn callbacks_running(&self) -> usize {
        let callbacks = self.callbacks();
        let waiting = callbacks.waiting();
        // What is queued or runs, without waiting for any of it.
        callbacks.join_within(Instant::now()).err().map_or(0, |left| left.saturating_sub(waiting))
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.inner.resolver
    }

    /// Ends the threads, for a client that owns them alone and whose loops have ended: runs what is queued and
    /// waits for the threads until `deadline`. The lookup thread is not waited for. Can be called again after an
    /// error.
    ///
    /// # Errors
    ///
    /// The number of callbacks that are left (at least 1); they still run once.
    pub(crate) fn shutdown_within(&self, deadline: Instant) -> Result<(), usize> {
        let Inner { supervisor, sweeper, callbacks, resolver, .. } = &*self.inner;
        resolver.shutdown();
        supervisor.shutdown();
        sweeper.shutdown();
        callbacks.shutdown();
        callbacks.join_within(deadline)?;
        if supervisor.join_by(deadline) && sweeper.join_by(deadline) { Ok(()) } else { Err(1) }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("callback_threads", &self.inner.callback_threads).finish_non_exhaustive()
    }
}

/// Options of [`Threads`].
#[derive(Debug, Clone)]
#[must_use = "the threads start with `build`"]
pub struct ThreadsBuilder {
    callback_threads: usize,
}

impl ThreadsBuilder {
    /// How many threads run callbacks: 2 by default, 1 to 256.
    ///
    /// Callbacks of one partition run one after another whatever the number; more threads help when callbacks of
    /// many partitions block. Each costs a stack and, idle, nothing else.
    pub fn callback_threads(mut self, threads: usize) -> Self {
        self.callback_threads = threads;
        self
    }

    /// Checks the options and starts the threads.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming every option that is out of range;
    /// [`Internal`](ErrorKind::Internal) if the system gives no more threads.
    pub fn build(self) -> Result<Threads, Error> {
        let violations = self.violations();
        if !violations.is_empty() {
            return Err(Error::new(ErrorKind::Config, violations.join("; ")));
        }
        let inner = self.start().map_err(|error| {
            Error::new(ErrorKind::Internal, "the client's threads could not be started")
                .with_recovery(Recovery::AfterBackoff)
                .with_source(error)
        })?;
        Ok(Threads { inner: Arc::new(inner) })
    }

    fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !(1..=MOST_CALLBACK_THREADS).contains(&self.callback_threads) {
            found.push(format!(
                "callback_threads is {}, not between 1 and {MOST_CALLBACK_THREADS}",
                self.callback_threads
            ));
        }
        found
    }

    fn start(&self) -> io::Result<Inner> {
        Ok(Inner {
            supervisor: supervisor::start()?,
            sweeper: sweeper::start()?,
            callbacks: CallbackPool::start("callback", self.callback_threads)?,
            resolver: Resolver::new(),
            callback_threads: self.callback_threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::runtime::callback::CallbackWork;
    use crate::runtime::deadlines::DeadlineSink;

    const LONG: Duration = Duration::from_secs(60);

    struct Once<F>(Option<F>);

    impl<F: FnOnce() + Send> CallbackWork for Once<F> {
        fn run_next(&mut self) -> bool {
            self.0.take().map(|run| run()).is_some()
        }

        fn turn_over(&mut self) {}
    }

    struct Told(crossbeam_channel::Sender<u64>);

    impl DeadlineSink for Told {
        fn due(&self, key: u64) {
            let _ = self.0.send(key);
        }
    }

    #[test]
    fn out_of_range_is_refused_at_build() {
        for threads in [0, 257] {
            let error = Threads::builder().callback_threads(threads).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("callback_threads"), "{error}");
        }
        Threads::builder().callback_threads(1).build().unwrap();
    }

    #[test]
    fn clones_are_the_same_threads_and_end_with_the_last() {
        let threads = Threads::builder().build().unwrap();
        let clone = threads.clone();
        drop(threads);
        let (tx, rx) = crossbeam_channel::unbounded();
        let supervised = clone.supervisor().sink(Arc::new(Told(tx.clone())));
        let swept = clone.sweeper().sink(Arc::new(Told(tx)));
        supervised.arm(1, Instant::now());
        assert_eq!(rx.recv_timeout(LONG), Ok(1));
        swept.arm(2, Instant::now());
        assert_eq!(rx.recv_timeout(LONG), Ok(2));
        drop(clone);
        // Both threads drop the sinks they hold when they end.
        assert_eq!(rx.recv_timeout(LONG), Err(crossbeam_channel::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn shutdown_keeps_its_limit_and_can_be_repeated() {
        let threads = Threads::builder().build().unwrap();
        let (began, begun) = channel();
        let (release, released) = channel::<()>();
        threads.callbacks().lane().push(Box::new(Once(Some(move || {
            began.send(()).unwrap();
            let _ = released.recv_timeout(LONG);
        }))));
        begun.recv_timeout(LONG).unwrap();
        assert_eq!(threads.shutdown_within(Instant::now() + Duration::from_millis(20)), Err(1));
        release.send(()).unwrap();
        threads.shutdown_within(Instant::now() + LONG).unwrap();
        threads.shutdown_within(Instant::now()).unwrap();
    }

    #[test]
    fn callbacks_in_code_of_users_are_told_from_queued_ones() {
        let threads = Threads::builder().callback_threads(2).build().unwrap();
        let (began, begun) = channel();
        let (release, released) = channel::<()>();
        let lane = threads.callbacks().lane();
        lane.push(Box::new(Once(Some(move || {
            began.send(()).unwrap();
            let _ = released.recv_timeout(LONG);
        }))));
        for _ in 0..3 {
            lane.push(Box::new(Once(Some(|| {}))));
        }
        begun.recv_timeout(LONG).unwrap();
        assert_eq!((threads.callbacks_running(), threads.callbacks().waiting()), (1, 3));
        release.send(()).unwrap();
        threads.shutdown_within(Instant::now() + LONG).unwrap();
        assert_eq!(threads.callbacks_running(), 0);
    }

    #[test]
    fn the_last_clone_may_be_dropped_in_a_callback() {
        let threads = Threads::builder().build().unwrap();
        let (tx, rx) = channel();
        let lane = threads.callbacks().lane();
        lane.push(Box::new(Once(Some(move || {
            drop(threads);
            tx.send(()).unwrap();
        }))));
        drop(lane);
        rx.recv_timeout(LONG).unwrap();
    }
}
