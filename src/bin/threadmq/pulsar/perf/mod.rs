//! `threadmq pulsar perf`: what the client can do and what it costs.

mod consume;
mod latency;
mod produce;
mod sync;

use std::time::Duration;

use threadmq::pulsar::Client;

use super::connect;
use crate::args::{SendArgs, ServerArgs, fresh, positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::perf::{Counters, Mode, print_results};

#[derive(Debug, clap::Args)]
pub struct Args {
    mode: Mode,
    #[command(flatten)]
    server: ServerArgs,
    /// Topic [default: a new one; `consume` then fills it first]
    #[arg(long)]
    topic: Option<String>,
    /// Subscription for `consume` and `latency` [default: a new one, which is removed at the end]
    #[arg(long)]
    subscription: Option<String>,
    #[command(flatten)]
    send: SendArgs,
    /// Messages to measure [default: 1000000 produce, 500000 consume, 5000 sync, 50000 latency; without limit with
    /// --seconds]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Messages before the clock starts [default: a fifth of the count]
    #[arg(long, value_name = "MESSAGES")]
    warmup: Option<u64>,
    /// Measure for so many seconds at most
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Messages a second [default: as fast as they are accepted; 10000 for latency]
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Messages that the broker may send ahead, 1 to 100000
    #[arg(long, value_name = "MESSAGES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    receiver_queue: u32,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

fn usual_count(mode: Mode) -> u64 {
    match mode {
        Mode::Produce => 1_000_000,
        Mode::Consume => 500_000,
        Mode::Sync => 5_000,
        Mode::Latency => 50_000,
    }
}

/// What a mode needs to run.
struct Run<'a> {
    args: &'a Args,
    client: Client,
    topic: String,
    /// `None`: until `--seconds` are over.
    count: Option<u64>,
    warmup: u64,
    counters: &'static Counters,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let usual = usual_count(args.mode);
    let counters = Counters::leak()?;
    let run = Run {
        args,
        client: connect(&args.server.url)?,
        topic: args.topic.clone().unwrap_or_else(|| fresh("perf")),
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
    print_results(args.mode, &run.topic, args.send.size, args.json, counters, &results);
    Ok(Outcome::good_if(results.errors == 0))
}
