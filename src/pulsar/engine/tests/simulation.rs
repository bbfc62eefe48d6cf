//! Many seeds, on two threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::coverage::Coverage;
use super::plan::Plan;
use super::world::{Failure, World};

/// What one seed gave.
pub(super) struct Report {
    pub hash: u64,
    pub coverage: Coverage,
    pub sends: u64,
}

/// Runs one seed. A panic of the engine is a failure like any other.
pub(super) fn run_seed(seed: u64, text: bool) -> Result<Report, Failure> {
    let mut world = World::new(Plan::random(seed), text);
    let ran = catch_unwind(AssertUnwindSafe(|| world.run()));
    match ran {
        Ok(Ok(())) => Ok(Report {
            hash: world.trace.hash(),
            coverage: std::mem::take(&mut world.coverage),
            sends: world.ops.len() as u64,
        }),
        Ok(Err(failure)) => Err(failure),
        Err(_) => Err(Failure {
            seed,
            at: world.now,
            text: "a panic".into(),
            lines: world.trace.lines.take().unwrap_or_default(),
        }),
    }
}

/// The failure again, with its trace.
pub(super) fn explain(failure: &Failure) -> String {
    let lines = match run_seed(failure.seed, true) {
        Err(again) => again.lines,
        Ok(_) => vec!["the seed does not fail again: it depends on something that is not in it".into()],
    };
    let tail = lines.len().saturating_sub(number("THREADMQ_LINES", 80) as usize);
    format!(
        "seed {} at {:.6} s: {}\n{}\n",
        failure.seed,
        failure.at as f64 / 1e6,
        failure.text,
        lines[tail..].join("\n")
    )
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn simulation() {
    let seeds = number("THREADMQ_SEEDS", 2_000);
    let first = number("THREADMQ_FIRST_SEED", 1);
    let next = AtomicU64::new(first);
    let started = Instant::now();
    let work = || {
        let mut coverage = Coverage::default();
        let (mut sends, mut shallow, mut failures) = (0, 0, Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds || failures.len() >= 20 {
                return (coverage, sends, shallow, failures);
            }
            match run_seed(seed, false) {
                Ok(report) => {
                    shallow += u64::from(report.sends < 200);
                    coverage.add(&report.coverage);
                    sends += report.sends;
                }
                Err(failure) => failures.push(failure),
            }
        }
    };
    let (mut coverage, mut sends, mut shallow, mut failures) = (Coverage::default(), 0, 0, Vec::new());
    std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        for thread in threads {
            let (more, sent, flat, failed) = thread.join().unwrap();
            coverage.add(&more);
            sends += sent;
            shallow += flat;
            failures.extend(failed);
        }
    });
    println!("{seeds} seeds from {first}, {sends} sends, {shallow} with less than 200, {:?}", started.elapsed());
    println!("{}", coverage.table());
    failures.sort_by_key(|failure| failure.seed);
    for failure in &failures {
        println!("seed {} at {:.6} s: {}", failure.seed, failure.at as f64 / 1e6, failure.text);
    }
    if let Some(failure) = failures.first() {
        println!("{}", explain(failure));
    }
    assert!(failures.is_empty(), "failing seeds: {:?}", failures.iter().map(|one| one.seed).collect::<Vec<_>>());
    // Where producers are closed early, or fail for good, callers have nothing to do.
    assert!(shallow * 200 <= seeds, "{shallow} seeds are too shallow");
    if seeds >= 2_000 {
        assert_eq!(coverage.missing(), Vec::<String>::new(), "these never met");
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 1..=20 {
        let hash = |seed| run_seed(seed, false).map(|report| report.hash).map_err(|failure| failure.text);
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
}
