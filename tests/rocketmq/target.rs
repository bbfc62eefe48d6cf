//! The server under test, and what tests ask of its administrator.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, FilterExpression, MessageType, MessageView, SimpleConsumer};
use threadmq::testkit::rocketmq::Proxy;

/// Longer than anything here takes on a loaded machine; never waited out when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What a promised time may be exceeded by on a loaded machine.
pub const SLACK: Duration = Duration::from_secs(10);
/// As short as a real server allows.
pub const INVISIBLE: Duration = Duration::from_secs(10);

pub enum Target {
    Real { endpoint: String, script: String, dir: String },
    Testkit(Proxy),
}

pub fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| match std::env::var("THREADMQ_ROCKETMQ_ENDPOINT") {
        Ok(endpoint) => {
            let script = std::env::var("THREADMQ_ROCKETMQ_SERVER").expect("THREADMQ_ROCKETMQ_SERVER goes with it");
            let dir = std::env::var("THREADMQ_ROCKETMQ_DIR").expect("THREADMQ_ROCKETMQ_DIR goes with it");
            Target::Real { endpoint, script, dir }
        }
        Err(_) => Target::Testkit(Proxy::start().expect("the embedded proxy starts")),
    })
}

pub fn client() -> Client {
    let endpoints = match target() {
        Target::Real { endpoint, .. } => endpoint.clone(),
        Target::Testkit(proxy) => proxy.endpoints(),
    };
    Client::builder(endpoints).build().expect("a client")
}

fn name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{what}-{stamp}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A topic that no other test and no earlier run uses.
pub fn topic(what: &str, accepts: MessageType) -> String {
    let topic = name(what);
    match target() {
        Target::Real { .. } => {
            let kind = match accepts {
                MessageType::Fifo => "FIFO",
                MessageType::Delay => "DELAY",
                _ => "NORMAL",
            };
            admin(&["topic", "create", &topic, "--type", kind, "--queues", "4"]);
        }
        Target::Testkit(proxy) => proxy.create_topic(&topic, accepts, 4),
    }
    topic
}

/// A consumer group that no other test uses.
pub fn group(what: &str, fifo: bool) -> String {
    let group = name(what);
    if let Target::Real { .. } = target() {
        let mut arguments = vec!["group", "create", &group];
        if fifo {
            arguments.push("--fifo");
        }
        admin(&arguments);
    }
    group
}

/// A group whose messages go to the dead letters after so many deliveries.
pub fn group_with_attempts(what: &str, attempts: u32) -> String {
    let group = name(what);
    match target() {
        // What it counts are the deliveries after the first.
        Target::Real { .. } => admin(&["group", "create", &group, "--retries", &(attempts - 1).to_string()]),
        Target::Testkit(proxy) => proxy.max_attempts(group.as_str(), attempts),
    }
    group
}

/// The embedded proxy, unless a real server is under test.
pub fn embedded() -> Option<&'static Proxy> {
    match target() {
        Target::Real { .. } => None,
        Target::Testkit(proxy) => Some(proxy),
    }
}

fn admin(arguments: &[&str]) {
    let Target::Real { script, dir, .. } = target() else { panic!("only a real server has an administrator") };
    let output = Command::new(script).args(arguments).args(["--dir", dir]).output().expect("the server's script runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn consumer(client: &Client, group: &str, topic: &str) -> SimpleConsumer {
    client
        .simple_consumer(group)
        .subscribe(topic, FilterExpression::all())
        .await_duration(Duration::from_secs(5))
        .start()
        .expect("a consumer")
}

/// Receives and acknowledges until so many different messages came.
pub fn receive(consumer: &SimpleConsumer, count: usize) -> Vec<MessageView> {
    let mut seen = BTreeSet::new();
    let mut messages = Vec::new();
    let until = Instant::now() + PATIENCE;
    while messages.len() < count {
        assert!(Instant::now() < until, "{} of {count} messages in time", messages.len());
        for message in consumer.receive(32, INVISIBLE).expect("receive") {
            consumer.ack(&message).expect("acknowledge");
            if seen.insert(message.message_id().to_owned()) {
                messages.push(message);
            }
        }
    }
    messages
}

pub fn text(message: &MessageView) -> String {
    String::from_utf8(message.body().to_vec()).expect("text")
}
