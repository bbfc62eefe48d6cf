//! Many threads, and everything changes all the time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use threadmq::Delivery;
use threadmq::rocketmq::Message;
use threadmq::testkit::rocketmq::{Effect, Rpc};

use super::stage::{MS, PATIENCE, Stage, seconds};

const THREADS: usize = 16;

/// 16 threads send for 15 s while routes and settings change every 50 ms, one call in five is throttled and the links
/// break every 3 s: each send is answered once, and what the proxy stored was reported as stored or in doubt.
#[test]
fn n115_data_race() {
    let stage = Stage::new(2);
    let client = stage.client();
    let producer = client.producer().topic("t").send_timeout(seconds(5)).start().unwrap();
    stage.proxy.on(Rpc::SendMessage).every(5).then(Effect::Status(42900, "flow limit".to_owned()));
    let over = AtomicBool::new(false);
    let (tell, told) = channel();
    let sent = std::thread::scope(|scope| {
        let sending: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (producer, over, tell) = (producer.clone(), &over, tell.clone());
                scope.spawn(move || {
                    let mut sent = 0;
                    while !over.load(Ordering::SeqCst) {
                        let (tell, body) = (tell.clone(), format!("{thread}-{sent}"));
                        let message = Message::new("t", body.as_str());
                        if producer.send_with(message, move |result| drop(tell.send((body, result)))).is_ok() {
                            sent += 1;
                        }
                        std::thread::sleep(MS);
                    }
                    sent
                })
            })
            .collect();
        let started = Instant::now();
        let mut resets = 0;
        for step in 0.. {
            if started.elapsed() > seconds(15) {
                break;
            }
            std::thread::sleep(MS * 50);
            stage.proxy.max_body_size(if step % 2 == 0 { 4 << 20 } else { 1 << 20 });
            stage.proxy.route_topic("t", 4 + step % 3, [&[0, 1], &[1, 0], &[0][..]][step % 3]);
            // The streams that are opened again bring new settings.
            stage.proxy.end_streams();
            if started.elapsed() > seconds(3 * (resets + 1)) {
                stage.networks.iter().for_each(|network| network.reset());
                resets += 1;
            }
        }
        over.store(true, Ordering::SeqCst);
        sending.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    drop(tell);
    let (mut answers, mut good, mut in_doubt) = (0, BTreeSet::new(), BTreeSet::new());
    while answers < sent {
        let (body, result) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{answers} of {sent} answers"));
        answers += 1;
        match result {
            Ok(_) => assert!(good.insert(body)),
            Err(error) if error.delivery() == Delivery::Unknown => assert!(in_doubt.insert(body)),
            Err(_) => {}
        }
    }
    client.close().unwrap();
    assert!(told.recv().is_err(), "an answer after the last");
    let stored: BTreeSet<String> =
        stage.proxy.stored("t").iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap()).collect();
    println!("115: {sent} sent, {} good, {} in doubt, {} stored", good.len(), in_doubt.len(), stored.len());
    assert!(good.is_subset(&stored), "what is reported as stored is");
    assert!(stored.iter().all(|body| good.contains(body) || in_doubt.contains(body)), "stored, but told otherwise");
    assert!(good.len() > sent / 2, "most succeed");
}
