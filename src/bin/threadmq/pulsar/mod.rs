//! `threadmq pulsar`: the commands, and how they reach the cluster.

mod consume;
pub mod perf;
mod produce;
pub mod verify;

use clap::Subcommand;
use threadmq::pulsar::{Client, Consumer, ConsumerBuilder, Producer, ProducerBuilder};
use threadmq::{Error, ErrorKind};

use crate::args::{SendArgs, Switch};
use crate::outcome::{EXIT_CODES, Failure, Outcome};

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
        Command::Produce(args) => produce::run(args),
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
