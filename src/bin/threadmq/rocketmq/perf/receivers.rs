//! Threads that receive and acknowledge together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::rocketmq::{MessageView, SimpleConsumer};

use crate::interrupt;
use crate::outcome::Failure;
use crate::perf::Counters;
use crate::rocketmq::args::{INVISIBLE, MOST_AT_ONCE};

/// A topic that gives nothing for so long has no more.
pub const IDLE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// How messages are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Acks {
    /// All messages of a receive with one call to each broker
    Batch,
    /// Each message with a call of its own, whose time is the latency
    Each,
}

/// Takes what a group has left, and gives a new one its place: the topic's end, where that is at its first poll.
pub fn skip_to_end(consumer: &SimpleConsumer) -> Result<(), Failure> {
    while !interrupt::stopped() {
        let left = consumer.receive(MOST_AT_ONCE, INVISIBLE).map_err(|error| Failure::of("receive", &error))?;
        if left.is_empty() {
            break;
        }
        consumer.ack_batch(&left).map_err(|error| Failure::of("acknowledge", &error))?;
    }
    Ok(())
}

/// Has so many threads receive, acknowledge, and give each message to `take`, until that says that it was the last or
/// `over` says so, which is asked with the time of the last arrival. Closes the consumer.
pub fn receive_all(
    consumer: &SimpleConsumer,
    threads: u16,
    acks: Acks,
    counters: &Counters,
    take: &(dyn Fn(&MessageView) -> bool + Sync),
    over: &dyn Fn(Instant) -> bool,
) -> Result<(), Failure> {
    let ended = AtomicBool::new(false);
    let last_arrival = Mutex::new(Instant::now());
    let failure = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    let error = match consumer.receive(MOST_AT_ONCE, INVISIBLE) {
                        Ok(messages) if messages.is_empty() => continue,
                        Ok(messages) => {
                            *last_arrival.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                            let acked = acknowledge(consumer, acks, &messages, counters);
                            for message in &messages {
                                if take(message) {
                                    ended.store(true, Ordering::Release);
                                }
                            }
                            match acked {
                                Ok(()) => continue,
                                Err(error) => Failure::of("acknowledge", &error),
                            }
                        }
                        Err(error) => Failure::of("receive", &error),
                    };
                    // The close ends what is under way.
                    if !ended.swap(true, Ordering::AcqRel) {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                }
            });
        }
        while !ended.load(Ordering::Acquire) && !interrupt::stopped() {
            let last = *last_arrival.lock().unwrap_or_else(PoisonError::into_inner);
            if over(last) {
                break;
            }
            thread::sleep(LOOK);
        }
        ended.store(true, Ordering::Release);
        let _ = consumer.close();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

fn acknowledge(
    consumer: &SimpleConsumer,
    acks: Acks,
    messages: &[MessageView],
    counters: &Counters,
) -> Result<(), Error> {
    match acks {
        Acks::Batch => consumer.ack_batch(messages)?.into_iter().collect(),
        Acks::Each => messages.iter().try_for_each(|message| {
            let called = Instant::now();
            consumer.ack(message)?;
            counters.record(called.elapsed());
            Ok(())
        }),
    }
}
