//! What of a verification is asked for in the same words whatever the system, and how it is shown.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use threadmq::testkit::Network;

use super::events::EventLog;
use super::faults::Schedule;
use super::plan::{Cluster, Plan};
use super::watch::Watch;
use crate::args::duration;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::print_result;

/// What is checked, and how it is told.
#[derive(Debug, clap::Args)]
pub struct Checks {
    /// Write each call, answer and mark as a line into this file, and watch for answers 10 s past the close
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Give up reading when nothing has come for so long while acknowledged messages are missing
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub patience: Duration,
    /// Do not read the topic back: losses and order are then not checked
    #[arg(long)]
    pub no_read_back: bool,
    /// Close right after the last send instead of waiting for the answers first
    #[arg(long)]
    pub close_at_once: bool,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

impl Checks {
    pub fn event_log(&self) -> Result<Option<EventLog>, Failure> {
        self.events.as_deref().map(EventLog::create).transpose()
    }

    /// Carries the plan out with a progress bar, and prints what was found.
    pub fn run(
        &self,
        plan: &Plan,
        cluster: &impl Cluster,
        events: Option<EventLog>,
        faults: Option<(&Network, &Schedule)>,
    ) -> Result<Outcome, Failure> {
        let watch = Watch::new(events);
        let progress = {
            let (watch, started, span) = (Arc::clone(&watch), Instant::now(), plan.span);
            let tenths = |time: Duration| u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX);
            Progress::start(Some(tenths(span)), Elsewhere::Silent, move || {
                (tenths(started.elapsed().min(span)), watch.line())
            })
        };
        let findings = plan.carry_out(cluster, &watch, faults, &|text| progress.say(text));
        drop(progress);
        let findings = findings?;
        if findings.late > 0 {
            eprintln!("{}", findings.about_lateness());
        }
        print_result(self.json, &findings.object(), &findings.text());
        Ok(Outcome::good_if(findings.hold()))
    }
}
