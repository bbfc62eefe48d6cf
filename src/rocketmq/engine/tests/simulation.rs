//! Many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::coverage::Coverage;
use super::plan::Plan;
use super::world::{Failure, World};

/// Runs one seed. A panic of the engine is a failure like any other.
pub(super) fn run_seed(seed: u64, text: bool) -> Result<World, Failure> {
    let mut world = World::new(Plan::random(seed), text);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(())) => Ok(world),
        Ok(Err(failure)) => Err(failure),
        Err(_) => {
            let lines = world.trace.lines.take().unwrap_or_default();
            Err(Failure { seed, at: world.now, text: "a panic".into(), lines })
        }
    }
}

fn explain(failure: &Failure) -> String {
    let lines = run_seed(failure.seed, true).map_or_else(|again| again.lines, |_| Vec::new());
    let tail = lines.len().saturating_sub(number("THREADMQ_LINES", 60) as usize);
    let (seed, at) = (failure.seed, failure.at as f64 / 1e6);
    format!("seed {seed} at {at:.6} s: {}\n{}\n", failure.text, lines[tail..].join("\n"))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What many seeds gave.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    sends: usize,
    received: usize,
    shallow: u64,
    failures: Vec<Failure>,
}

#[test]
fn simulation() {
    let seeds = number("THREADMQ_SEEDS", 2_000);
    let first = number("THREADMQ_FIRST_SEED", 1);
    let next = AtomicU64::new(first);
    let started = Instant::now();
    let work = || {
        let mut sum = Sum::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds || sum.failures.len() >= 20 {
                return sum;
            }
            match run_seed(seed, false) {
                Ok(world) => {
                    sum.coverage.add(&world.coverage);
                    sum.sends += world.ops.len();
                    sum.received += world.depot.handles.values().filter(|handed| handed.given).count();
                    sum.shallow += u64::from(world.ops.len() < 200);
                }
                Err(failure) => sum.failures.push(failure),
            }
        }
    };
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let more = thread.join().unwrap();
            sum.coverage.add(&more.coverage);
            sum.sends += more.sends;
            sum.received += more.received;
            sum.shallow += more.shallow;
            sum.failures.extend(more.failures);
        }
    });
    let Sum { coverage, sends, received, shallow, mut failures } = sum;
    println!("{seeds} seeds from {first}, {sends} sends, {received} received,");
    println!("{shallow} with less than 200 sends, {:?}", started.elapsed());
    println!("{}", coverage.table());
    failures.sort_by_key(|failure| failure.seed);
    for failure in &failures {
        println!("seed {} at {:.6} s: {}", failure.seed, failure.at as f64 / 1e6, failure.text);
    }
    if let Some(failure) = failures.first() {
        println!("{}", explain(failure));
    }
    assert!(failures.is_empty(), "failing seeds: {:?}", failures.iter().map(|one| one.seed).collect::<Vec<_>>());
    if seeds >= 60 {
        assert!(shallow * 20 <= seeds, "{shallow} seeds are too shallow");
    }
    if seeds >= 2_000 {
        assert_eq!(coverage.missing(), Vec::<String>::new(), "these never met");
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 1..=10 {
        let hash = |seed| run_seed(seed, false).map(|world| world.trace.hash).map_err(|failure| failure.text);
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
}
