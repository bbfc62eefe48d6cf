//! Entries that are not what they should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use threadmq::pulsar::{Client, InitialPosition, SubscriptionType};
use threadmq::testkit::pulsar::{Broker, Corruption, EventKind};

use super::frames::MESSAGE;
use super::liar::{Fate, Liar};
use super::{Noise, PATIENCE, apart, eventually};

#[test]
fn corrupt_entries_are_given_up_and_the_rest_arrives() {
    apart("consuming::corrupt_entries_are_given_up_and_the_rest_arrives", || {
        let broker = Broker::start().unwrap();
        let client = Client::builder(broker.service_url()).build().unwrap();
        let kinds = [
            Corruption::Checksum,
            Corruption::BatchCount,
            Corruption::TruncatedMetadata,
            Corruption::OversizedMetadata,
            Corruption::UncompressedSize,
            Corruption::HugeUncompressedSize,
        ];
        let producer = client.producer("t").batching(false).create().unwrap();
        for number in 0..100 {
            producer.send(number.to_string()).unwrap();
        }
        for _ in 0..10 {
            for kind in kinds {
                broker.corrupt_next_message("t", kind);
            }
        }
        let consumer = client
            .consumer("t", "s")
            .subscription_type(SubscriptionType::Shared)
            .initial_position(InitialPosition::Earliest)
            .receiver_queue(7)
            .subscribe()
            .unwrap();
        for number in 60..100 {
            let message = consumer.receive_timeout(PATIENCE).unwrap().expect("what is whole arrives");
            assert_eq!(message.payload(), number.to_string().as_bytes());
            consumer.ack(&message).unwrap();
        }
        let given_up = |kind: &EventKind| matches!(kind, EventKind::Ack { validation_error: Some(_), .. });
        assert!(broker.wait_for(PATIENCE, |log| log.iter().filter(|event| given_up(&event.kind)).count() == 60));
        assert_eq!(broker.accepted(), 1, "a corrupt entry costs no connection");
        client.close().unwrap();
    });
}

/// The entry of a MESSAGE says that it is a batch of so many, and its checksum is right.
fn claiming(frame: &[u8], count: i32) -> Vec<u8> {
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap()) as usize;
    // size, size of the command, command, magic, checksum, size of the metadata, metadata, payload
    let magic = 8 + number(4);
    assert_eq!(frame[magic..magic + 2], [0x0e, 0x01]);
    let metadata = magic + 10..magic + 10 + number(magic + 6);
    let mut entry = frame[metadata.clone()].to_vec();
    // num_messages_in_batch; of a field that comes twice the last counts.
    entry.push(11 << 3);
    let mut left = count as u32;
    while left >= 0x80 {
        entry.push(left as u8 | 0x80);
        left >>= 7;
    }
    entry.push(left as u8);
    let mut checked = u32::try_from(entry.len()).unwrap().to_be_bytes().to_vec();
    checked.extend(entry);
    checked.extend(&frame[metadata.end..]);
    let mut whole = frame[4..magic + 2].to_vec();
    whole.extend(crc32c::crc32c(&checked).to_be_bytes());
    whole.extend(checked);
    let mut framed = u32::try_from(whole.len()).unwrap().to_be_bytes().to_vec();
    framed.extend(whole);
    framed
}

