//! `threadmq pulsar perf`: what the client can do and what it costs.

mod consume;
mod latency;
mod produce;
mod sync;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use threadmq::pulsar::Client;

use super::connect;
use crate::args::{SendArgs, ServerArgs, fresh, positive, rate, seconds};
use crate::meter::{Latencies, Measured, peak_memory_mib};
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print_result, rounded, table};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Sends with callbacks as fast as --inflight allows; latency is from call to callback
    Produce,
    /// Receives and acknowledges each message; the clock starts with the first after the warm-up
    Consume,
    /// Sends one message after another, each waiting for its receipt
    Sync,
    /// Sends at a rate and receives in the same process; latency is from call to receive
    Latency,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Sync => "sync",
            Self::Latency => "latency",
        }
    }

    fn usual_count(self) -> u64 {
        match self {
            Self::Produce => 1_000_000,
            Self::Consume => 500_000,
            Self::Sync => 5_000,
            Self::Latency => 50_000,
        }
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

/// What a mode has measured.
struct Results {
    messages: u64,
    measured: Measured,
    errors: u64,
    /// Whether latencies were taken.
    timed: bool,
}

/// Counted by callbacks and the progress bar. It lives as long as the process, so that a callback carries nothing
/// but its address.
struct Counters {
    /// Messages of the measured part so far.
    done: AtomicU64,
    errors: AtomicU64,
    latencies: Mutex<Latencies>,
}

impl Counters {
    fn record(&self, latency: Duration) {
        if let Ok(mut latencies) = self.latencies.lock() {
            latencies.record(latency);
        }
    }

    fn error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets the warm-up.
    fn restart(&self) -> Result<(), Failure> {
        self.errors.store(0, Ordering::Relaxed);
        if let Ok(mut latencies) = self.latencies.lock() {
            *latencies = Latencies::new()?;
        }
        Ok(())
    }

    fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let usual = args.mode.usual_count();
    let counters: &'static Counters = Box::leak(Box::new(Counters {
        done: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        latencies: Mutex::new(Latencies::new()?),
    }));
    let run = Run {
        args,
        client: connect(&args.server.url)?,
        topic: args.topic.clone().unwrap_or_else(|| fresh("perf")),
        count: args.count.or(args.seconds.is_none().then_some(usual)),
        warmup: args.warmup.unwrap_or(args.count.unwrap_or(usual) / 5),
        counters,
    };
    let progress = Progress::start(run.count, Elsewhere::Silent, || {
        let done = counters.done.load(Ordering::Relaxed);
        (done, format!("{} messages, {} errors", grouped(done), counters.errors()))
    });
    let results = match args.mode {
        Mode::Produce => produce::run(&run),
        Mode::Consume => consume::run(&run),
        Mode::Sync => sync::run(&run),
        Mode::Latency => latency::run(&run),
    };
    drop(progress);
    let results = results?;
    let _ = run.client.close();
    print_results(&run, &results);
    Ok(Outcome::good_if(results.errors == 0))
}

fn print_results(run: &Run<'_>, results: &Results) {
    let Results { messages, measured, errors, timed } = results;
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    let per_second = *messages as f64 / seconds;
    let mb_per_second = per_second * run.args.send.size as f64 / 1e6;
    let cpu = measured.cpu.filter(|_| *messages > 0).map(|cpu| cpu.as_secs_f64() * 1e6 / *messages as f64);
    let latencies = run.counters.latencies.lock().ok().filter(|_| *timed);
    let quantile = |q: f64| latencies.as_ref().and_then(|latencies| latencies.quantile(q));
    let max = latencies.as_ref().and_then(|latencies| latencies.max());
    let memory = peak_memory_mib();
    let object = Object::new()
        .with("mode", run.args.mode.name())
        .with("messages", *messages)
        .with("seconds", rounded(seconds, 3))
        .with("msgs_per_s", rounded(per_second, 0))
        .with("mb_per_s", rounded(mb_per_second, 3))
        .with("cpu_us_per_msg", cpu.map(|cpu| rounded(cpu, 3)))
        .with("p50_us", quantile(0.5))
        .with("p99_us", quantile(0.99))
        .with("p999_us", quantile(0.999))
        .with("max_us", max)
        .with("max_rss_mb", memory.map(|mib| rounded(mib, 1)))
        .with("errors", *errors);
    let micros = |value: Option<u64>| value.map_or("-".to_owned(), |micros| format!("{} µs", grouped(micros)));
    let text = table(&[
        ("topic", run.topic.clone()),
        ("messages", format!("{} in {seconds:.3} s", grouped(*messages))),
        ("throughput", format!("{} messages/s, {mb_per_second:.1} MB/s", grouped(per_second as u64))),
        ("processor", cpu.map_or("-".to_owned(), |cpu| format!("{cpu:.3} µs a message, user and system"))),
        (
            "latency",
            format!(
                "p50 {}, p99 {}, p99.9 {}, max {}",
                micros(quantile(0.5)),
                micros(quantile(0.99)),
                micros(quantile(0.999)),
                micros(max)
            ),
        ),
        ("peak memory", memory.map_or("-".to_owned(), |mib| format!("{mib:.1} MiB"))),
        ("errors", grouped(*errors)),
    ]);
    print_result(run.args.json, &object, &text);
}
