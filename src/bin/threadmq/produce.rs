//! What `produce` does for every system: it sends one body, lines of standard input, or generated bodies.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::{positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::pacer::Pacer;
use crate::report::print_result;
use crate::system::{Producer, Receipt};
use crate::tally::{Shared, object, show, text, with};

/// Which messages are sent, and when.
#[derive(Debug, clap::Args)]
pub struct Input {
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
    pub key: Option<String>,
}

/// What became of the messages, once everything is answered.
pub struct Produced {
    answers: Shared,
    elapsed: Duration,
}

impl Input {
    /// Sends everything and waits for the answers. `size` is that of generated bodies.
    pub fn send_all(&self, producer: &impl Producer, size: usize) -> Result<Produced, Failure> {
        let answers = Shared::default();
        let count = self.count.or((self.seconds.is_none() && !self.lines).then_some(1));
        let _progress = show(&answers, count);
        let started = Instant::now();
        let pacer = Pacer::new(self.rate, count, self.seconds);
        if self.lines {
            let mut broken = None;
            let lines =
                std::io::stdin().lock().lines().map_while(|line| line.map_err(|error| broken = Some(error)).ok());
            // The line first: no number is used up at the end of the input.
            for (line, number) in lines.zip(pacer) {
                send(producer, number, line.into_bytes(), &answers);
            }
            if let Some(error) = broken {
                return Err(Failure::of("standard input", &error));
            }
        } else {
            for number in pacer {
                let body = self.message.as_ref().map_or_else(|| vec![b'x'; size], |text| text.clone().into_bytes());
                send(producer, number, body, &answers);
            }
        }
        producer.drain();
        Ok(Produced { answers, elapsed: started.elapsed() })
    }
}

fn send(producer: &impl Producer, number: u64, body: Vec<u8>, answers: &Shared) {
    let bytes = body.len() as u64;
    let callback = Arc::clone(answers);
    let sent = producer.send_with(number, body, move |result| {
        let id = result.map(|receipt| receipt.id());
        with(&callback, |answers| answers.answered(id));
    });
    with(answers, |answers| answers.sent(bytes, sent));
}

impl Produced {
    /// For after the closes: what they have to say is in the answers.
    pub fn tell(&self, topic: &str, json: bool) -> Outcome {
        with(&self.answers, |answers| {
            print_result(json, &object(answers, self.elapsed), &text(answers, self.elapsed, topic));
            Outcome::good_if(answers.all_stored())
        })
    }
}
