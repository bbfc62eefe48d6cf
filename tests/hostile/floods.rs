//! A peer that says more than anybody can keep, on a link that was good until then.

use std::time::Duration;

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::Broker;

use super::bystander::{Bystander, Sending};
use super::frames::{MESSAGE, SEND_RECEIPT, framed, ping};
use super::liar::{Fate, Liar};
use super::{apart, eventually};

/// The frame of the first receipt or message is followed by this without end, on the first connection; the client
/// leaves it, and all goes on.
fn survives(what: &str, again: fn(&[u8]) -> Vec<u8>, stage: u64) {
    let bystander = Bystander::start();
    let broker = Broker::start().unwrap();
    let liar = Liar::start(broker.address(), move |connection| {
        Box::new(move |kind, frame| {
            if connection == 0 && kind == stage { Fate::Endless(frame.to_vec(), again(frame)) } else { Fate::Pass }
        })
    });
    broker.assign("t", liar.url().as_str());
    let client = Client::builder(broker.service_url()).keep_alive_interval(Duration::from_secs(1)).build().unwrap();
    let healthy = Sending::on(client.producer("healthy").create().unwrap());
    let consumer = client.consumer("t", "s").receiver_queue(10).subscribe().unwrap();
    let producer = client.producer("t").batching(false).create().unwrap();
    // Its body is what is repeated.
    producer.send(vec![b'm'; 100 * 1024]).unwrap();
    eventually(what, || liar.accepted() >= 2);
    producer.send("after").unwrap();
    let mut last = None;
    eventually("messages come again", || {
        while let Ok(Some(message)) = consumer.try_receive() {
            let _ = consumer.ack(&message);
            last = Some(message.payload().clone());
        }
        last.as_deref() == Some(b"after")
    });
    healthy.finish();
    client.close().unwrap();
    bystander.finish();
}

#[test]
fn pings_without_end_that_nobody_reads_the_answers_of() {
    apart("floods::pings_without_end_that_nobody_reads_the_answers_of", || {
        survives("a peer that does not read", |_| ping(), SEND_RECEIPT)
    });
}

#[test]
fn messages_without_end_that_nobody_asked_for() {
    apart("floods::messages_without_end_that_nobody_asked_for", || {
        survives("a peer that sends unasked", <[u8]>::to_vec, MESSAGE)
    });
}

#[test]
fn messages_without_end_for_nobody() {
    // The consumer's number is the first field of CommandMessage.
    let for_nobody = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        let place = 8 + frame[8..].windows(2).position(|pair| pair[0] == 0x4a).unwrap() + 2;
        assert_eq!(frame[place], 0x08);
        frame[place + 1] = 126;
        frame
    };
    apart("floods::messages_without_end_for_nobody", || survives("a peer that does not answer", for_nobody, MESSAGE));
}

#[test]
fn unknown_commands_without_end() {
    let large = |_: &[u8]| {
        let mut command = vec![0x08, 60];
        // A field of a later version, a megabyte long.
        command.extend([0xfa, 0x7f, 0x80, 0x80, 0x40]);
        command.extend(vec![7; 1024 * 1024]);
        framed(&command)
    };
    apart("floods::unknown_commands_without_end", || {
        survives("a peer that talks of something else", large, SEND_RECEIPT)
    });
}
