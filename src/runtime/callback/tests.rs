use std::iter;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(60);

type Job = Box<dyn FnMut() + Send>;

/// A list of closures; tells how many ran in each turn.
struct Jobs {
    jobs: VecDeque<Job>,
    ran: usize,
    turns: Option<Sender<usize>>,
}

impl CallbackWork for Jobs {
    fn run_next(&mut self) -> bool {
        let Some(mut job) = self.jobs.pop_front() else { return false };
        self.ran += 1;
        job();
        true
    }

    fn turn_over(&mut self) {
        if let Some(turns) = &self.turns {
            let _ = turns.send(mem::take(&mut self.ran));
        }
    }

    fn callbacks(&self) -> usize {
        self.jobs.len()
    }
}

fn jobs(jobs: impl IntoIterator<Item = Job>) -> Box<Jobs> {
    Box::new(Jobs { jobs: jobs.into_iter().collect(), ran: 0, turns: None })
}

fn job(job: impl FnMut() + Send + 'static) -> Box<Jobs> {
    jobs([Box::new(job) as Job])
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// A callback that says that it began and then blocks until told (or until the test is over).
fn blocker() -> (Box<Jobs>, Receiver<()>, Sender<()>) {
    let (began, begun) = channel();
    let (release, released) = channel();
    let work = job(move || {
        began.send(()).unwrap();
        let _ = released.recv_timeout(LONG);
    });
    (work, begun, release)
}

#[test]
fn works_of_a_lane_run_in_order_and_never_two_at_once() {
    let pool = CallbackPool::start("unit", 4).unwrap();
    let (tx, rx) = channel();
    let lanes: Vec<_> = (0..3).map(|_| (pool.lane(), Arc::new(AtomicUsize::new(0)))).collect();
    for n in 0..2_000u32 {
        for (index, (lane, inside)) in lanes.iter().enumerate() {
            let (tx, inside) = (tx.clone(), Arc::clone(inside));
            lane.push(job(move || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tx.send((index, n, on_callback_thread())).unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
            }));
        }
    }
    let mut next = [0; 3];
    for _ in 0..6_000 {
        let (index, n, on_thread) = rx.recv_timeout(LONG).expect("a callback was lost");
        assert_eq!(n, next[index]);
        assert!(on_thread);
        next[index] += 1;
    }
    assert!(!on_callback_thread());
    pool.shutdown();
    pool.join_within(soon()).unwrap();
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn lanes_run_in_parallel_and_a_blocked_lane_holds_only_itself() {
    let pool = CallbackPool::start("unit", 2).unwrap();
    let (blocked, free) = (pool.lane(), pool.lane());
    let (work, begun, release) = blocker();
    blocked.push(work);
    let (tx, rx) = channel();
    let behind = tx.clone();
    blocked.push(job(move || behind.send("behind").unwrap()));
    begun.recv_timeout(LONG).unwrap();
    free.push(job(move || tx.send("free").unwrap()));
    assert_eq!(rx.recv_timeout(LONG).unwrap(), "free");
    release.send(()).unwrap();
    assert_eq!(rx.recv_timeout(LONG).unwrap(), "behind");
}

#[test]
fn a_lane_gives_way_after_its_share() {
    let pool = CallbackPool::start("unit", 1).unwrap();
    let (first, long, short) = (pool.lane(), pool.lane(), pool.lane());
    let (work, begun, release) = blocker();
    first.push(work);
    begun.recv_timeout(LONG).unwrap();
    // Both lanes are queued before the only thread is free.
    let count = Arc::new(AtomicUsize::new(0));
    let (turns, turn) = channel();
    let mut many = jobs((0..1_000).map(|_| {
        let count = Arc::clone(&count);
        Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }) as Job
    }));
    many.turns = Some(turns);
    long.push(many);
    let (tx, rx) = channel();
    let seen = Arc::clone(&count);
    short.push(job(move || tx.send(seen.load(Ordering::SeqCst)).unwrap()));
    assert_eq!(pool.waiting(), 1_001);
    release.send(()).unwrap();
    assert!(rx.recv_timeout(LONG).unwrap() <= TURN_CALLBACKS);
    let told: usize = turn.iter().inspect(|&ran| assert!(ran <= TURN_CALLBACKS)).sum();
    assert_eq!(told, 1_000, "every callback is in exactly one turn");
}

#[test]
fn a_slow_lane_gives_way_after_its_time() {
    let pool = CallbackPool::start("unit", 1).unwrap();
    let (slow, other) = (pool.lane(), pool.lane());
    let (work, begun, release) = blocker();
    slow.push(work);
    let (tx, rx) = channel();
    let behind = tx.clone();
    slow.push(job(move || behind.send("slow").unwrap()));
    begun.recv_timeout(LONG).unwrap();
    other.push(job(move || tx.send("other").unwrap()));
    thread::sleep(TURN_TIME * 2);
    release.send(()).unwrap();
    assert_eq!(rx.recv_timeout(LONG).unwrap(), "other");
    assert_eq!(rx.recv_timeout(LONG).unwrap(), "slow");
}

