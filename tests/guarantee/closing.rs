//! To the end: close, flush and drop with everything in between.

use std::time::{Duration, Instant};

use threadmq::pulsar::{Producer, ProducerMessage};
use threadmq::testkit::pulsar::Broker;
use threadmq::{Delivery, ErrorKind};

use super::answers::{Answers, MOMENT, PATIENCE, close_by, eventually};
use super::{Door, SLACK, assert_in_time, bodies, client};

const LIMIT: Duration = Duration::from_secs(1);

/// Closes, and it takes no longer than the limit.
fn close_in_time(close: impl Fn(Duration) -> Result<(), threadmq::Error>) {
    let began = Instant::now();
    close_by(LIMIT, close);
    assert!(began.elapsed() < LIMIT + SLACK, "{:?}", began.elapsed());
}

/// Threads that stand in line for a permit, each with a message of its own, until they are told something.
fn blocked_senders(producer: &Producer, count: usize) -> Vec<std::thread::JoinHandle<ProducerMessage>> {
    let threads = (0..count).map(|number| {
        let producer = producer.clone();
        std::thread::spawn(move || {
            let error = producer.send(format!("in line {number}")).unwrap_err();
            assert_eq!((error.kind(), error.delivery()), (ErrorKind::Closed, Delivery::NotSent));
            error.into_parts().1.expect("it was not accepted")
        })
    });
    threads.collect()
}

#[test]
fn a_silent_broker_does_not_hold_up_a_close() {
    for of_client in [false, true] {
        let broker = Broker::start().unwrap();
        let client = client(&broker);
        let producer = client.producer("t").max_pending(Some(3)).create().unwrap();
        broker.silence(true);
        let answers = Answers::default();
        answers.send(&producer, 0..2);
        let pending = producer.submit("pending").unwrap();
        let senders = blocked_senders(&producer, 4);
        // One that comes after the close is refused in the same way.
        std::thread::sleep(Duration::from_millis(200));
        close_in_time(|limit| if of_client { client.close_within(limit) } else { producer.close_within(limit) });
        assert_eq!(answers.now().len(), 2, "close said that all is answered");
        for answer in answers.exactly(2) {
            assert_eq!(answer.kind(), Some(ErrorKind::Closed));
        }
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Closed);
        for sender in senders {
            assert!(sender.join().unwrap().payload().starts_with(b"in line"));
        }
        assert_eq!(producer.send("after").unwrap_err().kind(), ErrorKind::Closed);
        close_in_time(|limit| client.close_within(limit));
        close_in_time(|limit| client.close_within(limit));
    }
}

#[test]
fn a_reconnection_does_not_hold_up_a_close() {
    for of_client in [false, true] {
        let broker = Broker::start().unwrap();
        let client = client(&broker);
        let producer = client.producer("t").max_pending(Some(3)).create().unwrap();
        broker.refuse_connections(true).unwrap();
        broker.reset_connections();
        let answers = Answers::default();
        answers.send(&producer, 0..3);
        let senders = blocked_senders(&producer, 2);
        close_in_time(|limit| if of_client { client.close_within(limit) } else { producer.close_within(limit) });
        assert_eq!(answers.now().len(), 3, "close said that all is answered");
        for answer in answers.exactly(3) {
            let error = answer.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
        for sender in senders {
            sender.join().unwrap();
        }
        close_in_time(|limit| client.close_within(limit));
    }
}

#[test]
fn closes_of_several_threads_end_together() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    broker.silence(true);
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    let began = Instant::now();
    std::thread::scope(|scope| {
        // The earliest limit governs.
        for limit in [LIMIT, LIMIT * 60, LIMIT * 60] {
            let producer = &producer;
            scope.spawn(move || close_by(limit, |limit| producer.close_within(limit)));
        }
        for limit in [LIMIT, LIMIT * 60] {
            let client = &client;
            scope.spawn(move || close_by(limit, |limit| client.close_within(limit)));
        }
    });
    assert!(began.elapsed() < LIMIT + SLACK, "{:?}", began.elapsed());
    for answer in answers.exactly(5) {
        assert_eq!(answer.kind(), Some(ErrorKind::Closed));
    }
}

#[test]
fn a_later_close_of_the_client_with_less_time_governs() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    broker.silence(true);
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| close_by(LIMIT * 20, |limit| client.close_within(limit)));
        eventually("closed", || producer.send("x").is_err_and(|error| error.kind() == ErrorKind::Closed));
        close_in_time(|limit| client.close_within(limit));
        patient.join().unwrap();
    });
    assert_eq!(answers.exactly(5)[0].kind(), Some(ErrorKind::Closed));
}

/// Nothing is pending, so that the second close finds nothing to wait for but the first.
#[test]
fn a_second_close_of_the_client_does_not_cut_off_the_first() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let _producer = client.producer("t").create().unwrap();
    let _consumer = client.consumer("t", "s").subscribe().unwrap();
    broker.silence(true);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| close_by(LIMIT * 3, |limit| client.close_within(limit)));
        eventually("closed", || client.producer("t").create().is_err_and(|error| error.kind() == ErrorKind::Closed));
        close_in_time(|limit| client.close_within(limit));
        assert_eq!(broker.connections(), 0, "a close that said that all is over");
        first.join().unwrap();
    });
}

