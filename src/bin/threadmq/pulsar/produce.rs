//! `threadmq pulsar produce`.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use threadmq::pulsar::{Producer, ProducerMessage};

use super::{connect, create, producer};
use crate::args::{SendArgs, ServerArgs, positive, rate, seconds};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::pacer::Pacer;
use crate::report::print_result;
use crate::tally::{Shared, object, show, text, with};

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

pub fn run(args: Args) -> Result<Outcome, Failure> {
    let url = &args.server.url;
    let client = connect(url)?;
    let producer = create(producer(&client, &args.topic, &args.send), &args.topic, url)?;
    let answers = Shared::default();
    let count = args.count.or((args.seconds.is_none() && !args.lines).then_some(1));
    let progress = show(&answers, count);
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
        Ok(Outcome::good_if(answers.all_stored()))
    })
}

fn send(producer: &Producer, body: Vec<u8>, key: Option<&str>, answers: &Shared) {
    let bytes = body.len() as u64;
    let mut message = ProducerMessage::new(body);
    if let Some(key) = key {
        message = message.key(key);
    }
    let callback = Arc::clone(answers);
    let sent = producer.send_with(message, move |result| {
        let id = result.map(|receipt| receipt.message_id().to_string());
        with(&callback, |answers| answers.answered(id));
    });
    with(answers, |answers| answers.sent(bytes, sent.map_err(|refused| refused.into_parts().0)));
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
