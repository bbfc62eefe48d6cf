//! Many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::plan::{KINDS, Plan};
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

#[test]
fn simulation() {
    let seeds = number("THREADMQ_SEEDS", 2_000);
    let first = number("THREADMQ_FIRST_SEED", 1);
    let started = Instant::now();
    let mut failures: Vec<Failure> = Vec::new();
    let mut met = [[0; 2]; KINDS.len()];
    let (mut sends, mut shallow, mut replacements, mut answered) = (0, 0, 0, [0_u64; 3]);
    for seed in first..first + seeds {
        match run_seed(seed, false) {
            Ok(world) => {
                sends += world.ops.len();
                shallow += u64::from(world.ops.len() < 200);
                replacements += world.replacements;
                for (sum, cell) in met.iter_mut().flatten().zip(world.met.iter().flatten()) {
                    *sum += cell;
                }
                for op in &world.ops {
                    answered[match op.settled {
                        Some(None) => 0,
                        Some(Some(_)) => 1,
                        None => 2,
                    }] += 1;
                }
            }
            Err(failure) => failures.push(failure),
        }
        if failures.len() >= 20 {
            break;
        }
    }
    println!("{seeds} seeds from {first}, {sends} sends ({answered:?} Ok, failed, not accepted), {shallow} with less");
    println!("than 200, {replacements} replacements, {:?}", started.elapsed());
    for (kind, [idle, busy]) in KINDS.iter().zip(met) {
        println!("{kind:>14} {idle:>8} idle {busy:>8} busy");
    }
    for failure in &failures {
        println!("seed {} at {:.6} s: {}", failure.seed, failure.at as f64 / 1e6, failure.text);
    }
    if let Some(failure) = failures.first() {
        println!("{}", explain(failure));
    }
    assert!(failures.is_empty(), "failing seeds: {:?}", failures.iter().map(|one| one.seed).collect::<Vec<_>>());
    if seeds >= 60 {
        assert!(shallow * 4 <= seeds, "{shallow} seeds are too shallow");
        assert!(replacements > 0 && met.iter().flatten().all(|cell| *cell > 0), "faults and states that never met");
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 1..=10 {
        let hash = |seed| run_seed(seed, false).map(|world| world.trace.hash).map_err(|failure| failure.text);
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
}
