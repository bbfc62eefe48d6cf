//! The broker is away, or seems to be there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::{Broker, EventKind};
use threadmq::{Delivery, ErrorKind, Threads};

use super::answers::{Answers, PATIENCE};
use super::{bodies, client, numbers, resent};

/// Field report 001.
#[test]
fn sends_while_the_broker_is_away_are_answered_in_time() {
    let broker = Broker::start().unwrap();
    let client = client(&broker);
    let timeout = Duration::from_secs(1);
    let producer = client.producer("t").send_timeout(Some(timeout)).create().unwrap();
    producer.send("first").unwrap();
    broker.refuse_connections(true).unwrap();
    broker.reset_connections();

    let answers = Answers::default();
    answers.send(&producer, 0..5);
    for answer in answers.exactly(5) {
        assert_eq!(answer.kind(), Some(ErrorKind::Timeout));
        assert!(answer.after >= timeout, "{answer:?}");
        assert!(answer.after < timeout * 4, "{answer:?}");
    }
    assert_eq!(answers.now().iter().map(|answer| answer.number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);

    broker.refuse_connections(false).unwrap();
    let again = Instant::now();
    while let Err(error) = producer.send("next") {
        assert!(again.elapsed() < Duration::from_secs(6), "no recovery: {error}");
    }
    assert_eq!(bodies(&broker, "t")[0], "first");
    client.close().unwrap();
}

/// Loses all connections, hangs up for 3 s on those that come, and gives the number of those that came in the same
/// piece of time at most.
fn fullest_bucket(broker: &Broker, clients: usize, piece: Duration) -> usize {
    let is_accepted = |kind: &EventKind| matches!(kind, EventKind::Accepted { .. });
    let before = broker.count(is_accepted);
    broker.hang_up(true);
    let lost = Instant::now();
    broker.reset_connections();
    let outage = Duration::from_secs(3);
    // Every client tries several times while it is hung up on.
    let tried = broker.wait_for(PATIENCE, |log| {
        lost.elapsed() >= outage && log.iter().filter(|event| is_accepted(&event.kind)).count() >= before + 2 * clients
    });
    assert!(tried, "too few attempts");
    broker.hang_up(false);
    let healed = Instant::now();

    // The first tries lie within 200 ms, and those of a loaded machine closer still; later rounds tell.
    let mut buckets = BTreeMap::new();
    for event in broker.log() {
        let after = event.at.saturating_duration_since(lost);
        if is_accepted(&event.kind) && after > Duration::from_millis(300) && event.at < healed {
            *buckets.entry(after.as_millis() / piece.as_millis()).or_insert(0) += 1;
        }
    }
    buckets.values().max().copied().unwrap_or(0)
}

/// Field report 013.
#[test]
fn clients_come_back_spread_in_time() {
    const CLIENTS: usize = 50;
    const BUCKET: Duration = Duration::from_millis(20);
    let broker = Broker::start().unwrap();
    let threads = Threads::builder().build().unwrap();
    let clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::builder(broker.service_url()).threads(&threads).build().unwrap()).collect();
    let producers: Vec<_> = clients.iter().map(|client| client.producer("t").create().unwrap()).collect();
    assert_eq!(broker.connections(), CLIENTS);

    // A machine that stalls bunches them too, so one outage of three has to show it.
    let mut fullest = [0; 3];
    for outage in &mut fullest {
        *outage = fullest_bucket(&broker, CLIENTS, BUCKET);
        assert!(broker.wait_for(PATIENCE, |_| broker.connections() == CLIENTS), "not all came back");
        if *outage <= CLIENTS * 3 / 10 {
            break;
        }
    }
    assert!(
        fullest.iter().any(|outage| (1..=CLIENTS * 3 / 10).contains(outage)),
        "{fullest:?} of {CLIENTS} clients came in the same {BUCKET:?}"
    );

    for producer in &producers {
        producer.send("back").unwrap();
    }
    assert_eq!(broker.connections(), CLIENTS);
    for client in clients {
        client.close().unwrap();
    }
}

/// Field report 017.
#[test]
fn the_unanswered_go_first_and_in_order() {
    let broker = Broker::builder().deduplication(true).start().unwrap();
    let client = client(&broker);
    let producer = client.producer("t").name("me").batching(false).create().unwrap();
    let answers = Answers::default();
    answers.send(&producer, 0..10);
    answers.wait(10);
    broker.hold_receipts("t");
    answers.send(&producer, 10..15);
    assert!(broker.wait_for(PATIENCE, |_| broker.sends() == 15));

    broker.read_slowly(100_000);
    broker.refuse_connections(true).unwrap();
    let sending = std::thread::spawn({
        let (producer, answers) = (producer.clone(), answers.clone());
        move || answers.send(&producer, 15..200)
    });
    broker.reset_connections();
    broker.release_receipts("t");
    // As long as the report's broker is away.
    std::thread::sleep(Duration::from_millis(200));
    broker.refuse_connections(false).unwrap();
    sending.join().unwrap();

    let told = answers.exactly(200);
    assert!(told.iter().all(|answer| answer.result.is_ok()), "{told:?}");
    assert!(told.iter().map(|answer| answer.number).eq(0..200), "callbacks in order");
    assert_eq!(bodies(&broker, "t"), numbers(0..200));
    let second = resent(&broker);
    assert_eq!(second[0], 10);
    assert!(second.windows(2).all(|pair| pair[1] == pair[0] + 1), "{second:?}");
    client.close().unwrap();
}

/// Field report 021.
#[test]
fn a_broker_that_only_pings_is_left() {
    let broker = Broker::start().unwrap();
    let client = Client::builder(broker.service_url()).keep_alive_interval(Duration::from_secs(1)).build().unwrap();
    let producer = client.producer("t").send_timeout(Some(Duration::from_secs(3))).create().unwrap();
    let began = Instant::now();
    broker.ping_only_connections(Duration::from_millis(500));
    let answers = Answers::default();
    answers.send(&producer, 0..1);

    let mut closed_at = None;
    let closed = broker.wait_for(PATIENCE, |log| {
        let closed = log.iter().find(|event| {
            event.connection == 1 && matches!(event.kind, EventKind::ConnectionClosed { by_client: true, .. })
        });
        closed_at = closed.map(|event| event.at);
        closed_at.is_some()
    });
    assert!(closed, "the dead connection is kept");
    let took = closed_at.unwrap() - began;
    assert!(took < Duration::from_millis(7_500), "{took:?}");

    let first = &answers.exactly(1)[0];
    if let Err(error) = &first.result {
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    }
    producer.send("next").unwrap();
    assert_eq!(broker.accepted(), 2);
    client.close().unwrap();
}
