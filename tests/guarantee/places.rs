//! Wherever a message waits, its time ends: one test a place.

use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Producer, ProducerBuilder};
use threadmq::testkit::pulsar::Broker;
use threadmq::testkit::{Direction, Network};
use threadmq::{Delivery, ErrorKind};

use super::answers::{Answers, MOMENT, PATIENCE, eventually};
use super::{Door, SLACK, assert_in_time, bodies, client};

const TIMEOUT: Duration = Duration::from_secs(1);

fn hasty(client: &Client, more: impl FnOnce(ProducerBuilder) -> ProducerBuilder) -> Producer {
    more(client.producer("t").send_timeout(Some(TIMEOUT))).create().unwrap()
}

/// A blocking send, a callback and a `Pending` time out, once each and with this fate.
fn all_kinds_time_out(producer: &Producer, delivery: Delivery) {
    let answers = Answers::default();
    let called = Instant::now();
    answers.send(producer, 0..3);
    let pending = producer.submit("3").unwrap();
    let error = producer.send("4").unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, delivery), "{error}");
    assert!(error.message().is_none(), "it was accepted");
    let error = pending.wait().unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, delivery), "{error}");
    for answer in answers.exactly(3) {
        assert!(answer.after >= TIMEOUT && answer.after < TIMEOUT + SLACK, "{answer:?}");
        let error = answer.result.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, delivery), "{error}");
    }
}

#[test]
fn waiting_for_a_permit() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = hasty(&client, |builder| builder.max_pending(Some(1)));
    // A callback that has not returned keeps its permit.
    let mut door = Door::new();
    let guard = door.guard();
    producer.send_with("0", move |_| guard()).unwrap();
    door.wait_entered();
    let called = Instant::now();
    let error = producer.send("in line").unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent));
    let (_, message) = error.into_parts();
    let message = message.expect("it was not accepted");
    assert_eq!(message.payload(), "in line");
    let error = producer.send_with(message, |_| panic!("refused, so never called")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    door.open();
    producer.send(error.into_parts().1.unwrap()).unwrap();
    assert_eq!(bodies(&broker, "t"), ["0", "in line"]);
    client.close().unwrap();
}

#[test]
fn waiting_for_memory_while_the_link_is_down() {
    const KIB: usize = 1024;
    let broker = Broker::start().unwrap();
    let client = Client::builder(broker.service_url()).memory_limit(Some(64 * KIB)).build().unwrap();
    let patient = [client.producer("p").create().unwrap(), client.producer("q").create().unwrap()];
    let producer = hasty(&client, |builder| builder);
    let mut door = Door::new();
    let guard = door.guard();
    producer.send_with("first", move |_| guard()).unwrap();
    door.wait_entered();
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();
    let mut pending = Vec::new();
    for producer in &patient {
        while let Ok(one) = producer.try_submit(vec![b'm'; KIB - 256]) {
            pending.push(one);
        }
    }
    assert_eq!(pending.len(), 63, "all but what the first message takes");
    let called = Instant::now();
    let error = producer.send(vec![b'x'; KIB]).unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent));
    assert!(error.message().is_some(), "it was not accepted");
    broker.refuse_connections(false).unwrap();
    for one in pending {
        one.wait().unwrap();
    }
    door.open();
    producer.send(error.into_parts().1.unwrap()).unwrap();
    client.close().unwrap();
}

#[test]
fn in_a_batch() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = hasty(&client, |builder| builder.batch_max_delay(Duration::from_secs(60)));
    let answers = Answers::default();
    answers.send(&producer, 0..3);
    let called = Instant::now();
    let error = producer.submit("3").unwrap().wait().unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent));
    for answer in answers.exactly(3) {
        let error = answer.result.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent));
    }
    // What is in the batch now goes; what was told NotSent is out of it.
    producer.send("4").unwrap();
    producer.close().unwrap();
    assert_eq!(bodies(&broker, "t"), ["4"]);
    client.close().unwrap();
}

#[test]
fn unsent_because_the_link_is_down() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = hasty(&client, |builder| builder);
    producer.send("before").unwrap();
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();
    // A send that comes before the loss is known may be written.
    let lost = || producer.send("probe").is_err_and(|error| error.delivery() == Delivery::NotSent);
    eventually("the loss is known", lost);
    all_kinds_time_out(&producer, Delivery::NotSent);
    broker.refuse_connections(false).unwrap();
    eventually("recovery", || producer.send("after").is_ok());
    std::thread::sleep(MOMENT);
    let stored = bodies(&broker, "t");
    assert!(stored.iter().all(|body| ["before", "after"].contains(&body.as_str())), "{stored:?}");
    client.close().unwrap();
}

