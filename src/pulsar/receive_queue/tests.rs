//! What receivers and the loop do at the same time, step by step.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::pulsar::engine::EngineOptions;
use crate::pulsar::event_loop::EventLoop;
use crate::pulsar::service_url::HostPort;
use crate::pulsar::stats::StatsCell;
use crate::pulsar::wire::command::{self as wire, MessageIdData};
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::frame::next_frame;
use crate::pulsar::wire::payload::{BatchWriter, Content, SendHeader};
use crate::threads::Threads;

const PART: PartId = PartId(1);

/// A queue in its first session, and what keeps its loop from being gone.
fn queue() -> (Arc<ReceiveQueue>, EventLoop) {
    let options = EngineOptions {
        service: vec![HostPort { host: "b".into(), port: 6650 }],
        tls: false,
        client_version: String::new(),
        auth_method: String::new(),
        auth_data: Vec::new(),
        connection_timeout: Duration::from_secs(10),
        operation_timeout: Duration::from_secs(30),
        keep_alive: Duration::from_secs(30),
        seed: 1,
    };
    let threads = Threads::builder().callback_threads(1).build().unwrap();
    let (event_loop, post) = EventLoop::new(options, threads, Arc::new(StatsCell::default())).unwrap();
    let queue = ReceiveQueue::new(&[(PART, "t".to_owned())], 1000, post);
    queue.reset(PART, 1, false);
    (Arc::new(queue), event_loop)
}

fn batch(session: u32, count: u64) -> Delivery {
    let mut writer = BatchWriter::default();
    for id in 0..count {
        writer.push(id, &Content { payload: Bytes::from_static(b"x"), extras: None });
    }
    let header = SendHeader { producer_id: 1, producer_name: "p", sequence_id: 0, publish_time_ms: 0 };
    let mut frame = Vec::new();
    writer.finish_into(&header, count - 1, Compression::None, &mut frame).unwrap();
    let frame = next_frame(&mut BytesMut::from(&frame[..]), 1 << 24).unwrap().unwrap();
    let wire::Command::Send(send) = wire::decode(frame).unwrap() else { panic!("a SEND") };
    Delivery {
        part: PART,
        session,
        message_id: MessageIdData::new(1, 1),
        redelivery_count: 0,
        ack_set: Vec::new(),
        entry: send.entry,
        max_message_size: 5 << 20,
    }
}

/// The loop voids the queue for a redelivery while a receiver unpacks: the entry is in nobody's count but the
/// broker's, and if it used up all permits the consumer would stand still for ever.
#[test]
fn permits_of_an_entry_that_is_being_unpacked_at_a_redelivery_go_back() {
    let (queue, _event_loop) = queue();
    queue.deliver(batch(1, 1000));
    let taken = queue.state.lock().entries.pop_front().unwrap();
    queue.reset(PART, 2, true);
    let unpacked = unpack(taken, "t".into());
    let mut state = queue.state.lock();
    let flow = queue.unpacked(&mut state, unpacked);
    assert!(matches!(flow, Some(Command::Permits { part: PART, session: 2, permits: 1000 })));
    assert!(state.ready.is_empty(), "what it held comes again");
}

#[test]
fn permits_of_an_entry_that_is_being_unpacked_when_its_link_is_lost_are_void() {
    let (queue, _event_loop) = queue();
    queue.deliver(batch(1, 1000));
    let taken = queue.state.lock().entries.pop_front().unwrap();
    queue.reset(PART, 2, false);
    queue.reset(PART, 3, false);
    let unpacked = unpack(taken, "t".into());
    assert!(queue.unpacked(&mut queue.state.lock(), unpacked).is_none());
}

/// Another receiver unpacks at the moment of the close: nobody would wake this one again.
#[test]
fn a_receiver_ends_with_the_queue_while_another_unpacks() {
    for closed in [true, false] {
        let (queue, _event_loop) = queue();
        queue.deliver(batch(1, 2));
        let taken = {
            let mut state = queue.state.lock();
            state.unpacking = true;
            state.entries.pop_front().unwrap()
        };
        if closed {
            queue.close()
        } else {
            queue.end(PART, Error::new(ErrorKind::Closed, "gone"))
        }
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(queue.receive(Some(soon)).err().map(|error| error.kind()), Some(ErrorKind::Closed));
        let mut state = queue.state.lock();
        state.unpacking = false;
        assert!(queue.unpacked(&mut state, unpack(taken, "t".into())).is_none() && state.ready.is_empty());
    }
}

/// The loop counts a whole queue when it is voided: the bodies, damaged here, are not looked at.
#[test]
fn permits_of_a_voided_queue_are_counted_from_metadata_alone() {
    let delivery = batch(1, 1000);
    let mut bytes = delivery.entry.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let damaged = Bytes::from(bytes.clone());
    assert!(super::super::wire::payload::parse_entry(damaged.clone()).is_err(), "its checksum is wrong");
    assert_eq!(super::super::unpack::permits(&damaged), 1000);
    let mut with_broker_entry = vec![0x0e, 0x02, 0, 0, 0, 2, 8, 1];
    with_broker_entry.extend_from_slice(&bytes);
    assert_eq!(super::super::unpack::permits(&with_broker_entry.into()), 1000);
    // Nothing is taken for more than it is.
    for nonsense in [&[][..], &[0x0e, 0x02], &[0x0e, 0x02, 0xff, 0xff, 0xff, 0xff], &[0x0e, 0x01, 0]] {
        assert_eq!(super::super::unpack::permits(&Bytes::from_static(nonsense)), 1, "{nonsense:?}");
    }
}
