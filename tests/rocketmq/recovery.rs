//! Links that die silently, servers that misbehave: against the embedded proxy, with the default timers.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, Message, MessageType};
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::{Effect, Proxy, Rpc};
use threadmq::{Delivery, ErrorKind};

use crate::target::{INVISIBLE, PATIENCE};

/// What the promised time may be exceeded by on a loaded machine.
const SLACK: Duration = Duration::from_secs(10);

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    started.elapsed()
}

/// A proxy whose clients come through a network.
fn behind_a_network() -> (Proxy, Network, Client) {
    let proxy = Proxy::start().unwrap();
    proxy.create_topic("t", MessageType::Normal, 4);
    let network = Network::start(proxy.addr(0)).unwrap();
    proxy.advertise(0, network.address());
    let client = Client::builder(network.address().to_string()).build().unwrap();
    (proxy, network, client)
}

#[test]
fn a_half_open_link_is_replaced_under_sends() {
    let (proxy, network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    wait_until("a heartbeat", || proxy.calls(0, Rpc::Heartbeat) > 0);
    let links = network.accepted();
    network.half_open();
    let fault = Instant::now();
    let (tell, told) = channel();
    let healed = loop {
        let tell = tell.clone();
        let called = Instant::now();
        let sent =
            producer.send_with(Message::new("t", "x"), move |result| drop(tell.send((called.elapsed(), result))));
        sent.unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let results: Vec<_> = told.try_iter().map(|(_, result)| result).collect();
        // A replacement costs no send its result; what ran out of time before it did.
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        if results.iter().any(Result::is_ok) {
            break fault.elapsed();
        }
        assert!(fault.elapsed() < PATIENCE, "not healed");
    };
    println!("half-open under sends: healed after {healed:?}");
    assert!(healed < Duration::from_secs(10) + SLACK, "{healed:?}");
    assert_eq!(client.stats().recoveries, 1);
    assert!(network.accepted() > links, "over a new connection");
    assert_eq!(proxy.streams_without_settings(), 0, "Settings come first");
    producer.flush().ok();
    client.close().unwrap();
}

#[test]
fn a_half_open_link_is_replaced_when_idle() {
    let (proxy, network, client) = behind_a_network();
    let _producer = client.producer().topic("t").start().unwrap();
    wait_until("a heartbeat", || proxy.calls(0, Rpc::Heartbeat) > 0);
    network.half_open();
    let fault = Instant::now();
    let before = proxy.calls(0, Rpc::Heartbeat);
    wait_until("a heartbeat on a new link", || proxy.calls(0, Rpc::Heartbeat) > before);
    let healed = fault.elapsed();
    println!("half-open when idle: healed after {healed:?}");
    assert!(healed < Duration::from_secs(17) + SLACK, "{healed:?}");
    assert_eq!(client.stats().recoveries, 1);
    assert_eq!(proxy.streams_without_settings(), 0, "Settings come first");
    wait_until("one stream", || proxy.streams(0) >= 1);
    client.close().unwrap();
}

#[test]
fn ordinary_failures_never_replace_a_link_whose_heartbeats_are_answered() {
    let (proxy, network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    let links = network.accepted();
    proxy.on(Rpc::SendMessage).next(6).then(Effect::Lost);
    proxy.on(Rpc::SendMessage).next(3).then(Effect::Grpc(14, "told to".to_owned()));
    proxy.on(Rpc::SendMessage).next(3).then(Effect::Grpc(8, "told to".to_owned()));
    proxy.on(Rpc::SendMessage).next(3).then(Effect::Status(50001, "told to".to_owned()));
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let error = producer.send(Message::new("t", "x")).unwrap_err();
        assert_eq!(error.error().attempts(), 3, "{error}");
        kinds.push(error.kind());
    }
    producer.send(Message::new("t", "x")).unwrap();
    assert_eq!(kinds[3], ErrorKind::Throttled, "{kinds:?}");
    assert_eq!((client.stats().recoveries, network.accepted()), (0, links));
    client.close().unwrap();
}

#[test]
fn a_server_that_asks_for_it_gets_a_new_connection() {
    let (proxy, network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    let links = network.accepted();
    proxy.ask_reconnect(0);
    wait_until("a new link", || network.accepted() > links);
    wait_until("a recovery", || client.stats().recoveries == 1);
    producer.send(Message::new("t", "x")).unwrap();
    assert_eq!(proxy.streams_without_settings(), 0, "Settings come first");
    client.close().unwrap();
}

#[test]
fn streams_that_end_are_opened_again_with_settings() {
    let (proxy, _network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    wait_until("a stream", || proxy.streams(0) == 1);
    for _ in 0..3 {
        proxy.end_streams();
        producer.send(Message::new("t", "x")).unwrap();
        wait_until("a new stream", || proxy.streams(0) == 1);
    }
    assert_eq!(proxy.streams_without_settings(), 0);
    client.close().unwrap();
}

#[test]
fn a_server_that_forgot_the_settings_gets_them_again() {
    let (proxy, _network, client) = behind_a_network();
    let consumer = client
        .simple_consumer("g")
        .subscribe("t", threadmq::rocketmq::FilterExpression::all())
        .await_duration(Duration::from_secs(5))
        .start()
        .unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    proxy.forget_settings();
    producer.send(Message::new("t", "x")).unwrap();
    let mut found = Vec::new();
    let started = Instant::now();
    while found.is_empty() {
        assert!(started.elapsed() < PATIENCE);
        found = consumer.receive(1, INVISIBLE).unwrap_or_default();
    }
    consumer.ack(&found[0]).unwrap();
    client.close().unwrap();
}

#[test]
fn a_group_stops_with_a_failed_message_until_it_is_resumed() {
    let proxy = Proxy::start().unwrap();
    proxy.create_topic("t", MessageType::Fifo, 4);
    let client = Client::builder(proxy.endpoints()).build().unwrap();
    let producer = client.producer().topic("t").max_attempts(1).stop_failed_groups(true).start().unwrap();
    let message = |body: &'static str, group: &str| Message::new("t", body).message_group(group);
    proxy.on(Rpc::SendMessage).next(1).then(Effect::Status(50001, "told to".to_owned()));
    let results: Vec<_> =
        ["1", "2", "3"].map(|body| producer.submit(message(body, "g")).unwrap()).into_iter().collect();
    let errors: Vec<_> = results.into_iter().map(|pending| pending.wait().unwrap_err()).collect();
    assert_eq!(errors[0].code(), Some(50001));
    for error in &errors[1..] {
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Misuse, Delivery::NotSent), "{error}");
    }
    let refused = producer.send(message("4", "g")).unwrap_err();
    assert!(refused.error().to_string().contains("resume_group"), "{refused}");
    producer.send(message("other", "h")).unwrap();
    producer.resume_group("g");
    producer.send(message("1 again", "g")).unwrap();
    producer.send(message("2 again", "g")).unwrap();
    let stored = proxy.stored("t");
    let of_group: Vec<_> = stored.iter().filter(|stored| stored.message_group.as_deref() == Some("g")).collect();
    assert_eq!(of_group.iter().map(|stored| &stored.body[..]).collect::<Vec<_>>(), [b"1 again", b"2 again"]);
    client.close().unwrap();
}

#[test]
fn a_throttled_send_is_tried_again_after_a_pause() {
    let (proxy, _network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    proxy.on(Rpc::SendMessage).next(2).then(Effect::Status(42900, "flow limit".to_owned()));
    assert_eq!(producer.send(Message::new("t", "x")).unwrap().attempts(), 3);
    client.close().unwrap();
}

#[test]
fn a_send_whose_answer_is_lost_is_in_doubt_and_tried_again() {
    let (proxy, _network, client) = behind_a_network();
    let producer = client.producer().topic("t").start().unwrap();
    proxy.on(Rpc::SendMessage).next(1).then(Effect::Silent);
    assert_eq!(producer.send(Message::new("t", "x")).unwrap().attempts(), 2);
    assert_eq!(proxy.stored("t").len(), 2, "it may be stored twice");
    let producer = client.producer().topic("t").max_attempts(1).start().unwrap();
    proxy.on(Rpc::SendMessage).next(1).then(Effect::Silent);
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    client.close().unwrap();
}

#[test]
fn every_send_is_answered_in_time_while_the_link_is_frozen() {
    let (_proxy, network, client) = behind_a_network();
    let producer = client.producer().topic("t").send_timeout(Duration::from_millis(1500)).start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    network.freeze();
    let (tell, told) = channel();
    for _ in 0..200 {
        let tell = tell.clone();
        let sent = producer.send_with(Message::new("t", "x"), move |result| drop(tell.send(result.map(|_| ()))));
        sent.unwrap();
    }
    drop(tell);
    let results: Vec<_> = told.iter().collect();
    assert_eq!(results.len(), 200, "each once");
    assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout)));
    let overdue = client.stats().longest_overdue;
    assert!(overdue < Duration::from_secs(5), "{overdue:?}");
    network.thaw();
    client.close().unwrap();
}

