//! `threadmq rocketmq`: the commands, and how they reach the cluster.

pub mod args;
pub mod broker;
mod consume;
pub mod embedded;
mod perf;
mod produce;
mod topics;
pub mod verify;

use std::time::Duration;

use clap::Subcommand;
use threadmq::rocketmq::{Client, FilterExpression, Message, Producer, SendReceipt, SimpleConsumer, TlsOptions};
use threadmq::{Error, ErrorKind};

use crate::outcome::{EXIT_CODES, Failure, Outcome};
use crate::system;
use args::{SendArgs, ServerArgs};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sends messages: one body, lines of standard input, or generated ones
    #[command(after_help = EXIT_CODES)]
    Produce(produce::Args),
    /// Receives messages, acknowledges and prints them
    #[command(after_help = EXIT_CODES)]
    Consume(consume::Args),
    /// Measures throughput, latency, processor time and memory
    #[command(after_help = EXIT_CODES)]
    Perf(perf::Args),
    /// Checks on a cluster that each send is answered once and in time and that nothing acknowledged is lost
    ///
    /// Sends numbered messages at a rate, watches the answers, and reads the topic back. Break the cluster while it
    /// runs, or let --embedded do it to a proxy of its own. Topics are made by the server's administrator; a group
    /// for --type fifo has to be an orderly one there.
    #[command(after_help = EXIT_CODES)]
    Verify(verify::Args),
    /// Shows the queues of topics: brokers, endpoints, permissions, types of messages
    #[command(after_help = EXIT_CODES)]
    Topics(topics::Args),
}

pub fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Produce(args) => produce::run(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Topics(args) => topics::run(&args),
    }
}

pub fn connect(server: &ServerArgs) -> Result<Client, Failure> {
    let mut builder = Client::builder(&server.endpoint);
    if let (Some(key), Some(secret)) = (&server.access_key, &server.secret_key) {
        builder = builder.credentials(key, secret);
    }
    if let Some(file) = &server.tls_roots {
        let pem =
            std::fs::read(file).map_err(|error| Failure::new(format!("--tls-roots {}: {error}", file.display())))?;
        builder = builder.tls(TlsOptions::new().root_certificates(pem));
    } else if server.tls_insecure {
        builder = builder.tls(TlsOptions::new().danger_accept_invalid_certificates(true));
    }
    builder.build().map_err(|error| Failure::of(&format!("--endpoint {}", server.endpoint), &error))
}

/// A producer with the options that the command line states.
pub fn start(client: &Client, topic: &str, args: &SendArgs, endpoint: &str) -> Result<Sender, Failure> {
    let builder = client.producer().topic(topic).send_timeout(args.send_timeout);
    let builder = match args.inflight {
        Some(messages) => builder.max_in_flight(usize::try_from(messages).unwrap_or(usize::MAX)),
        None => builder,
    };
    match builder.start() {
        Ok(producer) => Ok(Sender { producer, topic: topic.to_owned(), send: args.clone(), key: None, tag: None }),
        Err(error) => Err(unreachable_at(&format!("no producer on {topic} at {endpoint}"), endpoint, &error)),
    }
}

/// A producer, and what its messages are to be and to have.
pub struct Sender {
    producer: Producer,
    topic: String,
    send: SendArgs,
    key: Option<String>,
    tag: Option<String>,
}

impl Sender {
    fn message(&self, number: u64, body: Vec<u8>) -> Message {
        let mut message = self.send.message(&self.topic, number, body);
        if let Some(key) = &self.key {
            message = message.key(key);
        }
        if let Some(tag) = &self.tag {
            message = message.tag(tag);
        }
        message
    }
}

impl system::Producer for Sender {
    type Receipt = SendReceipt;
    const SAMPLE: u64 = 1;

    fn send(&self, number: u64, body: Vec<u8>) -> Result<(), Error> {
        self.producer.send(self.message(number, body)).map(drop).map_err(Error::from)
    }

    fn send_with(
        &self,
        number: u64,
        body: Vec<u8>,
        callback: impl FnOnce(Result<SendReceipt, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.producer.send_with(self.message(number, body), callback).map_err(Error::from)
    }

    fn send_timeout(&self) -> Option<Duration> {
        Some(self.send.send_timeout)
    }

    fn pending(&self) -> usize {
        self.producer.pending()
    }

    fn flush_within(&self, limit: Duration) -> Result<(), Error> {
        self.producer.flush_within(limit)
    }

    fn close(&self) -> Result<(), Error> {
        self.producer.close()
    }
}

impl system::Receipt for SendReceipt {
    fn id(&self) -> String {
        self.message_id().to_owned()
    }

    fn attempts(&self) -> u32 {
        SendReceipt::attempts(self)
    }
}

/// A consumer of all messages of a topic, whose polls are as short as the server allows.
pub fn subscribe(client: &Client, group: &str, topic: &str, endpoint: &str) -> Result<SimpleConsumer, Failure> {
    client
        .simple_consumer(group)
        .subscribe(topic, FilterExpression::all())
        .await_duration(args::AWAIT)
        .start()
        .map_err(|error| unreachable_at(&format!("no consumer of {topic} at {endpoint}"), endpoint, &error))
}

fn unreachable_at(what: &str, endpoint: &str, error: &Error) -> Failure {
    let failure = Failure::of(what, error);
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::Transport => failure.advise(&format!(
            "is a proxy there? `threadmq broker rocketmq` starts one for trials; --endpoint is {endpoint}"
        )),
        ErrorKind::NotFound => failure.advise("topics are made by the administrator: mqadmin updateTopic"),
        _ => failure,
    }
}
