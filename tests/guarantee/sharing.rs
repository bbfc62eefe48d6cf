//! Two clients with the same threads.

use std::time::{Duration, Instant};

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::Broker;
use threadmq::{ErrorKind, Threads};

use super::answers::{Answers, close_by};
use super::{Door, assert_in_time, bodies};

#[test]
fn clients_share_threads_and_nothing_else() {
    let (first, second) = (Broker::start().unwrap(), Broker::start().unwrap());
    let threads = Threads::builder().build().unwrap();
    let client = |broker: &Broker| Client::builder(broker.service_url()).threads(&threads).build().unwrap();
    let clients = [client(&first), client(&second)];
    let timeout = Duration::from_secs(1);
    let create = |client: &Client| client.producer("t").send_timeout(Some(timeout)).create().unwrap();
    let producers = [create(&clients[0]), create(&clients[1])];
    let answers = Answers::default();
    for (index, producer) in producers.iter().enumerate() {
        answers.send(producer, index * 100..index * 100 + 100);
        producer.flush().unwrap();
    }
    answers.exactly(200);
    assert_eq!((bodies(&first, "t").len(), bodies(&second, "t").len()), (100, 100));

    // One broker is silent: its client's sends time out, the other's do not notice.
    first.silence(true);
    let called = Instant::now();
    let pending = producers[0].submit("lost").unwrap();
    producers[1].send("stored").unwrap();
    assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(called, timeout);

    // One client's callbacks hold all threads: answers of the other come straight from its loop.
    let mut door = Door::new();
    let other_lane = clients[1].producer("u").create().unwrap();
    for producer in [&producers[1], &other_lane] {
        let guard = door.guard();
        producer.send_with("slow", move |_| guard()).unwrap();
        door.wait_entered();
    }
    let called = Instant::now();
    assert_eq!(producers[0].send("lost").unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(called, timeout);

    // A client that closes leaves the threads to the other.
    close_by(timeout, |limit| clients[0].close_within(limit));
    door.open();
    let late = Answers::default();
    late.send(&producers[1], 0..10);
    producers[1].flush().unwrap();
    late.exactly(10);
    clients[1].close().unwrap();
    // And they serve a third that comes afterwards.
    let third = client(&second);
    third.producer("t").create().unwrap().send("third").unwrap();
    third.close().unwrap();
}
