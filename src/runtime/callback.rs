//! THREADS `tmq-callback-N` and `tmq-listener-N`: the only threads that run callbacks of users.
//!
//! Work is queued on lanes. Works of a lane run in push order and never two at once; lanes run in parallel. A lane
//! keeps its thread for at most 256 callbacks or 1 ms and then queues again behind the others. What is queued is
//! bounded by what the works stand for (accepted operations hold permits until their callback has returned).

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::thread::{Ending, panic_text, spawn_ending};

const TURN_CALLBACKS: usize = 256;
const TURN_TIME: Duration = Duration::from_millis(1);

/// A list of callbacks of one lane.
pub(crate) trait CallbackWork: Send {
    /// Runs the next callback; false when none is left (then the work is dropped). May panic: the pool catches it,
    /// logs it, and goes on with the next.
    fn run_next(&mut self) -> bool;

    /// Called after a turn with what ran since the last call, always outside any lock of the pool: permits return
    /// in bulk here.
    fn turn_over(&mut self);

    /// How many callbacks are left. Asked once, when the work is pushed, for the count of what waits.
    fn callbacks(&self) -> usize {
        1
    }
}

thread_local! {
    static ON_CALLBACK_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// True on every thread of every callback pool of the process.
pub(crate) fn on_callback_thread() -> bool {
    ON_CALLBACK_THREAD.get()
}

/// A fixed number of threads. They end once all that is queued has run and either [`shutdown`](Self::shutdown) was
/// called or this and the last lane are dropped.
pub(crate) struct CallbackPool {
    alive: Arc<Alive>,
    workers: Mutex<Vec<Ending>>,
}

/// A queue whose works run one after another. Clones are the same lane.
#[derive(Clone)]
pub(crate) struct CallbackLane {
    lane: Arc<Lane>,
    alive: Arc<Alive>,
}

/// What the pool and all lane handles hold; the threads do not.
struct Alive {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// A lane became ready, or the pool is stopping.
    ready: Condvar,
    /// A worker has ended.
    ended: Condvar,
    stats: Stats,
}

struct State {
    /// Lanes with work that no worker runs, and since when each stands here.
    ready: VecDeque<(Instant, Arc<Lane>)>,
    stopping: bool,
    workers: usize,
}

struct Stats {
    max_lag_nanos: AtomicU64,
    /// Callbacks pushed since the start.
    pushed: AtomicU64,
    workers: Vec<Count>,
}

/// What one worker has done. Nobody else writes it, and it has a cache line of its own: two counters that all
/// workers change at each callback cost more than the callback.
#[derive(Default)]
#[repr(align(128))]
struct Count {
    started: AtomicU64,
    ended: AtomicU64,
}

impl Count {
    fn start(&self, callbacks: u64) {
        self.started.store(self.started.load(Ordering::Relaxed).wrapping_add(callbacks), Ordering::Relaxed);
    }

    fn end(&self, callbacks: u64) {
        self.ended.store(self.ended.load(Ordering::Relaxed).wrapping_add(callbacks), Ordering::Relaxed);
    }
}

impl Stats {
    fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| Count::default()).collect();
        Self { max_lag_nanos: AtomicU64::new(0), pushed: AtomicU64::new(0), workers }
    }

    /// Callbacks that are queued and have not started.
    fn waiting(&self) -> usize {
        self.pushed_without(|worker| &worker.started)
    }

    /// Callbacks that are queued or run.
    fn left(&self) -> usize {
        self.pushed_without(|worker| &worker.ended)
    }

    fn pushed_without(&self, count: impl Fn(&Count) -> &AtomicU64) -> usize {
        // In this order, so that a callback that comes and goes meanwhile is not missing from what was pushed.
        let done: u64 = self.workers.iter().map(|worker| count(worker).load(Ordering::Acquire)).sum();
        usize::try_from(self.pushed.load(Ordering::Acquire).saturating_sub(done)).unwrap_or(usize::MAX)
    }
}

struct Lane {
    state: Mutex<LaneState>,
}

struct LaneState {
    works: VecDeque<Queued>,
    /// The lane is in the ready queue or a worker runs it. Whoever clears it has seen `works` empty.
    scheduled: bool,
}

struct Queued {
    work: Box<dyn CallbackWork>,
    pushed: Instant,
    /// How many of its callbacks are still counted as waiting.
    counted: usize,
}