#[test]
fn behind_a_link_that_takes_nothing() {
    let broker = Broker::builder().receive_buffer(4096).start().unwrap();
    let client = client(&broker);
    // A second producer on the same link fills it up.
    let bulk = client.producer("bulk").batching(false).create().unwrap();
    let producer = hasty(&client, |builder| builder);
    broker.freeze_reads(true);
    let pending: Vec<_> = (0..20).map(|_| bulk.submit(vec![b'm'; 1024 * 1024]).unwrap()).collect();
    let answers = Answers::default();
    let called = Instant::now();
    answers.send(&producer, 0..3);
    let error = producer.send("3").unwrap_err();
    assert_in_time(called, TIMEOUT);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let told = answers.exactly(3);
    assert!(told.iter().all(|answer| answer.kind() == Some(ErrorKind::Timeout)), "{told:?}");
    broker.freeze_reads(false);
    for one in pending {
        one.wait().unwrap();
    }
    client.close().unwrap();
    let stored = bodies(&broker, "t");
    for answer in told {
        let unsent = answer.result.is_err_and(|error| error.delivery() == Delivery::NotSent);
        assert!(!unsent || !stored.contains(&answer.number.to_string()), "{} was told NotSent", answer.number);
    }
}

#[test]
fn written_and_unanswered() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = hasty(&client, |builder| builder);
    broker.hold_receipts("t");
    all_kinds_time_out(&producer, Delivery::Unknown);
    assert_eq!(broker.accepted(), 1, "a broker that answers pings is not left");
    broker.release_receipts("t");
    producer.send("5").unwrap();
    assert_eq!(bodies(&broker, "t"), ["0", "1", "2", "3", "4", "5"]);
    client.close().unwrap();
}

#[test]
fn being_resent() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let timeout = TIMEOUT * 3;
    let producer = client.producer("t").send_timeout(Some(timeout)).batching(false).create().unwrap();
    broker.hold_receipts("t");
    let answers = Answers::default();
    answers.send(&producer, 0..3);
    let called = Instant::now();
    let pending = producer.submit("3").unwrap();
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 4));
    // Each time that all are written the link is lost.
    let mut rounds = 0;
    while called.elapsed() < timeout {
        let sends = broker.sends();
        broker.reset_connections();
        if broker.wait_for(timeout.saturating_sub(called.elapsed()), |_| broker.sends() >= sends + 4) {
            rounds += 1;
        }
    }
    assert!(rounds >= 2, "it was never resent");
    let error = pending.wait().unwrap_err();
    assert_in_time(called, timeout);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    for answer in answers.exactly(3) {
        let error = answer.result.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    }
    broker.release_receipts("t");
    eventually("recovery", || producer.send("after").is_ok());
    client.close().unwrap();
}

#[test]
fn in_a_network_that_swallows_everything() {
    let broker = Broker::start().unwrap();
    let network = Network::start(broker.address()).unwrap();
    broker.advertise(&network.url());
    let client = Client::builder(network.url()).build().unwrap();
    let producer = hasty(&client, |builder| builder);
    producer.send("before").unwrap();
    let passed = network.forwarded(Direction::ToServer);
    network.half_open();
    all_kinds_time_out(&producer, Delivery::Unknown);
    assert_eq!(network.forwarded(Direction::ToServer), passed);
    // The dead link is found by evidence and replaced.
    let began = Instant::now();
    eventually("recovery", || producer.send("after").is_ok());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    client.close().unwrap();
}

#[test]
fn while_the_broker_refuses_the_producer() {
    use threadmq::testkit::pulsar::{Request, ServerError};
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = hasty(&client, |builder| builder);
    broker.fail_next(Request::Producer, ServerError::SERVICE_NOT_READY, 1_000_000);
    broker.reset_connections();
    let lost = || producer.send("probe").is_err_and(|error| error.delivery() == Delivery::NotSent);
    eventually("the loss is known", lost);
    all_kinds_time_out(&producer, Delivery::NotSent);
    broker.clear_requests();
    eventually("recovery", || producer.send("after").is_ok());
    assert!(broker.wait_for(PATIENCE, |_| bodies(&broker, "t").last().is_some_and(|body| body == "after")));
    client.close().unwrap();
}
