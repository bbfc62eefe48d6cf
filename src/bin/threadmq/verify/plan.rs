//! A verification: sends, watches, reads back, and tells what was found.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::testkit::Network;

use super::canary::Canary;
use super::events::unix_millis;
use super::faults::Schedule;
use super::findings::{Clocks, Findings};
use super::ledger::Ledger;
use super::read_back::{ReadBack, body};
use super::watch::{AFTERMATH, GRACE, Watch};
use crate::args::fresh;
use crate::interrupt;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::system::{Producer, Receipt};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of a body.
    pub size: usize,
    pub send_timeout: Duration,
    pub rate: f64,
    pub count: Option<u64>,
    pub span: Duration,
    pub read_back: bool,
    /// Reading is given up if nothing comes for so long while acknowledged messages are missing.
    pub patience: Duration,
    /// Close right after the last send instead of waiting for the answers.
    pub close_at_once: bool,
}

/// A system as `verify` drives it: connected, with a topic and the reader's place.
pub trait Cluster: Sync {
    /// A place in the topic, by which a message that is delivered again is known.
    type Place: Eq + Hash + Send + 'static;
    type Producer: Producer;
    type Consumer: Sync;
    /// The topic's end: all acknowledged messages are read, and nothing has come for so long.
    const QUIET: Duration;

    /// `name` tells this run's messages from others, and from those of earlier runs on the same topic.
    fn producer(&self, name: &str) -> Result<Self::Producer, Failure>;

    fn subscribe(&self) -> Result<Self::Consumer, Failure>;

    /// Reads and acknowledges until told to stop. `polls` is told when a first look is over: from then on the
    /// consumer misses nothing.
    fn read(consumer: &Self::Consumer, watch: &Watch<Self::Place>, name: &str, stop: &AtomicBool, polls: &Sender<()>);

    /// Waits for that first look. If there is none, the reader says why in the end.
    fn await_first_poll(polled: &Receiver<()>, announce: &dyn Fn(&str));

    /// Ends a poll that waits, once the reader was told to stop.
    fn end_poll(_consumer: &Self::Consumer) {}

    /// After the reader's end.
    fn leave(&self, consumer: &Self::Consumer);

    /// How many messages stand behind a later one of their line.
    fn order_violations(_ledger: &Ledger, read: &ReadBack<Self::Place>) -> u64 {
        read.out_of_order.len() as u64
    }

    fn close(&self);

    fn clocks(&self) -> Clocks;
}

/// Gets what happens on the way, in words.
pub type Announce<'a> = &'a (dyn Fn(&str) + Sync);

impl Plan {
    pub fn carry_out<C: Cluster>(
        &self,
        cluster: &C,
        watch: &Arc<Watch<C::Place>>,
        faults: Option<(&Network, &Schedule)>,
        announce: Announce<'_>,
    ) -> Result<Findings, Failure> {
        let canary = Canary::start();
        let name = fresh("verify");
        let stop_reading = AtomicBool::new(false);
        let consumer = if self.read_back { Some(cluster.subscribe()?) } else { None };
        let outcome = thread::scope(|scope| {
            if let Some(consumer) = &consumer {
                let (polls, polled) = channel();
                let (name, stop) = (name.as_str(), &stop_reading);
                scope.spawn(move || C::read(consumer, watch, name, stop, &polls));
                C::await_first_poll(&polled, announce);
            }
            let outcome = self.send_and_wait(cluster, &name, watch, faults, announce);
            if outcome.is_ok() && consumer.is_some() {
                announce("reading the topic to its end");
                watch.wait_read(C::QUIET, self.patience);
            }
            stop_reading.store(true, Ordering::Release);
            consumer.iter().for_each(C::end_poll);
            outcome
        });
        let unanswered = outcome?;
        consumer.iter().for_each(|consumer| cluster.leave(consumer));
        cluster.close();
        // After the close, so that a second answer has had its chance.
        let (ledger, read, clocks) = (watch.ledger(), watch.read(), cluster.clocks());
        let read = self.read_back.then_some(&*read);
        let mut findings = Findings::new(&ledger, read, &clocks, self.send_timeout, unanswered);
        findings.order_violations = read.map_or(0, |read| C::order_violations(&ledger, read));
        findings.longest_stall = canary.longest_stall();
        Ok(findings)
    }

    /// Gives the number of sends that were not answered when all should have been.
    fn send_and_wait<C: Cluster>(
        &self,
        cluster: &C,
        name: &str,
        watch: &Arc<Watch<C::Place>>,
        faults: Option<(&Network, &Schedule)>,
        announce: Announce<'_>,
    ) -> Result<u64, Failure> {
        let producer = cluster.producer(name)?;
        watch.mark("start", "");
        thread::scope(|scope| {
            let begin = Instant::now();
            if let Some((network, schedule)) = faults {
                scope.spawn(move || schedule.carry_out(network, begin, announce));
            }
            self.send_all(&producer, watch);
        });
        if !self.close_at_once {
            watch.wait_answers(self.send_timeout + GRACE);
        }
        let unanswered = if self.close_at_once { 0 } else { watch.ledger().unanswered() };
        watch.mark("close", "");
        let closed = producer.close();
        watch.mark("closed", &closed.err().map(|error| error.to_string()).unwrap_or_default());
        if watch.events.is_some() {
            interrupt::sleep_until(Some(Instant::now() + AFTERMATH));
            watch.mark("end", "");
        }
        Ok(if self.close_at_once { watch.ledger().unanswered() } else { unanswered })
    }

    fn send_all<P: Eq + Hash + Send + 'static>(&self, producer: &impl Producer, watch: &Arc<Watch<P>>) {
        for _ in Pacer::new(Some(self.rate), self.count, Some(self.span)) {
            let (called, called_at) = (Instant::now(), unix_millis());
            let number = watch.ledger().call(called);
            let callback = Arc::clone(watch);
            // No lock of ours is held: the callback takes it.
            let sent = producer.send_with(number, body(number, self.size), move |result| {
                let now = Instant::now();
                callback.answered(number, now, result.map(|receipt| receipt.attempts()));
            });
            watch.ledger().returned(number, Instant::now(), sent.as_ref().err());
            if let Some(events) = &watch.events {
                events.sent(number, called_at, sent.err().map(|error| error.to_string()).as_deref());
            }
        }
    }
}