/// Two thousand million messages in ten bytes: neither memory nor sums of permits may go by that.
#[test]
fn entries_that_claim_more_messages_than_a_number_holds() {
    apart("consuming::entries_that_claim_more_messages_than_a_number_holds", || {
        let broker = Broker::start().unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let liar = Liar::start(broker.address(), {
            let seen = Arc::clone(&seen);
            move |_| {
                let seen = Arc::clone(&seen);
                Box::new(move |kind, frame| {
                    if kind != MESSAGE {
                        return Fate::Pass;
                    }
                    // The first is whole, and so are those that come a second time.
                    match seen.fetch_add(1, Ordering::SeqCst) {
                        1..10 => Fate::Replaced(claiming(frame, i32::MAX)),
                        _ => Fate::Pass,
                    }
                })
            }
        });
        broker.advertise(&liar.url());
        let client = Client::builder(liar.url()).build().unwrap();
        let producer = client.producer("t").batching(false).create().unwrap();
        for number in 0..10 {
            producer.send(number.to_string()).unwrap();
        }
        let consumer = client
            .consumer("t", "s")
            .initial_position(InitialPosition::Earliest)
            .negative_ack_delay(Duration::ZERO)
            .subscribe()
            .unwrap();
        let first = consumer.receive_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(first.payload(), "0");
        // All of the others are in the queue by then, packed: their permits are added up when it is emptied.
        eventually("all are delivered", || seen.load(Ordering::SeqCst) == 10);
        producer.send("a round trip behind them").unwrap();
        consumer.negative_ack(&first).unwrap();
        // Before that they would be unpacked and given up.
        let asked = |kind: &EventKind| matches!(kind, EventKind::Redeliver { .. });
        assert!(broker.wait_for(PATIENCE, |log| log.iter().any(|event| asked(&event.kind))));
        let mut number = 0;
        while number < 10 {
            let message = consumer.receive_timeout(PATIENCE).unwrap().expect("it is delivered again, whole");
            // What was on its way already may come before them.
            if message.payload() != "a round trip behind them" {
                assert_eq!(message.payload(), number.to_string().as_bytes());
                number += 1;
            }
        }
        client.close().unwrap();

        // The same without the negative acknowledgement: they are unpacked, and given up.
        seen.store(0, Ordering::SeqCst);
        let client = Client::builder(liar.url()).build().unwrap();
        let consumer = client.consumer("t", "second").initial_position(InitialPosition::Earliest).subscribe().unwrap();
        for body in ["0", "a round trip behind them"] {
            let message = consumer.receive_timeout(PATIENCE).unwrap().expect("what is whole arrives");
            assert_eq!(message.payload(), body.as_bytes());
        }
        client.close().unwrap();
    });
}

/// Entries with bits turned over are never taken for whole.
#[test]
fn entries_with_wrong_bits_are_never_delivered() {
    apart("consuming::entries_with_wrong_bits_are_never_delivered", || {
        let broker = Broker::start().unwrap();
        let lying = Arc::new(AtomicBool::new(true));
        let liar = Liar::start(broker.address(), {
            let lying = Arc::clone(&lying);
            move |_| {
                let (lying, mut noise) = (Arc::clone(&lying), Noise(0xfeed));
                Box::new(move |kind, frame| {
                    if kind != MESSAGE || !lying.load(Ordering::SeqCst) || noise.below(3) == 0 {
                        return Fate::Pass;
                    }
                    let mut frame = frame.to_vec();
                    // Behind the command, which no checksum protects.
                    let entry = 8 + u32::from_be_bytes(frame[4..8].try_into().unwrap()) as usize + 2;
                    let (place, bit) = (entry + noise.below(frame.len() - entry), noise.below(8));
                    frame[place] ^= 1 << bit;
                    Fate::Replaced(frame)
                })
            }
        });
        broker.advertise(&liar.url());
        let client = Client::builder(liar.url()).build().unwrap();
        let producer = client.producer("t").batching(false).create().unwrap();
        let pending: Vec<_> = (0..300).map(|number| producer.submit(format!("body {number}")).unwrap()).collect();
        for one in pending {
            one.wait().unwrap();
        }
        let consumer = client.consumer("t", "s").initial_position(InitialPosition::Earliest).subscribe().unwrap();
        let mut got = 0;
        let mut receive = |patience| {
            let Some(message) = consumer.receive_timeout(patience).unwrap() else { return false };
            if message.payload() == "the end" {
                return true;
            }
            let text = std::str::from_utf8(message.payload()).unwrap();
            let number: usize = text.strip_prefix("body ").unwrap().parse().unwrap();
            assert!(number < 300);
            got += 1;
            false
        };
        let given_up = || broker.count(|kind| matches!(kind, EventKind::Ack { validation_error: Some(_), .. }));
        eventually("damaged entries are given up", || {
            receive(Duration::from_millis(10));
            given_up() > 100
        });
        // The last comes whole.
        lying.store(false, Ordering::SeqCst);
        producer.send("the end").unwrap();
        while !receive(PATIENCE) {}
        assert!(got > 10 && got < 300, "{got} were whole");
        client.close().unwrap();
    });
}
