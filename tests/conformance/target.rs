//! The broker under test, and what tests ask of its administrator.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use threadmq::pulsar::{Client, Consumer, InitialPosition, Message};
use threadmq::testkit::pulsar::Broker;

/// Longer than anything here takes on a loaded machine; never waited out when all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub enum Target {
    Real { url: String, http: String },
    Testkit(Broker),
}

pub fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| match std::env::var("THREADMQ_PULSAR_URL") {
        Ok(url) => {
            let http =
                std::env::var("THREADMQ_PULSAR_HTTP").expect("THREADMQ_PULSAR_HTTP goes with THREADMQ_PULSAR_URL");
            Target::Real { url, http }
        }
        Err(_) => Target::Testkit(Broker::start().expect("the embedded broker starts")),
    })
}

pub fn url() -> String {
    match target() {
        Target::Real { url, .. } => url.clone(),
        Target::Testkit(broker) => broker.service_url(),
    }
}

pub fn client() -> Client {
    Client::builder(url()).build().expect("a client")
}

/// A topic that no other test and no earlier run uses.
pub fn topic(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("persistent://public/default/{name}-{stamp}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn partitioned_topic(name: &str, partitions: u32) -> String {
    let topic = topic(name);
    match target() {
        Target::Real { .. } => {
            admin("PUT", &format!("/admin/v2/{}/partitions", path(&topic)), &partitions.to_string());
        }
        Target::Testkit(broker) => broker.create_partitioned_topic(&topic, partitions),
    }
    topic
}

/// Takes the topic away from its broker, as a load balancer does.
pub fn unload(topic: &str) {
    match target() {
        Target::Real { .. } => admin("PUT", &format!("/admin/v2/{}/unload", path(topic)), ""),
        Target::Testkit(broker) => broker.unload(topic),
    }
}

/// No producer can be attached to it any more.
pub fn terminate(topic: &str) {
    match target() {
        Target::Real { .. } => admin("POST", &format!("/admin/v2/{}/terminate", path(topic)), ""),
        Target::Testkit(broker) => broker.terminate(topic),
    }
}

fn path(topic: &str) -> String {
    topic.replacen("://", "/", 1)
}

fn admin(method: &str, path: &str, body: &str) {
    let Target::Real { http, .. } = target() else { panic!("only a real server has an HTTP port") };
    let address = http.trim_start_matches("http://").trim_end_matches('/');
    let address = if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") };
    let mut socket = TcpStream::connect(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer);
    let status = answer.split_whitespace().nth(1).unwrap_or("none");
    assert!(status.starts_with('2'), "{method} {path} answered {status}: {answer}");
}

/// A consumer that sees the whole topic.
pub fn reader(client: &Client, topic: &str) -> Consumer {
    client.consumer(topic, "reader").initial_position(InitialPosition::Earliest).subscribe().expect("a reader")
}

pub fn next(consumer: &Consumer) -> Message {
    consumer.receive_timeout(PATIENCE).expect("receive").expect("a message in time")
}

pub fn text(message: &Message) -> String {
    String::from_utf8(message.payload().to_vec()).expect("text")
}

pub fn texts(consumer: &Consumer, count: usize) -> Vec<String> {
    (0..count).map(|_| text(&next(consumer))).collect()
}

pub fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// Nothing comes for a moment: as far as a test can know that nothing will.
pub fn assert_quiet(consumer: &Consumer) {
    let surprise = consumer.receive_timeout(Duration::from_millis(300)).expect("receive");
    assert!(surprise.is_none(), "unexpected {surprise:?}");
}
