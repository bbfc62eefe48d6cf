//! Sends with callbacks as fast as permits allow.

use std::sync::atomic::Ordering;
use std::time::Instant;

use threadmq::Error;
use threadmq::pulsar::Producer;

use super::Run;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Counters, Results, goes_on};
use crate::pulsar::produce::drain;
use crate::pulsar::{create, producer};

/// One message in so many is timed: reading the clock twice costs about as much as sending.
const SAMPLE: u64 = 16;

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let producer = create(producer(&run.client, &run.topic, &args.send), &run.topic, &args.server.url)?;
    pump(&producer, args.send.size, Pacer::new(args.rate, Some(run.warmup), None), run.counters);
    drain(&producer, args.send.send_timeout.0);
    run.counters.restart()?;
    let meter = Meter::start();
    let messages = pump(&producer, args.send.size, Pacer::new(args.rate, run.count, args.seconds), run.counters);
    drain(&producer, args.send.send_timeout.0);
    let measured = meter.stop();
    let _ = producer.close();
    Ok(Results { messages, measured, errors: run.counters.errors(), timed: true })
}

/// Gives how many were accepted. A body is allocated and filled for each, as a program would.
pub(super) fn pump(producer: &Producer, size: usize, pacer: Pacer, counters: &'static Counters) -> u64 {
    let mut accepted = 0;
    for number in pacer {
        let body = vec![b'x'; size];
        let sent = if number % SAMPLE == 0 {
            let called = Instant::now();
            producer.send_with(body, move |result| {
                counters.record(called.elapsed());
                if result.is_err() {
                    counters.error();
                }
            })
        } else {
            producer.send_with(body, move |result| {
                if result.is_err() {
                    counters.error();
                }
            })
        };
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
