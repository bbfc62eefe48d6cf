//! What a client leaves behind when it has gone: nothing. (Field reports 009 and 007.)
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, ClientBuilder};
use threadmq::testkit::pulsar::Broker;
use threadmq::{Error, ErrorKind, Threads};

const ROUNDS: usize = 50;
/// Longer than anything takes on a loaded machine; never waited out when all is well.
const PATIENCE: Duration = Duration::from_secs(30);
/// Threads and descriptors that others of the process may have taken meanwhile.
const OTHERS: usize = 2;

/// The tests count what the whole process has, so they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn threads() -> usize {
    entries("/proc/self/task")
}

fn descriptors() -> usize {
    entries("/proc/self/fd")
}

/// The names of all threads, for the message of a failure.
fn names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

/// Runs the rounds and waits until nothing of them is left.
fn leaves_nothing(broker: &Broker, round: impl Fn(usize)) {
    // What is made once and stays is there after the first.
    round(0);
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
    std::thread::sleep(Duration::from_millis(500));
    let before = (threads(), descriptors());
    for number in 1..=ROUNDS {
        round(number);
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let after = (threads(), descriptors(), broker.connections());
        if after.0 <= before.0 + OTHERS && after.1 <= before.1 + OTHERS && after.2 == 0 {
            println!("threads and descriptors {before:?} before, {after:?} after");
            return;
        }
        assert!(Instant::now() < end, "{before:?} before, {after:?} after; {:?}", names());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client with a producer and a consumer that have been used.
fn used(builder: ClientBuilder) -> (Client, threadmq::pulsar::Producer, threadmq::pulsar::Consumer) {
    let client = builder.build().unwrap();
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    producer.send("x").unwrap();
    producer.send_with("y", |result| drop(result.unwrap())).unwrap();
    producer.flush().unwrap();
    let message = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
    consumer.ack(&message).unwrap();
    (client, producer, consumer)
}

/// Closes with this limit. Its last tenth is for the answers: a loaded machine may take longer, and then close says
/// so, and another one finds all done.
fn close_by(limit: Duration, close: impl Fn(Duration) -> Result<(), Error>) {
    if let Err(error) = close(limit) {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        close(PATIENCE).unwrap();
    }
}

#[test]
fn closed_clients_leave_nothing() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    leaves_nothing(&broker, |_| {
        let (client, _producer, _consumer) = used(Client::builder(broker.service_url()));
        let during = names();
        client.close().unwrap();
        // Close has waited for the client's threads, so they are gone before its handles are.
        let after = names();
        let ours = |names: &[String]| names.iter().filter(|name| name.starts_with("tmq-io")).count();
        assert_eq!((ours(&during), ours(&after)), (1, 0));
    });
}

#[test]
fn producers_and_consumers_are_closed_one_by_one() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    leaves_nothing(&broker, |_| {
        let (client, producer, consumer) = used(Client::builder(broker.service_url()));
        producer.close().unwrap();
        consumer.close().unwrap();
        client.close().unwrap();
    });
}

#[test]
fn dropped_clients_leave_nothing() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    leaves_nothing(&broker, |number| {
        let (client, producer, consumer) = used(Client::builder(broker.service_url()));
        // In every order.
        match number % 3 {
            0 => drop((client, producer, consumer)),
            1 => drop((consumer, producer, client)),
            _ => drop((producer, client, consumer)),
        }
        // So that an Exclusive subscription is free for the next round.
        assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
    });
}

#[test]
fn clients_with_shared_threads_leave_only_these() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    let shared = Threads::builder().build().unwrap();
    leaves_nothing(&broker, |_| {
        let (client, _producer, _consumer) = used(Client::builder(broker.service_url()).threads(&shared));
        client.close().unwrap();
    });
}

#[test]
fn producers_of_one_client_leave_nothing() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    let client = Client::builder(broker.service_url()).build().unwrap();
    client.producer("first").create().unwrap();
    let before = (threads(), descriptors());
    for _ in 0..ROUNDS {
        let producer = client.producer("t").create().unwrap();
        producer.send("x").unwrap();
        producer.close().unwrap();
        let consumer = client.consumer("t", "s").subscribe().unwrap();
        consumer.close().unwrap();
    }
    let after = (threads(), descriptors());
    assert!(after.0 <= before.0 + OTHERS && after.1 <= before.1 + OTHERS, "{before:?} before, {after:?} after");
    assert_eq!(client.stats().memory_used, 0);
    client.close().unwrap();
}

/// The broker dies under each of them, and close is called while they reconnect.
#[test]
fn clients_of_a_dead_broker_leave_nothing() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    leaves_nothing(&broker, |number| {
        let (client, producer, consumer) = used(Client::builder(broker.service_url()));
        broker.stop();
        let pending = producer.submit("never stored").unwrap();
        if number % 2 == 0 {
            close_by(Duration::from_millis(100), |limit| client.close_within(limit));
            assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Closed);
        } else {
            close_by(Duration::from_millis(100), |limit| producer.close_within(limit));
            drop((client, producer, consumer));
        }
        broker.restart().unwrap();
    });
}

/// What cannot be created leaves nothing either.
#[test]
fn failed_creations_leave_nothing() {
    let _alone = alone();
    let broker = Broker::start().unwrap();
    broker.silence(true);
    leaves_nothing(&broker, |_| {
        let limit = Duration::from_millis(50);
        let client =
            Client::builder(broker.service_url()).connection_timeout(limit).operation_timeout(limit).build().unwrap();
        assert_eq!(client.producer("t").create().unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(client.consumer("t", "s").subscribe().unwrap_err().kind(), ErrorKind::Timeout);
        client.close().unwrap();
    });
}
