//! What is posted to a loop: two queues and one way to wake it.
//!
//! The inboxes never block anyone and have no limit of their own: whoever posts says why what it posts is bounded.
//! Both queues are vectors under a short lock that the loop swaps whole. The loop says when it is about to sleep
//! (`park`), and only the first poster after that pays for waking it.
//!
//! Why no wake is lost: the loop stores `parked`, fences, and looks into both queues; a poster pushes, fences, and
//! looks at `parked`. Of two sequentially consistent fences one comes first: if it is the loop's, the poster sees
//! `parked`; if it is the poster's, the loop sees the item. loom tries it on this file (see `runtime::sync`).

use std::mem;
use std::sync::Arc;

use super::sync::{AtomicBool, Mutex, Ordering, fence, lock};

/// A vector that grew beyond this in a burst is given back when it is drained.
const KEPT_CAPACITY: usize = 16 * 1024;

/// The two inboxes of one loop: `C` is control (drained first and whole), `U` comes from users.
pub(crate) struct Inboxes<C, U> {
    control: Queue<C>,
    user: Queue<U>,
    /// Set by the loop before it sleeps; whoever clears it has to wake the loop.
    parked: AtomicBool,
    waker: Box<dyn Fn() + Send + Sync>,
}

impl<C, U> Inboxes<C, U> {
    /// `waker` ends the loop's present sleep, or the next one if it does not sleep yet. It is called on the threads
    /// of posters, outside all locks.
    pub fn new(waker: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            control: Queue::new(),
            user: Queue::new(),
            parked: AtomicBool::new(false),
            waker: Box::new(waker),
        })
    }

    /// Gives the item back once the inboxes are closed.
    pub fn post_control(&self, item: C) -> Result<(), C> {
        self.control.push(item)?;
        self.wake();
        Ok(())
    }

    /// Posts what can wait for the loop's next turn: a loop that sleeps sleeps on, and whoever posts it wakes the loop
    /// later. Gives the item back once the inboxes are closed.
    #[cfg(any(feature = "rocketmq", all(test, not(loom))))]
    pub fn leave_control(&self, item: C) -> Result<(), C> {
        self.control.push(item)
    }

    /// Gives the item back once the inboxes are closed.
    pub fn post_user(&self, item: U) -> Result<(), U> {
        self.user.push(item)?;
        self.wake();
        Ok(())
    }

    /// Moves all that is in the control inbox to the end of `into`. Cheapest if `into` is empty.
    pub fn drain_control(&self, into: &mut Vec<C>) {
        self.control.drain(into);
    }

    /// Moves all that is in the user inbox to the end of `into`. Cheapest if `into` is empty.
    pub fn drain_user(&self, into: &mut Vec<U>) {
        self.user.drain(into);
    }

    /// Nothing is posted at this moment.
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.user.is_empty()
    }

    /// The loop is about to sleep. False if there is work: do not sleep. If true, every later post calls the waker,
    /// until one has or [`unpark`](Self::unpark) is called.
    pub fn park(&self) -> bool {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return true;
        }
        // A poster may have seen it and wake us for nothing: that costs one empty turn.
        self.unpark();
        false
    }

    /// The loop is awake: posts cost no wake from here on. To be called before it drains.
    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// Refuses all later posts. What was posted before is still there to be drained, and nothing comes after that
    /// drain.
    pub fn close(&self) {
        self.control.close();
        self.user.close();
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        // The plain read keeps posters to a busy loop from fighting for the cache line. The exchange writes only when
        // it clears: a write by one who does not wake could hide the loop's next `parked` from loom.
        let clears = || self.parked.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.parked.load(Ordering::Relaxed) && clears() {
            (self.waker)();
        }
    }
}

struct Queue<T> {
    slot: Mutex<Slot<T>>,
}

