//! Nonsense while a producer or consumer is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::Broker;
use threadmq::{Error, ErrorKind};

use super::bystander::Bystander;
use super::frames::{CONNECTED, LIES, LOOKUP, Lie, PARTITIONS, PRODUCER_SUCCESS, SUCCESS};
use super::liar::{Fate, Liar};
use super::{SLACK, apart};

const LIMIT: Duration = Duration::from_millis(1500);

/// Every lie in place of every answer of this type: it fails in time and says why; and when the lies end, the same
/// client succeeds.
fn fails_at(stage: u64, create: fn(&Client) -> Result<(), Error>) {
    let bystander = Bystander::start();
    for (name, lie) in LIES {
        try_lie(stage, create, name, *lie);
    }
    bystander.finish();
}

fn try_lie(stage: u64, create: fn(&Client) -> Result<(), Error>, name: &str, lie: Lie) {
    let broker = Broker::start().unwrap();
    let lying = Arc::new(AtomicBool::new(true));
    let liar = Liar::start(broker.address(), {
        let lying = Arc::clone(&lying);
        move |_| {
            let lying = Arc::clone(&lying);
            Box::new(
                move |kind, frame| {
                    if kind == stage && lying.load(Ordering::SeqCst) { lie(frame) } else { Fate::Pass }
                },
            )
        }
    });
    broker.advertise(&liar.url());
    let client = Client::builder(liar.url())
        .connection_timeout(Duration::from_millis(500))
        .keep_alive_interval(Duration::from_secs(1))
        .operation_timeout(LIMIT)
        .build()
        .unwrap();
    let began = Instant::now();
    let error = create(&client).expect_err(name);
    let took = began.elapsed();
    assert!(took < LIMIT + SLACK, "{name}: {took:?}");
    assert!(
        matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Protocol | ErrorKind::Transport),
        "{name}: {error:?}"
    );
    let text = error.to_string();
    assert!(text.contains('t') && text.len() > 20, "{name}: {text}");
    println!("{stage} {name}: {took:?} {error}");

    lying.store(false, Ordering::SeqCst);
    let began = Instant::now();
    while let Err(error) = create(&client) {
        assert!(began.elapsed() < super::PATIENCE, "{name}: {error}");
    }
    client.close().unwrap();
}

fn producer(client: &Client) -> Result<(), Error> {
    client.producer("t").create()?.send("x")?;
    Ok(())
}

fn consumer(client: &Client) -> Result<(), Error> {
    client.consumer("t", "s").subscribe().map(drop)
}

#[test]
fn nonsense_for_connected() {
    apart("creating::nonsense_for_connected", || fails_at(CONNECTED, producer));
}

#[test]
fn nonsense_for_partitions() {
    apart("creating::nonsense_for_partitions", || fails_at(PARTITIONS, producer));
}

#[test]
fn nonsense_for_a_look_up() {
    apart("creating::nonsense_for_a_look_up", || fails_at(LOOKUP, producer));
}

#[test]
fn nonsense_for_a_producer() {
    apart("creating::nonsense_for_a_producer", || fails_at(PRODUCER_SUCCESS, producer));
}

#[test]
fn nonsense_for_a_subscription() {
    apart("creating::nonsense_for_a_subscription", || fails_at(SUCCESS, consumer));
}
