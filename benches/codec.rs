//! What it costs to write and read Pulsar frames.
//!
//! `cargo bench --features bench --bench codec`
//!
//! Batches are a thousand messages of 100 bytes; the throughput is messages (or receipts) a second.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, Throughput};
use threadmq::__bench::{Batches, read_batch, read_receipts, receipt};
use threadmq::pulsar::Compression;

const MESSAGES: usize = 1_000;
const BODY: usize = 100;

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mut batches = Batches::new(MESSAGES, BODY, compression);
        group.bench_function(format!("write batch, {compression:?}"), |bench| {
            bench.iter(|| black_box(batches.write()).len());
        });
    }
    let batch = Batches::new(MESSAGES, BODY, Compression::None).write();
    group.bench_function("read batch", |bench| bench.iter(|| read_batch(black_box(&batch))));

    let receipts = receipt().repeat(MESSAGES);
    group.bench_function("read receipts", |bench| {
        let arrive = || BytesMut::from(&receipts[..]);
        bench.iter_batched(arrive, |mut buffer| read_receipts(&mut buffer), BatchSize::SmallInput);
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    codec(&mut criterion);
    criterion.final_summary();
}
