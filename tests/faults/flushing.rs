//! Flush waits, and tells.

use std::time::{Duration, Instant};

use threadmq::testkit::pulsar::{Broker, ServerError};
use threadmq::{Delivery, ErrorKind};

use super::answers::Answers;
use super::client;

/// Field report 005.
#[test]
fn flush_waits_for_receipts_without_batching() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    let delay = Duration::from_millis(500);
    broker.delay_receipts("t", delay);
    let answers = Answers::default();
    let began = Instant::now();
    answers.send(&producer, 0..5);
    producer.flush().unwrap();
    assert!(began.elapsed() >= delay);
    assert_eq!(answers.now().len(), 5, "before flush returned");
    producer.close().unwrap();
    assert!(answers.exactly(5).iter().all(|answer| answer.result.is_ok()));
    client.close().unwrap();
}

/// Field report 005, with a failure.
#[test]
fn flush_tells_of_a_refused_message() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batching(false).create().unwrap();
    broker.delay_receipts("t", Duration::from_millis(200));
    broker.answer_send_with("t", 3, ServerError::NOT_ALLOWED);
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    let error = producer.flush().unwrap_err();
    assert_eq!(error.code(), Some(ServerError::NOT_ALLOWED.code()), "{error}");
    assert_eq!(answers.now().len(), 5, "before flush returned");
    for answer in answers.exactly(5) {
        let refused = answer.result.as_ref().err().map(|error| (error.code(), error.delivery()));
        let expected = (answer.number == 2).then_some((Some(ServerError::NOT_ALLOWED.code()), Delivery::Refused));
        assert_eq!(refused, expected, "{answer:?}");
    }
    producer.flush().unwrap();
    producer.close().unwrap();
    assert_eq!(producer.flush().unwrap_err().kind(), ErrorKind::Closed);
    client.close().unwrap();
}
