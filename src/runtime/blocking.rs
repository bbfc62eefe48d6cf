//! THREADS `tmq-<name>` (while there is work): calls that may block, such as a user's supplier of credentials or a
//! handshake. Whoever asks has a deadline of its own and throws away an answer that comes late.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::thread::{panic_text, spawn};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on at most so many threads, which end when nothing is left to do. Dropping it drops what has not
/// begun; what has is never waited for.
pub(crate) struct Blocking {
    name: &'static str,
    most: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Bounded by who asks: one job a channel or supplier at a time.
    waiting: VecDeque<Job>,
    running: usize,
}

impl Blocking {
    pub fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, state: Arc::default() }
    }

    /// Runs `job` soon. Fails if the system gives no thread; the job is dropped then.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.running >= self.most {
            state.waiting.push_back(Box::new(job));
            return Ok(());
        }
        let shared = Arc::clone(&self.state);
        let first: Job = Box::new(job);
        // Not joined: see above.
        drop(spawn(self.name, move || work(&shared, first))?);
        state.running += 1;
        Ok(())
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let waiting = mem::take(&mut self.state.lock().waiting);
        drop(waiting);
    }
}

fn work(shared: &Mutex<State>, first: Job) {
    let mut next = Some(first);
    while let Some(job) = next {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
            log::error!("a job that may block panicked: {}", panic_text(&*payload));
        }
        let mut state = shared.lock();
        next = state.waiting.pop_front();
        if next.is_none() {
            // In the same step as the look at the queue: a job that comes now starts a thread.
            state.running -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn no_more_threads_than_allowed_and_none_when_idle() {
        let blocking = Blocking::new("unit", 2);
        let (began, begun) = channel();
        let (over, ended) = channel();
        let mut releases = Vec::new();
        for number in 0..5 {
            let (release, released) = channel::<()>();
            releases.push(release);
            let (began, over) = (began.clone(), over.clone());
            let job = move || {
                began.send(number).unwrap();
                let _ = released.recv_timeout(LONG);
                over.send(number).unwrap();
            };
            blocking.run(job).unwrap();
        }
        let mut first = [begun.recv_timeout(LONG).unwrap(), begun.recv_timeout(LONG).unwrap()];
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert!(begun.try_recv().is_err(), "the third waits");
        assert_eq!(blocking.state.lock().running, 2);
        drop(releases);
        let mut all: Vec<i32> = (0..5).map(|_| ended.recv_timeout(LONG).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        while blocking.state.lock().running > 0 {
            std::thread::yield_now();
        }
        blocking.run(move || began.send(9).unwrap()).unwrap();
        assert!((0..4).any(|_| begun.recv_timeout(LONG) == Ok(9)), "it starts again");
    }

    #[test]
    fn a_panic_ends_one_job_and_not_the_next() {
        let blocking = Blocking::new("unit", 1);
        let (began, begun) = channel::<()>();
        let (tell, told) = channel();
        blocking
            .run(move || {
                let _ = begun.recv_timeout(LONG);
                panic!("planted");
            })
            .unwrap();
        blocking.run(move || tell.send(()).unwrap()).unwrap();
        began.send(()).unwrap();
        told.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn dropping_it_waits_for_nothing_and_drops_what_has_not_begun() {
        let blocking = Blocking::new("unit", 1);
        let (began, begun) = channel();
        let (release, released) = channel::<()>();
        blocking
            .run(move || {
                began.send(()).unwrap();
                let _ = released.recv_timeout(LONG);
            })
            .unwrap();
        begun.recv_timeout(LONG).unwrap();
        let (tell, told) = channel::<()>();
        blocking.run(move || tell.send(()).unwrap()).unwrap();
        drop(blocking);
        assert!(told.recv_timeout(LONG).is_err(), "its sender is gone");
        drop(release);
    }
}