struct Slot<T> {
    items: Vec<T>,
    closed: bool,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Self { slot: Mutex::new(Slot { items: Vec::new(), closed: false }) }
    }

    fn push(&self, item: T) -> Result<(), T> {
        let mut slot = lock(&self.slot);
        if slot.closed {
            return Err(item);
        }
        slot.items.push(item);
        Ok(())
    }

    fn drain(&self, into: &mut Vec<T>) {
        if into.is_empty() {
            if into.capacity() > KEPT_CAPACITY {
                *into = Vec::new();
            }
            mem::swap(&mut lock(&self.slot).items, into);
        } else {
            into.append(&mut lock(&self.slot).items);
        }
    }

    fn is_empty(&self) -> bool {
        lock(&self.slot).items.is_empty()
    }

    fn close(&self) {
        lock(&self.slot).closed = true;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn counted() -> (Arc<Inboxes<u32, u64>>, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let inboxes = Inboxes::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        (inboxes, wakes)
    }

    #[test]
    fn posts_come_out_whole_and_in_order() {
        let (inboxes, _) = counted();
        inboxes.post_control(1).unwrap();
        inboxes.post_control(2).unwrap();
        inboxes.post_control(3).unwrap();
        inboxes.post_user(9).unwrap();
        let (mut control, mut user) = (vec![0], Vec::new());
        inboxes.drain_control(&mut control);
        inboxes.drain_user(&mut user);
        assert_eq!((control, user), (vec![0, 1, 2, 3], vec![9]));
    }

    #[test]
    fn only_the_first_post_to_a_parked_loop_wakes_it() {
        let (inboxes, wakes) = counted();
        inboxes.post_user(1).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 0, "a busy loop needs no wake");
        assert!(!inboxes.park(), "there is work");
        let mut user = Vec::new();
        inboxes.drain_user(&mut user);
        assert!(inboxes.park());
        inboxes.post_control(1).unwrap();
        inboxes.post_control(2).unwrap();
        inboxes.post_user(3).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 1);

        let mut control = Vec::new();
        inboxes.drain_control(&mut control);
        inboxes.drain_user(&mut user);
        assert!(inboxes.park());
        inboxes.leave_control(5).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "it can wait");
        inboxes.unpark();
        assert!(!inboxes.park(), "but a loop that is awake does not leave it");
        inboxes.drain_control(&mut control);
        assert_eq!(control, [1, 2, 5]);
        assert!(inboxes.park());
        inboxes.unpark();
        inboxes.post_control(4).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "the loop was awake");
    }

    #[test]
    fn a_closed_inbox_gives_items_back_and_keeps_what_it_had() {
        let (inboxes, _) = counted();
        inboxes.post_control(1).unwrap();
        inboxes.close();
        assert_eq!(inboxes.post_control(2), Err(2));
        assert_eq!(inboxes.post_user(5), Err(5));
        let mut control = Vec::new();
        inboxes.drain_control(&mut control);
        assert_eq!(control, [1]);
    }

    #[test]
    fn a_vector_that_grew_in_a_burst_is_given_back() {
        let (inboxes, _) = counted();
        let mut user = Vec::with_capacity(KEPT_CAPACITY * 2);
        inboxes.drain_user(&mut user);
        assert_eq!(user.capacity(), 0);
        inboxes.post_user(1).unwrap();
        assert!(lock(&inboxes.user.slot).items.capacity() < KEPT_CAPACITY);
    }

    #[test]
    fn a_sleeping_loop_gets_everything_from_many_posters() {
        const POSTERS: u64 = 4;
        const EACH: u64 = 20_000;
        let (bell, sleep) = mpsc::channel();
        let inboxes = Inboxes::<u64, u64>::new(move || {
            let _ = bell.send(());
        });
        let posters: Vec<_> = (0..POSTERS)
            .map(|poster| {
                let inboxes = Arc::clone(&inboxes);
                thread::spawn(move || {
                    for n in 0..EACH {
                        let item = poster * EACH + n;
                        if n % 2 == 0 { inboxes.post_user(item) } else { inboxes.post_control(item) }.unwrap();
                        if n % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let (mut control, mut user, mut got) = (Vec::new(), Vec::new(), Vec::new());
        while got.len() < (POSTERS * EACH) as usize {
            inboxes.drain_control(&mut control);
            inboxes.drain_user(&mut user);
            got.append(&mut control);
            got.append(&mut user);
            if got.len() < (POSTERS * EACH) as usize && inboxes.park() {
                sleep.recv_timeout(Duration::from_secs(60)).expect("a wake was lost");
                inboxes.unpark();
            }
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        got.sort_unstable();
        assert_eq!(got, (0..POSTERS * EACH).collect::<Vec<_>>());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc as LoomArc, Condvar, Mutex as LoomMutex, atomic::AtomicUsize};
    use loom::thread;

    use super::*;

    /// A sleep that remembers one wake, as mio's waker and a condition variable with a flag do.
    #[derive(Clone)]
    struct Bell(LoomArc<(LoomMutex<bool>, Condvar)>);

    impl Bell {
        fn new() -> Self {
            Self(LoomArc::new((LoomMutex::new(false), Condvar::new())))
        }

        fn ring(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_one();
        }

        /// Loom reports a deadlock if nobody rings.
        fn sleep(&self) {
            let mut rung = self.0.0.lock().unwrap();
            while !*rung {
                rung = self.0.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    fn receive(inboxes: &Inboxes<u32, u32>, bell: &Bell, expected: usize) -> Vec<u32> {
        let mut got = Vec::new();
        loop {
            inboxes.drain_control(&mut got);
            inboxes.drain_user(&mut got);
            if got.len() == expected {
                return got;
            }
            if inboxes.park() {
                bell.sleep();
                inboxes.unpark();
            }
        }
    }

    #[test]
    fn loom_inbox_never_loses_a_wake() {
        loom::model(|| {
            let bell = Bell::new();
            let waker = bell.clone();
            let inboxes = Inboxes::<u32, u32>::new(move || waker.ring());
            let poster = {
                let inboxes = Arc::clone(&inboxes);
                thread::spawn(move || {
                    inboxes.post_control(1).unwrap();
                    inboxes.post_user(2).unwrap();
                })
            };
            let mut got = receive(&inboxes, &bell, 2);
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
            poster.join().unwrap();
        });
    }

    #[test]
    fn loom_inbox_serves_two_posters() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let bell = Bell::new();
            let waker = bell.clone();
            let inboxes = Inboxes::<u32, u32>::new(move || waker.ring());
            let posters: Vec<_> = (1..=2)
                .map(|n| {
                    let inboxes = Arc::clone(&inboxes);
                    thread::spawn(move || if n == 1 { inboxes.post_control(n) } else { inboxes.post_user(n) }.unwrap())
                })
                .collect();
            let mut got = receive(&inboxes, &bell, 2);
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
            posters.into_iter().for_each(|poster| poster.join().unwrap());
        });
    }

    /// One sleep is ended by one call of the waker, however many post.
    #[test]
    fn loom_inbox_wakes_once_a_park() {
        loom::model(|| {
            let wakes = LoomArc::new(AtomicUsize::new(0));
            let counter = LoomArc::clone(&wakes);
            let inboxes = Inboxes::<u32, u32>::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            });
            assert!(inboxes.park());
            let posters: Vec<_> = (0..2)
                .map(|n| {
                    let inboxes = Arc::clone(&inboxes);
                    thread::spawn(move || inboxes.post_user(n).unwrap())
                })
                .collect();
            posters.into_iter().for_each(|poster| poster.join().unwrap());
            assert_eq!(wakes.load(Ordering::SeqCst), 1);
        });
    }

    /// What is posted while the loop ends is either in its last drain or given back.
    #[test]
    fn loom_inbox_close_loses_nothing() {
        loom::model(|| {
            let inboxes = Inboxes::<u32, u32>::new(|| {});
            let poster = {
                let inboxes = Arc::clone(&inboxes);
                thread::spawn(move || inboxes.post_user(1).is_ok())
            };
            inboxes.close();
            let mut last = Vec::new();
            inboxes.drain_user(&mut last);
            assert_eq!(poster.join().unwrap(), last == [1]);
        });
    }
}
