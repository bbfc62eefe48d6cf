//! From the call of send to the return of receive, at a rate, in one process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::pulsar::Consumer;

use super::Run;
use crate::args::fresh;
use crate::interrupt;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::perf::latency::{head, send_all};
use crate::perf::{Bench, Counters, Plan, Results};
use crate::pulsar::subscribe;
use crate::system::Producer;

const RATE: f64 = 10_000.0;
/// How long the reader waits after the last answer for what is still missing.
const IDLE: Duration = Duration::from_secs(10);

struct Reader<'a> {
    consumer: &'a Consumer,
    epoch: Instant,
    warmup: u64,
    counters: &'a Counters,
    /// Sends accepted, once they are over.
    expected: &'a AtomicU64,
    sends_over: &'a AtomicBool,
}

pub(super) fn run(run: &Run<'_>, plan: &Plan) -> Result<Results, Failure> {
    let args = run.args;
    let subscription = args.subscription.clone().unwrap_or_else(|| fresh("perf"));
    let consumer = run.client.consumer(&run.topic, &subscription).receiver_queue(args.receiver_queue);
    let consumer = subscribe(consumer, &run.topic, &args.server.url)?;
    let producer = run.producer()?;
    let counters = plan.counters;
    let (expected, sends_over) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    let epoch = Instant::now();
    let reader = Reader {
        consumer: &consumer,
        epoch,
        warmup: plan.warmup,
        counters,
        expected: &expected,
        sends_over: &sends_over,
    };
    let (meter, received) = thread::scope(|scope| {
        let reading = scope.spawn(move || reader.run());
        let sent = send_all(&producer, plan, RATE, epoch);
        expected.store(sent.accepted, Ordering::Release);
        sends_over.store(true, Ordering::Release);
        (sent.meter, reading.join())
    });
    let measured = meter.unwrap_or_else(Meter::start).stop();
    let received = received.unwrap_or_else(|_| Err(Failure::new("the reader panicked")))?;
    let _ = producer.close();
    if args.subscription.is_none() {
        let _ = consumer.unsubscribe();
    }
    let _ = consumer.close();
    let missing = expected.load(Ordering::Acquire).saturating_sub(counters.errors()).saturating_sub(received.all);
    Ok(Results { messages: received.measured, measured, errors: counters.errors() + missing, timed: true })
}

struct Received {
    all: u64,
    measured: u64,
}

impl Reader<'_> {
    fn run(self) -> Result<Received, Failure> {
        let (mut all, mut measured, mut quiet_since) = (0u64, 0, Instant::now());
        while all < self.expected.load(Ordering::Acquire) {
            let message = self.consumer.receive_timeout(Duration::from_millis(100));
            let Some(message) = message.map_err(|error| Failure::of("receive", &error))? else {
                let waits = if interrupt::stopped() { Duration::from_secs(1) } else { IDLE };
                if self.sends_over.load(Ordering::Acquire) && quiet_since.elapsed() >= waits {
                    break;
                }
                continue;
            };
            let now = self.epoch.elapsed();
            quiet_since = Instant::now();
            self.consumer.ack(&message).map_err(|error| Failure::of("acknowledge", &error))?;
            // What others wrote to the topic is none of ours.
            let Some((sent, number)) = head(message.payload()) else { continue };
            all += 1;
            if number >= self.warmup {
                measured += 1;
                self.counters.record(now.saturating_sub(sent));
                self.counters.done.store(measured, Ordering::Relaxed);
            }
        }
        Ok(Received { all, measured })
    }
}
