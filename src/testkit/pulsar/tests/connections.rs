use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::client::{Client, End};
use super::{A_WHILE, PATIENCE};
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::pb::command_subscribe::SubType;
use crate::testkit::pulsar::{Broker, EventKind};

fn closed(broker: &Broker, by_reset: bool, by_client: bool) -> usize {
    broker.count(
        |kind| matches!(kind, EventKind::ConnectionClosed { by_reset: r, by_client: c } if (*r, *c) == (by_reset, by_client)),
    )
}

#[test]
fn drops_and_resets() {
    let broker = Broker::start().unwrap();
    let (mut one, mut two) = (Client::connect(&broker), Client::connect(&broker));
    assert_eq!((broker.connections(), broker.accepted()), (2, 2));
    broker.drop_connections();
    assert_eq!(broker.connections(), 0);
    assert_eq!((one.end(), two.end()), (End::Fin, End::Fin));
    let (mut one, mut two) = (Client::connect(&broker), Client::connect(&broker));
    broker.reset_connections();
    assert_eq!((one.end(), two.end()), (End::Reset, End::Reset));
    assert_eq!((closed(&broker, false, false), closed(&broker, true, false)), (2, 2));

    drop(Client::connect(&broker));
    let reset = Client::connect(&broker);
    socket2::SockRef::from(&reset.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    assert!(broker.wait_for(PATIENCE, |_| broker.connections() == 0));
    assert_eq!((closed(&broker, false, true), closed(&broker, true, true)), (1, 1));
    assert_eq!(broker.accepted(), 6);
}

#[test]
fn a_fin_comes_after_what_was_written() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.hold_receipts("t");
    for n in 0..50 {
        client.publish(1, n, "x");
    }
    client.assert_alive();
    broker.release_receipts("t");
    broker.drop_connections();
    assert_eq!(client.receipts(50), (0..50).collect::<Vec<_>>());
    assert_eq!(client.end(), End::Fin);
}

#[test]
fn a_client_that_reads_nothing_holds_nobody_up() {
    let broker = Broker::start().unwrap();
    let mut stuck = Client::connect(&broker);
    broker.send_raw(&vec![0; 64 << 20]);
    let mut other = Client::connect(&broker);
    other.assert_alive();
    let began = Instant::now();
    broker.reset_connections();
    assert!(began.elapsed() < PATIENCE / 4);
    assert_eq!(broker.connections(), 0);
    stuck.end();
    drop(broker);
}

