//! Receives what a topic holds for a group and acknowledges each message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Run;
use super::receivers::{Acks, IDLE, receive_all, skip_to_end};
use crate::args::fresh;
use crate::interrupt;
use crate::meter::{Measured, Meter};
use crate::outcome::Failure;
use crate::perf::produce::fill;
use crate::perf::{Bench, Plan, Results};
use crate::rocketmq::subscribe;

/// The clock: not started, running, or stopped with the last message.
enum Clock {
    Waiting,
    Running { meter: Meter, before: u64 },
    Stopped { measured: Measured, messages: u64 },
}

pub(super) fn run(run: &Run<'_>, plan: &Plan) -> Result<Results, Failure> {
    let args = run.args;
    let group = args.group.clone().unwrap_or_else(|| fresh("perf"));
    let consumer = subscribe(&run.client, &group, &args.topic, &args.server.endpoint)?;
    if args.group.is_none() {
        skip_to_end(&consumer)?;
        fill(&run.producer()?, plan)?;
    }
    let (taken, clock) = (AtomicU64::new(0), Mutex::new(Clock::Waiting));
    let last = plan.count.map(|count| plan.warmup.saturating_add(count));
    let take = |_: &_| {
        let number = taken.fetch_add(1, Ordering::AcqRel) + 1;
        if number == plan.warmup.max(1) {
            let _ = plan.counters.restart();
            let running = Clock::Running { meter: Meter::start(), before: number.min(plan.warmup) };
            *clock.lock().unwrap_or_else(PoisonError::into_inner) = running;
        }
        plan.counters.done.store(number.saturating_sub(plan.warmup), Ordering::Relaxed);
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
        let until = started.zip(plan.span).and_then(|(started, span)| started.checked_add(span));
        until.is_some_and(|until| now >= until) || now.duration_since(last_arrival) >= IDLE
    };
    receive_all(&consumer, args.receivers, args.acks, plan.counters, &take, &over)?;
    let count = taken.load(Ordering::Acquire);
    stop(&clock, count);
    let (mut measured, messages) = match clock.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Clock::Stopped { measured, messages } => (measured, messages),
        _ => {
            let warmup = plan.warmup;
            return Err(Failure::new(format!("the topic gave {count} messages, fewer than the warm-up of {warmup}")));
        }
    };
    let in_time = plan.span.is_none_or(|span| measured.elapsed < span);
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
