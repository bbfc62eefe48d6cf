//! What one message costs the Pulsar engine: from admission to its settled result, frames written and receipts taken,
//! without sockets, threads or callbacks.
//!
//! `cargo bench --features bench,testkit --bench engine`

use std::time::Instant;

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use threadmq::__bench::EngineSteps;

const MESSAGES: usize = 1_000;
const BODY: usize = 100;

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    let body = Bytes::from(vec![b'x'; BODY]);
    for (name, batch) in [("produce, batches of 1000", Some(MESSAGES)), ("produce, no batches", None)] {
        let Some(mut steps) = EngineSteps::open(Instant::now(), batch) else {
            eprintln!("{name}: the engine did not open its producer");
            std::process::exit(1);
        };
        assert_eq!(steps.round(MESSAGES, &body), MESSAGES, "every message is settled");
        group.bench_function(name, |bench| bench.iter(|| steps.round(MESSAGES, &body)));
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    engine(&mut criterion);
    criterion.final_summary();
}
