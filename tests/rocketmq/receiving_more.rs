//! A simple consumer: filters by SQL, groups that share, dead letters, large messages, handles that are void.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use threadmq::rocketmq::{FilterExpression, Message, MessageType, MessageView, SimpleConsumer};
use threadmq::{Error, ErrorKind};

use crate::target::{
    INVISIBLE, PATIENCE, SLACK, client, consumer, embedded, group, group_with_attempts, receive, text, topic,
};

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(600);

/// Receives so many messages and leaves them unacknowledged.
fn take(consumer: &SimpleConsumer, count: usize, invisible: Duration) -> Vec<MessageView> {
    let end = Instant::now() + PATIENCE;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(Instant::now() < end, "{} of {count} messages in time", taken.len());
        match consumer.receive(32.min(count - taken.len()), invisible) {
            Ok(some) => taken.extend(some),
            Err(error) => bear(&error),
        }
    }
    taken
}

/// A loaded machine may be silent for longer than a receive waits.
fn bear(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

fn nothing_comes(consumer: &SimpleConsumer) {
    let end = Instant::now() + PATIENCE;
    loop {
        match consumer.receive(8, INVISIBLE) {
            Ok(found) => return assert_eq!(found, []),
            Err(error) => bear(&error),
        }
        assert!(Instant::now() < end, "not answered");
    }
}

#[test]
fn a_sql_filter_lets_through_what_fulfils_it() {
    let topic = topic("sql", MessageType::Normal);
    let client = client();
    let filter = FilterExpression::sql("(region = 'north' AND amount > 10) OR urgent IS NOT NULL");
    let builder = client.simple_consumer(group("sql", false)).subscribe(&topic, filter);
    let consumer = builder.await_duration(Duration::from_secs(5)).start().unwrap();
    let producer = client.producer().topic(&topic).start().unwrap();
    let message = |text: &str, region: &str, amount: &str| {
        Message::new(&topic, text).property("region", region).property("amount", amount)
    };
    producer.send(message("1", "north", "11")).unwrap();
    producer.send(message("2", "north", "9")).unwrap();
    producer.send(message("3", "south", "11")).unwrap();
    producer.send(message("4", "south", "1").property("urgent", "yes")).unwrap();
    producer.send(Message::new(&topic, "5")).unwrap();
    let mut received: Vec<_> = receive(&consumer, 2).iter().map(text).collect();
    received.sort();
    assert_eq!(received, ["1", "4"]);
    nothing_comes(&consumer);
    client.close().unwrap();
}

#[test]
fn a_sql_filter_that_cannot_be_read_is_told() {
    let topic = topic("badsql", MessageType::Normal);
    let client = client();
    let filter = FilterExpression::sql("region = = 'north'");
    let builder = client.simple_consumer(group("badsql", false)).subscribe(&topic, filter);
    let consumer = builder.await_duration(Duration::from_secs(5)).start().unwrap();
    client.producer().topic(&topic).start().unwrap().send(Message::new(&topic, "x")).unwrap();
    let error = consumer.receive(8, INVISIBLE).unwrap_err();
    println!("{error:?}");
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Broker), "{error}");
    client.close().unwrap();
}

