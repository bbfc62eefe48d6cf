//! `threadmq pulsar consume`.

use std::time::Duration;

use clap::ValueEnum;
use threadmq::Error;
use threadmq::pulsar::{Consumer, InitialPosition, Message, SubscriptionType};

use super::{connect, subscribe};
use crate::args::{ServerArgs, fresh};
use crate::consume::{self, Limits, Output};
use crate::outcome::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic, in any of Pulsar's forms
    #[arg(long)]
    topic: String,
    /// Subscription [default: a new one, which is removed at the end]
    #[arg(long)]
    subscription: Option<String>,
    /// Who shares the subscription
    #[arg(long, default_value = "exclusive")]
    subscription_type: Sharing,
    /// Where a new subscription starts
    #[arg(long, default_value = "latest")]
    from: Start,
    #[command(flatten)]
    limits: Limits,
    /// Messages that the broker may send ahead, 1 to 100000
    #[arg(long, value_name = "MESSAGES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    receiver_queue: u32,
    /// Do not acknowledge: the messages stay in the subscription
    #[arg(long)]
    no_ack: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sharing {
    Exclusive,
    Shared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Start {
    Earliest,
    Latest,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server.url)?;
    let subscription = args.subscription.clone().unwrap_or_else(|| fresh("consume"));
    let builder = client
        .consumer(&args.topic, &subscription)
        .receiver_queue(args.receiver_queue)
        .subscription_type(match args.subscription_type {
            Sharing::Exclusive => SubscriptionType::Exclusive,
            Sharing::Shared => SubscriptionType::Shared,
        })
        .initial_position(match args.from {
            Start::Earliest => InitialPosition::Earliest,
            Start::Latest => InitialPosition::Latest,
        });
    let mut reader = Reader(subscribe(builder, &args.topic, &args.server.url)?);
    let received = args.limits.receive_all(&mut reader, !args.no_ack, &args.output)?;
    if args.subscription.is_none() {
        // Ours alone; a broker that is away keeps it.
        let _ = reader.0.unsubscribe();
    }
    let _ = reader.0.close();
    let _ = client.close();
    args.output.tell(&args.topic, &received);
    Ok(args.limits.outcome(&received))
}

struct Reader(Consumer);

impl consume::Consumer for Reader {
    type Message = Message;
    type Batch = [Message; 1];

    fn receive(&mut self, wait: Duration) -> Result<Option<[Message; 1]>, Error> {
        Ok(self.0.receive_timeout(wait)?.map(|message| [message]))
    }

    fn ack(&self, [message]: &[Message; 1]) -> Result<(), Error> {
        self.0.ack(message)
    }
}

impl consume::Message for Message {
    fn body(&self) -> &[u8] {
        self.payload()
    }

    fn key(&self) -> Option<String> {
        Message::key(self).map(str::to_owned)
    }
}
