//! What callbacks may do: be slow, panic, and use their own producer and client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::pulsar::{Client, Producer};
use threadmq::testkit::pulsar::{Broker, EventKind};

use super::answers::{Answers, MOMENT, PATIENCE, eventually};
use super::{Door, assert_in_time, bodies, client};

#[test]
fn callbacks_that_block_hold_up_nobody_elses_answers() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let timeout = Duration::from_secs(1);
    let slow = [client.producer("slow-0").create().unwrap(), client.producer("slow-1").create().unwrap()];
    let other = client.producer("other").send_timeout(Some(timeout)).create().unwrap();
    // Every callback thread is inside user code.
    let mut door = Door::new();
    for producer in &slow {
        let guard = door.guard();
        producer.send_with("0", move |_| guard()).unwrap();
        door.wait_entered();
    }
    let answers = Answers::default();
    slow[0].send_with("1", answers.callback(1)).unwrap();

    other.send("links are alive").unwrap();
    slow[0].send("even of the producer itself").unwrap();
    broker.hold_receipts("other");
    let called = Instant::now();
    let pending = other.submit("no receipt").unwrap();
    assert_eq!(other.send("nor this").unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(called, timeout);
    assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_in_time(called, timeout);
    assert!(answers.now().is_empty(), "the callback behind the slow one waits");
    assert!(client.stats().callbacks_waiting >= 1);

    door.open();
    assert!(answers.exactly(1)[0].result.is_ok());
    client.close().unwrap();
}

#[test]
fn a_callback_that_panics_ends_nothing_but_itself() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").max_pending(Some(10)).create().unwrap();
    let answers = Answers::default();
    for number in 0..50 {
        let note = answers.callback(number);
        producer
            .send_with(number.to_string(), move |result| {
                note(result);
                assert!(number % 2 == 0, "a callback of this test panics");
            })
            .unwrap();
    }
    producer.flush().unwrap();
    let all = answers.exactly(50);
    assert!(all.iter().map(|answer| answer.number).eq(0..50));
    assert!(all.iter().all(|answer| answer.result.is_ok()));
    assert_eq!(producer.pending(), 0, "permits of callbacks that panicked");
    client.close().unwrap();
}

/// Sends the next number from the callback of the one before.
fn chain(producer: Producer, answers: Answers, number: usize, end: usize) {
    let note = answers.callback(number);
    let next = producer.clone();
    producer
        .send_with(number.to_string(), move |result| {
            note(result);
            if number + 1 < end {
                chain(next, answers, number + 1, end);
            }
        })
        .unwrap();
}

#[test]
fn a_callback_sends_on_its_own_producer() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").max_pending(Some(2)).create().unwrap();
    let answers = Answers::default();
    chain(producer.clone(), answers.clone(), 0, 200);
    assert!(answers.exactly(200).iter().map(|answer| answer.number).eq(0..200));
    assert_eq!(bodies(&broker, "t").len(), 200);
    client.close().unwrap();
}

#[test]
fn a_callback_without_room_gets_its_message_back() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").max_pending(Some(1)).create().unwrap();
    let (told, answered) = mpsc::channel();
    let own = producer.clone();
    producer
        .send_with("first", move |result| {
            result.unwrap();
            // Its own permit comes back when it has returned.
            let asynchronous = own.send_with("second", |_| panic!("refused, so never called")).unwrap_err();
            let blocking = own.send("third").unwrap_err();
            let later = own.submit("fourth").unwrap_err();
            told.send([asynchronous, blocking, later]).unwrap();
        })
        .unwrap();
    let refused = answered.recv_timeout(PATIENCE).unwrap();
    for (error, body) in refused.into_iter().zip(["second", "third", "fourth"]) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let (_, message) = error.into_parts();
        producer.send(message.expect("given back")).unwrap();
        assert_eq!(bodies(&broker, "t").last().unwrap(), body);
    }
    client.close().unwrap();
}

#[test]
fn callbacks_that_send_among_blocked_senders_do_not_deadlock() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").max_pending(Some(4)).create().unwrap();
    let (accepted, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let (accepted_inside, answered_outside) = (Arc::clone(&accepted), Arc::clone(&answered));
                    let own = producer.clone();
                    producer
                        .send_with("outside", move |result| {
                            result.unwrap();
                            answered_outside.fetch_add(1, Ordering::SeqCst);
                            let answered_inside = Arc::clone(&answered_outside);
                            let inside = own.send_with("inside", move |result| {
                                result.unwrap();
                                answered_inside.fetch_add(1, Ordering::SeqCst);
                            });
                            match inside {
                                Ok(()) => drop(accepted_inside.fetch_add(1, Ordering::SeqCst)),
                                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                            }
                        })
                        .unwrap();
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    eventually("all answers", || producer.pending() == 0);
    std::thread::sleep(MOMENT);
    assert_eq!(accepted.load(Ordering::SeqCst), answered.load(Ordering::SeqCst));
    assert_eq!(bodies(&broker, "t").len(), accepted.load(Ordering::SeqCst));
    client.close().unwrap();
}

