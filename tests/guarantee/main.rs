//! The answer guarantee over real sockets, where code of users is involved: every accepted send is answered once, in
//! time, in order, whatever callbacks and brokers do; close ends; and no error says less than it should about where
//! the message may be.
//!
//! Exact times are the simulation's business: here an answer may be late by what a loaded machine takes, and never
//! early.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

#[path = "../answers/mod.rs"]
mod answers;

mod callbacks;
mod closing;
mod delivery;
mod lanes;
mod places;
mod sharing;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::Broker;

use answers::PATIENCE;

/// What an answer may be late by on a loaded machine.
const SLACK: Duration = Duration::from_secs(4);

fn client(broker: &Broker) -> Client {
    Client::builder(broker.service_url()).build().unwrap()
}

fn bodies(broker: &Broker, topic: &str) -> Vec<String> {
    broker.messages(topic).iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

/// An answer that was due `timeout` after `called` came in time.
fn assert_in_time(called: Instant, timeout: Duration) {
    let took = called.elapsed();
    assert!(took >= timeout && took < timeout + SLACK, "answered after {took:?}, due after {timeout:?}");
}

/// Holds callbacks until it is opened or dropped.
struct Door {
    entered: Receiver<()>,
    enter: Sender<()>,
    keys: Vec<Sender<()>>,
}

impl Door {
    fn new() -> Self {
        let (enter, entered) = channel();
        Self { entered, enter, keys: Vec::new() }
    }

    /// What a callback calls: says that it is there, and waits.
    fn guard(&mut self) -> impl FnOnce() + Send + 'static {
        let (key, locked) = channel();
        self.keys.push(key);
        let enter = self.enter.clone();
        move || {
            let _ = enter.send(());
            let _ = locked.recv_timeout(PATIENCE);
        }
    }

    fn wait_entered(&self) {
        self.entered.recv_timeout(PATIENCE).expect("a callback at the door");
    }

    fn open(&mut self) {
        self.keys.clear();
    }
}