#[test]
fn consumers_of_one_group_share() {
    let topic = topic("share", MessageType::Normal);
    let client = client();
    let group = group("share", false);
    let consumers = [consumer(&client, &group, &topic), consumer(&client, &group, &topic)];
    let other = consumer(&client, &self::group("other", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    for number in 0..60 {
        producer.send(Message::new(&topic, number.to_string())).unwrap();
    }
    let mut bodies = Vec::new();
    let end = Instant::now() + PATIENCE;
    while bodies.len() < 60 {
        assert!(Instant::now() < end, "{} of 60", bodies.len());
        for consumer in &consumers {
            for message in consumer.receive(5, LONG).unwrap() {
                consumer.ack(&message).unwrap();
                bodies.push(text(&message).parse::<u32>().unwrap());
            }
        }
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..60).collect::<Vec<_>>(), "each message once");
    assert_eq!(receive(&other, 60).len(), 60, "another group has them all");
    client.close().unwrap();
}

#[test]
fn a_message_that_fails_too_often_goes_to_the_dead_letters() {
    let topic = topic("dead", MessageType::Normal);
    let client = client();
    let group = group_with_attempts("dead", 2);
    let consumer = consumer(&client, &group, &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let receipt = producer.send(Message::new(&topic, "poison").tag("t").property("a", "1")).unwrap();
    for attempt in 1..=2 {
        let taken = take(&consumer, 1, INVISIBLE).remove(0);
        assert_eq!((taken.message_id(), taken.delivery_attempt()), (receipt.message_id(), attempt));
        // Given back at once, so that it need not be waited for.
        consumer.change_invisible_duration(&taken, Duration::ZERO).unwrap();
    }
    // It is not given a third time: whoever asks next makes it a dead letter.
    nothing_comes(&consumer);
    let letters = format!("%DLQ%{group}");
    let end = Instant::now() + PATIENCE;
    let reader = loop {
        let builder =
            client.simple_consumer(self::group("letters", false)).subscribe(&letters, FilterExpression::all());
        match builder.await_duration(Duration::from_secs(5)).start() {
            Ok(reader) => break reader,
            // The topic is made with the first dead letter, and found a little later.
            Err(error) => assert!(Instant::now() < end && error.kind() == ErrorKind::NotFound, "{error}"),
        }
    };
    let letter = receive(&reader, 1).remove(0);
    assert_eq!((text(&letter).as_str(), letter.property("a")), ("poison", Some("1")));
    if let Some(proxy) = embedded() {
        assert_eq!(proxy.dead_letters(&group).len(), 1);
    }
    client.close().unwrap();
}

#[test]
fn thirty_two_of_the_largest_messages_at_once() {
    let topic = topic("heavy", MessageType::Normal);
    let client = client();
    // Long enough for them all to come on a loaded machine.
    let builder = client.simple_consumer(group("heavy", false)).subscribe(&topic, FilterExpression::all());
    let consumer = builder.await_duration(Duration::from_secs(20)).start().unwrap();
    let producer = client.producer().topic(&topic).start().unwrap();
    // The real server of these tests has 256 MiB for everything, and its broker's frames are limited to 16 MiB.
    let (count, at_once) = if embedded().is_some() { (32_u8, 32) } else { (4, 2) };
    for number in 0..count {
        producer.send(Message::new(&topic, vec![number; 4 << 20])).unwrap();
    }
    let mut all = consumer.receive(at_once, LONG).unwrap();
    assert!(embedded().is_none() || all.len() == 32, "{} at once", all.len());
    while all.len() < usize::from(count) {
        let some = consumer.receive(at_once, LONG).unwrap();
        assert!(!some.is_empty(), "{} of {count}", all.len());
        all.extend(some);
    }
    assert!(all.iter().all(|message| message.body().len() == 4 << 20 && !message.is_corrupted()));
    let numbers: BTreeSet<u8> = all.iter().map(|message| message.body()[4 << 19]).collect();
    assert_eq!(numbers.len(), usize::from(count));
    assert!(consumer.ack_batch(&all).unwrap().iter().all(Result::is_ok));
    client.close().unwrap();
}

#[test]
fn properties_keys_and_tags_come_as_they_went() {
    let topic = topic("properties", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("properties", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    let mut message = Message::new(&topic, "x").tag("Straße").key("Schlüssel").key("键").key("k-3");
    let properties: Vec<(String, String)> = (0..60)
        .map(|number| (format!("name-{number}"), format!("värde {number} ✓ = & ; \" ' \\ {}", "v".repeat(number))))
        .collect();
    for (name, value) in &properties {
        message = message.property(name, value);
    }
    let before = SystemTime::now();
    producer.send(message).unwrap();
    let received = receive(&consumer, 1).remove(0);
    assert_eq!(received.tag(), Some("Straße"));
    let keys: BTreeSet<&str> = received.keys().iter().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["Schlüssel", "键", "k-3"]));
    for (name, value) in &properties {
        assert_eq!(received.property(name), Some(value.as_str()), "{name}");
    }
    let second = Duration::from_secs(1);
    assert!(received.born_at().is_some_and(|at| at + second >= before && at <= SystemTime::now() + second));
    assert!(received.stored_at().is_some_and(|at| at <= SystemTime::now() + second));
    assert!(received.queue_offset().is_some());
    client.close().unwrap();
}

#[test]
fn given_back_means_visible_at_once() {
    let topic = topic("back", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("back", false), &topic);
    client.producer().topic(&topic).start().unwrap().send(Message::new(&topic, "x")).unwrap();
    let first = take(&consumer, 1, LONG).remove(0);
    let called = Instant::now();
    consumer.change_invisible_duration(&first, Duration::ZERO).unwrap();
    let again = take(&consumer, 1, LONG).remove(0);
    assert!(called.elapsed() < Duration::from_secs(10) + SLACK, "{:?}", called.elapsed());
    assert_eq!((again.message_id(), again.delivery_attempt()), (first.message_id(), 2));
    consumer.ack(&again).unwrap();
    client.close().unwrap();
}

#[test]
fn invisible_messages_come_no_earlier_than_asked() {
    let topic = topic("hidden", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("hidden", false), &topic);
    client.producer().topic(&topic).start().unwrap().send(Message::new(&topic, "x")).unwrap();
    let first = take(&consumer, 1, INVISIBLE).remove(0);
    let received = Instant::now();
    let again = take(&consumer, 1, INVISIBLE).remove(0);
    let hidden = received.elapsed();
    assert_eq!(again.message_id(), first.message_id());
    assert!(hidden > INVISIBLE - Duration::from_secs(1), "too early: {hidden:?}");
    assert!(hidden < INVISIBLE + Duration::from_secs(6) + SLACK, "too late: {hidden:?}");
    consumer.ack(&again).unwrap();
    client.close().unwrap();
}

#[test]
fn a_void_handle_among_good_ones_spoils_only_its_own_result() {
    let topic = topic("void", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("void", false), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    for number in 0..5 {
        producer.send(Message::new(&topic, number.to_string())).unwrap();
    }
    let late = take(&consumer, 1, INVISIBLE).remove(0);
    let mut taken = take(&consumer, 4, LONG);
    taken.insert(2, late);
    std::thread::sleep(INVISIBLE + Duration::from_secs(1));
    let results = consumer.ack_batch(&taken).unwrap();
    for (index, result) in results.iter().enumerate() {
        match result {
            Ok(()) => assert_ne!(index, 2),
            Err(error) => assert_eq!((index, error.code()), (2, Some(40013)), "{error}"),
        }
    }
    let again = receive(&consumer, 1).remove(0);
    assert_eq!(again.message_id(), taken[2].message_id());
    nothing_comes(&consumer);
    client.close().unwrap();
}

#[test]
fn a_consumer_without_subscriptions_says_so() {
    let topic = topic("none", MessageType::Normal);
    let client = client();
    let consumer = consumer(&client, &group("none", false), &topic);
    client.producer().topic(&topic).start().unwrap().send(Message::new(&topic, "x")).unwrap();
    let taken = take(&consumer, 1, LONG);
    consumer.unsubscribe(&topic).unwrap();
    let error = consumer.receive(1, INVISIBLE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    // What was received before can still be acknowledged.
    consumer.ack(&taken[0]).unwrap();
    client.close().unwrap();
}

#[test]
fn message_groups_are_in_order_each_for_itself() {
    let topic = topic("groups", MessageType::Fifo);
    let client = client();
    let consumer = consumer(&client, &group("groups", true), &topic);
    let producer = client.producer().topic(&topic).start().unwrap();
    for number in 0..40 {
        let message = Message::new(&topic, number.to_string()).message_group(format!("g{}", number % 4));
        producer.send_with(message, |result| drop(result.unwrap())).unwrap();
    }
    producer.flush().unwrap();
    let mut last = [None; 4];
    for message in receive(&consumer, 40) {
        let number: usize = text(&message).parse().unwrap();
        let line = &mut last[number % 4];
        assert_eq!(message.message_group(), Some(format!("g{}", number % 4).as_str()));
        assert!(line.is_none_or(|before| before < number), "{number} after {line:?}");
        *line = Some(number);
    }
    client.close().unwrap();
}
