//! Sends with callbacks as fast as permits allow.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Counters, Plan, Results};
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::system::Producer;

pub fn run(producer: &impl Producer, plan: &Plan) -> Result<Results, Failure> {
    pump(producer, plan.size, plan.warm_up(), plan.counters);
    producer.drain();
    plan.counters.restart()?;
    let meter = Meter::start();
    let messages = pump(producer, plan.size, plan.pacer(), plan.counters);
    producer.drain();
    let measured = meter.stop();
    let _ = producer.close();
    Ok(Results { messages, measured, errors: plan.counters.errors(), timed: true })
}

/// Fills a topic with what `consume` is to receive.
pub fn fill(producer: &impl Producer, plan: &Plan) -> Result<(), Failure> {
    let count = plan.warmup.saturating_add(plan.count.unwrap_or(plan.usual));
    pump(producer, plan.size, Pacer::new(None, Some(count), None), plan.counters);
    producer.drain();
    let _ = producer.close();
    match plan.counters.errors() {
        0 => plan.counters.restart(),
        errors => Err(Failure::new(format!("the topic could not be filled: {errors} sends failed"))),
    }
}

/// Gives how many were accepted. A body is allocated and filled for each, as a program would.
fn pump<P: Producer>(producer: &P, size: usize, pacer: Pacer, counters: &'static Counters) -> u64 {
    let mut accepted = 0;
    for number in pacer {
        let body = vec![b'x'; size];
        let sent = if number % P::SAMPLE == 0 {
            let called = Instant::now();
            producer.send_with(number, body, move |result| {
                counters.record(called.elapsed());
                counters.answered(&result);
            })
        } else {
            producer.send_with(number, body, move |result| counters.answered(&result))
        };
        match sent {
            Ok(()) => accepted += 1,
            Err(error) if counters.refused(&error) => {}
            Err(_) => break,
        }
        counters.done.store(accepted, Ordering::Relaxed);
    }
    accepted
}
