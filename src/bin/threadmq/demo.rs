//! `threadmq demo`: a connection goes dead under way, and every send is answered.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::args::{Codec, SendArgs, SendTimeout, Switch};
use crate::embedded::Embedded;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::pulsar::verify::run::Plan;
use crate::report::{print, print_result};
use crate::verify::faults::{Fault, Schedule};
use crate::verify::findings::Findings;
use crate::verify::watch::Watch;

const RATE: f64 = 200.0;
const LENGTH: Duration = Duration::from_secs(22);
const BREAK: Duration = Duration::from_secs(9);
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose protocol the embedded broker speaks
    #[arg(value_enum, default_value = "pulsar")]
    system: System,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    Pulsar,
    #[cfg(feature = "rocketmq")]
    Rocketmq,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    match args.system {
        System::Pulsar => pulsar(args),
        #[cfg(feature = "rocketmq")]
        System::Rocketmq => rocketmq(args),
    }
}

fn pulsar(args: &Args) -> Result<Outcome, Failure> {
    introduce(args, "An embedded Pulsar broker");
    let embedded = Embedded::start()?;
    let plan = Plan {
        url: embedded.url(),
        topic: Some("demo".to_owned()),
        subscription: Some("demo".to_owned()),
        send: SendArgs {
            size: 100,
            inflight: None,
            batching: Switch::On,
            compression: Codec::None,
            send_timeout: SendTimeout(Some(SEND_TIMEOUT)),
        },
        send_timeout: SEND_TIMEOUT,
        rate: Some(RATE),
        count: None,
        span: LENGTH,
        read_back: true,
        patience: Duration::from_secs(30),
        close_at_once: false,
    };
    let schedule = Schedule::at(BREAK, Fault::HalfOpen);
    show(args, |watch, announce| plan.carry_out(watch, Some((embedded.network(), &schedule)), announce))
}

#[cfg(feature = "rocketmq")]
fn rocketmq(args: &Args) -> Result<Outcome, Failure> {
    use crate::rocketmq::args as other;

    introduce(args, "An embedded RocketMQ proxy");
    let embedded = crate::rocketmq::embedded::Embedded::start()?;
    embedded.proxy().create_topic("demo", other::Kind::Normal.message_type(), 4);
    let plan = crate::rocketmq::verify::run::Plan {
        server: other::ServerArgs { endpoint: embedded.endpoint(), access_key: None, secret_key: None },
        topic: "demo".to_owned(),
        group: Some("demo".to_owned()),
        send: other::SendArgs {
            kind: other::Kind::Normal,
            message_groups: 1,
            delay: Duration::ZERO,
            size: 100,
            inflight: None,
            send_timeout: SEND_TIMEOUT,
        },
        rate: Some(RATE),
        count: None,
        span: LENGTH,
        read_back: true,
        patience: Duration::from_secs(30),
        close_at_once: false,
    };
    let schedule = Schedule::at(BREAK, Fault::HalfOpen);
    show(args, |watch, announce| plan.carry_out(watch, Some((embedded.network(), &schedule)), announce))
}

fn introduce(args: &Args, broker: &str) {
    if !args.json {
        print(format_args!(
            "{broker}, a producer with callbacks ({RATE} messages/s, send timeout {} s), a consumer.\n\
             After {} s the connection goes half-open: the broker is well, but what is sent on this connection\n\
             vanishes, and nobody says so. Watch the sends time out, the connection being replaced, and the tally.\n\n",
            SEND_TIMEOUT.as_secs(),
            BREAK.as_secs()
        ));
    }
}

/// Runs what is to be watched, tells of it, and prints the tally.
fn show<P: Eq + Hash + Send + 'static>(
    args: &Args,
    carry_out: impl FnOnce(&Arc<Watch<P>>, &(dyn Fn(&str) + Sync)) -> Result<Findings, Failure>,
) -> Result<Outcome, Failure> {
    let watch = Watch::new(None);
    let progress = {
        let (watch, started) = (Arc::clone(&watch), Instant::now());
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Progress::start(Some(millis(LENGTH)), Elsewhere::Lines(Duration::from_secs(2)), move || {
            (millis(started.elapsed().min(LENGTH)), watch.line())
        })
    };
    let over = AtomicBool::new(false);
    let findings = thread::scope(|scope| {
        let (watch, over, progress) = (&watch, &over, &progress);
        scope.spawn(move || narrate(watch, over, progress));
        let findings = carry_out(watch, &|text| progress.say(&format!("--- {text}")));
        over.store(true, Ordering::Release);
        findings
    });
    drop(progress);
    let findings = findings?;
    print_result(args.json, &findings.object(), &format!("\nThe tally:\n{}", findings.text()));
    // A demonstration that showed no fault has shown nothing; one that was cut short may not have come to it.
    let seen = crate::interrupt::stopped() || (findings.timed_out > 0 && findings.recoveries > 0);
    Ok(Outcome::good_if(findings.hold() && seen))
}

/// Says when sends begin to time out, and when they succeed again.
fn narrate<P: Eq + Hash>(watch: &Watch<P>, over: &AtomicBool, progress: &Progress) {
    let mut failing_since = None;
    while !over.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(50));
        let (first_failed, last_stored) = {
            let ledger = watch.ledger();
            (ledger.first_failed_at, ledger.last_stored_at)
        };
        match (failing_since, first_failed, last_stored) {
            (None, Some(failed), _) => {
                failing_since = Some(failed);
                progress.say("--- sends time out, each answered by its callback when its 2 s are over");
            }
            (Some(failed), _, Some(stored)) if stored > failed => {
                let ledger = watch.ledger();
                let recovery = ledger.recovery().unwrap_or_default();
                progress.say(&format!(
                    "--- the dead connection is replaced: {} sends timed out, {:.1} s from the first troubled call \
                     to this success",
                    ledger.timed_out,
                    recovery.as_secs_f64()
                ));
                return;
            }
            _ => {}
        }
    }
}
