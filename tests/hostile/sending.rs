//! Nonsense where a receipt belongs, and in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use threadmq::ErrorKind;
use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::Broker;

use super::bystander::{Bystander, Sending};
use super::frames::{LIES, SEND_RECEIPT, receipt};
use super::liar::{Fate, Liar};
use super::{Noise, PATIENCE, apart, eventually};

/// A broker with a liar before it for the topic `t`; other topics go straight to the broker.
fn beside(broker: &Broker, scripts: impl Fn(usize) -> Box<super::liar::Script> + Send + 'static) -> (Liar, Client) {
    let liar = Liar::start(broker.address(), scripts);
    broker.assign("t", liar.url().as_str());
    let client = Client::builder(broker.service_url())
        .connection_timeout(Duration::from_millis(500))
        .keep_alive_interval(Duration::from_secs(1))
        .build()
        .unwrap();
    (liar, client)
}

#[test]
fn nonsense_for_a_receipt() {
    apart("sending::nonsense_for_a_receipt", || {
        let bystander = Bystander::start();
        for (name, lie) in LIES {
            let broker = Broker::start().unwrap();
            // The first connection lies about its first receipt.
            let (liar, client) = beside(&broker, move |connection| {
                let mut lied = connection > 0;
                Box::new(move |kind, frame| {
                    if kind == SEND_RECEIPT && !std::mem::replace(&mut lied, true) { lie(frame) } else { Fate::Pass }
                })
            });
            let healthy = Sending::on(client.producer("healthy").create().unwrap());
            let producer =
                client.producer("t").send_timeout(Some(Duration::from_secs(15))).batching(false).create().unwrap();
            // The link is found dead or wrong, and the message is sent again.
            let receipt = producer.send("x").unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(receipt.attempts() >= 2, "{name}");
            assert_eq!(liar.accepted(), 2, "{name}");
            producer.send("y").unwrap();
            healthy.finish();
            client.close().unwrap();
        }
        bystander.finish();
    });
}

/// Receipts that are frames like others and say what cannot be.
#[test]
fn receipts_that_contradict() {
    apart("sending::receipts_that_contradict", || {
        let broker = Broker::start().unwrap();
        let twist = Arc::new(AtomicUsize::new(0));
        let (_liar, client) = beside(&broker, {
            let twist = Arc::clone(&twist);
            move |_| {
                let twist = Arc::clone(&twist);
                Box::new(move |kind, frame| {
                    if kind != SEND_RECEIPT {
                        return Fate::Pass;
                    }
                    let mut said = frame.to_vec();
                    // The third ends the connection, so it is said once.
                    let way = twist.load(Ordering::SeqCst);
                    let _ = twist.compare_exchange(3, 0, Ordering::SeqCst, Ordering::SeqCst);
                    match way {
                        // Twice.
                        1 => said.extend_from_slice(frame),
                        // For producers that there are not, and have never been.
                        2 => said = [receipt(0, 0), receipt(127, 127), frame.to_vec(), receipt(50, 1)].concat(),
                        // After the receipt, one for what was never sent.
                        3 => said.extend(receipt(frame_producer(frame), 126)),
                        _ => {}
                    }
                    Fate::Replaced(said)
                })
            }
        });
        let producer = client.producer("t").batching(false).create().unwrap();
        for way in [0, 1, 2, 3, 0] {
            twist.store(way, Ordering::SeqCst);
            let pending: Vec<_> = (0..10).map(|number| producer.submit(number.to_string()).unwrap()).collect();
            for mut one in pending {
                one.wait_timeout(PATIENCE).unwrap_or_else(|| panic!("twist {way}: no answer")).unwrap();
            }
            eventually("all is answered", || producer.pending() == 0);
        }
        client.close().unwrap();
    });
}

/// The producer's number in a receipt: the first field of its command.
fn frame_producer(frame: &[u8]) -> u8 {
    // type (2 bytes), tag and length of the command (2), tag of the number (1)
    assert_eq!((frame[10], frame[12]), (0x3a, 0x08));
    frame[13]
}

/// Frames with bits turned over, of every kind that comes; whatever they mean now, the client lives.
#[test]
fn frames_with_wrong_bits() {
    apart("sending::frames_with_wrong_bits", || {
        let bystander = Bystander::start();
        let broker = Broker::start().unwrap();
        let lying = Arc::new(AtomicBool::new(true));
        let damaged = Arc::new(AtomicUsize::new(0));
        let liar = Liar::start(broker.address(), {
            let (lying, damaged) = (Arc::clone(&lying), Arc::clone(&damaged));
            move |connection| {
                let mut noise = Noise(0x1234_5678 + connection as u64 * 7919);
                let (lying, damaged) = (Arc::clone(&lying), Arc::clone(&damaged));
                Box::new(move |_, frame| {
                    if !lying.load(Ordering::SeqCst) || noise.below(4) > 0 {
                        return Fate::Pass;
                    }
                    damaged.fetch_add(1, Ordering::SeqCst);
                    let mut frame = frame.to_vec();
                    for _ in 0..=noise.below(3) {
                        let (place, bit) = (noise.below(frame.len()), noise.below(8));
                        frame[place] ^= 1 << bit;
                    }
                    Fate::Replaced(frame)
                })
            }
        });
        broker.advertise(&liar.url());
        let timeout = Duration::from_millis(300);
        let client =
            Client::builder(liar.url()).connection_timeout(timeout).operation_timeout(timeout * 2).build().unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(15);
        while std::time::Instant::now() < end || damaged.load(Ordering::SeqCst) < 50 {
            let consumer = client.consumer("t", "s").subscribe();
            let Ok(producer) = client.producer("t").batching(false).send_timeout(Some(timeout)).create() else {
                continue;
            };
            for _ in 0..10 {
                let mut pending = Vec::new();
                for _ in 0..5 {
                    // A damaged answer may have set the producer's next sequence id out of reach: that is refused.
                    if let Ok(one) = producer.submit("x") {
                        pending.push(one);
                    }
                }
                for mut one in pending {
                    // Ok or not, but answered.
                    let _ = one.wait_timeout(PATIENCE).expect("an answer");
                }
                if let Ok(consumer) = &consumer {
                    while let Ok(Some(message)) = consumer.try_receive() {
                        let _ = consumer.ack(&message);
                    }
                }
            }
            let _ = producer.close_within(timeout);
        }
        lying.store(false, Ordering::SeqCst);
        println!("{} frames damaged, {} connections", damaged.load(Ordering::SeqCst), liar.accepted());
        eventually("all is well again", || {
            client.producer("u").create().is_ok_and(|producer| match producer.send("x") {
                Ok(_) => true,
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Internal, "{error:?}");
                    false
                }
            })
        });
        client.close().unwrap();
        bystander.finish();
    });
}
