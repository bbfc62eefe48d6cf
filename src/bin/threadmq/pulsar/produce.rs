//! `threadmq pulsar produce`.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use threadmq::pulsar::{Producer, ProducerMessage, SendReceipt};
use threadmq::{Error, ErrorKind};

use super::{connect, create, producer};
use crate::args::{SendArgs, ServerArgs, positive, rate, seconds};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::pacer::Pacer;
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print_result, rounded, table};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic, in any of Pulsar's forms
    #[arg(long)]
    topic: String,
    #[command(flatten)]
    send: SendArgs,
    /// Messages to send [default: 1; without limit with --seconds or --lines]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Messages a second [default: as fast as they are accepted]
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Body of each message, instead of generated ones of --size
    #[arg(long, value_name = "TEXT", conflicts_with = "lines")]
    message: Option<String>,
    /// Send each line of standard input as a message
    #[arg(long)]
    lines: bool,
    /// Key of each message
    #[arg(long)]
    key: Option<String>,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Answers {
    accepted: u64,
    bytes: u64,
    ok: u64,
    timed_out: u64,
    failed: u64,
    refused: u64,
    last: Option<String>,
    /// The first error of each kind, and how many there were.
    errors: BTreeMap<String, (u64, String)>,
}

impl Answers {
    fn answered(&mut self, result: Result<SendReceipt, Error>) {
        match result {
            Ok(receipt) => {
                self.ok += 1;
                self.last = Some(receipt.message_id().to_string());
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::Timeout => self.timed_out += 1,
                    _ => self.failed += 1,
                }
                self.note(&error);
            }
        }
    }

    fn note(&mut self, error: &Error) {
        let kind = format!("{:?}, {:?}", error.kind(), error.delivery());
        self.errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
    }
}

type Shared = Arc<Mutex<Answers>>;

fn with<R>(answers: &Shared, act: impl FnOnce(&mut Answers) -> R) -> R {
    act(&mut answers.lock().unwrap_or_else(PoisonError::into_inner))
}

pub fn run(args: Args) -> Result<Outcome, Failure> {
    let url = &args.server.url;
    let client = connect(url)?;
    let producer = create(producer(&client, &args.topic, &args.send), &args.topic, url)?;
    let answers = Shared::default();
    let count = args.count.or((args.seconds.is_none() && !args.lines).then_some(1));
    let progress = {
        let answers = Arc::clone(&answers);
        Progress::start(count, Elsewhere::Silent, move || {
            with(&answers, |a| {
                let text = format!("{} ok, {} timed out, {} failed", a.ok, a.timed_out, a.failed + a.refused);
                (a.ok + a.timed_out + a.failed + a.refused, text)
            })
        })
    };
    let started = Instant::now();
    let pacer = Pacer::new(args.rate, count, args.seconds);
    if args.lines {
        let mut broken = None;
        let lines = std::io::stdin().lock().lines().map_while(|line| line.map_err(|error| broken = Some(error)).ok());
        // The line first: no number is used up at the end of the input.
        for (line, _) in lines.zip(pacer) {
            send(&producer, line.into_bytes(), args.key.as_deref(), &answers);
        }
        if let Some(error) = broken {
            return Err(Failure::of("standard input", &error));
        }
    } else {
        for _ in pacer {
            let body =
                args.message.as_ref().map_or_else(|| vec![b'x'; args.send.size], |text| text.clone().into_bytes());
            send(&producer, body, args.key.as_deref(), &answers);
        }
    }
    drain(&producer, args.send.send_timeout.0);
    let elapsed = started.elapsed();
    drop(progress);
    // Everything that can be answered is; what the close has to say is in the answers.
    let _ = producer.close();
    let _ = client.close();
    with(&answers, |answers| {
        print_result(args.json, &object(answers, elapsed), &text(answers, elapsed, &args.topic));
        Ok(Outcome::good_if(answers.timed_out + answers.failed + answers.refused == 0))
    })
}

fn send(producer: &Producer, body: Vec<u8>, key: Option<&str>, answers: &Shared) {
    let bytes = body.len() as u64;
    let mut message = ProducerMessage::new(body);
    if let Some(key) = key {
        message = message.key(key);
    }
    let callback = Arc::clone(answers);
    let sent = producer.send_with(message, move |result| with(&callback, |answers| answers.answered(result)));
    with(answers, |answers| match sent {
        Ok(()) => {
            answers.accepted += 1;
            answers.bytes += bytes;
        }
        Err(refused) => {
            answers.refused += 1;
            answers.note(refused.error());
        }
    });
}

/// Waits until everything is answered; after Ctrl-C not for ever where no send timeout sees to that.
pub(super) fn drain(producer: &Producer, send_timeout: Option<Duration>) {
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut until = None;
    while producer.pending() > 0 {
        if interrupt::stopped() && send_timeout.is_none() {
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            if Instant::now() >= until {
                return;
            }
        }
        // Failures are the callbacks' to tell.
        let _ = producer.flush_within(Duration::from_millis(500));
    }
}

fn object(answers: &Answers, elapsed: Duration) -> Object {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    Object::new()
        .with("messages", answers.accepted)
        .with("ok", answers.ok)
        .with("timed_out", answers.timed_out)
        .with("failed", answers.failed)
        .with("refused", answers.refused)
        .with("seconds", rounded(seconds, 3))
        .with("msgs_per_s", rounded(answers.accepted as f64 / seconds, 1))
        .with("mb_per_s", rounded(answers.bytes as f64 / 1e6 / seconds, 3))
        .with("last_message_id", answers.last.clone())
}

fn text(answers: &Answers, elapsed: Duration, topic: &str) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut rows = vec![
        ("topic", topic.to_owned()),
        ("stored", format!("{} of {} messages", grouped(answers.ok), grouped(answers.accepted + answers.refused))),
        ("timed out", grouped(answers.timed_out)),
        ("failed", grouped(answers.failed)),
        ("refused", grouped(answers.refused)),
        ("time", format!("{seconds:.3} s, {:.0} messages/s", answers.accepted as f64 / seconds)),
    ];
    if let Some(last) = &answers.last {
        rows.push(("last id", last.clone()));
    }
    for (kind, (count, first)) in &answers.errors {
        rows.push(("error", format!("{count} times {kind}: {first}")));
    }
    table(&rows)
}
