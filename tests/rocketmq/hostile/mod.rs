//! Servers that answer nonsense. Demanded: no panic, no hang, every send answered once and in time, an error that
//! says what was wrong, memory within bounds; and when the server has come to its senses, all goes on.

mod proto;
mod receives;
mod sends;
mod sessions;
mod strangers;

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, FilterExpression, Message, MessageType, Producer, SimpleConsumer};
use threadmq::testkit::rocketmq::{End, Proxy};

use crate::target::PATIENCE;

/// What an answer may be late by on a loaded machine.
const SLACK: Duration = Duration::from_secs(10);
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(300);

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A proxy, a client of it, and in the end the proof that no thread of the library panicked.
struct Stage {
    proxy: Proxy,
    client: Client,
}

impl Stage {
    fn new() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let printed = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                // grpcio itself panics when a call ends well without an answer, and is caught where it is asked.
                let theirs = info.location().is_some_and(|place| place.file().contains("/grpcio-"));
                if !theirs && std::thread::current().name().is_some_and(|name| name.starts_with("tmq-")) {
                    PANICS.fetch_add(1, Ordering::SeqCst);
                }
                printed(info);
            }));
        });
        let proxy = Proxy::start().unwrap();
        proxy.create_topic("t", MessageType::Normal, 4);
        let client = Client::builder(proxy.endpoints()).request_timeout(Duration::from_secs(1)).build().unwrap();
        Self { proxy, client }
    }

    /// One attempt a send, 2 s for it.
    fn producer(&self) -> Producer {
        let end = Instant::now() + PATIENCE;
        loop {
            let builder = self.client.producer().topic("t").max_attempts(1).send_timeout(Duration::from_secs(2));
            match builder.start() {
                Ok(producer) => return producer,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
    }

    fn consumer(&self) -> SimpleConsumer {
        let builder = self.client.simple_consumer("g").subscribe("t", FilterExpression::all());
        builder.await_duration(Duration::from_secs(5)).start().unwrap()
    }

    fn finish(self) {
        self.client.close().unwrap();
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a thread of the library panicked");
    }
}

fn message() -> Message {
    Message::new("t", "x")
}

/// All ends that a stream can come to.
fn ends() -> [End; 3] {
    [End::Well, End::Grpc(14, "told to".to_owned()), End::Never]
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn apart(test: &str, most_kib: u64, body: impl FnOnce()) {
    crate::apart::apart(test, most_kib, HANGS, body);
}
