//! The embedded broker and the real client together: each test is a scenario that the broker plays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Compression, InitialPosition, Message, Producer, ProducerMessage, SubscriptionType};
use threadmq::testkit::pulsar::{Broker, Corruption, Event, EventKind, Request, ServerError};
use threadmq::{ErrorKind, Pending};

/// Longer than anything here takes on a loaded machine; never waited out when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

fn client(broker: &Broker) -> Client {
    Client::builder(broker.service_url()).build().unwrap()
}

fn bodies(broker: &Broker, topic: &str) -> Vec<String> {
    broker.messages(topic).iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn text(message: &Message) -> String {
    String::from_utf8(message.payload().to_vec()).unwrap()
}

fn submit(producer: &Producer, range: std::ops::Range<usize>) -> Vec<Pending<threadmq::pulsar::SendReceipt>> {
    range.map(|number| producer.submit(number.to_string()).unwrap()).collect()
}

fn count(log: &[Event], is_meant: impl Fn(&EventKind) -> bool) -> usize {
    log.iter().filter(|event| is_meant(&event.kind)).count()
}

#[test]
fn messages_arrive_with_all_that_they_carry() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    for (name, compression) in [("plain", Compression::None), ("zstd", Compression::Zstd), ("lz4", Compression::Lz4)] {
        let producer = client.producer(name).compression(compression).create().unwrap();
        let receipt = producer
            .send(ProducerMessage::new("body").key("k").property("a", "1").property("b", "2").ordering_key("o"))
            .unwrap();
        let nothing = producer.send(ProducerMessage::null()).unwrap();
        let stored = broker.messages(name);
        assert_eq!(stored.len(), 2);
        assert_eq!(&stored[0].id, receipt.message_id());
        assert_eq!(&stored[1].id, nothing.message_id());
        assert_eq!(stored[0].payload, "body");
        assert_eq!(stored[0].key.as_deref(), Some("k"));
        assert_eq!(stored[0].ordering_key.as_deref(), Some(&b"o"[..]));
        assert_eq!(stored[0].properties, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert_eq!(stored[0].producer_name, producer.name());
        assert!(stored[1].null_value && !stored[0].null_value);
    }
    client.close().unwrap();
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
}

#[test]
fn partitions_are_consumed_and_acknowledged() {
    let broker = Broker::builder().broker_entry_metadata(true).start().unwrap();
    broker.create_partitioned_topic("p", 3);
    let client = client(&broker);
    let producer = client.producer("p").create().unwrap();
    assert_eq!(producer.partitions(), 3);
    for pending in submit(&producer, 0..300) {
        pending.wait().unwrap();
    }
    let mut stored = bodies(&broker, "p");
    stored.sort_by_key(|body| body.parse::<usize>().unwrap());
    assert_eq!(stored, numbers(0..300));

    let plain = client.producer("t").batching(false).create().unwrap();
    for pending in submit(&plain, 0..20) {
        pending.wait().unwrap();
    }
    let consumer = client
        .consumer("t", "s")
        .subscription_type(SubscriptionType::Shared)
        .initial_position(InitialPosition::Earliest)
        .subscribe()
        .unwrap();
    for number in 0..20 {
        let message = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(text(&message), number.to_string());
        assert!(message.broker_publish_time().is_some());
        consumer.ack(&message).unwrap();
    }
    assert!(broker.wait_for(PATIENCE, |_| broker.acked("t", "s").len() == 20));
    client.close().unwrap();
}

/// Field report 001: sends time out while the client reconnects, and work again when it has.
#[test]
fn sends_during_an_outage_are_answered_in_time() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let timeout = Duration::from_secs(1);
    let producer = client.producer("t").send_timeout(Some(timeout)).create().unwrap();
    producer.send("1").unwrap();
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();
    let (answers, answered) = mpsc::channel();
    let began = Instant::now();
    for _ in 0..5 {
        let answers = answers.clone();
        producer.send_with("x", move |result| answers.send(result.unwrap_err().kind()).unwrap()).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(answered.recv_timeout(PATIENCE), Ok(ErrorKind::Timeout));
        assert!(began.elapsed() >= timeout);
    }
    broker.refuse_connections(false).unwrap();
    let end = Instant::now() + PATIENCE;
    while let Err(error) = producer.send("2") {
        assert!(Instant::now() < end, "{error}");
    }
    assert!(answered.try_recv().is_err(), "answered twice");
    client.close().unwrap();
}

