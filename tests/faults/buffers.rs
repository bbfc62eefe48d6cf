//! What is written is whole, whatever became of its message.

use std::time::Duration;

use threadmq::ErrorKind;
use threadmq::pulsar::Compression;
use threadmq::testkit::pulsar::{Broker, EventKind};

use super::answers::{Answers, PATIENCE, eventually};
use super::client;

const MIB: usize = 1024 * 1024;

/// Every frame that arrived was whole, and every body is of one letter.
fn assert_unmixed(broker: &Broker) {
    for event in broker.log() {
        match event.kind {
            EventKind::Send { intact, .. } => assert!(intact, "a wrong checksum"),
            EventKind::Malformed(text) => panic!("{text}"),
            _ => {}
        }
    }
    for message in broker.messages("t") {
        let first = message.payload[0];
        assert!(message.payload.iter().all(|byte| *byte == first), "a body of two messages");
    }
}

/// Field report 023: the broker goes on reading.
#[test]
fn a_frame_is_never_mixed_with_the_next() {
    let broker = Broker::builder().receive_buffer(4096).start().unwrap();
    let client = client(&broker);
    let producer = client
        .producer("t")
        .batch_max_bytes(2 * MIB)
        .batch_max_delay(Duration::from_millis(50))
        .send_timeout(Some(Duration::from_millis(1500)))
        .create()
        .unwrap();
    for round in 0..3 {
        broker.freeze_reads(true);
        let answers = Answers::default();
        for number in 0..16 {
            producer.send_with(vec![b'A'; MIB / 4], answers.callback(number)).unwrap();
        }
        for answer in answers.exactly(16) {
            assert_eq!(answer.kind(), Some(ErrorKind::Timeout), "round {round}");
        }
        let next = Answers::default();
        for number in 0..16 {
            producer.send_with(vec![b'B'; MIB / 16], next.callback(number)).unwrap();
        }
        broker.freeze_reads(false);
        next.exactly(16);
        assert_unmixed(&broker);
    }
    eventually("an Ok", || producer.send(vec![b'C'; 10]).is_ok());
    assert!(broker.messages("t").iter().any(|message| message.payload[0] == b'B'));
    client.close().unwrap();
    assert_unmixed(&broker);
}

/// Field report 023: the connection ends in the middle of the frame.
#[test]
fn a_frame_cut_by_a_reset_is_not_continued() {
    let broker = Broker::builder().receive_buffer(4096).start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").send_timeout(Some(Duration::from_secs(1))).create().unwrap();
    broker.freeze_reads(true);
    let answers = Answers::default();
    producer.send_with(vec![b'A'; 4 * MIB], answers.callback(0)).unwrap();
    assert_eq!(answers.wait(1)[0].kind(), Some(ErrorKind::Timeout));
    broker.reset_connections();
    broker.freeze_reads(false);
    eventually("an Ok", || producer.send(vec![b'B'; MIB]).is_ok());
    assert_unmixed(&broker);
    let stored = broker.messages("t");
    assert!(stored.iter().all(|message| message.payload[0] == b'B'), "nobody waited for A any more");
    answers.exactly(1);
    client.close().unwrap();
}

/// Field report 025: bodies that no codec makes smaller.
#[test]
fn incompressible_bodies_pass_every_codec() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    };
    for compression in [Compression::None, Compression::Lz4, Compression::Zlib, Compression::Zstd, Compression::Snappy]
    {
        for batching in [true, false] {
            let topic = format!("{compression:?}-{batching}");
            let producer = client.producer(&topic).compression(compression).batching(batching).create().unwrap();
            let sent: Vec<_> = [0, 1, 64 * 1024, MIB].map(&mut noise).to_vec();
            let answers = Answers::default();
            for (number, body) in sent.iter().enumerate() {
                producer.send_with(body.clone(), answers.callback(number)).unwrap();
            }
            producer.flush().unwrap();
            assert_eq!(answers.now().len(), 4);
            let stored = broker.messages(&topic);
            assert!(stored.iter().map(|message| &message.payload[..]).eq(sent.iter().map(|body| &body[..])), "{topic}");
            producer.close().unwrap();
        }
    }
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() >= 20));
    assert_eq!(client.stats().memory_used, 0);
    client.close().unwrap();
}
