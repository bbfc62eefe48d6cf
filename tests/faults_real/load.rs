//! Numbered messages sent with callbacks at a steady rate, what became of each, and what the topic holds in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Client, InitialPosition, Producer};
use threadmq::{Delivery, ErrorKind};

const PAUSE: Duration = Duration::from_millis(2);

/// What a callback was told.
type Fate = Result<(), (ErrorKind, Delivery)>;

#[derive(Debug, Default)]
pub struct Tally {
    pub accepted: usize,
    pub unanswered: usize,
    pub answered_twice: usize,
    pub callbacks_out_of_order: usize,
    pub ok: usize,
    pub timed_out: usize,
    pub failed: usize,
    pub not_sent: usize,
    pub lost_acknowledged: usize,
    pub order_violations: usize,
    pub stored_though_not_sent: usize,
    pub longest_overdue: Duration,
}

pub struct Load {
    client: Client,
    producer: Producer,
    topic: String,
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<u64>>,
    answers: Arc<Answers>,
}

#[derive(Default)]
struct Answers {
    /// In the order in which callbacks ran: the number, its result.
    all: Mutex<Vec<(u64, Fate)>>,
    last_ok: AtomicU64,
}

impl Load {
    pub fn start(url: &str, name: &str, batching: bool, send_timeout: Duration) -> Self {
        // An earlier test may have restarted the server, which then is slow for a while.
        let client = Client::builder(url).operation_timeout(Duration::from_secs(180)).build().unwrap();
        let topic = crate::server::topic(name);
        let producer = client.producer(&topic).batching(batching).send_timeout(Some(send_timeout)).create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(Answers::default());
        let sender = {
            let (producer, stop, answers) = (producer.clone(), Arc::clone(&stop), Arc::clone(&answers));
            std::thread::spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answers = Arc::clone(&answers);
                    let sent = producer.send_with(format!("{number}"), move |result| {
                        if result.is_ok() {
                            answers.last_ok.fetch_max(number + 1, Ordering::Relaxed);
                        }
                        let result = result.map(drop).map_err(|error| (error.kind(), error.delivery()));
                        answers.all.lock().unwrap().push((number, result));
                    });
                    sent.expect("there is room for this load");
                    number += 1;
                    std::thread::sleep(PAUSE);
                }
                number
            })
        };
        Self { client, producer, topic, stop, sender: Some(sender), answers }
    }

    pub fn run_for(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Until a message that is sent from now on is stored.
    pub fn until_ok_again(&self, limit: Duration) {
        let before = self.answers.all.lock().unwrap().len() as u64 + self.producer.pending() as u64;
        let started = Instant::now();
        while self.answers.last_ok.load(Ordering::Relaxed) <= before {
            assert!(started.elapsed() < limit, "nothing was stored again within {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("stored again after {:?}", started.elapsed());
    }

    /// Stops sending, closes, reads the topic to its end, and compares.
    pub fn finish(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let sender = self.sender.take().expect("finished once");
        let accepted = sender.join().unwrap() as usize;
        self.producer.close().unwrap();
        let mut tally = Tally { accepted, longest_overdue: self.client.stats().longest_overdue, ..Tally::default() };
        let answers = self.answers.all.lock().unwrap().clone();
        tally.callbacks_out_of_order = answers.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
        let mut by_number = BTreeMap::new();
        for (number, result) in answers {
            tally.answered_twice += usize::from(by_number.insert(number, result).is_some());
        }
        tally.unanswered = accepted - by_number.len();
        for result in by_number.values() {
            match result {
                Ok(()) => tally.ok += 1,
                Err((ErrorKind::Timeout, _)) => tally.timed_out += 1,
                Err(_) => tally.failed += 1,
            }
            tally.not_sent += usize::from(matches!(result, Err((_, Delivery::NotSent))));
        }
        let stored = self.read_back(&by_number);
        for (number, result) in &by_number {
            let is_stored = stored.contains(number);
            tally.lost_acknowledged += usize::from(result.is_ok() && !is_stored);
            let not_sent = matches!(result, Err((_, Delivery::NotSent)));
            tally.stored_though_not_sent += usize::from(not_sent && is_stored);
        }
        let mut seen = BTreeSet::new();
        let first: Vec<u64> = stored.iter().copied().filter(|number| seen.insert(*number)).collect();
        tally.order_violations = first.windows(2).filter(|pair| pair[1] < pair[0]).count();
        self.client.close().unwrap();
        tally
    }

    /// All numbers in the topic, in stored order.
    fn read_back(&self, answers: &BTreeMap<u64, Fate>) -> Vec<u64> {
        let consumer =
            self.client.consumer(&self.topic, "tally").initial_position(InitialPosition::Earliest).subscribe().unwrap();
        let last_ok = answers.iter().rev().find(|(_, result)| result.is_ok()).map(|(number, _)| *number);
        let mut stored = Vec::new();
        loop {
            // The end is reached when the last stored message was seen and nothing follows.
            let patience = if last_ok.is_none_or(|last| stored.contains(&last)) { 1 } else { 20 };
            match consumer.receive_timeout(Duration::from_secs(patience)).unwrap() {
                Some(message) => stored.push(String::from_utf8_lossy(message.payload()).parse().unwrap()),
                None => return stored,
            }
        }
    }
}
