//! Honest: what an error says about the message holds at the broker.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Producer, ProducerBuilder};
use threadmq::testkit::pulsar::{Broker, ServerError};
use threadmq::{Delivery, ErrorKind};

use super::answers::{Answer, Answers, close_by, eventually};
use super::{bodies, client};

/// What was told of each message, against what the broker has.
fn compare(told: &[Answer], stored: &[String]) {
    let there: BTreeSet<&str> = stored.iter().map(String::as_str).collect();
    for answer in told {
        let has = there.contains(answer.number.to_string().as_str());
        match answer.result.as_ref().map_err(threadmq::Error::delivery) {
            Ok(_) => assert!(has, "{} was told stored", answer.number),
            Err(Delivery::NotSent | Delivery::Refused) => assert!(!has, "{answer:?} is stored"),
            Err(Delivery::Unknown) => {}
        }
    }
    // First copies are in send order, which is that of the numbers.
    let mut seen = BTreeSet::new();
    let firsts: Vec<usize> =
        stored.iter().filter(|body| seen.insert(body.as_str())).map(|body| body.parse().unwrap()).collect();
    assert!(firsts.windows(2).all(|pair| pair[0] < pair[1]), "stored out of order");
}

/// Sends through all kinds of faults, then compares.
fn through_faults(more: impl Fn(ProducerBuilder) -> ProducerBuilder) {
    let broker = Broker::builder().receive_buffer(16 * 1024).start().unwrap();
    let client = Client::builder(broker.service_url()).keep_alive_interval(Duration::from_secs(1)).build().unwrap();
    let timeout = Duration::from_millis(400);
    let producer: Producer =
        more(client.producer("t").send_timeout(Some(timeout)).max_pending(Some(200))).create().unwrap();
    let answers = Answers::default();
    let over = AtomicBool::new(false);
    let mut accepted = 0;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                match producer.send_with(number.to_string(), answers.callback(number)) {
                    Ok(()) => number += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Timeout);
                        assert!(error.message().is_some());
                    }
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            number
        });
        // The pauses are the faults' own length; nothing is asserted about what falls into them.
        let pause = |millis| std::thread::sleep(Duration::from_millis(millis));
        for round in 0..4 {
            pause(100);
            broker.reset_connections();
            pause(100);
            broker.hold_receipts("t");
            pause(if round % 2 == 0 { 200 } else { 600 });
            broker.release_receipts("t");
            pause(50);
            broker.refuse_connections(true).unwrap();
            broker.drop_connections();
            pause(if round % 2 == 0 { 200 } else { 700 });
            broker.refuse_connections(false).unwrap();
            pause(100);
            broker.freeze_reads(true);
            pause(500);
            broker.freeze_reads(false);
            pause(50);
            // No refusals here: one that is lost with its link lets the message be stored behind its successors when
            // it is sent again, and no client can help that.
            broker.drop_receipts("t", 1);
            pause(50);
            broker.close_producers("t", None);
        }
        let end = Instant::now() + super::answers::PATIENCE;
        let stored = broker.sends();
        while broker.sends() < stored + 10 {
            assert!(Instant::now() < end, "no recovery");
            pause(20);
        }
        over.store(true, Ordering::SeqCst);
        accepted = sender.join().unwrap();
    });
    client.close().unwrap();
    let told = answers.exactly(accepted);
    assert!(told.iter().map(|answer| answer.number).eq(0..accepted), "callbacks out of order");
    // Nothing is on its way any more once every connection has ended.
    eventually("all connections are over", || broker.connections() == 0);
    compare(&told, &bodies(&broker, "t"));
    let count = |fate| told.iter().filter(|answer| answer.result.as_ref().is_err_and(|e| e.delivery() == fate)).count();
    let stored = told.iter().filter(|answer| answer.result.is_ok()).count();
    println!(
        "{accepted} sent: {stored} stored, {} not sent, {} refused, {} unknown",
        count(Delivery::NotSent),
        count(Delivery::Refused),
        count(Delivery::Unknown)
    );
    assert!(stored > 0 && count(Delivery::NotSent) > 0 && count(Delivery::Unknown) > 0, "the faults did not bite");
}

#[test]
fn errors_are_true_with_batches() {
    through_faults(|builder| builder.batch_max_delay(Duration::from_millis(5)));
}

#[test]
fn errors_are_true_without_batches() {
    through_faults(|builder| builder.batching(false));
}

#[test]
fn a_refused_message_is_not_stored() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    broker.answer_send_with("t", 1, ServerError::NOT_ALLOWED);
    let error = producer.send("refused").unwrap_err();
    assert_eq!((error.delivery(), error.error().code()), (Delivery::Refused, Some(ServerError::NOT_ALLOWED.code())));
    assert!(error.message().is_none(), "it was accepted");
    producer.send("stored").unwrap();
    assert_eq!(bodies(&broker, "t"), ["stored"]);
    client.close().unwrap();
}

/// An earlier attempt may have been stored: over several the worst fate counts.
#[test]
fn a_refusal_after_a_resend_is_in_doubt() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    broker.hold_receipts("t");
    let pending = producer.submit("x").unwrap();
    eventually("written", || broker.sends() == 1);
    broker.answer_send_with("t", 1, ServerError::NOT_ALLOWED);
    broker.reset_connections();
    let error = pending.wait().unwrap_err();
    assert_eq!((error.delivery(), error.code()), (Delivery::Unknown, Some(ServerError::NOT_ALLOWED.code())));
    assert_eq!(bodies(&broker, "t"), ["x"]);
    broker.release_receipts("t");
    client.close().unwrap();
}

#[test]
fn a_close_is_honest_too() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    broker.hold_receipts("t");
    let written = producer.submit("written").unwrap();
    eventually("written", || broker.sends() == 1);
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();
    eventually("the loss is known", || broker.connections() == 0);
    let limit = Duration::from_secs(1);
    let unsent = producer.submit("unsent").unwrap();
    close_by(limit, |limit| producer.close_within(limit));
    let error = written.wait().unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Closed, Delivery::Unknown));
    let error = unsent.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    broker.refuse_connections(false).unwrap();
    client.close().unwrap();
    assert_eq!(bodies(&broker, "t"), ["written"]);
}
