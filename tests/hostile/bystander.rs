//! A client that has nothing to do with it: its sends are answered all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Producer};
use threadmq::testkit::pulsar::Broker;

use super::SLACK;

/// Sends on a producer until it is told to stop; each send has to be stored in time.
pub struct Sending {
    over: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Sending {
    pub fn on(producer: Producer) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut sent = 0;
                while !over.load(Ordering::SeqCst) {
                    let began = Instant::now();
                    producer.send("still here").unwrap();
                    assert!(began.elapsed() < SLACK, "a healthy link took {:?}", began.elapsed());
                    sent += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                sent
            }
        });
        Self { over, thread }
    }

    pub fn finish(self) {
        self.over.store(true, Ordering::SeqCst);
        let sent = self.thread.join().unwrap();
        assert!(sent > 10, "only {sent} sends passed meanwhile");
    }
}

/// A client and a broker of its own.
pub struct Bystander {
    sending: Sending,
    client: Client,
    _broker: Broker,
}

impl Bystander {
    pub fn start() -> Self {
        let broker = Broker::builder().discard(true).start().unwrap();
        let client = Client::builder(broker.service_url()).build().unwrap();
        let sending = Sending::on(client.producer("t").create().unwrap());
        Self { sending, client, _broker: broker }
    }

    pub fn finish(self) {
        self.sending.finish();
        self.client.close().unwrap();
    }
}
