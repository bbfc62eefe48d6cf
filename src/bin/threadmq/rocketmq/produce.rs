//! `threadmq rocketmq produce`.

use super::args::{SendArgs, ServerArgs};
use super::{Sender, connect, start};
use crate::outcome::{Failure, Outcome};
use crate::produce::Input;
use crate::system::Producer;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic
    #[arg(long)]
    topic: String,
    #[command(flatten)]
    send: SendArgs,
    #[command(flatten)]
    input: Input,
    /// Tag of each message
    #[arg(long)]
    tag: Option<String>,
    /// Print one JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server)?;
    let producer = start(&client, &args.topic, &args.send, &args.server.endpoint)?;
    let sender = Sender { key: args.input.key.clone(), tag: args.tag.clone(), ..producer };
    let produced = args.input.send_all(&sender, args.send.size)?;
    let _ = sender.close();
    let _ = client.close();
    Ok(produced.tell(&args.topic, args.json))
}
