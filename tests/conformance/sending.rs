//! The ways to send, their order, and what flush and close wait for.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::pulsar::ProducerMessage;

use crate::target::{PATIENCE, client, next, numbers, reader, text, texts, topic};

#[test]
fn callbacks_run_once_each_in_send_order() {
    for batching in [true, false] {
        let client = client();
        let topic = topic("callbacks");
        let consumer = reader(&client, &topic);
        let producer = client.producer(&topic).batching(batching).create().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for number in 0..3000usize {
            let seen = Arc::clone(&seen);
            producer
                .send_with(number.to_string(), move |result| seen.lock().unwrap().push((number, result.is_ok())))
                .unwrap();
        }
        producer.flush().unwrap();
        // Flush returned, so every callback had.
        let expected: Vec<_> = (0..3000).map(|number| (number, true)).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(texts(&consumer, 3000), numbers(3000));
        assert_eq!(producer.pending(), 0);
        client.close().unwrap();
    }
}

#[test]
fn submit_and_try_submit_resolve_to_receipts() {
    let client = client();
    let producer = client.producer(topic("submit")).create().unwrap();
    let mut one = producer.submit("one").unwrap();
    let two = producer.try_submit("two").unwrap();
    let one = one.wait_timeout(PATIENCE).expect("in time").unwrap();
    let two = two.wait().unwrap();
    assert!(one.sequence_id() < two.sequence_id());
    assert!(one.message_id() < two.message_id());
    client.close().unwrap();
}

#[test]
fn messages_sent_together_share_a_batch_and_singles_do_not() {
    let client = client();
    let topic = topic("batch");
    let batched = client.producer(&topic).batch_max_delay(Duration::from_secs(10)).create().unwrap();
    let pending: Vec<_> = (0..10).map(|number| batched.submit(number.to_string()).unwrap()).collect();
    batched.flush().unwrap();
    let ids: Vec<_> = pending.into_iter().map(|one| one.wait().unwrap().message_id().clone()).collect();
    assert!(ids.iter().all(|id| id.entry_id() == ids[0].entry_id()), "{ids:?}");
    assert_eq!(ids.iter().map(|id| id.batch_index()).collect::<Vec<_>>(), (0..10).map(Some).collect::<Vec<_>>());
    let alone = client.producer(&topic).batching(false).create().unwrap();
    let pending: Vec<_> = (0..10).map(|number| alone.submit(number.to_string()).unwrap()).collect();
    let entries: Vec<_> = pending.into_iter().map(|one| one.wait().unwrap().message_id().entry_id()).collect();
    assert!(entries.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{entries:?}");
    client.close().unwrap();
}

#[test]
fn a_full_batch_leaves_before_its_delay_and_a_blocking_send_flushes_its_batch() {
    let client = client();
    let producer = client
        .producer(topic("full"))
        .batch_max_delay(Duration::from_secs(60))
        .batch_max_messages(10)
        .create()
        .unwrap();
    let started = Instant::now();
    let pending: Vec<_> = (0..10).map(|number| producer.submit(number.to_string()).unwrap()).collect();
    for one in pending {
        one.wait().unwrap();
    }
    let waiting = producer.submit("waits for more").unwrap();
    producer.send("and gets it").unwrap();
    waiting.wait().unwrap();
    assert!(started.elapsed() < PATIENCE);
    client.close().unwrap();
}

#[test]
fn close_flushes_first_and_later_sends_are_refused_with_their_message() {
    let client = client();
    let topic = topic("close");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).batch_max_delay(Duration::from_secs(60)).create().unwrap();
    let (results, answers) = mpsc::channel();
    for number in 0..5 {
        let results = results.clone();
        producer.send_with(number.to_string(), move |result| results.send(result).unwrap()).unwrap();
    }
    drop(results);
    producer.close().unwrap();
    let answers: Vec<_> = answers.try_iter().collect();
    assert_eq!(answers.len(), 5, "all callbacks ran before close returned");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(texts(&consumer, 5), numbers(5));
    let refused = producer.send("late").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert_eq!(&refused.message().unwrap().payload()[..], b"late");
    let refused = producer.send_with("late", |_| panic!("a refused send never calls back")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    producer.close().unwrap();
    client.close().unwrap();
    client.close().unwrap();
    assert_eq!(client.producer(topic).create().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn dropping_the_last_handle_sends_what_was_accepted() {
    let client = client();
    let topic = topic("drop");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).batch_max_delay(Duration::from_secs(60)).create().unwrap();
    let pending = producer.submit("kept").unwrap();
    drop(producer);
    pending.wait().unwrap();
    assert_eq!(text(&next(&consumer)), "kept");
    client.close().unwrap();
}

#[test]
fn a_message_over_the_limit_is_refused_at_once_and_its_neighbours_are_unharmed() {
    let client = client();
    let topic = topic("large");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).batch_max_delay(Duration::from_millis(200)).create().unwrap();
    let before = producer.submit("before").unwrap();
    let refused = producer.submit(vec![7u8; 6 * 1024 * 1024]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
    assert_eq!(refused.message().unwrap().payload().len(), 6 * 1024 * 1024);
    let after = producer.submit("after").unwrap();
    before.wait().unwrap();
    after.wait().unwrap();
    assert_eq!(texts(&consumer, 2), ["before", "after"]);
    assert_eq!(client.stats().memory_used, 0);
    client.close().unwrap();
}

#[test]
fn a_message_of_nearly_the_limit_goes_through() {
    let client = client();
    let topic = topic("nearly");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).create().unwrap();
    producer.send(vec![7u8; 5 * 1024 * 1024 - 4096]).unwrap();
    assert_eq!(next(&consumer).payload().len(), 5 * 1024 * 1024 - 4096);
    client.close().unwrap();
}

#[test]
fn delayed_messages_come_after_their_delay_to_a_shared_subscription() {
    use threadmq::pulsar::SubscriptionType;
    let client = client();
    let topic = topic("delayed");
    let consumer = client.consumer(&topic, "s").subscription_type(SubscriptionType::Shared).subscribe().unwrap();
    let producer = client.producer(&topic).create().unwrap();
    let sent = Instant::now();
    producer.send(ProducerMessage::new("later").deliver_after(Duration::from_secs(2))).unwrap();
    producer.send("now").unwrap();
    assert_eq!(text(&next(&consumer)), "now");
    assert_eq!(text(&next(&consumer)), "later");
    // The broker's delayed delivery ticks once a second and may be early by the clock's resolution.
    assert!(sent.elapsed() >= Duration::from_millis(1900), "after {:?}", sent.elapsed());
    client.close().unwrap();
}

#[test]
fn sends_from_many_threads_are_all_stored_each_threads_in_order() {
    let client = client();
    let topic = topic("threads");
    let consumer = reader(&client, &topic);
    let producer = client.producer(&topic).create().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let producer = producer.clone();
            std::thread::spawn(move || {
                for number in 0..500 {
                    producer.send_with(format!("{thread} {number}"), |result| drop(result.unwrap())).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    producer.flush().unwrap();
    let mut last = [None; 4];
    for _ in 0..2000 {
        let message = text(&next(&consumer));
        let (thread, number) = message.split_once(' ').unwrap();
        let (thread, number): (usize, usize) = (thread.parse().unwrap(), number.parse().unwrap());
        assert_eq!(number, last[thread].map_or(0, |last: usize| last + 1));
        last[thread] = Some(number);
    }
    client.close().unwrap();
}
