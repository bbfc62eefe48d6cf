//! `threadmq broker rocketmq`: a proxy for trials, in memory.

use clap::ValueEnum;
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::{Proxy, Rpc};

use super::args::Kind;
use crate::broker::Served;
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::report::print;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Port of 127.0.0.1 to listen on; 0 takes a free one
    #[arg(long, default_value = "8081")]
    port: u16,
    /// Makes a topic of four queues, for messages of one type (normal, fifo, delay; normal if none is named); may be
    /// repeated
    #[arg(long = "topic", value_name = "TOPIC[=TYPE]", required = true, value_parser = typed)]
    topics: Vec<(String, Kind)>,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
}

fn typed(text: &str) -> Result<(String, Kind), String> {
    let (topic, kind) = text.split_once('=').unwrap_or((text, "normal"));
    match Kind::from_str(kind, false) {
        Ok(kind) if !topic.is_empty() => Ok((topic.to_owned(), kind)),
        _ => Err("write TOPIC or TOPIC=TYPE, with normal, fifo or delay".to_owned()),
    }
}

const QUEUES: usize = 4;

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let proxy = Proxy::start().map_err(|error| Failure::of("the embedded proxy", &error))?;
    // The proxy takes a port of its own choice: the network gives it the one that is wanted.
    let network = Network::listen_on(("127.0.0.1", args.port), proxy.addr(0))
        .map_err(|error| Failure::of(&format!("--port {}", args.port), &error))?;
    proxy.advertise(0, network.address());
    for (topic, kind) in &args.topics {
        proxy.create_topic(topic, kind.message_type(), QUEUES);
    }
    let endpoint = network.address().to_string();
    if args.json {
        // Standard output is for the one object at the end.
        eprintln!("{endpoint}");
    } else {
        print(format_args!("{endpoint}\nan embedded RocketMQ proxy; Ctrl-C ends it\n"));
    }
    interrupt::sleep_until(None);
    let sends = proxy.calls(0, Rpc::SendMessage);
    let messages: u64 = args.topics.iter().map(|(topic, _)| proxy.stored(topic).len() as u64).sum();
    let connections = network.accepted();
    Served { connections, sends, messages }.tell("endpoint", endpoint, args.json);
    Ok(Outcome::Good)
}