#[test]
fn refuses_connections() {
    let broker = Broker::start().unwrap();
    let mut old = Client::connect(&broker);
    broker.refuse_connections(true).unwrap();
    let error = TcpStream::connect(broker.address()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    old.assert_alive();
    broker.refuse_connections(false).unwrap();
    Client::connect(&broker);

    broker.hang_up(true);
    let accepted = broker.accepted();
    Client::dial(&broker).end();
    assert_eq!(broker.accepted(), accepted + 1);
    assert!(closed(&broker, true, false) == 1);
    broker.hang_up(false);
    Client::connect(&broker);
}

#[test]
fn stops_and_comes_back() {
    let broker = Broker::builder().deduplication(true).start().unwrap();
    broker.create_partitioned_topic("p", 2);
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.subscribe("t", 1, SubType::Exclusive);
    client.publish(1, 0, "x");
    client.receipt();
    broker.stop();
    assert_eq!(client.end(), End::Fin);
    assert_eq!(TcpStream::connect(broker.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    broker.restart().unwrap();
    let mut client = Client::connect(&broker);
    client.subscribe("t", 1, SubType::Exclusive);
    client.flow(1, 10);
    let id = client.message().message_id;
    assert_eq!((id.ledger, id.entry), (1, 0));

    broker.restart_empty().unwrap();
    assert_eq!(client.end(), End::Fin);
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.publish(1, 0, "x");
    let id = client.receipt().message_id.unwrap();
    assert_eq!((id.ledger, id.entry), (2, 0));
    assert!(broker.messages("p").is_empty());
}

#[test]
fn is_silent_for_ever_or_for_one_life() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.silence_connections();
    client.publish(1, 0, "x");
    client.encode(encode_ping);
    client.nothing_comes();
    // Heard, and no more.
    let heard = |kind: &EventKind| matches!(kind, EventKind::Send { .. } | EventKind::Ping);
    assert_eq!(broker.count(heard), 2);
    assert!(broker.messages("t").is_empty());
    let mut other = Client::connect(&broker);
    other.assert_alive();

    broker.silence(true);
    other.encode(encode_ping);
    other.nothing_comes();
    let mut newcomer = Client::dial(&broker);
    newcomer.send(&connect("tester", "", b"", None));
    newcomer.nothing_comes();
    broker.silence(false);
    other.assert_alive();
    newcomer.assert_alive();
    client.encode(encode_ping);
    client.nothing_comes();
}

#[test]
fn only_pings() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.answers_pings = false;
    broker.ping_only_connections(Duration::from_millis(20));
    client.encode(encode_ping);
    for _ in 0..5 {
        assert_eq!(client.next(), Command::Ping);
    }
    Client::connect(&broker).assert_alive();

    broker.ping_only(Duration::from_millis(20));
    let mut newcomer = Client::dial(&broker);
    newcomer.answers_pings = false;
    newcomer.send(&connect("tester", "", b"", None));
    newcomer.encode(encode_ping);
    let mut greeted = false;
    let mut pings = 0;
    while pings < 5 {
        match newcomer.next() {
            Command::Ping => pings += 1,
            Command::Other(other) if other.connected.is_some() => greeted = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(greeted);
    broker.ping_only(None);
    newcomer.answers_pings = true;
    newcomer.assert_alive();
}

#[test]
fn stops_reading() {
    let broker = Broker::builder().receive_buffer(8 * 1024).start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.freeze_reads(true);
    client.publish(1, 0, "x");
    client.nothing_comes();
    // The socket fills up.
    client.stream.set_write_timeout(Some(A_WHILE)).unwrap();
    let mut frame = Vec::new();
    encode_ping(&mut frame);
    let pings = frame.repeat(1000);
    let mut written = 0;
    let full = loop {
        assert!(written < 1 << 30, "the broker reads on");
        match client.stream.write(&pings[written % frame.len()..]) {
            Ok(n) => written += n,
            Err(error) => break error,
        }
    };
    assert!(matches!(full.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{full}");
    assert!(broker.messages("t").is_empty());
    broker.freeze_reads(false);
    assert_eq!(client.receipts(1), [0]);
    assert_eq!(broker.messages("t").len(), 1);

    broker.freeze_reads(true);
    drop(broker);
}

#[test]
fn reads_slowly() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    broker.read_slowly(100_000);
    let began = Instant::now();
    let body = "x".repeat(10_000);
    for n in 0..5 {
        client.publish(1, n, &body);
    }
    client.receipts(5);
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    broker.read_slowly(1);
    client.publish(1, 5, &body);
    client.nothing_comes();
    broker.read_slowly(None);
    client.receipts(1);
}

#[test]
fn talks_nonsense() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    let mut frame = Vec::new();
    encode_receipt(
        &SendReceipt { producer_id: 9, sequence_id: 9, highest_sequence_id: None, message_id: None },
        &mut frame,
    );
    broker.send_raw(&frame);
    assert_eq!(client.receipts(1), [9]);

    broker.answer_connect_with(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1);
    broker.answer_connect_endlessly(&(100u32 << 20).to_be_bytes(), 1);
    let mut fooled = Client::dial(&broker);
    fooled.send(&connect("tester", "", b"", None));
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut fooled.stream, &mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
    let mut flooded = Client::dial(&broker);
    flooded.send(&connect("tester", "", b"", None));
    let mut answer = vec![0; 4 << 20];
    std::io::Read::read_exact(&mut flooded.stream, &mut answer).unwrap();
    assert_eq!(answer[..5], [6, 0x40, 0, 0, 0]);
    drop(flooded);
    Client::connect(&broker).assert_alive();
}

#[test]
fn closes_on_nonsense() {
    let broker = Broker::builder().max_message_size(10_000).start().unwrap();
    for nonsense in [&b"\x16\x03\x01\x02\x00\x01"[..], &[0, 0, 0, 8, 255, 255, 255, 255, 1, 2, 3, 4], &[0, 0, 128, 0]] {
        let mut client = Client::dial(&broker);
        client.raw(nonsense);
        client.end();
    }
    assert_eq!(broker.count(|kind| matches!(kind, EventKind::Malformed(_))), 3);
    broker.set_max_message_size(100_000);
    let mut client = Client::connect(&broker);
    client.producer("t", 1);
    client.publish(1, 0, &"x".repeat(50_000));
    client.receipt();
}

#[test]
fn listens_elsewhere() {
    match Broker::builder().ip(std::net::Ipv6Addr::LOCALHOST).start() {
        Ok(broker) => {
            assert!(broker.service_url().starts_with("pulsar://[::1]:"));
            Client::connect(&broker).assert_alive();
            broker.restart().unwrap();
            Client::connect(&broker).assert_alive();
        }
        // Not every machine has IPv6.
        Err(error) => assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error}"),
    }
}

#[test]
fn leaves_no_threads_behind() {
    let port = {
        let broker = Broker::start().unwrap();
        let _clients: Vec<_> = (0..10).map(|_| Client::connect(&broker)).collect();
        broker.address().port()
    };
    // The port is free: nobody holds the listener any more.
    Broker::builder().port(port).start().unwrap();
}
