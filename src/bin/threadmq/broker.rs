//! `threadmq broker`: a broker for trials, in memory.

use clap::Subcommand;
use threadmq::testkit::pulsar::Broker;

use crate::interrupt;
use crate::outcome::{EXIT_CODES, Failure, Outcome};
use crate::report::{Object, grouped, print, print_result, table};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Speaks Apache Pulsar's protocol until Ctrl-C; for tests and trials, not for production
    #[command(after_help = EXIT_CODES)]
    Pulsar(Args),
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Port of 127.0.0.1 to listen on; 0 takes a free one
    #[arg(long, default_value = "6650")]
    port: u16,
    /// Gives a topic partitions; may be repeated
    #[arg(long, value_name = "TOPIC=NUMBER", value_parser = partitioned)]
    partitions: Vec<(String, u32)>,
    /// Drop messages that a producer repeats, by their sequence ids
    #[arg(long)]
    deduplication: bool,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
}

fn partitioned(text: &str) -> Result<(String, u32), String> {
    let (topic, number) = text.rsplit_once('=').ok_or_else(|| "write TOPIC=NUMBER, such as orders=4".to_owned())?;
    match number.parse() {
        Ok(number @ 1..=10_000) if !topic.is_empty() => Ok((topic.to_owned(), number)),
        _ => Err("write TOPIC=NUMBER, with 1 to 10000 partitions".to_owned()),
    }
}

pub fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Pulsar(args) => pulsar(&args),
    }
}
