//! What `perf` is made of for every system: modes, counters, and the figures that are printed.

pub mod latency;
pub mod produce;
pub mod sync;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use threadmq::{Error, ErrorKind};

use crate::args::seconds;
use crate::meter::{Latencies, Measured, peak_memory_mib};
use crate::outcome::{Failure, Outcome};
use crate::pacer::Pacer;
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print_result, rounded, table};
use crate::system::Producer;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
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
    pub fn name(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Sync => "sync",
            Self::Latency => "latency",
        }
    }
}

/// How long the warm-up and the measurement last.
#[derive(Debug, clap::Args)]
pub struct Span {
    /// Messages before the clock starts [default: a fifth of the count]
    #[arg(long, value_name = "MESSAGES")]
    warmup: Option<u64>,
    /// Measure for so many seconds at most
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
}

/// What is measured, and where it is counted.
pub struct Plan {
    mode: Mode,
    /// Of a body.
    size: usize,
    /// The mode's count if none is stated.
    usual: u64,
    /// `None`: until `span` is over.
    pub count: Option<u64>,
    pub warmup: u64,
    pub span: Option<Duration>,
    /// Messages a second.
    rate: Option<f64>,
    pub counters: &'static Counters,
}

impl Plan {
    pub fn new(
        mode: Mode,
        usual: u64,
        count: Option<u64>,
        span: &Span,
        rate: Option<f64>,
        size: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            mode,
            size,
            usual,
            count: count.or(span.seconds.is_none().then_some(usual)),
            warmup: span.warmup.unwrap_or(count.unwrap_or(usual) / 5),
            span: span.seconds,
            rate,
            counters: Counters::leak()?,
        })
    }

    fn warm_up(&self) -> Pacer {
        Pacer::new(self.rate, Some(self.warmup), None)
    }

    fn pacer(&self) -> Pacer {
        Pacer::new(self.rate, self.count, self.span)
    }
}

/// A system as `perf` drives it: connected, and with a topic.
pub trait Bench {
    type Producer: Producer;

    fn producer(&self) -> Result<Self::Producer, Failure>;

    fn consume(&self, plan: &Plan) -> Result<Results, Failure>;

    fn latency(&self, plan: &Plan) -> Result<Results, Failure>;

    fn close(&self);
}

/// Measures with a progress bar, and prints the figures.
pub fn run(bench: &impl Bench, plan: &Plan, topic: &str, json: bool) -> Result<Outcome, Failure> {
    let progress = plan.counters.show(plan.count);
    let results = match plan.mode {
        Mode::Produce => produce::run(&bench.producer()?, plan),
        Mode::Consume => bench.consume(plan),
        Mode::Sync => sync::run(&bench.producer()?, plan),
        Mode::Latency => bench.latency(plan),
    }?;
    drop(progress);
    bench.close();
    print_results(plan, topic, json, &results);
    Ok(Outcome::good_if(results.errors == 0))
}

/// What a mode has measured.
pub struct Results {
    pub messages: u64,
    pub measured: Measured,
    pub errors: u64,
    /// Whether latencies were taken.
    pub timed: bool,
}

/// Counted by callbacks and the progress bar. It lives as long as the process, so that a callback carries nothing
/// but its address.
pub struct Counters {
    /// Messages of the measured part so far.
    pub done: AtomicU64,
    errors: AtomicU64,
    latencies: Mutex<Latencies>,
}

impl Counters {
    pub fn leak() -> Result<&'static Self, Failure> {
        Ok(Box::leak(Box::new(Self {
            done: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            latencies: Mutex::new(Latencies::new()?),
        })))
    }

    /// A bar until it is dropped.
    pub fn show(&'static self, count: Option<u64>) -> Progress {
        Progress::start(count, Elsewhere::Silent, || {
            let done = self.done.load(Ordering::Relaxed);
            (done, format!("{} messages, {} errors", grouped(done), self.errors()))
        })
    }

    pub fn record(&self, latency: Duration) {
        if let Ok(mut latencies) = self.latencies.lock() {
            latencies.record(latency);
        }
    }

    /// Counts a failed answer.
    pub fn answered<R>(&self, result: &Result<R, Error>) {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a call that failed. True if another one may fare better.
    pub fn refused(&self, error: &Error) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        matches!(error.kind(), ErrorKind::Timeout | ErrorKind::WouldBlock)
    }

    /// Forgets the warm-up.
    pub fn restart(&self) -> Result<(), Failure> {
        self.errors.store(0, Ordering::Relaxed);
        if let Ok(mut latencies) = self.latencies.lock() {
            *latencies = Latencies::new()?;
        }
        Ok(())
    }

    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

fn print_results(plan: &Plan, topic: &str, json: bool, results: &Results) {
    let Results { messages, measured, errors, timed } = results;
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    let per_second = *messages as f64 / seconds;
    let mb_per_second = per_second * plan.size as f64 / 1e6;
    let cpu = measured.cpu.filter(|_| *messages > 0).map(|cpu| cpu.as_secs_f64() * 1e6 / *messages as f64);
    let latencies = plan.counters.latencies.lock().ok().filter(|_| *timed);
    let quantile = |q: f64| latencies.as_ref().and_then(|latencies| latencies.quantile(q));
    let max = latencies.as_ref().and_then(|latencies| latencies.max());
    let memory = peak_memory_mib();
    let object = Object::new()
        .with("mode", plan.mode.name())
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
        ("topic", topic.to_owned()),
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
    print_result(json, &object, &text);
}
