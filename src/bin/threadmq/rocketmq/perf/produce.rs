//! Sends with callbacks as fast as permits allow.

use std::sync::atomic::Ordering;
use std::time::Instant;

use threadmq::Error;
use threadmq::rocketmq::Producer;

use super::{Args, Run};
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Counters, Results, goes_on};
use crate::rocketmq::drain;

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let producer = run.producer()?;
    pump(&producer, args, Pacer::new(args.rate, Some(run.warmup), None), run.counters);
    drain(&producer);
    run.counters.restart()?;
    let meter = Meter::start();
    let messages = pump(&producer, args, Pacer::new(args.rate, run.count, args.seconds), run.counters);
    drain(&producer);
    let measured = meter.stop();
    let _ = producer.close();
    Ok(Results { messages, measured, errors: run.counters.errors(), timed: true })
}

/// Gives how many were accepted. A body is allocated and filled for each, as a program would.
pub(super) fn pump(producer: &Producer, args: &Args, pacer: Pacer, counters: &'static Counters) -> u64 {
    let mut accepted = 0;
    for number in pacer {
        let message = args.send.message(&args.topic, number, vec![b'x'; args.send.size]);
        let called = Instant::now();
        let sent = producer.send_with(message, move |result| {
            counters.record(called.elapsed());
            if result.is_err() {
                counters.error();
            }
        });
        match sent.map_err(Error::from) {
            Ok(()) => accepted += 1,
            Err(error) => {
                counters.error();
                if !goes_on(&error) {
                    break;
                }
            }
        }
        counters.done.store(accepted, Ordering::Relaxed);
    }
    accepted
}
