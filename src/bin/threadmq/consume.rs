//! What `consume` does for every system: it receives, acknowledges, and prints or counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use threadmq::Error;

use crate::args::{duration, positive, seconds};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print, print_result, rounded, table};

/// When receiving ends.
#[derive(Debug, clap::Args)]
pub struct Limits {
    /// Stop after so many messages [default: without limit]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    pub count: Option<u64>,
    /// Stop after so many seconds [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Stop when nothing has come for so long, such as 5s [default: wait]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<Duration>,
}

/// What is shown.
#[derive(Debug, clap::Args)]
pub struct Output {
    /// Count the messages, and do not print them
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
}

/// A message as it is printed.
pub trait Message {
    fn body(&self) -> &[u8];
    /// What stands before the body, if there is anything.
    fn key(&self) -> Option<String>;
}

/// Where messages come from.
pub trait Consumer {
    type Message: Message;
    /// Messages that come together, and are acknowledged together.
    type Batch: AsRef<[Self::Message]>;

    /// `None` if nothing came in time.
    fn receive(&mut self, wait: Duration) -> Result<Option<Self::Batch>, Error>;

    fn ack(&self, messages: &Self::Batch) -> Result<(), Error>;
}

/// What came.
pub struct Received {
    count: u64,
    bytes: u64,
    /// From the start to the last message.
    elapsed: Duration,
}

impl Limits {
    /// Receives until a limit is reached or Ctrl-C was pressed.
    pub fn receive_all(&self, consumer: &mut impl Consumer, acks: bool, output: &Output) -> Result<Received, Failure> {
        /// Short waits, so that Ctrl-C is heard.
        const LOOK: Duration = Duration::from_millis(200);
        let shown = Arc::new(AtomicU64::new(0));
        // A bar between printed messages would be no help.
        let _progress = (!output.shows_messages()).then(|| {
            let shown = Arc::clone(&shown);
            Progress::start(self.count, Elsewhere::Silent, move || {
                let count = shown.load(Ordering::Relaxed);
                (count, format!("{count} messages"))
            })
        });
        let started = Instant::now();
        let until = self.seconds.and_then(|span| started.checked_add(span));
        let (mut count, mut bytes, mut last) = (0u64, 0u64, started);
        while self.count.is_none_or(|limit| count < limit) && !interrupt::stopped() {
            let now = Instant::now();
            let idle = self.idle.and_then(|idle| last.checked_add(idle));
            let end = until.into_iter().chain(idle).min();
            if end.is_some_and(|end| now >= end) {
                break;
            }
            let wait = end.map_or(LOOK, |end| LOOK.min(end.saturating_duration_since(now)));
            let messages = consumer.receive(wait).map_err(|error| Failure::of("receive", &error))?;
            let Some(messages) = messages else { continue };
            for message in messages.as_ref() {
                last = Instant::now();
                count += 1;
                bytes += message.body().len() as u64;
                if output.shows_messages() {
                    print(line(message));
                }
            }
            shown.store(count, Ordering::Relaxed);
            if acks {
                consumer.ack(&messages).map_err(|error| Failure::of("acknowledge", &error))?;
            }
        }
        Ok(Received { count, bytes, elapsed: last.duration_since(started) })
    }

    /// Good if all that was wanted came.
    pub fn outcome(&self, received: &Received) -> Outcome {
        Outcome::good_if(self.count.is_none_or(|limit| received.count == limit) || interrupt::stopped())
    }
}

impl Output {
    fn shows_messages(&self) -> bool {
        !self.quiet && !self.json
    }

    pub fn tell(&self, topic: &str, received: &Received) {
        let Received { count, bytes, elapsed } = *received;
        let elapsed = elapsed.as_secs_f64();
        let per_second = |amount: f64| if elapsed > 0.0 { amount / elapsed } else { 0.0 };
        let object = Object::new()
            .with("messages", count)
            .with("bytes", bytes)
            .with("seconds", rounded(elapsed, 3))
            .with("msgs_per_s", rounded(per_second(count as f64), 1))
            .with("mb_per_s", rounded(per_second(bytes as f64 / 1e6), 3));
        let text = table(&[
            ("topic", topic.to_owned()),
            ("received", format!("{} messages, {} bytes", grouped(count), grouped(bytes))),
            ("time", format!("{elapsed:.3} s, {:.0} messages/s", per_second(count as f64))),
        ]);
        if self.json {
            print_result(true, &object, "");
        } else if self.shows_messages() {
            // Standard output holds messages alone.
            eprint!("{text}");
        } else {
            print(text);
        }
    }
}

/// Key, if there is one, and body; what is not text is shown with its bytes escaped.
fn line(message: &impl Message) -> String {
    let body = match std::str::from_utf8(message.body()) {
        Ok(text) => text.to_owned(),
        Err(_) => message.body().escape_ascii().to_string(),
    };
    match message.key() {
        Some(key) => format!("{key}\t{body}\n"),
        None => format!("{body}\n"),
    }
}
