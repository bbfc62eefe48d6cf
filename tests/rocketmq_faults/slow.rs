//! Calls that are slow on a link whose heartbeats are prompt: no reason to replace it.

use std::time::{Duration, Instant};

use threadmq::rocketmq::Message;
use threadmq::testkit::rocketmq::{Effect, Rpc};

use super::answers::Answers;
use super::stage::{MS, Stage, seconds};

/// Every tenth send takes longer than the request timeout.
fn slow_sends(duration: Duration) {
    let stage = Stage::new(1);
    let client = stage.client();
    let producer = client.producer().topic("t").start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    let links = stage.networks[0].accepted();
    stage.proxy.on(Rpc::SendMessage).every(10).then(Effect::Late(seconds(4)));
    let started = Instant::now();
    let mut answers = Answers::new();
    while started.elapsed() < duration {
        answers.send(&producer, Message::new("t", "x"));
        std::thread::sleep(MS * 20);
    }
    let answers = answers.all();
    let retried = answers.iter().filter(|answer| answer.result.as_ref().is_ok_and(|sent| sent.attempts() > 1)).count();
    let failed = answers.iter().filter(|answer| answer.result.is_err()).count();
    let longest = answers.iter().map(|answer| answer.after).max().unwrap();
    let (stats, heartbeats) = (client.stats(), stage.proxy.calls(0, Rpc::Heartbeat));
    println!(
        "slow sends for {duration:?}: {} sends, {retried} took more than one attempt, {failed} failed, the longest \
         {longest:?}, {heartbeats} heartbeats, {} recoveries, connections {links} before and {} after",
        answers.len(),
        stats.recoveries,
        stage.networks[0].accepted(),
    );
    assert!(retried + failed > answers.len() / 20, "they were slow");
    assert_eq!((stats.recoveries, stage.networks[0].accepted()), (0, links), "no transport is replaced");
    client.close().unwrap();
}

#[test]
fn slow_sends_replace_no_transport() {
    slow_sends(seconds(30));
}

/// The same for as long as THREADMQ_SLOW_SECONDS says, 5 minutes by default.
#[test]
#[ignore = "takes 5 minutes"]
fn slow_sends_replace_no_transport_for_minutes() {
    let given = std::env::var("THREADMQ_SLOW_SECONDS").ok().map(|text| text.parse().unwrap());
    slow_sends(seconds(given.unwrap_or(300)));
}
