//! `threadmq rocketmq topics`: where topics are, and what they take.

use serde_json::{Value, json};
use threadmq::rocketmq::TopicQueue;

use super::args::ServerArgs;
use super::{connect, unreachable_at};
use crate::outcome::{Failure, Outcome};
use crate::report::{Object, print_result, table};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topics to look up
    #[arg(value_name = "TOPIC", required = true)]
    topics: Vec<String>,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server)?;
    let endpoint = &args.server.endpoint;
    let mut found = Vec::new();
    let mut text = String::new();
    for topic in &args.topics {
        let queues = client
            .topic_queues(topic.as_str())
            .map_err(|error| unreachable_at(&format!("topic {topic} at {endpoint}"), endpoint, &error))?;
        text.push_str(topic);
        text.push('\n');
        let rows: Vec<(String, String)> = queues.iter().map(|queue| (label(queue), details(queue))).collect();
        text.push_str(&table(&rows.iter().map(|(label, value)| (label.as_str(), value.clone())).collect::<Vec<_>>()));
        found.push(json!({ "topic": topic, "queues": queues.iter().map(object).collect::<Vec<_>>() }));
    }
    let _ = client.close();
    print_result(args.json, &Object::new().with("topics", found), &text);
    Ok(Outcome::good_if(true))
}

fn label(queue: &TopicQueue) -> String {
    format!("{}/{}", queue.broker, queue.id)
}

fn details(queue: &TopicQueue) -> String {
    let permission = match (queue.readable, queue.writable) {
        (true, true) => "read and write",
        (true, false) => "read",
        (false, true) => "write",
        (false, false) => "closed",
    };
    format!("{permission}, {} at {}", queue.accepts.join(" "), queue.endpoints)
}

fn object(queue: &TopicQueue) -> Value {
    json!({
        "broker": queue.broker,
        "id": queue.id,
        "endpoints": queue.endpoints,
        "readable": queue.readable,
        "writable": queue.writable,
        "accepts": queue.accepts,
    })
}