#[test]
fn a_dead_endpoint_is_passed_over() {
    let proxy = Proxy::builder().endpoints(2).start().unwrap();
    proxy.create_topic("t", MessageType::Normal, 8);
    let network = Network::start(proxy.addr(1)).unwrap();
    proxy.advertise(1, network.address());
    let client = Client::builder(proxy.endpoints()).build().unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    for _ in 0..8 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    assert!(proxy.calls(1, Rpc::SendMessage) > 0, "both are used");
    network.refuse();
    network.reset();
    for _ in 0..50 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    network.accept().unwrap();
    let before = proxy.calls(1, Rpc::SendMessage);
    wait_until("the endpoint is used again", || {
        producer.send(Message::new("t", "x")).unwrap();
        proxy.calls(1, Rpc::SendMessage) > before
    });
    client.close().unwrap();
}

#[test]
fn close_is_bounded_while_nothing_answers() {
    let (_proxy, network, client) = behind_a_network();
    let producer = client.producer().topic("t").send_timeout(Duration::from_secs(60)).start().unwrap();
    network.freeze();
    let (tell, told) = channel();
    for _ in 0..20 {
        let tell = tell.clone();
        producer.send_with(Message::new("t", "x"), move |result| drop(tell.send(result.map(|_| ())))).unwrap();
    }
    drop(tell);
    let started = Instant::now();
    let closed = client.close_within(Duration::from_secs(2));
    assert!(started.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", started.elapsed());
    let results: Vec<_> = told.iter().collect();
    assert_eq!(results.len(), 20, "each once: {closed:?}");
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn a_server_that_asks_is_told_of_our_threads() {
    let (proxy, _network, client) = behind_a_network();
    let _producer = client.producer().topic("t").start().unwrap();
    wait_until("a stream", || proxy.streams(0) == 1);
    proxy.ask_threads(0);
    wait_until("an answer", || !proxy.thread_traces().is_empty());
    assert!(proxy.thread_traces()[0].contains("tmq-rocketmq"));
    client.close().unwrap();
}

#[test]
fn nonsense_from_the_server_is_an_error_and_no_panic() {
    let (proxy, _network, client) = behind_a_network();
    let producer = client.producer().topic("t").max_attempts(1).start().unwrap();
    for bytes in [vec![], vec![0xff; 40], vec![10, 200], vec![8, 1]] {
        proxy.on(Rpc::SendMessage).next(1).then(Effect::Bytes(bytes));
        let error = producer.send(Message::new("t", "x")).unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Protocol, Delivery::Unknown), "{error}");
    }
    proxy.on(Rpc::Heartbeat).next(2).then(Effect::Bytes(vec![0xff; 9]));
    producer.send(Message::new("t", "x")).unwrap();
    client.close().unwrap();
}
