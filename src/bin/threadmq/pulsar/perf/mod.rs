//! `threadmq pulsar perf`: what the client can do and what it costs.

mod consume;
mod latency;

use threadmq::pulsar::Client;

use super::{Sender, connect, create, producer};
use crate::args::{SendArgs, ServerArgs, fresh, positive, rate};
use crate::outcome::{Failure, Outcome};
use crate::perf::{self, Bench, Mode, Plan, Results, Span};

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
    #[command(flatten)]
    span: Span,
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

/// What the modes need to run.
struct Run<'a> {
    args: &'a Args,
    client: Client,
    topic: String,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let plan = Plan::new(args.mode, usual_count(args.mode), args.count, &args.span, args.rate, args.send.size)?;
    let client = connect(&args.server.url)?;
    let run = Run { args, client, topic: args.topic.clone().unwrap_or_else(|| fresh("perf")) };
    perf::run(&run, &plan, &run.topic, args.json)
}

impl Bench for Run<'_> {
    type Producer = Sender;

    fn producer(&self) -> Result<Sender, Failure> {
        let Self { args, client, topic } = self;
        let producer = create(producer(client, topic, &args.send), topic, &args.server.url)?;
        Ok(Sender::new(producer, &args.send))
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
