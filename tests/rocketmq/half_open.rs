//! How long an idle client needs to find and replace a link that went half-open: several runs with the default
//! timers, side by side, each through a network of its own and cut at another phase of its heartbeats.
//!
//! `cargo test --test rocketmq half_open -- --ignored --nocapture`; THREADMQ_RUNS says how many (10). Each prints a line of JSON.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, MessageType};
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::Proxy;

use crate::target::{PATIENCE, Target, target, topic};

/// Design: two heartbeats in a row past their deadline of 3 s, 10 s apart, and a dial.
const PROMISED: Duration = Duration::from_secs(17);
const PERIOD: Duration = Duration::from_secs(10);

struct Run {
    client: Client,
    network: Network,
    topic: String,
    /// Kept while it runs; none if the server is a real one.
    _proxy: Option<Proxy>,
}

fn run(number: u32) -> Run {
    match target() {
        Target::Real { endpoint, .. } => {
            let topic = topic(&format!("idle-{number}"), MessageType::Normal);
            let server = endpoint.to_socket_addrs().expect("an address").next().expect("an address");
            // Routes name the port that the client asked for.
            let network = Network::start(server).expect("a network");
            let client = Client::builder(network.address().to_string()).build().expect("a client");
            Run { client, network, topic, _proxy: None }
        }
        Target::Testkit(_) => {
            let proxy = Proxy::start().expect("a proxy");
            proxy.create_topic("t", MessageType::Normal, 4);
            let network = Network::start(proxy.addr(0)).expect("a network");
            proxy.advertise(0, network.address());
            let client = Client::builder(network.address().to_string()).build().expect("a client");
            Run { client, network, topic: "t".to_owned(), _proxy: Some(proxy) }
        }
    }
}

fn heartbeats(run: &Run, more_than: u64) -> Instant {
    let started = Instant::now();
    while run.client.stats().heartbeats <= more_than {
        assert!(started.elapsed() < PATIENCE, "no heartbeat in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Instant::now()
}

#[test]
#[ignore = "a measurement of about half a minute"]
fn idle_runs() {
    let count: u32 = std::env::var("THREADMQ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(10);
    let runs: Vec<Run> = (0..count).map(run).collect();
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let measure = |(number, run): (usize, &Run)| {
            let _producer = run.client.producer().topic(run.topic.as_str()).start().expect("a producer");
            let last = heartbeats(run, 0);
            // The faults are spread over the time between two heartbeats.
            let phase = PERIOD * u32::try_from(number).expect("a few") / count;
            std::thread::sleep(phase.saturating_sub(last.elapsed()));
            let links = run.network.accepted();
            run.network.half_open();
            let fault = Instant::now();
            let healed = heartbeats(run, run.client.stats().heartbeats).duration_since(fault);
            println!(
                "{{\"fault\":\"half-open idle\",\"run\":{number},\"phase_ms\":{},\"healed_ms\":{}}}",
                phase.as_millis(),
                healed.as_millis()
            );
            assert_eq!(run.client.stats().recoveries, 1);
            assert!(run.network.accepted() > links, "over a new connection");
            healed
        };
        let started: Vec<_> = runs.iter().enumerate().map(|numbered| scope.spawn(move || measure(numbered))).collect();
        started.into_iter().map(|run| run.join().expect("a run")).collect()
    });
    times.sort();
    let of = |index: usize| times[index].as_millis();
    println!(
        "{{\"runs\":{count},\"min_ms\":{},\"median_ms\":{},\"max_ms\":{}}}",
        of(0),
        of(times.len() / 2),
        of(times.len() - 1)
    );
    assert!(times.iter().all(|time| *time <= PROMISED), "{times:?}");
}
