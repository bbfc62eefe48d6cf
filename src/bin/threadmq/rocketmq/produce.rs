//! `threadmq rocketmq produce`.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use threadmq::rocketmq::Producer;

use super::args::{SendArgs, ServerArgs};
use super::{connect, drain, producer, start};
use crate::args::{positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::pacer::Pacer;
use crate::report::print_result;
use crate::tally::{Shared, object, show, text, with};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic
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
    /// Tag of each message
    #[arg(long)]
    tag: Option<String>,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server)?;
    let producer = start(producer(&client, &args.topic, &args.send), &args.topic, &args.server.endpoint)?;
    let answers = Shared::default();
    let count = args.count.or((args.seconds.is_none() && !args.lines).then_some(1));
    let progress = show(&answers, count);
    let started = Instant::now();
    let pacer = Pacer::new(args.rate, count, args.seconds);
    if args.lines {
        let mut broken = None;
        let lines = std::io::stdin().lock().lines().map_while(|line| line.map_err(|error| broken = Some(error)).ok());
        // The line first: no number is used up at the end of the input.
        for (line, number) in lines.zip(pacer) {
            send(&producer, args, number, line.into_bytes(), &answers);
        }
        if let Some(error) = broken {
            return Err(Failure::of("standard input", &error));
        }
    } else {
        for number in pacer {
            let body =
                args.message.as_ref().map_or_else(|| vec![b'x'; args.send.size], |text| text.clone().into_bytes());
            send(&producer, args, number, body, &answers);
        }
    }
    drain(&producer);
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

fn send(producer: &Producer, args: &Args, number: u64, body: Vec<u8>, answers: &Shared) {
    let bytes = body.len() as u64;
    let mut message = args.send.message(&args.topic, number, body);
    if let Some(key) = &args.key {
        message = message.key(key);
    }
    if let Some(tag) = &args.tag {
        message = message.tag(tag);
    }
    let callback = Arc::clone(answers);
    let sent = producer.send_with(message, move |result| {
        let id = result.map(|receipt| receipt.message_id().to_owned());
        with(&callback, |answers| answers.answered(id));
    });
    with(answers, |answers| answers.sent(bytes, sent.map_err(|refused| refused.into_parts().0)));
}
