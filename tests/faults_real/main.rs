//! The real server frozen, killed, restarted, and behind a network that goes half-open.
//!
//! Needs the server that `tests/run` starts (`THREADMQ_PULSAR_URL`, `_DIR`, `_SERVER`). One test at a time uses it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

mod load;
mod server;

use std::time::Duration;

use threadmq::pulsar::Client;
use threadmq::{Delivery, ErrorKind};

use crate::load::{Load, Tally};
use crate::server::Server;

const SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs a load, breaks the server in the middle, mends it, and checks the promise.
fn ordeal(name: &str, fault: impl Fn(&Server)) {
    let server = Server::shared();
    for batching in [true, false] {
        let load = Load::start(&server.url(), name, batching, SEND_TIMEOUT);
        load.run_for(Duration::from_secs(2));
        fault(&server);
        // The server has just been restarted, or thawed: on a loaded machine that takes it a while.
        load.until_ok_again(Duration::from_secs(240));
        load.run_for(Duration::from_secs(1));
        check(&load.finish(), name, batching);
    }
}

fn check(tally: &Tally, name: &str, batching: bool) {
    let what = format!("{name}, batching {batching}: {tally:?}");
    assert_eq!(tally.ok + tally.timed_out + tally.failed, tally.accepted, "{what}");
    assert_eq!(tally.unanswered, 0, "{what}");
    assert_eq!(tally.answered_twice, 0, "{what}");
    assert_eq!(tally.callbacks_out_of_order, 0, "{what}");
    assert_eq!(tally.lost_acknowledged, 0, "{what}");
    assert_eq!(tally.order_violations, 0, "{what}");
    assert_eq!(tally.stored_though_not_sent, 0, "{what}");
    assert!(tally.ok > 0 && tally.timed_out > 0, "the fault was felt and overcome: {what}");
    // The promise is 100 ms; a loaded machine that runs tests is given more here, benches and simulation are not.
    assert!(tally.longest_overdue < Duration::from_secs(2), "{what}");
    println!("{what}");
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn every_send_is_answered_in_time_while_the_server_is_frozen() {
    ordeal("frozen", |server| {
        server.freeze();
        std::thread::sleep(Duration::from_secs(8));
        server.thaw();
    });
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn every_send_is_answered_in_time_while_the_server_is_dead_and_restarted() {
    ordeal("killed", |server| {
        server.kill();
        std::thread::sleep(Duration::from_secs(5));
        server.start();
    });
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn a_half_open_link_is_replaced_within_12_seconds_under_sends() {
    let (network, server) = Server::behind_network();
    for batching in [true, false] {
        let load = Load::start(&network.url(), "half-open", batching, SEND_TIMEOUT);
        for _ in 0..2 {
            load.run_for(Duration::from_secs(2));
            network.half_open();
            // 12 s is the promise; the rest is for a loaded machine.
            load.until_ok_again(Duration::from_secs(24));
        }
        load.run_for(Duration::from_secs(1));
        check(&load.finish(), "half-open", batching);
    }
    drop(server);
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn close_ends_in_time_and_answers_everything_while_the_server_is_frozen() {
    let server = Server::shared();
    let client = Client::builder(server.url()).build().unwrap();
    let producer = client.producer(server::topic("close")).create().unwrap();
    producer.send("before").unwrap();
    server.freeze();
    let pending: Vec<_> = (0..10).map(|number| producer.submit(number.to_string()).unwrap()).collect();
    let started = std::time::Instant::now();
    let closed = client.close_within(Duration::from_secs(2));
    let took = started.elapsed();
    server.thaw();
    closed.unwrap();
    assert!(took < Duration::from_secs(10), "close took {took:?}");
    for one in pending {
        let error = one.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_ne!(error.delivery(), Delivery::Refused);
    }
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn a_wrong_port_says_what_it_looks_like() {
    let http = std::env::var("THREADMQ_PULSAR_HTTP").unwrap();
    let address = http.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let client =
        Client::builder(format!("pulsar://{address}")).operation_timeout(Duration::from_secs(20)).build().unwrap();
    let error = client.producer("t").create().unwrap_err();
    assert!(error.to_string().contains("HTTP"), "{error}");
    client.close().unwrap();
}
