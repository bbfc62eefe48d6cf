//! A verification: sends, watches, reads back, and tells what was found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::pulsar::{Client, Consumer, InitialPosition, MessageId, Producer, Stats};
use threadmq::testkit::Network;

use crate::args::{SendArgs, fresh};
use crate::interrupt;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::pulsar::{connect, create, producer, subscribe};
use crate::verify::canary::Canary;
use crate::verify::events::unix_millis;
use crate::verify::faults::Schedule;
use crate::verify::findings::{Clocks, Findings};
use crate::verify::read_back::{body, number};
use crate::verify::watch::{self, AFTERMATH, GRACE};

/// What is to be done.
pub struct Plan {
    pub url: String,
    /// `None`: a new topic.
    pub topic: Option<String>,
    /// `None`: a new subscription, removed at the end.
    pub subscription: Option<String>,
    pub send: SendArgs,
    pub send_timeout: Duration,
    pub rate: Option<f64>,
    pub count: Option<u64>,
    pub span: Duration,
    pub read_back: bool,
    /// Reading is given up if nothing comes for so long while acknowledged messages are missing.
    pub patience: Duration,
    /// Close right after the last send instead of waiting for the answers.
    pub close_at_once: bool,
}

/// What callbacks, reader and progress share.
pub type Watch = watch::Watch<MessageId>;

/// The topic's end: all acknowledged messages are read, and nothing has come for so long.
const QUIET: Duration = Duration::from_secs(1);

impl Plan {
    /// `announce` gets what happens on the way, in words.
    pub fn carry_out(
        &self,
        watch: &Arc<Watch>,
        faults: Option<(&Network, &Schedule)>,
        announce: &(dyn Fn(&str) + Sync),
    ) -> Result<Findings, Failure> {
        let canary = Canary::start();
        let client = connect(&self.url)?;
        let topic = self.topic.clone().unwrap_or_else(|| fresh("verify"));
        // Tells this run's messages from others, and from those of earlier runs on the same topic.
        let name = fresh("verify");
        let stop_reading = AtomicBool::new(false);
        let consumer = if self.read_back { Some(self.subscribe(&client, &topic)?) } else { None };
        let outcome = thread::scope(|scope| {
            if let Some(consumer) = &consumer {
                let (polls, polled) = channel();
                let (name, stop) = (name.as_str(), &stop_reading);
                scope.spawn(move || read_all(consumer, watch, name, stop, &polls));
                // The reader polls before the first send; if it cannot, the reader says why in the end.
                let _ = polled.recv();
            }
            let outcome = self.send_and_wait(&client, &topic, &name, watch, faults, announce);
            if outcome.is_ok() && consumer.is_some() {
                announce("reading the topic to its end");
                watch.wait_read(QUIET, self.patience);
            }
            stop_reading.store(true, Ordering::Release);
            outcome
        });
        let unanswered = outcome?;
        if let Some(consumer) = consumer {
            if self.subscription.is_none() {
                // A broker that is away keeps it; nothing else of ours depends on it.
                let _ = consumer.unsubscribe();
            }
            let _ = consumer.close();
        }
        let _ = client.close();
        // After the close, so that a second answer has had its chance.
        let (ledger, read, stats) = (watch.ledger(), watch.read(), client.stats());
        let read = self.read_back.then_some(&*read);
        let mut findings = Findings::new(&ledger, read, &clocks(&stats), self.send_timeout, unanswered);
        findings.longest_stall = canary.longest_stall();
        Ok(findings)
    }

    fn subscribe(&self, client: &Client, topic: &str) -> Result<Consumer, Failure> {
        let subscription = self.subscription.clone().unwrap_or_else(|| fresh("verify"));
        // What a topic of the user's held before is none of ours and may be much. On a new topic `Earliest` misses
        // nothing even if a crashed broker forgot the subscription.
        let position = if self.topic.is_some() { InitialPosition::Latest } else { InitialPosition::Earliest };
        subscribe(client.consumer(topic, &subscription).initial_position(position), topic, &self.url)
    }

    /// Gives the number of sends that were not answered when all should have been.
    fn send_and_wait(
        &self,
        client: &Client,
        topic: &str,
        name: &str,
        watch: &Arc<Watch>,
        faults: Option<(&Network, &Schedule)>,
        announce: &(dyn Fn(&str) + Sync),
    ) -> Result<u64, Failure> {
        let builder = producer(client, topic, &self.send).send_timeout(Some(self.send_timeout)).name(name);
        let producer = create(builder, topic, &self.url)?;
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

    fn send_all(&self, producer: &Producer, watch: &Arc<Watch>) {
        for _ in Pacer::new(self.rate, self.count, Some(self.span)) {
            let (called, called_at) = (Instant::now(), unix_millis());
            let number = watch.ledger().call(called);
            let callback = Arc::clone(watch);
            // No lock of ours is held: the callback takes it.
            let sent = producer
                .send_with(body(number, self.send.size), move |result| {
                    let now = Instant::now();
                    callback.answered(number, now, result.map(|receipt| receipt.attempts()));
                })
                .map_err(Error::from);
            watch.ledger().returned(number, Instant::now(), sent.as_ref().err());
            if let Some(events) = &watch.events {
                events.sent(number, called_at, sent.err().map(|error| error.to_string()).as_deref());
            }
        }
    }
}

fn clocks(stats: &Stats) -> Clocks {
    Clocks {
        longest_answer: stats.longest_answer,
        longest_overdue: stats.longest_overdue,
        callback_lag: stats.callback_lag,
        loop_lag: stats.loop_lag,
        recoveries: stats.recoveries,
    }
}

/// Reads and acknowledges until told to stop. `polls` is told when the first look is over.
fn read_all(consumer: &Consumer, watch: &Watch, producer: &str, stop: &AtomicBool, polls: &Sender<()>) {
    while !stop.load(Ordering::Acquire) {
        let received = consumer.receive_timeout(Duration::from_millis(100));
        // Nobody listens after the first time.
        let _ = polls.send(());
        match received {
            Ok(None) => {}
            Ok(Some(message)) => {
                if message.producer_name() == producer {
                    let number = number(message.payload());
                    watch.read().read(Instant::now(), Some(message.topic()), message.id(), number);
                } else {
                    watch.read().foreign += 1;
                }
                if let Err(error) = consumer.ack(&message) {
                    watch.read().ended = Some(error.to_string());
                    return;
                }
            }
            Err(error) => {
                watch.read().ended = Some(error.to_string());
                return;
            }
        }
    }
}