#[test]
fn a_panic_ends_one_callback_and_nothing_else() {
    struct PanicsOnDrop(Sender<()>);
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
            panic!("planted in drop");
        }
    }
    let pool = CallbackPool::start("unit", 1).unwrap();
    let lane = pool.lane();
    let (tx, rx) = channel();
    let (after, dropped) = (tx.clone(), PanicsOnDrop(tx.clone()));
    lane.push(jobs([
        Box::new(|| assert!(!on_callback_thread(), "planted")) as Job,
        Box::new(move || after.send(()).unwrap()),
        Box::new(move || {
            let _held = &dropped;
        }),
    ]));
    rx.recv_timeout(LONG).expect("the next callback of the same work");
    rx.recv_timeout(LONG).expect("dropped");
    lane.push(job(move || tx.send(()).unwrap()));
    rx.recv_timeout(LONG).expect("the next work");
    pool.shutdown();
    pool.join_within(soon()).unwrap();
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn shutdown_runs_what_is_queued_and_says_what_is_left() {
    let pool = CallbackPool::start("unit", 2).unwrap();
    let lane = pool.lane();
    let (work, begun, release) = blocker();
    lane.push(work);
    let (tx, rx) = channel();
    for n in 0..600 {
        let tx = tx.clone();
        lane.push(job(move || tx.send(n).unwrap()));
    }
    begun.recv_timeout(LONG).unwrap();
    pool.shutdown();
    assert_eq!(pool.join_within(Instant::now() + Duration::from_millis(20)), Err(601));
    release.send(()).unwrap();
    pool.join_within(soon()).unwrap();
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), (0..600).collect::<Vec<_>>());
    assert!(rx.try_recv().is_err());
    pool.join_within(soon()).unwrap();
    // Nobody runs it any more; it is dropped, not kept.
    let (tx, rx) = channel::<()>();
    lane.push(job(move || tx.send(()).unwrap()));
    assert_eq!(rx.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn a_callback_cannot_wait_for_its_own_pool() {
    let pool = Arc::new(CallbackPool::start("unit", 1).unwrap());
    let (tx, rx) = channel();
    let own = Arc::clone(&pool);
    pool.lane().push(job(move || {
        own.shutdown();
        tx.send(own.join_within(soon())).unwrap();
    }));
    assert_eq!(rx.recv_timeout(LONG).unwrap(), Err(1));
    pool.join_within(soon()).unwrap();
}

#[test]
fn threads_end_when_the_pool_and_its_lanes_are_dropped() {
    let pool = CallbackPool::start("unit", 2).unwrap();
    let lane = pool.lane();
    let shared = Arc::downgrade(&pool.alive.shared);
    drop(pool);
    // The lane still works, and a callback may hold the last handle of it.
    let (tx, rx) = channel();
    let held = lane.clone();
    let mut again = Some(tx);
    lane.push(job(move || {
        let tx = again.take();
        held.push(job(move || tx.iter().for_each(|tx| tx.send(()).unwrap())));
    }));
    drop(lane);
    rx.recv_timeout(LONG).expect("both callbacks run");
    let limit = soon();
    while shared.strong_count() > 0 {
        assert!(Instant::now() < limit, "the threads did not end");
        thread::yield_now();
    }
}

#[test]
fn lag_is_seen_while_a_callback_waits_and_after() {
    let pool = CallbackPool::start("unit", 1).unwrap();
    let (work, begun, release) = blocker();
    pool.lane().push(work);
    begun.recv_timeout(LONG).unwrap();
    pool.take_max_lag();
    let (tx, rx) = channel();
    pool.lane().push(job(move || tx.send(()).unwrap()));
    thread::sleep(Duration::from_millis(20));
    assert!(pool.max_lag() >= Duration::from_millis(20), "it waits now");
    release.send(()).unwrap();
    rx.recv_timeout(LONG).unwrap();
    assert!(pool.take_max_lag() >= Duration::from_millis(20));
    assert!(pool.max_lag() < Duration::from_millis(20), "it was taken");
}

#[test]
fn several_can_wait_for_the_same_end() {
    let pool = Arc::new(CallbackPool::start("unit", 2).unwrap());
    let (work, begun, release) = blocker();
    pool.lane().push(work);
    begun.recv_timeout(LONG).unwrap();
    pool.shutdown();
    let patient: Vec<_> = (0..2)
        .map(|_| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.join_within(soon()))
        })
        .collect();
    assert_eq!(pool.join_within(Instant::now()), Err(1));
    release.send(()).unwrap();
    patient.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
}

#[test]
fn a_work_pushed_while_the_threads_end_runs_or_is_dropped() {
    for _ in 0..300 {
        let pool = CallbackPool::start("unit", 2).unwrap();
        let (tx, rx) = channel();
        let lanes = [pool.lane(), pool.lane()];
        let pushed = lanes.clone();
        let poster = thread::spawn(move || {
            for n in 0..40 {
                let tx = tx.clone();
                pushed[n % 2].push(job(move || tx.send(n).unwrap()));
            }
        });
        thread::yield_now();
        pool.shutdown();
        poster.join().unwrap();
        pool.join_within(soon()).unwrap();
        assert_eq!(pool.waiting(), 0);
        // Disconnected only once every closure is dropped; the pool and the lanes are still there.
        let ran: Vec<usize> = iter::from_fn(|| rx.recv_timeout(LONG).ok()).collect();
        assert_eq!(rx.try_recv(), Err(TryRecvError::Disconnected), "a work is kept for ever");
        for parity in 0..2 {
            let of_lane: Vec<_> = ran.iter().copied().filter(|n| n % 2 == parity).collect();
            assert!(of_lane.is_sorted(), "{of_lane:?}");
        }
        drop(lanes);
    }
}

#[test]
fn the_time_that_a_callback_takes_is_not_lag() {
    let pool = CallbackPool::start("unit", 1).unwrap();
    let (work, begun, release) = blocker();
    pool.lane().push(work);
    begun.recv_timeout(LONG).unwrap();
    pool.take_max_lag();
    thread::sleep(Duration::from_millis(20));
    release.send(()).unwrap();
    pool.shutdown();
    pool.join_within(soon()).unwrap();
    assert_eq!(pool.max_lag(), Duration::ZERO);
}
