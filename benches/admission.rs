//! What it costs to hand one message from a caller to the loop: the real permits against a crossbeam channel.
//!
//! `cargo bench --features bench --bench admission`
//!
//! Every message has a body of 100 bytes and a boxed callback. One thread stands for the loop: it takes what was
//! admitted, calls the callbacks and gives the permits back, 256 at a time. Nothing is encoded or sent.
//!
//! The bare channel gives neither deadlines nor sequence ids nor a count of bytes: it is the floor, not an equal. The
//! stamped channel does what a channel would have to do in place of the permits: time, sequence id and place in the
//! queue in one step under a lock, and the bytes counted.

#![allow(clippy::indexing_slicing)] // its own vectors, of known length

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use threadmq::__bench::{Sends, Taken};

const MESSAGES: u64 = 1_000_000;
const ROUNDS: usize = 7;
const BODY: usize = 100;
const WINDOW: usize = 1_000;
const BULK: usize = 256;

struct Message {
    body: Vec<u8>,
    callback: Box<dyn FnOnce(u64) + Send>,
}

impl Message {
    fn new(done: &Arc<AtomicU64>) -> Self {
        let done = Arc::clone(done);
        let callback = Box::new(move |length| {
            done.fetch_add(length, Ordering::Relaxed);
        });
        Self { body: vec![7; BODY], callback }
    }

    fn finish(self) {
        let length = black_box(&self.body).len() as u64;
        (self.callback)(length);
    }
}

/// Lets the loop thread sleep while there is nothing to take.
#[derive(Clone)]
struct Sleeper {
    parked: Arc<AtomicBool>,
    thread: Thread,
}

impl Sleeper {
    fn of_this_thread() -> Self {
        Self { parked: Arc::default(), thread: thread::current() }
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }

    fn sleep_unless(&self, ready: impl FnOnce() -> bool) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            thread::park();
        }
        self.parked.store(false, Ordering::Relaxed);
    }
}

fn senders(count: u64, send: impl Fn(Message) + Sync, done: &Arc<AtomicU64>, run_loop: impl FnOnce()) {
    thread::scope(|scope| {
        for _ in 0..count {
            let (send, done) = (&send, Arc::clone(done));
            scope.spawn(move || {
                for _ in 0..MESSAGES / count {
                    send(Message::new(&done));
                }
            });
        }
        run_loop();
    });
}

fn permits(threads: u64, window: Option<usize>) {
    let done = Arc::default();
    let sleeper = Sleeper::of_this_thread();
    let sends = Sends::new(window, None, {
        let sleeper = sleeper.clone();
        move || sleeper.wake()
    });
    let send = |message| assert!(sends.send(message, BODY));
    senders(threads, send, &done, || {
        let mut taken = Taken::new();
        let mut left = MESSAGES;
        while left > 0 {
            sends.take(&mut taken);
            if taken.is_empty() {
                sleeper.sleep_unless(|| {
                    sends.take(&mut taken);
                    !taken.is_empty()
                });
            }
            let (mut count, mut charge) = (0, 0);
            for (message, charged) in taken.drain() {
                message.finish();
                left -= 1;
                count += 1;
                charge += charged;
                if count == BULK {
                    sends.give_back(count, charge);
                    (count, charge) = (0, 0);
                }
            }
            if count > 0 {
                sends.give_back(count, charge);
            }
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), MESSAGES * BODY as u64);
}

fn channel(threads: u64, window: Option<usize>) {
    let done = Arc::default();
    let (sender, receiver) = match window {
        Some(window) => crossbeam_channel::bounded(window),
        None => crossbeam_channel::unbounded(),
    };
    let send = |message| assert!(sender.send(message).is_ok());
    senders(threads, send, &done, || {
        for _ in 0..MESSAGES {
            if let Ok(message) = receiver.recv() {
                Message::finish(message);
            }
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), MESSAGES * BODY as u64);
}

struct Stamped {
    message: Message,
    _called_at: Instant,
    _due: Option<Instant>,
    _sequence_id: u64,
    charge: u64,
}

fn stamped_channel(threads: u64, window: Option<usize>) {
    let done = Arc::default();
    let (sender, receiver) = match window {
        Some(window) => crossbeam_channel::bounded(window),
        None => crossbeam_channel::unbounded(),
    };
    let (next, used) = (Mutex::new(0), AtomicU64::new(0));
    let send = |message| {
        let charge = BODY as u64 + 256;
        used.fetch_add(charge, Ordering::AcqRel);
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let due = now.checked_add(Duration::from_secs(30));
        *next += 1;
        assert!(sender.send(Stamped { message, _called_at: now, _due: due, _sequence_id: *next, charge }).is_ok());
    };
    senders(threads, send, &done, || {
        for _ in 0..MESSAGES {
            if let Ok(stamped) = receiver.recv() {
                Message::finish(stamped.message);
                used.fetch_sub(stamped.charge, Ordering::AcqRel);
            }
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), MESSAGES * BODY as u64);
}

/// The permits alone, without contention: one thread admits 1,000 empty messages, takes them and gives them back.
fn alone() -> f64 {
    let sends = Sends::new(None, Some(64 << 20), || ());
    let mut taken = Taken::new();
    undisturbed(|| {
        for _ in 0..1_000 {
            assert!(sends.send((), BODY));
        }
        sends.take(&mut taken);
        let charge = taken.drain().map(|((), charge)| charge).sum();
        sends.give_back(1_000, charge);
    })
}

fn clock() -> f64 {
    undisturbed(|| {
        for _ in 0..1_000 {
            black_box(Instant::now());
        }
    })
}

/// Nanoseconds of a thousandth of `run`: the median of many, each far shorter than a time slice.
fn undisturbed(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..5_000)
        .map(|_| {
            let begun = Instant::now();
            run();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

/// CPU time of this process, in steps of the kernel's clock tick (10 ms). Zero where there is no procfs.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn measure(name: &str, threads: u64, window: Option<usize>, run: fn(u64, Option<usize>)) {
    run(threads, window);
    let cpu = cpu_time();
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            run(threads, window);
            begun.elapsed()
        })
        .collect();
    let cpu = (cpu_time() - cpu).as_nanos() as f64 / (ROUNDS as u64 * MESSAGES) as f64;
    rounds.sort_unstable();
    let nanos = |round: Duration| round.as_nanos() as f64 / MESSAGES as f64;
    let (best, median) = (nanos(rounds[0]), nanos(rounds[ROUNDS / 2]));
    let window = window.map_or("none".into(), |window| window.to_string());
    println!("| {name} | {threads} | {window} | {:.2} | {median:.0} | {best:.0} | {cpu:.0} |", 1e3 / median);
}

fn main() {
    println!("One thread without contention: {:.0} ns a message, reading the clock {:.0} ns.\n", alone(), clock());
    println!("| what | senders | window | M messages/s (median) | ns a message (median) | ns (best) | CPU ns |");
    println!("|---|---|---|---|---|---|---|");
    for (threads, window) in [(1, None), (4, None), (1, Some(WINDOW)), (4, Some(WINDOW))] {
        measure("permits", threads, window, permits);
        measure("stamped channel", threads, window, stamped_channel);
        measure("bare channel", threads, window, channel);
    }
}
