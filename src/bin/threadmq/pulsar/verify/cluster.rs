//! Pulsar as `verify` drives it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Consumer, InitialPosition, MessageId};

use crate::args::{SendArgs, fresh};
use crate::outcome::Failure;
use crate::pulsar::{Sender, connect, create, producer, subscribe};
use crate::verify::findings::Clocks;
use crate::verify::plan;
use crate::verify::read_back::number;
use crate::verify::watch::Watch;

/// The cluster and the place in it that is watched.
pub struct Cluster {
    client: Client,
    url: String,
    topic: String,
    /// Where a new subscription begins.
    position: InitialPosition,
    /// `None`: a new subscription, removed at the end.
    subscription: Option<String>,
    send: SendArgs,
}

impl Cluster {
    /// Without a topic it is a new one.
    pub fn connect(
        url: String,
        topic: Option<String>,
        subscription: Option<String>,
        send: SendArgs,
    ) -> Result<Self, Failure> {
        // What a topic of the user's held before is none of ours and may be much. On a new topic `Earliest` misses
        // nothing even if a crashed broker forgot the subscription.
        let position = if topic.is_some() { InitialPosition::Latest } else { InitialPosition::Earliest };
        let topic = topic.unwrap_or_else(|| fresh("verify"));
        Ok(Self { client: connect(&url)?, url, topic, position, subscription, send })
    }
}

impl plan::Cluster for Cluster {
    type Place = MessageId;
    type Producer = Sender;
    type Consumer = Consumer;
    const QUIET: Duration = Duration::from_secs(1);

    fn producer(&self, name: &str) -> Result<Sender, Failure> {
        let builder = producer(&self.client, &self.topic, &self.send).name(name);
        Ok(Sender::new(create(builder, &self.topic, &self.url)?, &self.send))
    }

    fn subscribe(&self) -> Result<Consumer, Failure> {
        let subscription = self.subscription.clone().unwrap_or_else(|| fresh("verify"));
        let builder = self.client.consumer(&self.topic, &subscription).initial_position(self.position);
        subscribe(builder, &self.topic, &self.url)
    }

    fn read(
        consumer: &Consumer,
        watch: &Watch<MessageId>,
        producer: &str,
        stop: &AtomicBool,
        polls: &mpsc::Sender<()>,
    ) {
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

    fn await_first_poll(polled: &mpsc::Receiver<()>, _announce: &dyn Fn(&str)) {
        let _ = polled.recv();
    }

    fn leave(&self, consumer: &Consumer) {
        if self.subscription.is_none() {
            // A broker that is away keeps it; nothing else of ours depends on it.
            let _ = consumer.unsubscribe();
        }
        let _ = consumer.close();
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
