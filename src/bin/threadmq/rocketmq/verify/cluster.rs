//! RocketMQ as `verify` drives it.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use threadmq::rocketmq::{Client, MessageView, SimpleConsumer};

use super::reader::Reader;
use crate::args::fresh;
use crate::outcome::Failure;
use crate::rocketmq::args::{AWAIT, SendArgs, ServerArgs};
use crate::rocketmq::{Sender, connect, start, subscribe};
use crate::verify::findings::Clocks;
use crate::verify::ledger::Ledger;
use crate::verify::plan;
use crate::verify::read_back::ReadBack;
use crate::verify::watch::Watch;

/// The cluster and the place in it that is watched.
pub struct Cluster {
    client: Client,
    endpoint: String,
    topic: String,
    /// `None`: a new group.
    group: Option<String>,
    send: SendArgs,
}

impl Cluster {
    pub fn connect(server: &ServerArgs, topic: String, group: Option<String>, send: SendArgs) -> Result<Self, Failure> {
        Ok(Self { client: connect(server)?, endpoint: server.endpoint.clone(), topic, group, send })
    }
}

/// Where a message is stored. A message that was sent twice keeps its id, and has another offset.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Place(String, i32, Option<i64>);

impl Place {
    pub fn of(message: &MessageView) -> Self {
        Self(message.message_id().to_owned(), message.queue_id(), message.queue_offset())
    }
}

/// The reader's first poll is answered by then, or it will tell in the end why not.
const FIRST_POLL: Duration = Duration::from_secs(AWAIT.as_secs() * 3);

impl plan::Cluster for Cluster {
    type Place = Place;
    type Producer = Sender;
    type Consumer = SimpleConsumer;
    const QUIET: Duration = Duration::from_secs(2);

    fn producer(&self, name: &str) -> Result<Sender, Failure> {
        let sender = start(&self.client, &self.topic, &self.send, &self.endpoint)?;
        Ok(Sender { tag: Some(name.to_owned()), ..sender })
    }

    fn subscribe(&self) -> Result<SimpleConsumer, Failure> {
        let group = self.group.clone().unwrap_or_else(|| fresh("verify"));
        subscribe(&self.client, &group, &self.topic, &self.endpoint)
    }

    fn read(consumer: &SimpleConsumer, watch: &Watch<Place>, name: &str, stop: &AtomicBool, polls: &mpsc::Sender<()>) {
        Reader { consumer, watch, name, stop }.run(polls);
    }

    /// A new group begins at the topic's end: where that is when its first poll comes.
    fn await_first_poll(polled: &mpsc::Receiver<()>, announce: &dyn Fn(&str)) {
        announce("waiting for the reader's first poll");
        let _ = polled.recv_timeout(FIRST_POLL);
    }

    fn end_poll(consumer: &SimpleConsumer) {
        let _ = consumer.close();
    }

    fn leave(&self, _consumer: &SimpleConsumer) {}

    /// A send that failed is out of the group's order: the server may store it at any time, or never.
    fn order_violations(ledger: &Ledger, read: &ReadBack<Place>) -> u64 {
        let acknowledged: HashSet<u64> = ledger.acknowledged().collect();
        read.out_of_order.iter().filter(|number| acknowledged.contains(number)).count() as u64
    }

    fn close(&self) {
        let _ = self.client.close();
    }

    fn clocks(&self) -> Clocks {
        let stats = self.client.stats();
        Clocks {
            longest_answer: stats.longest_answer,
            longest_overdue: stats.longest_overdue,
            callback_lag: stats.callback_lag,
            loop_lag: stats.loop_lag,
            recoveries: stats.recoveries,
        }
    }
}
