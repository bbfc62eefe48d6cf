//! `threadmq rocketmq consume`.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use threadmq::Error;
use threadmq::rocketmq::{MessageView, SimpleConsumer};

use super::args::{INVISIBLE, MOST_AT_ONCE, ServerArgs};
use super::{connect, subscribe};
use crate::args::{duration, fresh};
use crate::consume::{self, Limits, Output};
use crate::outcome::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic
    #[arg(long)]
    topic: String,
    /// Consumer group [default: a new one, which begins at the topic's end]
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    limits: Limits,
    /// Do not acknowledge: the messages come again after --invisible
    #[arg(long)]
    no_ack: bool,
    /// How long a message that was received is kept from others unless it is acknowledged, 10s to 12h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = invisible)]
    invisible: Duration,
    #[command(flatten)]
    output: Output,
}

fn invisible(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if !(INVISIBLE..=Duration::from_secs(12 * 3600)).contains(&time) {
        return Err("from 10s to 12h".to_owned());
    }
    Ok(time)
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server)?;
    let group = args.group.clone().unwrap_or_else(|| fresh("consume"));
    let consumer = subscribe(&client, &group, &args.topic, &args.server.endpoint)?;
    let mut receiver = Receiver::start(consumer, args.invisible, args.limits.count);
    let received = args.limits.receive_all(&mut receiver, !args.no_ack, &args.output);
    receiver.close();
    let _ = client.close();
    let received = received?;
    args.output.tell(&args.topic, &received);
    Ok(args.limits.outcome(&received))
}

/// Receives on a thread of its own: a poll waits longer than Ctrl-C should.
struct Receiver {
    consumer: SimpleConsumer,
    told: mpsc::Receiver<Result<Vec<MessageView>, Error>>,
    thread: JoinHandle<()>,
}

impl Receiver {
    /// `count`: no more than are wanted are received, because others would have to wait for the rest.
    fn start(consumer: SimpleConsumer, invisible: Duration, count: Option<u64>) -> Self {
        let (tell, told) = mpsc::sync_channel(0);
        let receiving = consumer.clone();
        let thread = thread::spawn(move || {
            let mut left = count;
            while left != Some(0) {
                let most =
                    left.map_or(MOST_AT_ONCE, |left| MOST_AT_ONCE.min(usize::try_from(left).unwrap_or(MOST_AT_ONCE)));
                let result = receiving.receive(most, invisible);
                let failed = result.is_err();
                if let (Some(left), Ok(messages)) = (&mut left, &result) {
                    *left = left.saturating_sub(messages.len() as u64);
                }
                if tell.send(result).is_err() || failed {
                    return;
                }
            }
        });
        Self { consumer, told, thread }
    }

    fn close(self) {
        drop(self.told);
        // Ends the poll under way.
        let _ = self.consumer.close();
        let _ = self.thread.join();
    }
}

impl consume::Consumer for Receiver {
    type Message = MessageView;
    type Batch = Vec<MessageView>;

    fn receive(&mut self, wait: Duration) -> Result<Option<Vec<MessageView>>, Error> {
        self.told.recv_timeout(wait).ok().transpose()
    }

    fn ack(&self, messages: &Vec<MessageView>) -> Result<(), Error> {
        self.consumer.ack_batch(messages)?.into_iter().collect()
    }
}

impl consume::Message for MessageView {
    fn body(&self) -> &[u8] {
        MessageView::body(self)
    }

    fn key(&self) -> Option<String> {
        match self.keys() {
            [] => None,
            keys => Some(keys.join(" ")),
        }
    }
}