#[test]
fn every_callback_thread_waits_for_a_blocking_send() {
    let broker = Broker::start().unwrap();
    broker.delay_receipts("0", Duration::from_millis(300));
    broker.delay_receipts("1", Duration::from_millis(300));
    let client = client(&broker);
    let answers = Answers::default();
    for number in 0..2 {
        let producer = client.producer(number.to_string()).create().unwrap();
        let (own, note) = (producer.clone(), answers.callback(number));
        producer.send_with("outside", move |_| note(own.send("inside").map_err(threadmq::Error::from))).unwrap();
    }
    assert!(answers.exactly(2).iter().all(|answer| answer.result.is_ok()));
    assert_eq!(bodies(&broker, "0"), ["outside", "inside"]);
    client.close().unwrap();
}

#[test]
fn a_callback_flushes_its_own_producer() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batch_max_delay(Duration::from_secs(60)).create().unwrap();
    let answers = Answers::default();
    let (told, flushed) = mpsc::channel();
    let (own, inside) = (producer.clone(), answers.clone());
    producer
        .send_with("0", move |result| {
            inside.callback(0)(result);
            // Their callbacks stand behind this one: flush must not wait for them, but for their results.
            inside.send(&own, 1..20);
            let result = own.flush();
            told.send((result, inside.now().len())).unwrap();
        })
        .unwrap();
    producer.flush().unwrap();
    let (result, answered) = flushed.recv_timeout(PATIENCE).unwrap();
    result.unwrap();
    assert_eq!(answered, 1, "callbacks of a lane ran at the same time");
    assert!(answers.exactly(20).iter().map(|answer| answer.number).eq(0..20));
    client.close().unwrap();
}

#[test]
fn a_callback_closes_its_own_producer() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").batch_max_delay(Duration::from_millis(200)).create().unwrap();
    let answers = Answers::default();
    let (told, closed) = mpsc::channel();
    let (own, inside) = (producer.clone(), answers.clone());
    producer
        .send_with("0", move |result| {
            inside.callback(0)(result);
            inside.send(&own, 1..5);
            told.send(own.close()).unwrap();
        })
        .unwrap();
    assert_eq!(closed.recv_timeout(PATIENCE).unwrap().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(producer.send("after").unwrap_err().kind(), ErrorKind::Closed);
    let left = |kind: &EventKind| matches!(kind, EventKind::CloseProducer { .. });
    assert!(broker.wait_for(PATIENCE, |log| log.iter().any(|event| left(&event.kind))), "the close goes on");
    assert!(answers.exactly(5).iter().all(|answer| answer.result.is_ok()), "it flushes first");
    producer.close().unwrap();
    client.close().unwrap();
}

#[test]
fn a_callback_closes_the_client() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let producers = [client.producer("t").create().unwrap(), client.producer("u").create().unwrap()];
    let answers = Answers::default();
    let (told, closed) = mpsc::channel();
    let (own, inside, other) = (client.clone(), answers.clone(), producers[1].clone());
    producers[0]
        .send_with("0", move |result| {
            inside.callback(0)(result);
            inside.send(&other, 1..5);
            told.send(own.close()).unwrap();
        })
        .unwrap();
    assert_eq!(closed.recv_timeout(PATIENCE).unwrap().unwrap_err().kind(), ErrorKind::WouldBlock);
    for producer in &producers {
        assert_eq!(producer.send("after").unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0), "the close goes on");
    assert!(answers.exactly(5).iter().all(|answer| answer.result.is_ok()), "it flushes first");
    client.close().unwrap();
    assert_eq!(client.producer("t").create().unwrap_err().kind(), ErrorKind::Closed);
}

/// The last handles go inside a callback, so that the client ends on one of its own threads.
#[test]
fn a_callback_drops_the_last_handles() {
    let broker = Broker::start().unwrap();
    let client: Client = client(&broker);
    let producer = client.producer("t").create().unwrap();
    let answers = Answers::default();
    let note = answers.callback(0);
    let (go, gone) = mpsc::channel();
    let held = (client.clone(), producer.clone());
    producer
        .send_with("0", move |result| {
            gone.recv_timeout(PATIENCE).unwrap();
            drop(held);
            note(result);
        })
        .unwrap();
    drop((client, producer));
    go.send(()).unwrap();
    assert!(answers.exactly(1)[0].result.is_ok());
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
}
