//! Names, access modes, sequence ids, limits, and errors of producers.

use std::time::Duration;

use threadmq::pulsar::{AccessMode, Client, ProducerMessage};
use threadmq::{Delivery, ErrorKind};

use crate::target::{client, topic};

#[test]
fn a_producer_has_the_given_name_or_one_from_the_broker() {
    let client = client();
    let topic = topic("name");
    let named = client.producer(&topic).name("mine").create().unwrap();
    assert_eq!(named.name(), "mine");
    let unnamed = client.producer(&topic).create().unwrap();
    assert!(!unnamed.name().is_empty());
    let taken = client.producer(&topic).name("mine").create().unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Conflict, "{taken}");
    named.close().unwrap();
    client.producer(&topic).name("mine").create().unwrap();
    client.close().unwrap();
}

#[test]
fn an_exclusive_producer_keeps_others_out_until_it_closes() {
    let client = client();
    let topic = topic("exclusive");
    let first = client.producer(&topic).access_mode(AccessMode::Exclusive).create().unwrap();
    let second = client.producer(&topic).access_mode(AccessMode::Exclusive).create().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Conflict, "{second}");
    let shared = client.producer(&topic).create().unwrap_err();
    assert_eq!(shared.kind(), ErrorKind::Conflict, "{shared}");
    first.send("still mine").unwrap();
    first.close().unwrap();
    client.producer(&topic).access_mode(AccessMode::Exclusive).create().unwrap();
    client.close().unwrap();
}

#[test]
fn sequence_ids_start_where_they_are_told_and_only_rise() {
    let client = client();
    let topic = topic("sequence");
    let producer = client.producer(&topic).name("seq").create().unwrap();
    assert_eq!(producer.last_sequence_id(), None);
    assert_eq!(producer.send("0").unwrap().sequence_id(), 0);
    assert_eq!(producer.send("1").unwrap().sequence_id(), 1);
    assert_eq!(producer.last_sequence_id(), Some(1));
    let own = producer.send(ProducerMessage::new("own").sequence_id(100)).unwrap();
    assert_eq!(own.sequence_id(), 100);
    let back = producer.send(ProducerMessage::new("back").sequence_id(100)).unwrap_err();
    assert_eq!(back.kind(), ErrorKind::Misuse);
    assert_eq!(back.delivery(), Delivery::NotSent);
    assert_eq!(&back.message().unwrap().payload()[..], b"back");
    assert_eq!(producer.send("next").unwrap().sequence_id(), 101);
    producer.close().unwrap();
    let later = client.producer(&topic).name("seq").initial_sequence_id(5000).create().unwrap();
    assert_eq!(later.send("5000").unwrap().sequence_id(), 5000);
    client.close().unwrap();
}

#[test]
fn a_full_producer_refuses_or_waits_as_it_was_told() {
    let client = client();
    let topic = topic("full");
    let slow = Duration::from_secs(60);
    let refusing =
        client.producer(&topic).max_pending(Some(2)).block_when_full(false).batch_max_delay(slow).create().unwrap();
    let one = refusing.submit("1").unwrap();
    let two = refusing.submit("2").unwrap();
    let full = refusing.submit("3").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert_eq!(&full.message().unwrap().payload()[..], b"3");
    refusing.flush().unwrap();
    one.wait().unwrap();
    two.wait().unwrap();
    refusing.send("4").unwrap();

    let waiting = client.producer(&topic).max_pending(Some(2)).create().unwrap();
    let pending: Vec<_> = (0..100).map(|number| waiting.submit(number.to_string()).unwrap()).collect();
    for one in pending {
        one.wait().unwrap();
    }
    assert_eq!(waiting.try_submit("room again").unwrap().wait().unwrap().attempts(), 1);
    client.close().unwrap();
}

#[test]
fn the_memory_limit_holds_and_everything_comes_back() {
    let client = Client::builder(crate::target::url()).memory_limit(Some(256 * 1024)).build().unwrap();
    let producer = client.producer(topic("memory")).create().unwrap();
    for round in 0..20 {
        let pending: Vec<_> = (0..20).map(|_| producer.submit(vec![round; 10_000]).unwrap()).collect();
        assert!(client.stats().memory_used <= 256 * 1024);
        for one in pending {
            one.wait().unwrap();
        }
    }
    producer.flush().unwrap();
    assert_eq!(client.stats().memory_used, 0);
    client.close().unwrap();
}

#[test]
fn bad_options_are_all_named_at_once() {
    let error = Client::builder("pulsar://::1:6650")
        .keep_alive_interval(Duration::ZERO)
        .memory_limit(Some(1))
        .build()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    for part in ["::1:6650", "keep_alive_interval", "memory_limit"] {
        assert!(text.contains(part), "{text}");
    }
    let client = client();
    let error = client
        .producer("persistent://a")
        .name("")
        .send_timeout(Some(Duration::ZERO))
        .max_pending(Some(0))
        .batch_max_messages(0)
        .create()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    for part in ["persistent://a", "name", "send_timeout", "max_pending", "batch_max_messages"] {
        assert!(text.contains(part), "{text}");
    }
    let error = client.consumer("t", " ").receiver_queue(0).subscribe().unwrap_err();
    let text = error.to_string();
    for part in ["subscription", "receiver_queue"] {
        assert!(text.contains(part), "{text}");
    }
    client.close().unwrap();
}

#[test]
fn nobody_listening_is_a_timeout_that_says_why() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::builder(format!("pulsar://{free}")).operation_timeout(Duration::from_secs(1)).build().unwrap();
    let error = client.producer("t").create().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let source = std::error::Error::source(&error).expect("what went wrong last");
    assert!(source.to_string().contains(&free.to_string()), "{source}");
    client.close().unwrap();
}

#[test]
fn several_hosts_are_tried_in_turn() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let alive = crate::target::url();
    let alive = alive.trim_start_matches("pulsar://");
    for _ in 0..4 {
        let client = Client::builder(format!("pulsar://{dead},{alive}")).build().unwrap();
        client.producer(topic("hosts")).create().unwrap().send("found").unwrap();
        client.close().unwrap();
    }
}