#[test]
fn callbacks_that_outlive_a_close_are_counted_and_run() {
    for of_client in [false, true] {
        let broker = Broker::start().unwrap();
        let client = client(&broker);
        let producer = client.producer("t").create().unwrap();
        let answers = Answers::default();
        let mut door = Door::new();
        let (guard, note) = (door.guard(), answers.callback(0));
        producer
            .send_with("0", move |result| {
                guard();
                note(result);
            })
            .unwrap();
        door.wait_entered();
        answers.send(&producer, 1..5);
        let began = Instant::now();
        let closed = if of_client { client.close_within(LIMIT) } else { producer.close_within(LIMIT) };
        let error = closed.unwrap_err();
        assert_in_time(began, LIMIT);
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("5 callbacks"), "{error}");
        assert!(answers.now().is_empty());
        door.open();
        let told = answers.exactly(5);
        assert!(told.iter().map(|answer| answer.number).eq(0..5));
        assert!(told.iter().all(|answer| answer.result.is_ok()), "they were stored in time");
        producer.close_within(LIMIT).unwrap();
        client.close().unwrap();
    }
}

#[test]
fn a_flush_that_times_out_changes_nothing() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    broker.hold_receipts("t");
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    let began = Instant::now();
    assert_eq!(producer.flush_within(LIMIT).unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(began, LIMIT);
    assert!(answers.now().is_empty());
    answers.send(&producer, 5..10);
    assert!(broker.wait_for(PATIENCE, |_| broker.received() == 10));
    broker.release_receipts("t");
    producer.flush().unwrap();
    assert!(answers.exactly(10).iter().all(|answer| answer.result.is_ok()));
    client.close().unwrap();
}

#[test]
fn limits_without_end_are_limits() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    producer.send("x").unwrap();
    producer.flush_within(Duration::MAX).unwrap();
    assert!(consumer.receive_timeout(Duration::MAX).unwrap().is_some());
    consumer.close_within(Duration::MAX).unwrap();
    producer.close_within(Duration::MAX).unwrap();
    client.close_within(Duration::MAX).unwrap();
}

#[test]
fn limits_of_nothing_are_kept() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let consumer = client.consumer("t", "s").subscribe().unwrap();
    broker.silence(true);
    let answers = Answers::default();
    answers.send(&producer, 0..3);
    assert_eq!(producer.flush_within(Duration::ZERO).unwrap_err().kind(), ErrorKind::Timeout);
    let began = Instant::now();
    consumer.close_within(Duration::ZERO).unwrap();
    // Whether all callbacks have returned by then is a race that both may win.
    let _ = producer.close_within(Duration::ZERO);
    let _ = client.close_within(Duration::ZERO);
    assert!(began.elapsed() < SLACK, "{:?}", began.elapsed());
    for answer in answers.exactly(3) {
        assert_eq!(answer.kind(), Some(ErrorKind::Closed));
    }
    client.close().unwrap();
}

/// A loaded machine may start callbacks a little after the limit of a close: they are waited for, not reported.
#[test]
fn callbacks_that_are_on_the_way_at_the_limit_are_waited_for() {
    for of_client in [false, true] {
        // This machine may be so busy that even the grace is too short, but not each time.
        let told = (0..20).find_map(|_| {
            let broker = Broker::start().unwrap();
            let client = client(&broker);
            let producer = client.producer("t").create().unwrap();
            broker.silence(true);
            let (done, returned) = std::sync::mpsc::channel();
            producer
                .send_with("0", move |_| {
                    std::thread::sleep(Duration::from_millis(30));
                    done.send(()).unwrap();
                })
                .unwrap();
            let limit = Duration::ZERO;
            let closed = if of_client { client.close_within(limit) } else { producer.close_within(limit) };
            let over = returned.try_recv().is_ok();
            client.close().unwrap();
            closed.ok().map(|()| over)
        });
        assert_eq!(told, Some(true), "close said that all is over, and it was");
    }
}

#[test]
fn dropped_handles_leave_nothing_unanswered() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    broker.hold_receipts("t");
    let answers = Answers::default();
    answers.send(&producer, 0..5);
    let pending = producer.submit("pending").unwrap();
    drop((producer, client));
    assert!(broker.wait_for(PATIENCE, |_| broker.received() == 6), "the drop flushes");
    std::thread::sleep(MOMENT);
    assert!(answers.now().is_empty());
    broker.release_receipts("t");
    assert!(answers.exactly(5).iter().all(|answer| answer.result.is_ok()));
    pending.wait().unwrap();
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
    assert_eq!(bodies(&broker, "t").len(), 6);
}

#[test]
fn dropped_handles_keep_their_timeouts() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let timeout = Duration::from_secs(1);
    let producer = client.producer("t").send_timeout(Some(timeout)).create().unwrap();
    broker.silence(true);
    let answers = Answers::default();
    let called = Instant::now();
    answers.send(&producer, 0..5);
    let pending = producer.submit("pending").unwrap();
    drop((producer, client));
    assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(called, timeout);
    for answer in answers.exactly(5) {
        assert_eq!(answer.kind(), Some(ErrorKind::Timeout));
    }
}