impl CallbackPool {
    /// Starts `threads` threads called `tmq-<name_prefix>-0` and so on.
    pub fn start(name_prefix: &str, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { ready: VecDeque::new(), stopping: false, workers: 0 }),
            ready: Condvar::new(),
            ended: Condvar::new(),
            stats: Stats::new(threads),
        });
        let pool = Self { alive: Arc::new(Alive { shared: Arc::clone(&shared) }), workers: Mutex::default() };
        for n in 0..threads {
            // If a later one cannot be started, dropping the pool ends those before it.
            let worker = Worker::enlist(Arc::clone(&shared), n);
            let ending = spawn_ending(&format!("{name_prefix}-{n}"), move || worker.run())?;
            pool.workers.lock().push(ending);
        }
        Ok(pool)
    }

    pub fn lane(&self) -> CallbackLane {
        let state = LaneState { works: VecDeque::new(), scheduled: false };
        CallbackLane { lane: Arc::new(Lane { state: Mutex::new(state) }), alive: Arc::clone(&self.alive) }
    }

    /// The threads end once everything queued has run. Does not wait.
    pub fn shutdown(&self) {
        self.shared().stop();
    }

    /// Waits until all threads are gone, which takes a [`shutdown`](Self::shutdown) before.
    ///
    /// # Errors
    ///
    /// The number of callbacks that are queued or still run at `deadline` (at least 1). At once on a thread of this
    /// pool, which cannot wait for its own end.
    pub fn join_within(&self, deadline: Instant) -> Result<(), usize> {
        if !self.is_current_thread() && self.wait_for_workers(deadline) {
            return Ok(());
        }
        Err(self.shared().stats.left().max(1))
    }

    fn is_current_thread(&self) -> bool {
        self.workers.lock().iter().any(Ending::is_current)
    }

    /// False if not all are gone by `deadline`. Several may wait at once.
    fn wait_for_workers(&self, deadline: Instant) -> bool {
        let shared = self.shared();
        let mut state = shared.state.lock();
        while state.workers > 0 {
            if shared.ended.wait_until(&mut state, deadline).timed_out() && state.workers > 0 {
                return false;
            }
        }
        drop(state);
        // What is left of them are destructors of thread-local values.
        let Some(mut workers) = self.workers.try_lock_until(deadline) else { return false };
        while let Some(worker) = workers.pop() {
            if let Err(unfinished) = worker.join_by(deadline) {
                workers.push(unfinished);
                return false;
            }
        }
        true
    }

    /// The longest time between the push of a callback and its start, including the time that the longest waiting
    /// lane has waited by now.
    pub fn max_lag(&self) -> Duration {
        self.shared().lag(self.shared().stats.max_lag_nanos.load(Ordering::Relaxed))
    }

    /// The same since the last call of this.
    #[cfg(test)]
    pub fn take_max_lag(&self) -> Duration {
        self.shared().lag(self.shared().stats.max_lag_nanos.swap(0, Ordering::Relaxed))
    }

    /// Callbacks that are queued and have not started.
    pub fn waiting(&self) -> usize {
        self.shared().stats.waiting()
    }

    fn shared(&self) -> &Shared {
        &self.alive.shared
    }
}

impl CallbackLane {
    /// Queues `work` behind all that was pushed to this lane before. After the threads have ended it is dropped
    /// with a log line: loops end before the pool does.
    pub fn push(&self, work: Box<dyn CallbackWork>) {
        let counted = work.callbacks();
        let stats = &self.alive.shared.stats;
        stats.pushed.fetch_add(counted as u64, Ordering::AcqRel);
        let pushed = Instant::now();
        let first = {
            let mut lane = self.lane.state.lock();
            lane.works.push_back(Queued { work, pushed, counted });
            !mem::replace(&mut lane.scheduled, true)
        };
        if first && !self.alive.shared.schedule(pushed, &self.lane) {
            for queued in self.lane.take_all() {
                log::error!("{} callbacks were pushed after the end of their threads", queued.counted);
                stats.pushed.fetch_sub(queued.counted as u64, Ordering::AcqRel);
            }
        }
    }
}

