//! `threadmq pulsar verify`: the promise as a command.

pub mod cluster;

use std::time::Duration;

use crate::args::{Codec, SendArgs, SendTimeout, Switch, duration, positive, rate, seconds, send_limit, size};
use crate::embedded::Embedded;
use crate::outcome::{Failure, Outcome};
use crate::verify::checks::Checks;
use crate::verify::faults::{Fault, Schedule};
use crate::verify::plan::Plan;
use cluster::Cluster;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Service URL of the cluster: pulsar://host[:port][,host[:port]...]
    #[arg(long, value_name = "URL", default_value = "pulsar://127.0.0.1:6650", conflicts_with = "embedded")]
    url: String,
    /// Topic [default: a new one]; what it held before is left alone
    #[arg(long)]
    topic: Option<String>,
    /// Subscription of the reader [default: a new one, which is removed at the end]
    #[arg(long)]
    subscription: Option<String>,
    /// Body size, in bytes; also 4k or 1M (of 1024)
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = size)]
    size: usize,
    /// Messages to send [default: without limit but --seconds]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Messages a second
    #[arg(long, value_name = "PER_SECOND", default_value = "1000", value_parser = rate)]
    rate: f64,
    /// How long to send, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Most messages that may be unanswered; sending waits for room [default: only the memory limit]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    inflight: Option<u64>,
    /// Whether messages are sent in batches
    #[arg(long, value_name = "on|off", default_value = "on")]
    batching: Switch,
    /// Compression of batches and messages
    #[arg(long, default_value = "none")]
    compression: Codec,
    /// Time from the call to the answer, such as 200ms or 5s, from 1ms to 1d
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = send_limit)]
    send_timeout: Duration,
    /// Start a broker in this process and a network before it that can be broken, instead of using --url
    #[arg(long)]
    embedded: bool,
    /// Make the link half-open so many times
    #[arg(long, value_name = "TIMES", requires = "embedded", value_parser = clap::value_parser!(u16).range(1..))]
    half_open: Option<u16>,
    /// Freeze the broker for so long, such as 20s
    #[arg(long, value_name = "DURATION", requires = "embedded", value_parser = duration)]
    freeze: Option<Duration>,
    /// Reset all links and refuse new ones for so long, as while a broker is killed and started again
    #[arg(long, value_name = "DURATION", requires = "embedded", value_parser = duration)]
    restart: Option<Duration>,
    #[command(flatten)]
    checks: Checks,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            size: self.size,
            send_timeout: self.send_timeout,
            rate: self.rate,
            count: self.count,
            span: self.seconds,
            read_back: !self.checks.no_read_back,
            patience: self.checks.patience,
            close_at_once: self.checks.close_at_once,
        }
    }

    fn cluster(&self, embedded: Option<&Embedded>) -> Result<Cluster, Failure> {
        let send = SendArgs {
            size: self.size,
            inflight: self.inflight,
            batching: self.batching,
            compression: self.compression,
            send_timeout: SendTimeout(Some(self.send_timeout)),
        };
        let url = embedded.map_or_else(|| self.url.clone(), Embedded::url);
        Cluster::connect(url, self.topic.clone(), self.subscription.clone(), send)
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
