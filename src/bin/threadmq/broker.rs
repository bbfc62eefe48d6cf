//! `threadmq broker`: a broker for trials, in memory.

use clap::Subcommand;
use threadmq::testkit::pulsar::Broker;

use crate::interrupt;
use crate::outcome::{EXIT_CODES, Failure, Outcome};
use crate::report::{Object, grouped, print, print_result, table};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Speaks Apache Pulsar's protocol until Ctrl-C; for tests and trials, not for production
    #[command(after_help = EXIT_CODES)]
    Pulsar(Args),
    /// Speaks the gRPC protocol of RocketMQ 5's proxies until Ctrl-C; for tests and trials, not for production
    #[cfg(feature = "rocketmq")]
    #[command(after_help = EXIT_CODES)]
    Rocketmq(crate::rocketmq::broker::Args),
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Port of 127.0.0.1 to listen on; 0 takes a free one
    #[arg(long, default_value = "6650")]
    port: u16,
    /// Gives a topic partitions; may be repeated
    #[arg(long, value_name = "TOPIC=NUMBER", value_parser = partitioned)]
    partitions: Vec<(String, u32)>,
    /// Drop messages that a producer repeats, by their sequence ids
    #[arg(long)]
    deduplication: bool,
    /// Count messages and throw them away: for measuring what a client can send
    #[arg(long)]
    discard: bool,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
}

fn partitioned(text: &str) -> Result<(String, u32), String> {
    let (topic, number) = text.rsplit_once('=').ok_or_else(|| "write TOPIC=NUMBER, such as orders=4".to_owned())?;
    match number.parse() {
        Ok(number @ 1..=10_000) if !topic.is_empty() => Ok((topic.to_owned(), number)),
        _ => Err("write TOPIC=NUMBER, with 1 to 10000 partitions".to_owned()),
    }
}

pub fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Pulsar(args) => pulsar(&args),
        #[cfg(feature = "rocketmq")]
        Command::Rocketmq(args) => crate::rocketmq::broker::run(&args),
    }
}

fn pulsar(args: &Args) -> Result<Outcome, Failure> {
    let broker = Broker::builder().port(args.port).deduplication(args.deduplication).discard(args.discard);
    let broker = broker.start().map_err(|error| Failure::of(&format!("--port {}", args.port), &error))?;
    for (topic, number) in &args.partitions {
        broker.create_partitioned_topic(topic, *number);
    }
    if args.json {
        // Standard output is for the one object at the end.
        eprintln!("{}", broker.service_url());
    } else {
        print(format_args!("{}\nan embedded Pulsar broker; Ctrl-C ends it\n", broker.service_url()));
    }
    interrupt::sleep_until(None);
    Served { connections: broker.accepted(), sends: broker.sends(), messages: broker.received() }.tell(
        "url",
        broker.service_url(),
        args.json,
    );
    Ok(Outcome::Good)
}

/// What a broker did, for the end.
pub struct Served {
    pub connections: u64,
    pub sends: u64,
    pub messages: u64,
}

impl Served {
    /// `key` is what its system calls `address`.
    pub fn tell(&self, key: &'static str, address: String, json: bool) {
        let Self { connections, sends, messages } = *self;
        let object = Object::new()
            .with(key, address)
            .with("connections", connections)
            .with("sends", sends)
            .with("messages", messages);
        let text = table(&[
            ("connections", grouped(connections)),
            ("received", format!("{} messages in {} sends", grouped(messages), grouped(sends))),
        ]);
        print_result(json, &object, &text);
    }
}