/// Field report 005, 011: flush and close wait for receipts.
#[test]
fn flush_waits_for_late_receipts() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    let delay = Duration::from_millis(300);
    broker.delay_receipts("t", delay);
    let done = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    for _ in 0..5 {
        let done = Arc::clone(&done);
        producer
            .send_with("x", move |result| {
                result.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
    }
    producer.flush().unwrap();
    assert!(began.elapsed() >= delay);
    assert_eq!(done.load(Ordering::SeqCst), 5);
    client.close().unwrap();
}

/// Field report 015: late receipts are not news, a receipt out of turn makes one reconnect.
#[test]
fn late_receipts_do_no_harm() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).send_timeout(Some(Duration::from_secs(2))).create().unwrap();
    broker.hold_receipts("t");
    for pending in submit(&producer, 0..3) {
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Timeout);
    }
    broker.release_receipts("t");
    producer.send("3").unwrap();
    assert_eq!(broker.accepted(), 1, "it reconnected");
    assert_eq!(bodies(&broker, "t"), numbers(0..4));
    client.close().unwrap();
}

/// Field reports 015, 063: a receipt out of turn makes one reconnect, and what has no receipt is sent again.
#[test]
fn a_receipt_out_of_turn_makes_one_reconnect() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    broker.hold_receipts("t");
    let pending = submit(&producer, 0..2);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 2));
    let second = broker.messages("t")[1].sequence_id;
    assert!(broker.release_receipt("t", second));
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 4));
    broker.release_receipts("t");
    for one in pending {
        assert_eq!(one.wait().unwrap().attempts(), 2);
    }
    assert_eq!(broker.accepted(), 2);
    assert_eq!(bodies(&broker, "t"), ["0", "1", "0", "1"]);
    client.close().unwrap();
}

/// Field report 017: after a lost connection the unanswered come first, in order, then what is new.
#[test]
fn unanswered_messages_are_sent_again_in_order() {
    let broker = Broker::builder().deduplication(true).start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").name("me").batching(false).create().unwrap();
    for pending in submit(&producer, 0..10) {
        pending.wait().unwrap();
    }
    broker.hold_receipts("t");
    let mut pending = submit(&producer, 10..15);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 15));
    broker.read_slowly(100_000);
    broker.reset_connections();
    // What was held is dropped with its connection.
    broker.release_receipts("t");
    pending.extend(submit(&producer, 15..200));
    for one in pending {
        one.wait().unwrap();
    }
    assert_eq!(bodies(&broker, "t"), numbers(0..200));
    let second: Vec<u64> = broker
        .log()
        .iter()
        .filter(|event| event.connection > 1)
        .filter_map(|event| match event.kind {
            EventKind::Send { sequence_id, .. } => Some(sequence_id),
            _ => None,
        })
        .collect();
    let first = second[0];
    assert_eq!(second, (first..first + second.len() as u64).collect::<Vec<_>>());
    assert_eq!(second.len(), 190);
    client.close().unwrap();
}

/// Field report 021: a peer that only pings is dead.
#[test]
fn a_broker_that_only_pings_is_left() {
    let broker = Broker::start().unwrap();
    let client = Client::builder(broker.service_url()).keep_alive_interval(Duration::from_secs(1)).build().unwrap();
    let producer = client.producer("t").create().unwrap();
    producer.send("1").unwrap();
    broker.ping_only_connections(Duration::from_millis(500));
    producer.send("2").unwrap();
    assert_eq!(broker.accepted(), 2);
    let closed_by_reset = |log: &[Event]| {
        count(log, |kind| matches!(kind, EventKind::ConnectionClosed { by_reset: true, by_client: true, .. })) == 1
    };
    assert!(broker.wait_for(PATIENCE, closed_by_reset));
    client.close().unwrap();
}

