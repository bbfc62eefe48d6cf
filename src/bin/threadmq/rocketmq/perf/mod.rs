//! `threadmq rocketmq perf`: what the client can do and what it costs.

mod consume;
mod latency;
mod receivers;

use threadmq::rocketmq::Client;

use receivers::Acks;

use super::args::{SendArgs, ServerArgs};
use super::{Sender, connect, start};
use crate::args::{positive, rate};
use crate::outcome::{Failure, Outcome};
use crate::perf::{self, Bench, Mode, Plan, Results, Span};

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
    #[command(flatten)]
    span: Span,
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

/// What the modes need to run.
struct Run<'a> {
    args: &'a Args,
    client: Client,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let plan = Plan::new(args.mode, usual_count(args.mode), args.count, &args.span, args.rate, args.send.size)?;
    let run = Run { args, client: connect(&args.server)? };
    perf::run(&run, &plan, &args.topic, args.json)
}

impl Bench for Run<'_> {
    type Producer = Sender;

    fn producer(&self) -> Result<Sender, Failure> {
        let Args { topic, send, server, .. } = self.args;
        start(&self.client, topic, send, &server.endpoint)
    }

    fn consume(&self, plan: &Plan) -> Result<Results, Failure> {
        consume::run(self, plan)
    }

    fn latency(&self, plan: &Plan) -> Result<Results, Failure> {
        latency::run(self, plan)
    }

    fn close(&self) {
        let _ = self.client.close();
    }
}
