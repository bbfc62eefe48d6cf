//! `threadmq rocketmq verify`: the promise as a command.

mod reader;
pub mod run;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::args::{SendArgs, ServerArgs};
use super::embedded::Embedded;
use crate::args::{duration, fresh, positive, rate, seconds};
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::print_result;
use crate::verify::events::EventLog;
use crate::verify::faults::{Fault, Schedule};
use run::{Plan, Watch};

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
    /// Write each call, answer and mark as a line into this file, and watch for answers 10 s past the close
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Give up reading when nothing has come for so long while acknowledged messages are missing
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    patience: Duration,
    /// Do not read the topic back: losses and order are then not checked
    #[arg(long)]
    no_read_back: bool,
    /// Close right after the last send instead of waiting for the answers first
    #[arg(long)]
    close_at_once: bool,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

impl Args {
    fn faults(&self) -> Vec<Fault> {
        let half_open = std::iter::repeat_n(Fault::HalfOpen, self.half_open.unwrap_or(0).into());
        half_open.chain(self.freeze.map(Fault::Freeze)).chain(self.restart.map(Fault::Restart)).collect()
    }

    fn plan(&self, embedded: Option<&Embedded>) -> Plan {
        let topic = self.topic.clone().unwrap_or_else(|| fresh("verify"));
        let mut server = self.server.clone();
        if let Some(embedded) = embedded {
            embedded.proxy().create_topic(&topic, self.send.kind.message_type(), 4);
            server.endpoint = embedded.endpoint();
        }
        Plan {
            server,
            topic,
            group: self.group.clone(),
            send: self.send.clone(),
            rate: Some(self.rate),
            count: self.count,
            span: self.seconds,
            read_back: !self.no_read_back,
            patience: self.patience,
            close_at_once: self.close_at_once,
        }
    }
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let schedule = Schedule::spread(&args.faults(), args.seconds)?;
    let events = args.events.as_deref().map(EventLog::create).transpose()?;
    let embedded = if args.embedded { Some(Embedded::start()?) } else { None };
    let plan = args.plan(embedded.as_ref());
    let watch = Watch::new(events);
    let progress = {
        let (watch, started, span) = (Arc::clone(&watch), Instant::now(), args.seconds);
        let tenths = |time: Duration| u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX);
        Progress::start(Some(tenths(span)), Elsewhere::Silent, move || {
            (tenths(started.elapsed().min(span)), watch.line())
        })
    };
    let faults = embedded.as_ref().map(|embedded| (embedded.network(), &schedule));
    let findings = plan.carry_out(&watch, faults, &|text| progress.say(text));
    drop(progress);
    let findings = findings?;
    if findings.late > 0 {
        eprintln!("{}", findings.about_lateness());
    }
    print_result(args.json, &findings.object(), &findings.text());
    Ok(Outcome::good_if(findings.hold()))
}