/// Field report 045, and refusals that pass.
#[test]
fn requests_are_tried_again() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    broker.fail_next(Request::Lookup, ServerError::SERVICE_NOT_READY, 1);
    broker.fail_next(Request::Producer, ServerError::SERVICE_NOT_READY, 1);
    broker.ignore_next(Request::Ping, 1);
    client.producer("t").create().unwrap().send("x").unwrap();
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Producer { .. })), 2);
    client.close().unwrap();

    broker.redirect_loop(true);
    let impatient = Client::builder(broker.service_url()).operation_timeout(Duration::from_secs(2)).build().unwrap();
    let before = broker.count(|kind| matches!(kind, EventKind::Lookup { .. }));
    impatient.producer("u").create().unwrap_err();
    let lookups = broker.count(|kind| matches!(kind, EventKind::Lookup { .. })) - before;
    assert!(lookups >= 10, "{lookups}");
    broker.redirect_loop(false);
    impatient.producer("u").create().unwrap();
    impatient.close().unwrap();
}

/// Field report 055: a terminated topic ends the producer at once.
#[test]
fn a_terminated_topic_fails_what_is_pending() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    broker.hold_receipts("t");
    let pending = submit(&producer, 0..10);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 10));
    broker.terminate("t");
    for one in pending {
        let error = one.wait_within();
        assert_eq!(error.code(), Some(ServerError::TOPIC_TERMINATED.code()), "{error}");
    }
    client.close().unwrap();
}

trait WaitWithin {
    fn wait_within(self) -> threadmq::Error;
}

impl<T: std::fmt::Debug> WaitWithin for Pending<T> {
    fn wait_within(mut self) -> threadmq::Error {
        self.wait_timeout(PATIENCE).expect("an answer").unwrap_err()
    }
}

/// Field report 053: nonsense costs a connection or a message, never more.
#[test]
fn nonsense_is_survived() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    for pending in submit(&producer, 0..4) {
        pending.wait().unwrap();
    }
    for corruption in [Corruption::Checksum, Corruption::BatchCount, Corruption::UncompressedSize] {
        broker.corrupt_next_message("t", corruption);
    }
    let consumer = client.consumer("t", "s").initial_position(InitialPosition::Earliest).subscribe().unwrap();
    let message = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(text(&message), "3");
    let given_up =
        |log: &[Event]| count(log, |kind| matches!(kind, EventKind::Ack { validation_error: Some(_), .. })) >= 3;
    assert!(broker.wait_for(PATIENCE, given_up));

    // A command that is larger than its frame ends the connection, and nonsense in place of CONNECTED the next ones.
    broker.answer_connect_with(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1);
    broker.answer_connect_with(&[0x80, 0, 0, 0], 1);
    broker.answer_connect_endlessly(&(100u32 << 20).to_be_bytes(), 1);
    broker.send_raw(&[0, 0, 0, 8, 255, 255, 255, 255, 0, 0, 0, 0]);
    producer.send("after").unwrap();
    assert_eq!(broker.accepted(), 5);
    client.close().unwrap();
}

#[test]
fn a_restart_without_memory_is_survived() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    producer.send("old").unwrap();
    assert_eq!(text(&consumer.receive_timeout(PATIENCE).unwrap().unwrap()), "old");
    broker.restart_empty().unwrap();
    // The subscription is new then, and begins with what comes after it.
    let subscribed = |log: &[Event]| count(log, |kind| matches!(kind, EventKind::Subscribe { .. })) == 2;
    assert!(broker.wait_for(PATIENCE, subscribed));
    producer.send("new").unwrap();
    assert_eq!(text(&consumer.receive_timeout(PATIENCE).unwrap().unwrap()), "new");
    client.close().unwrap();
}

/// The broker reads nothing more, so nobody confirms that the producer left. The close with the shorter limit must not
/// end the threads that the loop needs to answer the other.
#[test]
fn two_closes_at_once_both_end_with_the_earlier_limit() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    producer.send("one").unwrap();
    broker.freeze_reads(true);
    let started = Instant::now();
    let patient = {
        let client = client.clone();
        std::thread::spawn(move || client.close_within(Duration::from_secs(120)))
    };
    while producer.try_submit("two").err().is_none_or(|error| error.kind() != ErrorKind::Closed) {
        std::thread::yield_now();
    }
    client.close_within(Duration::from_secs(1)).unwrap();
    patient.join().unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn limits_beyond_the_clock_are_no_panic() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    producer.send("one").unwrap();
    producer.flush_within(Duration::MAX).unwrap();
    producer.close_within(Duration::MAX).unwrap();
    consumer.close_within(Duration::MAX).unwrap();
    client.close_within(Duration::MAX).unwrap();
    assert_eq!(client.partitions("t").unwrap_err().kind(), ErrorKind::Closed);
}
