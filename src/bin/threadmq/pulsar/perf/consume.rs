//! Receives what a topic holds and acknowledges each message.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Consumer, InitialPosition};

use super::Run;
use crate::args::fresh;
use crate::interrupt;
use crate::meter::{Measured, Meter};
use crate::outcome::Failure;
use crate::perf::produce::fill;
use crate::perf::{Bench, Counters, Plan, Results};
use crate::pulsar::subscribe;

/// A topic that gives nothing for so long has no more.
const IDLE: Duration = Duration::from_secs(10);

pub(super) fn run(run: &Run<'_>, plan: &Plan) -> Result<Results, Failure> {
    let args = run.args;
    if args.topic.is_none() {
        fill(&run.producer()?, plan)?;
    }
    let subscription = args.subscription.clone().unwrap_or_else(|| fresh("perf"));
    let consumer = run
        .client
        .consumer(&run.topic, &subscription)
        .initial_position(InitialPosition::Earliest)
        .receiver_queue(args.receiver_queue);
    let consumer = subscribe(consumer, &run.topic, &args.server.url)?;
    let results = measure(plan, &consumer);
    if args.subscription.is_none() {
        let _ = consumer.unsubscribe();
    }
    let _ = consumer.close();
    results
}

fn measure(plan: &Plan, consumer: &Consumer) -> Result<Results, Failure> {
    let warm = take(consumer, Some(plan.warmup), None, plan.counters)?;
    if warm < plan.warmup {
        return Err(Failure::new(format!("the topic gave {warm} messages, fewer than the warm-up of {}", plan.warmup)));
    }
    // The clock starts when the first of the measured messages is here.
    let first = take(consumer, Some(1), None, plan.counters)?;
    let meter = Meter::start();
    let left = plan.count.map(|count| count.saturating_sub(1));
    let until = plan.span.and_then(|span| meter.started().checked_add(span));
    let rest = if first == 1 { take(consumer, left, until, plan.counters)? } else { 0 };
    let missing = if interrupt::stopped() { 0 } else { left.map_or(0, |left| left.saturating_sub(rest)) };
    let Measured { elapsed, cpu } = meter.stop();
    // Waiting for what does not come is no part of it.
    let timed_out = missing > 0 && until.is_none_or(|until| Instant::now() < until);
    let elapsed = if timed_out { elapsed.saturating_sub(IDLE) } else { elapsed };
    let errors = if timed_out { missing } else { 0 };
    Ok(Results { messages: first + rest, measured: Measured { elapsed, cpu }, errors, timed: false })
}

/// Receives and acknowledges so many, and gives how many came.
fn take(consumer: &Consumer, count: Option<u64>, until: Option<Instant>, counters: &Counters) -> Result<u64, Failure> {
    let (mut taken, mut idle_since) = (0, None::<Instant>);
    while count.is_none_or(|count| taken < count) && !interrupt::stopped() {
        match consumer.receive_timeout(Duration::from_millis(100)).map_err(|error| Failure::of("receive", &error))? {
            Some(message) => {
                consumer.ack(&message).map_err(|error| Failure::of("acknowledge", &error))?;
                taken += 1;
                idle_since = None;
                counters.done.store(taken, Ordering::Relaxed);
                // The clock is read seldom: it costs about as much as a message.
                if taken % 256 == 0 && until.is_some_and(|until| Instant::now() >= until) {
                    break;
                }
            }
            None => {
                let since = *idle_since.get_or_insert_with(|| Instant::now() - Duration::from_millis(100));
                if since.elapsed() >= IDLE || until.is_some_and(|until| Instant::now() >= until) {
                    break;
                }
            }
        }
    }
    Ok(taken)
}
