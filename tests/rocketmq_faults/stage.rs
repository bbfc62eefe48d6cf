//! Proxies, networks in front of them, and waiting.

use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, FilterExpression, MessageType, MessageView, SimpleConsumer};
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::Proxy;

/// Longer than anything takes on a loaded machine; never waited out when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What a promised time may be exceeded by on a loaded machine.
pub const SLACK: Duration = Duration::from_secs(5);

pub const MS: Duration = Duration::from_millis(1);

pub fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// Looks again and again until it holds, and says how long that took.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(MS * 5);
    }
    started.elapsed()
}

/// A proxy with a network before each of its endpoints, and the topic `t`.
pub struct Stage {
    pub proxy: Proxy,
    pub networks: Vec<Network>,
}

impl Stage {
    pub fn new(endpoints: usize) -> Self {
        let proxy = Proxy::builder().endpoints(endpoints).start().unwrap();
        proxy.create_topic("t", MessageType::Normal, 4 * endpoints);
        let networks = (0..endpoints).map(|endpoint| Network::start(proxy.addr(endpoint)).unwrap()).collect::<Vec<_>>();
        networks.iter().enumerate().for_each(|(endpoint, network)| proxy.advertise(endpoint, network.address()));
        Self { proxy, networks }
    }

    /// The endpoint dies: its links break, and nobody listens there.
    pub fn kill(&self, endpoint: usize) {
        self.networks[endpoint].refuse();
        self.networks[endpoint].reset();
    }

    pub fn revive(&self, endpoint: usize) {
        self.networks[endpoint].accept().unwrap();
    }

    /// All endpoints, as a user writes them.
    pub fn endpoints(&self) -> String {
        self.networks.iter().map(|network| network.address().to_string()).collect::<Vec<_>>().join(";")
    }

    /// A client that asks the first endpoint for routes.
    pub fn client(&self) -> Client {
        Client::builder(self.networks[0].address().to_string()).build().unwrap()
    }
}

pub fn consumer(client: &Client, group: &str) -> SimpleConsumer {
    client
        .simple_consumer(group)
        .subscribe("t", FilterExpression::all())
        .await_duration(seconds(5))
        .start()
        .expect("a consumer")
}

/// Receives until there is something; errors on the way are counted.
pub fn receive_some(consumer: &SimpleConsumer, invisible: Duration) -> (Vec<MessageView>, usize) {
    let started = Instant::now();
    let mut failures = 0;
    loop {
        assert!(started.elapsed() < PATIENCE, "nothing received, {failures} failures");
        match consumer.receive(32, invisible) {
            Ok(messages) if messages.is_empty() => {}
            Ok(messages) => return (messages, failures),
            Err(_) => failures += 1,
        }
    }
}
