//! `threadmq pulsar produce`.

use super::{Sender, connect, create, producer};
use crate::args::{SendArgs, ServerArgs};
use crate::outcome::{Failure, Outcome};
use crate::produce::Input;
use crate::system::Producer;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic, in any of Pulsar's forms
    #[arg(long)]
    topic: String,
    #[command(flatten)]
    send: SendArgs,
    #[command(flatten)]
    input: Input,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server.url)?;
    let producer = create(producer(&client, &args.topic, &args.send), &args.topic, &args.server.url)?;
    let sender = Sender { key: args.input.key.clone(), ..Sender::new(producer, &args.send) };
    let produced = args.input.send_all(&sender, args.send.size)?;
    let _ = sender.close();
    let _ = client.close();
    Ok(produced.tell(&args.topic, args.json))
}
