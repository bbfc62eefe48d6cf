//! From the call of send to the return of receive, at a rate, in one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::rocketmq::MessageView;

use super::Run;
use super::receivers::{Acks, IDLE, receive_all, skip_to_end};
use crate::args::fresh;
use crate::interrupt;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::perf::{Results, goes_on};
use crate::rocketmq::{drain, subscribe};

const RATE: f64 = 1_000.0;
/// The head of a body: when it was sent, and its number.
const HEAD: usize = 16;

pub(super) fn run(run: &Run<'_>) -> Result<Results, Failure> {
    let args = run.args;
    let group = args.group.clone().unwrap_or_else(|| fresh("perf"));
    let name = fresh("perf");
    let consumer = subscribe(&run.client, &group, &args.topic, &args.server.endpoint)?;
    skip_to_end(&consumer)?;
    let producer = run.producer()?;
    let rate = args.rate.unwrap_or(RATE);
    // The warm-up is part of the same stream, so that the clock starts on a running one.
    let span = args.seconds.map(|span| span + Duration::from_secs_f64(run.warmup as f64 / rate));
    let count = run.count.map(|count| count.saturating_add(run.warmup));
    let counters = run.counters;
    // Sends accepted, once they are over.
    let expected = AtomicU64::new(u64::MAX);
    let (all, measured) = (AtomicU64::new(0), AtomicU64::new(0));
    let epoch = Instant::now();
    let take = |message: &MessageView| {
        let now = epoch.elapsed();
        // What others wrote to the topic is none of ours; what comes again has its time already.
        let ours = message.tag() == Some(&name) && message.delivery_attempt() == 1;
        let Some((sent, number)) = head(message).filter(|_| ours) else { return false };
        if number >= run.warmup {
            counters.record(now.saturating_sub(sent));
            counters.done.store(measured.fetch_add(1, Ordering::AcqRel) + 1, Ordering::Relaxed);
        }
        all.fetch_add(1, Ordering::AcqRel) + 1 >= expected.load(Ordering::Acquire)
    };
    let over = |last_arrival: Instant| {
        let expected = expected.load(Ordering::Acquire);
        let waits = if interrupt::stopped() { Duration::from_secs(1) } else { IDLE };
        all.load(Ordering::Acquire) >= expected || (expected < u64::MAX && last_arrival.elapsed() >= waits)
    };
    let (meter, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
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
                let message = args.send.message(&args.topic, number, body).tag(&name);
                let sent = producer.send_with(message, move |result| {
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
            drain(&producer);
            expected.store(accepted, Ordering::Release);
            meter
        });
        let received = receive_all(&consumer, args.receivers, Acks::Batch, counters, &take, &over);
        (sending.join(), received)
    });
    received?;
    let meter = meter.map_err(|_| Failure::new("the sender panicked"))?;
    let spent = meter.unwrap_or_else(Meter::start).stop();
    let _ = producer.close();
    let missing =
        expected.load(Ordering::Acquire).saturating_sub(counters.errors()).saturating_sub(all.load(Ordering::Acquire));
    let messages = measured.load(Ordering::Acquire);
    Ok(Results { messages, measured: spent, errors: counters.errors() + missing, timed: true })
}

fn head(message: &MessageView) -> Option<(Duration, u64)> {
    let (sent, rest) = message.body().split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    Some((Duration::from_nanos(u64::from_le_bytes(*sent)), u64::from_le_bytes(*number)))
}
