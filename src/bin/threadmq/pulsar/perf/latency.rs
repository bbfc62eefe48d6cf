//! From the call of send to the return of receive, at a rate, in one process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::pulsar::{Consumer, Message};

use super::Run;
use crate::args::fresh;
use crate::interrupt;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Counters, Results, goes_on};
use crate::pulsar::produce::drain;
use crate::pulsar::{create, producer, subscribe};

const RATE: f64 = 10_000.0;
/// How long the reader waits after the last answer for what is still missing.
const IDLE: Duration = Duration::from_secs(10);
/// The head of a body: when it was sent, and its number.
const HEAD: usize = 16;

struct Reader<'a> {
    consumer: &'a Consumer,
    epoch: Instant,
    warmup: u64,
    counters: &'a Counters,
    /// Sends accepted, once they are over.
    expected: &'a AtomicU64,
    sends_over: &'a AtomicBool,
}

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let subscription = args.subscription.clone().unwrap_or_else(|| fresh("perf"));
    let consumer = run.client.consumer(&run.topic, &subscription).receiver_queue(args.receiver_queue);
    let consumer = subscribe(consumer, &run.topic, &args.server.url)?;
    let producer = create(producer(&run.client, &run.topic, &args.send), &run.topic, &args.server.url)?;
    let rate = args.rate.unwrap_or(RATE);
    // The warm-up is part of the same stream, so that the clock starts on a running one.
    let span = args.seconds.map(|span| span + Duration::from_secs_f64(run.warmup as f64 / rate));
    let count = run.count.map(|count| count.saturating_add(run.warmup));
    let counters = run.counters;
    let (expected, sends_over) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    let epoch = Instant::now();
    let reader = Reader {
        consumer: &consumer,
        epoch,
        warmup: run.warmup,
        counters,
        expected: &expected,
        sends_over: &sends_over,
    };
    let (meter, received) = thread::scope(|scope| {
        let reading = scope.spawn(move || reader.run());
        let mut meter = None;
        let mut accepted = 0;
        for number in Pacer::new(Some(rate), count, span) {
            if number == run.warmup {
                meter = Some(Meter::start());
            }
            let mut body = Vec::with_capacity(args.send.size.max(HEAD));
            body.extend_from_slice(&(epoch.elapsed().as_nanos() as u64).to_le_bytes());
            body.extend_from_slice(&number.to_le_bytes());
            body.resize(args.send.size.max(HEAD), b'x');
            let sent = producer.send_with(body, move |result| {
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
        }
        drain(&producer, args.send.send_timeout.0);
        expected.store(accepted, Ordering::Release);
        sends_over.store(true, Ordering::Release);
        (meter, reading.join())
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
            let Some((sent, number)) = head(&message) else { continue };
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

fn head(message: &Message) -> Option<(Duration, u64)> {
    let (sent, rest) = message.payload().split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    Some((Duration::from_nanos(u64::from_le_bytes(*sent)), u64::from_le_bytes(*number)))
}
