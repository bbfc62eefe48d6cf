//! A client that has nothing to do with it: its sends are answered all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, Producer};
use threadmq::testkit::pulsar::Broker;

use super::{SLACK, eventually};

/// Sends on a producer until it is told to stop; each send has to be stored in time.
pub struct Sending {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Sending {
    pub fn on(producer: Producer) -> Self {
        let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = std::thread::spawn({
            let (over, sent) = (Arc::clone(&over), Arc::clone(&sent));
            move || {
                while !over.load(Ordering::SeqCst) {
                    let began = Instant::now();
                    producer.send("still here").unwrap();
                    assert!(began.elapsed() < SLACK, "a healthy link took {:?}", began.elapsed());
                    sent.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        Self { over, sent, thread }
    }

    /// Sends go through now, too.
    pub fn finish(self) {
        let sent = self.sent.load(Ordering::SeqCst);
        eventually("sends of a healthy link", || {
            self.thread.is_finished() || self.sent.load(Ordering::SeqCst) >= sent + 3
        });
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
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
