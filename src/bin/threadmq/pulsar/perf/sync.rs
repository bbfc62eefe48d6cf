//! One message after another, each waiting for its receipt.

use std::sync::atomic::Ordering;
use std::time::Instant;

use threadmq::Error;
use threadmq::pulsar::Producer;

use super::Run;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Counters, Results, goes_on};
use crate::pulsar::{create, producer};

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let producer = create(producer(&run.client, &run.topic, &args.send), &run.topic, &args.server.url)?;
    send_all(&producer, args.send.size, Pacer::new(args.rate, Some(run.warmup), None), run.counters);
    run.counters.restart()?;
    let meter = Meter::start();
    let messages = send_all(&producer, args.send.size, Pacer::new(args.rate, run.count, args.seconds), run.counters);
    let measured = meter.stop();
    let _ = producer.close();
    Ok(Results { messages, measured, errors: run.counters.errors(), timed: true })
}

/// Gives how many receipts came.
fn send_all(producer: &Producer, size: usize, pacer: Pacer, counters: &Counters) -> u64 {
    let mut stored = 0;
    for _ in pacer {
        let called = Instant::now();
        let result = producer.send(vec![b'x'; size]);
        counters.record(called.elapsed());
        match result.map_err(Error::from) {
            Ok(_) => stored += 1,
            Err(error) => {
                counters.error();
                if !goes_on(&error) {
                    break;
                }
            }
        }
        counters.done.store(stored, Ordering::Relaxed);
    }
    stored
}
