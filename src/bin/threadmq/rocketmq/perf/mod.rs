//! `threadmq rocketmq perf`: what the client can do and what it costs.

mod consume;
mod latency;
mod produce;
mod receivers;
mod sync;

use std::time::Duration;

use threadmq::rocketmq::{Client, Producer};

use receivers::Acks;

use super::args::{SendArgs, ServerArgs};
use super::{connect, producer, start};
use crate::args::{positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::perf::{Counters, Mode, print_results};

#[derive(Debug, clap::Args)]
pub struct Args {
    mode: Mode,
    #[command(flatten)]
    server: ServerArgs,
    /// Topic; its kind is --type
    #[arg(long)]
    topic: String,
    /// Consumer group for `consume` and `latency` [default: a new one, for which `consume` fills the topic first]
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    send: SendArgs,
    /// Messages to measure [default: 200000 produce, 100000 consume, 5000 sync, 20000 latency; without limit with
    /// --seconds]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Messages before the clock starts [default: a fifth of the count]
    #[arg(long, value_name = "MESSAGES")]
    warmup: Option<u64>,
    /// Measure for so many seconds at most
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Messages a second [default: as fast as they are accepted; 1000 for latency]
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Threads that receive and acknowledge, 1 to 64
    #[arg(long, value_name = "THREADS", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    receivers: u16,
    /// How `consume` acknowledges
    #[arg(long, value_name = "HOW", default_value = "batch")]
    acks: Acks,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

fn usual_count(mode: Mode) -> u64 {
    match mode {
        Mode::Produce => 200_000,
        Mode::Consume => 100_000,
        Mode::Sync => 5_000,
        Mode::Latency => 20_000,
    }
}

/// What a mode needs to run.
struct Run<'a> {
    args: &'a Args,
    client: Client,
    /// `None`: until `--seconds` are over.
    count: Option<u64>,
    warmup: u64,
    counters: &'static Counters,
}

impl Run<'_> {
    fn producer(&self) -> Result<Producer, Failure> {
        let args = self.args;
        start(producer(&self.client, &args.topic, &args.send), &args.topic, &args.server.endpoint)
    }
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let usual = usual_count(args.mode);
    let counters = Counters::leak()?;
    let run = Run {
        args,
        client: connect(&args.server)?,
        count: args.count.or(args.seconds.is_none().then_some(usual)),
        warmup: args.warmup.unwrap_or(args.count.unwrap_or(usual) / 5),
        counters,
    };
    let progress = counters.show(run.count);
    let results = match args.mode {
        Mode::Produce => produce::run(&run),
        Mode::Consume => consume::run(&run),
        Mode::Sync => sync::run(&run),
        Mode::Latency => latency::run(&run),
    };
    drop(progress);
    let results = results?;
    let _ = run.client.close();
    print_results(args.mode, &args.topic, args.send.size, args.json, counters, &results);
    Ok(Outcome::good_if(results.errors == 0))
}
