//! One message after another, each waiting for its receipt.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Counters, Plan, Results};
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::system::Producer;

pub fn run(producer: &impl Producer, plan: &Plan) -> Result<Results, Failure> {
    send_all(producer, plan.size, plan.warm_up(), plan.counters);
    plan.counters.restart()?;
    let meter = Meter::start();
    let messages = send_all(producer, plan.size, plan.pacer(), plan.counters);
    let measured = meter.stop();
    let _ = producer.close();
    Ok(Results { messages, measured, errors: plan.counters.errors(), timed: true })
}

/// Gives how many receipts came.
fn send_all(producer: &impl Producer, size: usize, pacer: Pacer, counters: &Counters) -> u64 {
    let mut stored = 0;
    for number in pacer {
        let called = Instant::now();
        let result = producer.send(number, vec![b'x'; size]);
        counters.record(called.elapsed());
        match result {
            Ok(()) => stored += 1,
            Err(error) if counters.refused(&error) => {}
            Err(_) => break,
        }
        counters.done.store(stored, Ordering::Relaxed);
    }
    stored
}