impl Lane {
    fn take_all(&self) -> VecDeque<Queued> {
        let mut lane = self.state.lock();
        lane.scheduled = false;
        mem::take(&mut lane.works)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn stop(&self) {
        self.state.lock().stopping = true;
        self.ready.notify_all();
    }

    /// False if no worker is left.
    fn schedule(&self, since: Instant, lane: &Arc<Lane>) -> bool {
        {
            let mut state = self.state.lock();
            if state.workers == 0 {
                return false;
            }
            state.ready.push_back((since, Arc::clone(lane)));
        }
        self.ready.notify_one();
        true
    }

    fn lag(&self, recorded: u64) -> Duration {
        let oldest = self.state.lock().ready.front().map(|&(since, _)| since.elapsed());
        Duration::from_nanos(recorded).max(oldest.unwrap_or_default())
    }
}

/// One thread of the pool.
struct Worker {
    shared: Arc<Shared>,
    number: usize,
    /// Counted in `State::workers`.
    enlisted: bool,
}

impl Worker {
    fn enlist(shared: Arc<Shared>, number: usize) -> Self {
        shared.state.lock().workers += 1;
        Self { shared, number, enlisted: true }
    }

    fn run(mut self) {
        ON_CALLBACK_THREAD.set(true);
        while let Some(lane) = self.next_lane() {
            self.take_turn(&lane);
        }
    }

    /// `None` when the pool is stopping and nothing is queued. A lane that another worker runs now comes back
    /// through that worker, which takes it again itself.
    fn next_lane(&mut self) -> Option<Arc<Lane>> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some((_, lane)) = state.ready.pop_front() {
                return Some(lane);
            }
            if state.stopping {
                // In the same step as the look at the queue: a lane that comes now has to be refused.
                state.workers -= 1;
                self.enlisted = false;
                return None;
            }
            self.shared.ready.wait(&mut state);
        }
    }

    fn take_turn(&self, lane: &Arc<Lane>) {
        let Some(count) = self.shared.stats.workers.get(self.number) else { return };
        let mut turn = Turn::start(&self.shared.stats, count);
        loop {
            let mut queued = {
                let mut lane = lane.state.lock();
                match lane.works.pop_front() {
                    Some(queued) => queued,
                    None => {
                        lane.scheduled = false;
                        return;
                    }
                }
            };
            let finished = turn.run(&mut queued);
            guarded("returning permits", || queued.work.turn_over());
            if finished {
                count.start(queued.counted as u64);
                count.end(queued.counted as u64);
                guarded("dropping a callback", || drop(queued));
            } else {
                lane.state.lock().works.push_front(queued);
            }
            if turn.is_over() {
                break;
            }
        }
        let more = {
            let mut lane = lane.state.lock();
            lane.scheduled = !lane.works.is_empty();
            lane.scheduled
        };
        if more {
            // This worker still counts, so it is never refused.
            self.shared.schedule(Instant::now(), lane);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.enlisted {
            self.shared.state.lock().workers -= 1;
        }
        self.shared.ended.notify_all();
    }
}

/// How much of its share a lane has used.
struct Turn<'a> {
    stats: &'a Stats,
    count: &'a Count,
    started: Instant,
    now: Instant,
    callbacks: usize,
}

impl<'a> Turn<'a> {
    fn start(stats: &'a Stats, count: &'a Count) -> Self {
        let now = Instant::now();
        Self { stats, count, started: now, now, callbacks: 0 }
    }

    fn is_over(&self) -> bool {
        self.callbacks >= TURN_CALLBACKS || self.now.duration_since(self.started) >= TURN_TIME
    }

    /// True if the work is finished; else the turn is over.
    fn run(&mut self, queued: &mut Queued) -> bool {
        while !self.is_over() {
            let counted = u64::from(queued.counted > 0);
            if counted > 0 {
                self.note_lag(queued.pushed);
                queued.counted -= 1;
                self.count.start(counted);
            }
            // A panic ends one callback; the work is made to go on with its next.
            let more = guarded("a callback", || queued.work.run_next()).unwrap_or(true);
            self.count.end(counted);
            self.now = Instant::now();
            if !more {
                return true;
            }
            self.callbacks += 1;
        }
        false
    }

    /// Before the callback runs: one that never returns has been counted.
    fn note_lag(&self, pushed: Instant) {
        let lag = u64::try_from(self.now.saturating_duration_since(pushed).as_nanos()).unwrap_or(u64::MAX);
        if lag > self.stats.max_lag_nanos.load(Ordering::Relaxed) {
            self.stats.max_lag_nanos.fetch_max(lag, Ordering::Relaxed);
        }
    }
}

/// Runs code of users. `None` if it panicked.
fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            log::error!("{what} panicked: {}", panic_text(&*payload));
            // The payload is a value of the user's as well: its drop may panic again.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(again);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests;
