//! Callbacks of a partition run in send order and never two at once; partitions run in parallel.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use threadmq::Threads;
use threadmq::pulsar::{Client, RoutingMode};
use threadmq::testkit::pulsar::Broker;

use super::answers::PATIENCE;
use super::client;

#[test]
fn callbacks_of_a_lane_run_in_order_and_alone() {
    const LANES: usize = 4;
    const EACH: usize = 500;
    let broker = Broker::start().unwrap();
    broker.create_partitioned_topic("p", LANES as u32);
    let threads = Threads::builder().callback_threads(LANES).build().unwrap();
    let client = Client::builder(broker.service_url()).threads(&threads).build().unwrap();
    let producers: Vec<_> = (0..LANES as u32)
        .map(|partition| {
            client.producer("p").routing(RoutingMode::Single { partition: Some(partition) }).create().unwrap()
        })
        .collect();
    let wrong = Arc::new(AtomicUsize::new(0));
    let ran = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for producer in &producers {
            let (wrong, ran) = (&wrong, &ran);
            scope.spawn(move || {
                let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
                for number in 1..=EACH {
                    let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
                    let (wrong, ran) = (Arc::clone(wrong), Arc::clone(ran));
                    let callback = move |result: Result<_, _>| {
                        let twice = inside.swap(true, Ordering::SeqCst);
                        let before = last.swap(number, Ordering::SeqCst);
                        if twice || before + 1 != number || result.is_err() {
                            wrong.fetch_add(1, Ordering::SeqCst);
                        }
                        std::thread::yield_now();
                        inside.store(false, Ordering::SeqCst);
                        ran.fetch_add(1, Ordering::SeqCst);
                    };
                    producer.send_with(number.to_string(), callback).unwrap();
                }
                producer.flush().unwrap();
            });
        }
    });
    assert_eq!((wrong.load(Ordering::SeqCst), ran.load(Ordering::SeqCst)), (0, LANES * EACH));
    client.close().unwrap();
}

/// One waits for the other, which only two lanes at once can satisfy; a barrier passed is the proof.
#[test]
fn lanes_run_in_parallel() {
    let broker = Broker::start().unwrap();
    broker.create_partitioned_topic("p", 2);
    let client = client(&broker);
    let barrier = Arc::new(Barrier::new(2));
    let (told, passed) = mpsc::channel();
    for partition in 0..2 {
        let routing = RoutingMode::Single { partition: Some(partition) };
        let producer = client.producer("p").routing(routing).create().unwrap();
        let (barrier, told) = (Arc::clone(&barrier), told.clone());
        producer
            .send_with("x", move |_| {
                barrier.wait();
                told.send(()).unwrap();
            })
            .unwrap();
    }
    for _ in 0..2 {
        passed.recv_timeout(PATIENCE).unwrap();
    }
    client.close().unwrap();
}

/// The same within one producer: its lanes are its partitions.
#[test]
fn lanes_of_one_producer_run_in_parallel() {
    let broker = Broker::start().unwrap();
    broker.create_partitioned_topic("p", 2);
    let client = client(&broker);
    // Without batching and keys, partitions take turns message by message.
    let producer = client.producer("p").batching(false).create().unwrap();
    let barrier = Arc::new(Barrier::new(2));
    let (told, passed) = mpsc::channel();
    for _ in 0..2 {
        let (barrier, told) = (Arc::clone(&barrier), told.clone());
        producer
            .send_with("x", move |_| {
                barrier.wait();
                told.send(()).unwrap();
            })
            .unwrap();
    }
    for _ in 0..2 {
        passed.recv_timeout(PATIENCE).unwrap();
    }
    client.close().unwrap();
}
