//! `threadmq rocketmq verify`: the promise as a command.

pub mod cluster;
mod reader;

use std::time::Duration;

use super::args::{SendArgs, ServerArgs};
use super::embedded::Embedded;
use crate::args::{duration, fresh, positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::verify::checks::Checks;
use crate::verify::faults::{Fault, Schedule};
use crate::verify::plan::Plan;
use cluster::Cluster;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic; what it held before is left alone
    #[arg(long, required_unless_present = "embedded")]
    topic: Option<String>,
    /// Consumer group of the reader [default: a new one]
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    send: SendArgs,
    /// Messages to send [default: without limit but --seconds]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Messages a second
    #[arg(long, value_name = "PER_SECOND", default_value = "100", value_parser = rate)]
    rate: f64,
    /// How long to send, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Start a proxy in this process and a network before it that can be broken, instead of using --endpoint
    #[arg(long, conflicts_with_all = ["endpoint", "access_key", "secret_key"])]
    embedded: bool,
    /// Make the link half-open so many times
    #[arg(long, value_name = "TIMES", requires = "embedded", value_parser = clap::value_parser!(u16).range(1..))]
    half_open: Option<u16>,
    /// Freeze the proxy for so long, such as 20s
    #[arg(long, value_name = "DURATION", requires = "embedded", value_parser = duration)]
    freeze: Option<Duration>,
    /// Reset all links and refuse new ones for so long, as while a proxy is killed and started again
    #[arg(long, value_name = "DURATION", requires = "embedded", value_parser = duration)]
    restart: Option<Duration>,
    #[command(flatten)]
    checks: Checks,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            size: self.send.size,
            send_timeout: self.send.send_timeout,
            rate: self.rate,
            count: self.count,
            span: self.seconds,
            read_back: !self.checks.no_read_back,
            patience: self.checks.patience,
            close_at_once: self.checks.close_at_once,
        }
    }

    fn cluster(&self, embedded: Option<&Embedded>) -> Result<Cluster, Failure> {
        let topic = self.topic.clone().unwrap_or_else(|| fresh("verify"));
        let mut server = self.server.clone();
        if let Some(embedded) = embedded {
            embedded.proxy().create_topic(&topic, self.send.kind.message_type(), 4);
            server.endpoint = embedded.endpoint();
        }
        Cluster::connect(&server, topic, self.group.clone(), self.send.clone())
    }
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let schedule = Schedule::spread(&Fault::list(args.half_open, args.freeze, args.restart), args.seconds)?;
    let events = args.checks.event_log()?;
    let embedded = if args.embedded { Some(Embedded::start()?) } else { None };
    let cluster = args.cluster(embedded.as_ref())?;
    let faults = embedded.as_ref().map(|embedded| (embedded.network(), &schedule));
    args.checks.run(&args.plan(), &cluster, events, faults)
}
