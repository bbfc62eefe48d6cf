//! Receives what a topic holds for a group and acknowledges each message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::produce::pump;
use super::receivers::{Acks, IDLE, receive_all, skip_to_end};
use super::{Run, usual_count};
use crate::args::fresh;
use crate::interrupt;
use crate::meter::{Measured, Meter};
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Mode, Results};
use crate::rocketmq::{drain, subscribe};

/// The clock: not started, running, or stopped with the last message.
enum Clock {
    Waiting,
    Running { meter: Meter, before: u64 },
    Stopped { measured: Measured, messages: u64 },
}

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let group = args.group.clone().unwrap_or_else(|| fresh("perf"));
    let consumer = subscribe(&run.client, &group, &args.topic, &args.server.endpoint)?;
    if args.group.is_none() {
        skip_to_end(&consumer)?;
        fill(run)?;
    }
    let (taken, clock) = (AtomicU64::new(0), Mutex::new(Clock::Waiting));
    let last = run.count.map(|count| run.warmup.saturating_add(count));
    let take = |_: &_| {
        let number = taken.fetch_add(1, Ordering::AcqRel) + 1;
        if number == run.warmup.max(1) {
            let _ = run.counters.restart();
            let running = Clock::Running { meter: Meter::start(), before: number.min(run.warmup) };
            *clock.lock().unwrap_or_else(PoisonError::into_inner) = running;
        }
        run.counters.done.store(number.saturating_sub(run.warmup), Ordering::Relaxed);
        let ends = last.is_some_and(|last| number >= last);
        if ends {
            stop(&clock, number);
        }
        ends
    };
    let over = |last_arrival: Instant| {
        let now = Instant::now();
        let started = match &*clock.lock().unwrap_or_else(PoisonError::into_inner) {
            Clock::Running { meter, .. } => Some(meter.started()),
            _ => None,
        };
        let until = started.zip(args.seconds).and_then(|(started, span)| started.checked_add(span));
        until.is_some_and(|until| now >= until) || now.duration_since(last_arrival) >= IDLE
    };
    receive_all(&consumer, args.receivers, args.acks, run.counters, &take, &over)?;
    let count = taken.load(Ordering::Acquire);
    stop(&clock, count);
    let (mut measured, messages) = match clock.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Clock::Stopped { measured, messages } => (measured, messages),
        _ => {
            let warmup = run.warmup;
            return Err(Failure::new(format!("the topic gave {count} messages, fewer than the warm-up of {warmup}")));
        }
    };
    let in_time = args.seconds.is_none_or(|span| measured.elapsed < span);
    let missing = last.map_or(0, |last| last.saturating_sub(count));
    let errors = if in_time && !interrupt::stopped() { missing } else { 0 };
    if errors > 0 {
        // Waiting for what does not come is no part of it.
        measured.elapsed = measured.elapsed.saturating_sub(IDLE);
    }
    Ok(Results { messages, measured, errors, timed: args.acks == Acks::Each })
}

/// The first stop counts.
fn stop(clock: &Mutex<Clock>, taken: u64) {
    let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
    *clock = match std::mem::replace(&mut *clock, Clock::Waiting) {
        Clock::Running { meter, before } => {
            Clock::Stopped { measured: meter.stop(), messages: taken.saturating_sub(before) }
        }
        other => other,
    };
}

fn fill(run: &Run<'_>) -> Result<(), Failure> {
    let producer = run.producer()?;
    let count = run.warmup.saturating_add(run.count.unwrap_or(usual_count(Mode::Consume)));
    pump(&producer, run.args, Pacer::new(None, Some(count), None), run.counters);
    drain(&producer);
    let _ = producer.close();
    match run.counters.errors() {
        0 => run.counters.restart(),
        errors => Err(Failure::new(format!("the topic could not be filled: {errors} sends failed"))),
    }
}
