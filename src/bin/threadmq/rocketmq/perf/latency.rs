//! From the call of send to the return of receive, at a rate, in one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::rocketmq::MessageView;

use super::Run;
use super::receivers::{Acks, IDLE, receive_all, skip_to_end};
use crate::args::fresh;
use crate::interrupt;
use crate::meter::Meter;
use crate::outcome::Failure;
use crate::perf::latency::{head, send_all};
use crate::perf::{Bench, Plan, Results};
use crate::rocketmq::{Sender, subscribe};
use crate::system::Producer;

const RATE: f64 = 1_000.0;

pub(super) fn run(run: &Run<'_>, plan: &Plan) -> Result<Results, Failure> {
    let args = run.args;
    let group = args.group.clone().unwrap_or_else(|| fresh("perf"));
    let name = fresh("perf");
    let consumer = subscribe(&run.client, &group, &args.topic, &args.server.endpoint)?;
    skip_to_end(&consumer)?;
    let producer = Sender { tag: Some(name.clone()), ..run.producer()? };
    let counters = plan.counters;
    // Sends accepted, once they are over.
    let expected = AtomicU64::new(u64::MAX);
    let (all, measured) = (AtomicU64::new(0), AtomicU64::new(0));
    let epoch = Instant::now();
    let take = |message: &MessageView| {
        let now = epoch.elapsed();
        // What others wrote to the topic is none of ours; what comes again has its time already.
        let ours = message.tag() == Some(&name) && message.delivery_attempt() == 1;
        let Some((sent, number)) = head(message.body()).filter(|_| ours) else { return false };
        if number >= plan.warmup {
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
            let sent = send_all(&producer, plan, RATE, epoch);
            expected.store(sent.accepted, Ordering::Release);
            sent.meter
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
