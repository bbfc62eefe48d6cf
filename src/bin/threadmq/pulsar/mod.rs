//! `threadmq pulsar`: the commands, and how they reach the cluster.

mod consume;
pub mod perf;
mod produce;
pub mod verify;

use std::time::Duration;

use clap::Subcommand;
use threadmq::pulsar::{Client, Consumer, ConsumerBuilder, Producer, ProducerBuilder, ProducerMessage, SendReceipt};
use threadmq::{Error, ErrorKind};

use crate::args::{SendArgs, Switch};
use crate::outcome::{EXIT_CODES, Failure, Outcome};
use crate::system;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sends messages: one body, lines of standard input, or generated ones
    #[command(after_help = EXIT_CODES)]
    Produce(produce::Args),
    /// Receives messages, acknowledges and prints them
    #[command(after_help = EXIT_CODES)]
    Consume(consume::Args),
    /// Measures throughput, latency, processor time and memory
    #[command(after_help = EXIT_CODES)]
    Perf(perf::Args),
    /// Checks on a cluster that each send is answered once and in time and that nothing acknowledged is lost
    ///
    /// Sends numbered messages at a rate, watches the answers, and reads the topic back. Break the cluster while it
    /// runs, or let --embedded do it to a broker of its own.
    #[command(after_help = EXIT_CODES)]
    Verify(verify::Args),
}

pub fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Produce(args) => produce::run(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Verify(args) => verify::run(&args),
    }
}

pub fn connect(url: &str) -> Result<Client, Failure> {
    Client::builder(url).build().map_err(|error| Failure::of(&format!("--url {url}"), &error))
}

/// Options of a producer as the command line states them.
pub fn producer(client: &Client, topic: &str, args: &SendArgs) -> ProducerBuilder {
    client
        .producer(topic)
        .max_pending(args.max_pending())
        .batching(args.batching == Switch::On)
        .compression(args.compression.into())
        .send_timeout(args.send_timeout.0)
}

pub fn create(producer: ProducerBuilder, topic: &str, url: &str) -> Result<Producer, Failure> {
    producer.create().map_err(|error| unreachable_at(&format!("no producer on {topic} at {url}"), url, &error))
}

/// A producer, and what its messages are to have.
pub struct Sender {
    producer: Producer,
    key: Option<String>,
    send_timeout: Option<Duration>,
}

impl Sender {
    pub fn new(producer: Producer, args: &SendArgs) -> Self {
        Self { producer, key: None, send_timeout: args.send_timeout.0 }
    }

    fn message(&self, body: Vec<u8>) -> ProducerMessage {
        let message = ProducerMessage::new(body);
        match &self.key {
            Some(key) => message.key(key),
            None => message,
        }
    }
}

impl system::Producer for Sender {
    type Receipt = SendReceipt;
    // Reading the clock twice costs about as much as sending.
    const SAMPLE: u64 = 16;

    fn send(&self, _number: u64, body: Vec<u8>) -> Result<(), Error> {
        self.producer.send(self.message(body)).map(drop).map_err(Error::from)
    }

    fn send_with(
        &self,
        _number: u64,
        body: Vec<u8>,
        callback: impl FnOnce(Result<SendReceipt, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.producer.send_with(self.message(body), callback).map_err(Error::from)
    }

    fn send_timeout(&self) -> Option<Duration> {
        self.send_timeout
    }

    fn pending(&self) -> usize {
        self.producer.pending()
    }

    fn flush_within(&self, limit: Duration) -> Result<(), Error> {
        self.producer.flush_within(limit)
    }

    fn close(&self) -> Result<(), Error> {
        self.producer.close()
    }
}

impl system::Receipt for SendReceipt {
    fn id(&self) -> String {
        self.message_id().to_string()
    }

    fn attempts(&self) -> u32 {
        SendReceipt::attempts(self)
    }
}

pub fn subscribe(consumer: ConsumerBuilder, topic: &str, url: &str) -> Result<Consumer, Failure> {
    consumer.subscribe().map_err(|error| unreachable_at(&format!("no consumer of {topic} at {url}"), url, &error))
}

fn unreachable_at(what: &str, url: &str, error: &Error) -> Failure {
    let failure = Failure::of(what, error);
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::Transport => failure
            .advise(&format!("is a broker there? `threadmq broker pulsar` starts one for trials; --url is {url}")),
        _ => failure,
    }
}
