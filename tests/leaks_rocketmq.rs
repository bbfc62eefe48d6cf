//! What a RocketMQ client leaves behind when it has gone: nothing. (Field reports 087 and 089.) gRPC's own threads are
//! the process's, and stay.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, ClientBuilder, FilterExpression, Message, MessageType, Producer, SimpleConsumer};
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::{Effect, Proxy, Rpc};
use threadmq::{ErrorKind, Threads};

const ROUNDS: usize = 200;
/// What is made once and stays is there after so many.
const WARM: usize = 10;
/// Longer than anything takes on a loaded machine; never waited out when all is well.
const PATIENCE: Duration = Duration::from_secs(30);
/// Threads and descriptors that others of the process, the embedded proxy included, may have taken meanwhile.
const OTHERS: usize = 2;

/// The tests count what the whole process has, so they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of all threads.
fn names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| Some(std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?.trim().to_owned()))
        .collect()
}

/// Threads of clients: ours without those that the process keeps.
fn of_clients(names: &[String]) -> usize {
    let kept = ["tmq-grpc", "tmq-proxy", "tmq-net"];
    names.iter().filter(|name| name.starts_with("tmq-") && !kept.iter().any(|kept| name.starts_with(kept))).count()
}

struct Stage {
    proxy: Proxy,
    network: Network,
}

impl Stage {
    fn new() -> Self {
        let proxy = Proxy::start().unwrap();
        proxy.create_topic("t", MessageType::Normal, 4);
        let network = Network::start(proxy.addr(0)).unwrap();
        proxy.advertise(0, network.address());
        Self { proxy, network }
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(self.network.address().to_string())
    }

    /// All threads of the process, those of clients, descriptors, connections.
    fn count(&self) -> [usize; 4] {
        let names = names();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        [names.len(), of_clients(&names), descriptors, self.network.links()]
    }

    /// Runs the rounds and waits until what is there is what was there after the tenth.
    fn leaves_nothing(&self, rounds: usize, round: impl Fn(usize)) {
        (0..WARM).for_each(&round);
        self.settled();
        let before = self.count();
        (WARM..rounds).for_each(&round);
        let end = Instant::now() + PATIENCE;
        loop {
            let after = self.count();
            let others = [OTHERS, 0, OTHERS, 0];
            if (0..4).all(|at| after[at] <= before[at] + others[at]) {
                println!("threads, of clients, descriptors, connections: {before:?} before, {after:?} after");
                return;
            }
            assert!(Instant::now() < end, "{before:?} before, {after:?} after; {:?}", names());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the last client's connections are gone.
    fn settled(&self) {
        let end = Instant::now() + PATIENCE;
        while self.network.links() > 0 {
            assert!(Instant::now() < end, "{} connections stay", self.network.links());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A client with a producer and a consumer that have been used.
fn used(builder: ClientBuilder) -> (Client, Producer, SimpleConsumer) {
    let client = builder.build().unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    let consumer = client.simple_consumer("g").subscribe("t", FilterExpression::all()).start().unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    producer.send_with(Message::new("t", "y"), |result| drop(result.unwrap())).unwrap();
    producer.flush().unwrap();
    let messages = consumer.receive(32, Duration::from_secs(30)).unwrap();
    assert!(consumer.ack_batch(&messages).unwrap().iter().all(Result::is_ok));
    (client, producer, consumer)
}

#[test]
fn closed_clients_leave_nothing() {
    let _alone = alone();
    let stage = Stage::new();
    stage.leaves_nothing(ROUNDS, |_| {
        let (client, _producer, _consumer) = used(stage.builder());
        assert!(of_clients(&names()) > 0);
        client.close().unwrap();
        // Close has waited for the client's threads, so they are gone before its handles are; the system takes a
        // moment to forget them.
        let end = Instant::now() + Duration::from_secs(5);
        while of_clients(&names()) > 0 {
            assert!(Instant::now() < end, "{:?}", names());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn dropped_clients_leave_nothing() {
    let _alone = alone();
    let stage = Stage::new();
    stage.leaves_nothing(60, |number| {
        let (client, producer, consumer) = used(stage.builder());
        // In every order.
        match number % 3 {
            0 => drop((client, producer, consumer)),
            1 => drop((consumer, producer, client)),
            _ => drop((producer, client, consumer)),
        }
    });
}

#[test]
fn clients_with_shared_threads_leave_only_these() {
    let _alone = alone();
    let stage = Stage::new();
    let shared = Threads::builder().build().unwrap();
    stage.leaves_nothing(60, |_| {
        let (client, _producer, _consumer) = used(stage.builder().threads(&shared));
        client.close().unwrap();
    });
}

#[test]
fn producers_and_consumers_of_one_client_leave_nothing() {
    let _alone = alone();
    let stage = Stage::new();
    let client = stage.builder().build().unwrap();
    let _kept = client.producer().topic("t").start().unwrap();
    let round = || {
        let producer = client.producer().topic("t").start().unwrap();
        producer.send(Message::new("t", "x")).unwrap();
        producer.close().unwrap();
        let consumer = client.simple_consumer("g").subscribe("t", FilterExpression::all()).start().unwrap();
        consumer.close().unwrap();
    };
    (0..WARM).for_each(|_| round());
    let before = stage.count();
    (WARM..ROUNDS).for_each(|_| round());
    let after = stage.count();
    assert!((0..4).all(|at| after[at] <= before[at] + OTHERS), "{before:?} before, {after:?} after");
    let end = Instant::now() + PATIENCE;
    while stage.proxy.streams(0) > 1 {
        assert!(Instant::now() < end, "{} streams stay", stage.proxy.streams(0));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.stats().memory_used, 0);
    client.close().unwrap();
}

/// The link goes under each of them: half-open, frozen or reset, with sends, a receive and telemetry on it.
#[test]
fn clients_of_a_dead_proxy_leave_nothing() {
    let _alone = alone();
    let stage = Stage::new();
    stage.leaves_nothing(40, |number| {
        let (client, producer, consumer) = used(stage.builder());
        let pending = producer.submit(Message::new("t", "x")).unwrap();
        consumer.receive_with(1, Duration::from_secs(10), |_| ()).unwrap();
        match number % 3 {
            0 => stage.network.half_open(),
            1 => stage.network.freeze(),
            _ => stage.network.reset(),
        }
        let _ = client.close_within(Duration::from_millis(200));
        drop((client, producer, consumer));
        let _ = pending.wait();
        stage.network.thaw();
    });
}

/// What cannot be started leaves nothing either.
#[test]
fn failed_starts_leave_nothing() {
    let _alone = alone();
    let stage = Stage::new();
    stage.proxy.on(Rpc::Telemetry).then(Effect::Lost);
    // A call that the proxy never answered would keep its connection there.
    stage.proxy.on(Rpc::QueryRoute).every(2).then(Effect::Late(Duration::from_millis(150)));
    stage.leaves_nothing(20, |_| {
        let client = stage.builder().request_timeout(Duration::from_millis(50)).build().unwrap();
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| client.producer().topic("t").start());
            std::thread::sleep(Duration::from_millis(100));
            client.close().unwrap();
            let error = starting.join().unwrap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::Timeout), "{error}");
        });
    });
}
