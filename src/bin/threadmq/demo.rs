//! `threadmq demo`: a connection goes dead under way, and every send is answered.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use threadmq::testkit::Network;

use crate::args::{Codec, SendArgs, SendTimeout, Switch};
use crate::embedded::Embedded;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::{print, print_result};
use crate::verify::faults::{Fault, Schedule};
use crate::verify::plan::{Cluster, Plan};
use crate::verify::watch::Watch;

const SIZE: usize = 100;
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
    let send = SendArgs {
        size: SIZE,
        inflight: None,
        batching: Switch::On,
        compression: Codec::None,
        send_timeout: SendTimeout(Some(SEND_TIMEOUT)),
    };
    let name = Some("demo".to_owned());
    let cluster = crate::pulsar::verify::cluster::Cluster::connect(embedded.url(), name.clone(), name, send)?;
    show(args, &cluster, embedded.network())
}

#[cfg(feature = "rocketmq")]
fn rocketmq(args: &Args) -> Result<Outcome, Failure> {
    use crate::rocketmq::args::{Kind, SendArgs, ServerArgs};

    introduce(args, "An embedded RocketMQ proxy");
    let embedded = crate::rocketmq::embedded::Embedded::start()?;
    embedded.proxy().create_topic("demo", Kind::Normal.message_type(), 4);
    let server = ServerArgs {
        endpoint: embedded.endpoint(),
        access_key: None,
        secret_key: None,
        tls_roots: None,
        tls_insecure: false,
    };
    let send = SendArgs {
        kind: Kind::Normal,
        message_groups: 1,
        delay: Duration::ZERO,
        size: SIZE,
        inflight: None,
        send_timeout: SEND_TIMEOUT,
    };
    let name = "demo".to_owned();
    let cluster = crate::rocketmq::verify::cluster::Cluster::connect(&server, name.clone(), Some(name), send)?;
    show(args, &cluster, embedded.network())
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
fn show(args: &Args, cluster: &impl Cluster, network: &Network) -> Result<Outcome, Failure> {
    let plan = Plan {
        size: SIZE,
        send_timeout: SEND_TIMEOUT,
        rate: RATE,
        count: None,
        span: LENGTH,
        read_back: true,
        patience: Duration::from_secs(30),
        close_at_once: false,
    };
    let schedule = Schedule::at(BREAK, Fault::HalfOpen);
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
        let announce = |text: &str| progress.say(&format!("--- {text}"));
        let findings = plan.carry_out(cluster, watch, Some((network, &schedule)), &announce);
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
