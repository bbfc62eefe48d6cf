//! Sends with `send` and with a callback, receives and acknowledges.
//!
//! `cargo run --example pulsar_producer_send -- pulsar://localhost:6650`

use std::sync::mpsc;
use std::time::Duration;

use threadmq::pulsar::{Client, InitialPosition};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "pulsar://localhost:6650".to_owned());
    let client = Client::builder(url).build()?;
    let consumer = client.consumer("example", "reader").initial_position(InitialPosition::Earliest).subscribe()?;
    let producer = client.producer("example").create()?;

    let receipt = producer.send("waited for")?;
    println!("stored as {}", receipt.message_id());

    let (results, answers) = mpsc::channel();
    for number in 0..10 {
        let results = results.clone();
        producer.send_with(format!("number {number}"), move |result| {
            // Runs on a callback thread, exactly once.
            let _ = results.send(result.map(|receipt| receipt.message_id().clone()));
        })?;
    }
    drop(results);
    for answer in answers {
        println!("stored as {}", answer?);
    }

    while let Some(message) = consumer.receive_timeout(Duration::from_secs(2))? {
        println!("received {:?}", String::from_utf8_lossy(message.payload()));
        consumer.ack(&message)?;
    }
    client.close()?;
    Ok(())
}
