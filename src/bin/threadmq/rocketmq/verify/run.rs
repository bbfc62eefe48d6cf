//! A verification: sends, watches, reads back, and tells what was found.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::rocketmq::{Client, MessageView, Producer, Stats};
use threadmq::testkit::Network;

use super::reader::Reader;
use crate::args::fresh;
use crate::interrupt;
use crate::outcome::Failure;
use crate::pacer::Pacer;
use crate::rocketmq::args::{AWAIT, SendArgs, ServerArgs};
use crate::rocketmq::{connect, producer, start, subscribe};
use crate::verify::canary::Canary;
use crate::verify::events::unix_millis;
use crate::verify::faults::Schedule;
use crate::verify::findings::{Clocks, Findings};
use crate::verify::ledger::Ledger;
use crate::verify::read_back::{ReadBack, body};
use crate::verify::watch::{self, AFTERMATH, GRACE};

/// What is to be done.
pub struct Plan {
    pub server: ServerArgs,
    pub topic: String,
    /// `None`: a new group.
    pub group: Option<String>,
    pub send: SendArgs,
    pub rate: Option<f64>,
    pub count: Option<u64>,
    pub span: Duration,
    pub read_back: bool,
    /// Reading is given up if nothing comes for so long while acknowledged messages are missing.
    pub patience: Duration,
    /// Close right after the last send instead of waiting for the answers.
    pub close_at_once: bool,
}

/// Where a message is stored. A message that was sent twice keeps its id, and has another offset.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Place(String, i32, Option<i64>);

impl Place {
    pub fn of(message: &MessageView) -> Self {
        Self(message.message_id().to_owned(), message.queue_id(), message.queue_offset())
    }
}

/// What callbacks, reader and progress share.
pub type Watch = watch::Watch<Place>;

/// The topic's end: all acknowledged messages are read, and nothing has come for so long.
const QUIET: Duration = Duration::from_secs(2);
/// The reader's first poll is answered by then, or it will tell in the end why not.
const FIRST_POLL: Duration = Duration::from_secs(AWAIT.as_secs() * 3);

impl Plan {
    /// `announce` gets what happens on the way, in words.
    pub fn carry_out(
        &self,
        watch: &Arc<Watch>,
        faults: Option<(&Network, &Schedule)>,
        announce: &(dyn Fn(&str) + Sync),
    ) -> Result<Findings, Failure> {
        let canary = Canary::start();
        let client = connect(&self.server)?;
        // Tells this run's messages from others, and from those of earlier runs on the same topic.
        let name = fresh("verify");
        let stop_reading = AtomicBool::new(false);
        let group = self.group.clone().unwrap_or_else(|| fresh("verify"));
        let consumer =
            if self.read_back { Some(subscribe(&client, &group, &self.topic, &self.server.endpoint)?) } else { None };
        let outcome = thread::scope(|scope| {
            if let Some(consumer) = &consumer {
                let (tell, polled) = channel();
                let reader = Reader { consumer, watch, name: &name, stop: &stop_reading };
                scope.spawn(move || reader.run(&tell));
                // A new group begins at the topic's end: where that is when its first poll comes.
                announce("waiting for the reader's first poll");
                let _ = polled.recv_timeout(FIRST_POLL);
            }
            let outcome = self.send_and_wait(&client, &name, watch, faults, announce);
            if outcome.is_ok() && consumer.is_some() {
                announce("reading the topic to its end");
                watch.wait_read(QUIET, self.patience);
            }
            stop_reading.store(true, Ordering::Release);
            if let Some(consumer) = &consumer {
                // Ends the poll that waits.
                let _ = consumer.close();
            }
            outcome
        });
        let unanswered = outcome?;
        let _ = client.close();
        // After the close, so that a second answer has had its chance.
        let (ledger, read, stats) = (watch.ledger(), watch.read(), client.stats());
        let read = self.read_back.then_some(&*read);
        let mut findings = Findings::new(&ledger, read, &clocks(&stats), self.send.send_timeout, unanswered);
        findings.order_violations = read.map_or(0, |read| out_of_order(&ledger, read));
        findings.longest_stall = canary.longest_stall();
        Ok(findings)
    }

    /// Gives the number of sends that were not answered when all should have been.
    fn send_and_wait(
        &self,
        client: &Client,
        name: &str,
        watch: &Arc<Watch>,
        faults: Option<(&Network, &Schedule)>,
        announce: &(dyn Fn(&str) + Sync),
    ) -> Result<u64, Failure> {
        let producer = start(producer(client, &self.topic, &self.send), &self.topic, &self.server.endpoint)?;
        watch.mark("start", "");
        thread::scope(|scope| {
            let begin = Instant::now();
            if let Some((network, schedule)) = faults {
                scope.spawn(move || schedule.carry_out(network, begin, announce));
            }
            self.send_all(&producer, name, watch);
        });
        if !self.close_at_once {
            watch.wait_answers(self.send.send_timeout + GRACE);
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

    fn send_all(&self, producer: &Producer, name: &str, watch: &Arc<Watch>) {
        for _ in Pacer::new(self.rate, self.count, Some(self.span)) {
            let (called, called_at) = (Instant::now(), unix_millis());
            let number = watch.ledger().call(called);
            let callback = Arc::clone(watch);
            let message = self.send.message(&self.topic, number, body(number, self.send.size)).tag(name);
            // No lock of ours is held: the callback takes it.
            let sent = producer
                .send_with(message, move |result| {
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

/// A send that failed is out of the group's order: the server may store it at any time, or never.
fn out_of_order(ledger: &Ledger, read: &ReadBack<Place>) -> u64 {
    let acknowledged: HashSet<u64> = ledger.acknowledged().collect();
    read.out_of_order.iter().filter(|number| acknowledged.contains(number)).count() as u64
}
