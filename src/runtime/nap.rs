//! How a loop without sockets sleeps: until it is woken or a time has come, with a short look around before it.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::inbox::Inboxes;

/// The sleep of one loop's thread.
///
/// A channel would do, but it spins before it parks, about 10 us of processor time each. What is awaited
/// here is mostly a server's answer, which takes ten times that.
pub(crate) struct Nap {
    sleeper: Arc<OnceLock<Thread>>,
}

impl Nap {
    /// The nap, and what ends it from other threads: the present one, or the next if the loop does not sleep yet.
    pub fn new() -> (Self, impl Fn() + Send + Sync + 'static) {
        let sleeper = Arc::new(OnceLock::<Thread>::new());
        let woken = Arc::clone(&sleeper);
        // Without a thread nothing sleeps: it is named before the first park.
        (Self { sleeper }, move || woken.get().into_iter().for_each(Thread::unpark))
    }

    /// Sleeps until something is posted, or until `until`. It may return early, so look again.
    ///
    /// For as long as `lookout` it yields instead, and looks whether something was posted: for a loop that knows
    /// that it will be called within moments, and sooner than the system could wake it.
    pub fn sleep<C, U>(&self, inboxes: &Inboxes<C, U>, until: Option<Instant>, lookout: Duration) {
        self.sleeper.get_or_init(thread::current);
        if !lookout.is_zero() {
            let now = Instant::now();
            let over = until.map_or(now + lookout, |at| at.min(now + lookout));
            while inboxes.is_empty() && Instant::now() < over {
                thread::yield_now();
            }
        }
        if inboxes.park() {
            match until {
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
        inboxes.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn loop_of_one() -> (Nap, Arc<Inboxes<u32, u64>>) {
        let (nap, wake) = Nap::new();
        (nap, Inboxes::new(wake))
    }

    #[test]
    fn what_was_posted_before_ends_the_sleep_at_once() {
        let (nap, inboxes) = loop_of_one();
        inboxes.post_control(1).unwrap();
        let since = Instant::now();
        nap.sleep(&inboxes, Some(since + LONG), LONG);
        assert!(since.elapsed() < LONG);
        let mut control = Vec::new();
        inboxes.drain_control(&mut control);
        assert_eq!(control, [1]);
    }

    #[test]
    fn the_sleep_ends_in_time() {
        let (nap, inboxes) = loop_of_one();
        for lookout in [Duration::ZERO, Duration::from_millis(5), LONG] {
            let until = Instant::now() + Duration::from_millis(50);
            // The token of an earlier wake may end a sleep early.
            while Instant::now() < until {
                nap.sleep(&inboxes, Some(until), lookout);
            }
            assert!(until.elapsed() < LONG);
        }
    }

    #[test]
    fn every_post_ends_a_sleep() {
        const EACH: u64 = 20_000;
        for lookout in [Duration::ZERO, Duration::from_micros(20), LONG] {
            let (nap, inboxes) = loop_of_one();
            let (tell, told) = crossbeam_channel::bounded(1);
            let poster = {
                let inboxes = Arc::clone(&inboxes);
                thread::spawn(move || {
                    for n in 0..EACH {
                        inboxes.post_user(n).unwrap();
                        // The loop has it, and is about to sleep again.
                        told.recv().unwrap();
                    }
                })
            };
            let (mut user, mut got) = (Vec::new(), 0);
            while got < EACH {
                let since = Instant::now();
                nap.sleep(&inboxes, Some(since + LONG), lookout);
                assert!(since.elapsed() < LONG, "nobody woke it");
                inboxes.drain_user(&mut user);
                for n in user.drain(..) {
                    assert_eq!(n, got);
                    got += 1;
                    tell.send(()).unwrap();
                }
            }
            poster.join().unwrap();
        }
    }
}
