//! `threadmq pulsar consume`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use threadmq::pulsar::{InitialPosition, Message, SubscriptionType};

use super::{connect, subscribe};
use crate::args::{ServerArgs, duration, fresh, positive, seconds};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print, print_result, rounded, table};

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
    /// Stop after so many messages [default: without limit]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Stop after so many seconds [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Stop when nothing has come for so long, such as 5s [default: wait]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<Duration>,
    /// Messages that the broker may send ahead, 1 to 100000
    #[arg(long, value_name = "MESSAGES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    receiver_queue: u32,
    /// Do not acknowledge: the messages stay in the subscription
    #[arg(long)]
    no_ack: bool,
    /// Count the messages, and do not print them
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
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
    let consumer = subscribe(builder, &args.topic, &args.server.url)?;
    let received = Arc::new(AtomicU64::new(0));
    let shows = !args.quiet && !args.json;
    // A bar between printed messages would be no help.
    let progress = (!shows).then(|| {
        let received = Arc::clone(&received);
        Progress::start(args.count, Elsewhere::Silent, move || {
            let count = received.load(Ordering::Relaxed);
            (count, format!("{count} messages"))
        })
    });
    let started = Instant::now();
    let until = args.seconds.and_then(|span| started.checked_add(span));
    let (mut count, mut bytes, mut last) = (0u64, 0u64, started);
    while args.count.is_none_or(|limit| count < limit) && !interrupt::stopped() {
        let now = Instant::now();
        let idle = args.idle.and_then(|idle| last.checked_add(idle));
        let end = until.into_iter().chain(idle).min();
        if end.is_some_and(|end| now >= end) {
            break;
        }
        // Short waits, so that Ctrl-C is heard.
        let wait = Duration::from_millis(200);
        let wait = end.map_or(wait, |end| wait.min(end.saturating_duration_since(now)));
        let message = consumer.receive_timeout(wait).map_err(|error| Failure::of("receive", &error))?;
        let Some(message) = message else { continue };
        last = Instant::now();
        count += 1;
        bytes += message.payload().len() as u64;
        received.store(count, Ordering::Relaxed);
        if shows {
            print(line(&message));
        }
        if !args.no_ack {
            consumer.ack(&message).map_err(|error| Failure::of("acknowledge", &error))?;
        }
    }
    let elapsed = last.duration_since(started).as_secs_f64();
    drop(progress);
    if args.subscription.is_none() {
        // Ours alone; a broker that is away keeps it.
        let _ = consumer.unsubscribe();
    }
    let _ = consumer.close();
    let _ = client.close();
    let per_second = |amount: f64| if elapsed > 0.0 { amount / elapsed } else { 0.0 };
    let object = Object::new()
        .with("messages", count)
        .with("bytes", bytes)
        .with("seconds", rounded(elapsed, 3))
        .with("msgs_per_s", rounded(per_second(count as f64), 1))
        .with("mb_per_s", rounded(per_second(bytes as f64 / 1e6), 3));
    let text = table(&[
        ("topic", args.topic.clone()),
        ("received", format!("{} messages, {} bytes", grouped(count), grouped(bytes))),
        ("time", format!("{elapsed:.3} s, {:.0} messages/s", per_second(count as f64))),
    ]);
    if args.json {
        print_result(true, &object, "");
    } else if shows {
        // Standard output holds messages alone.
        eprint!("{text}");
    } else {
        print(text);
    }
    Ok(Outcome::good_if(args.count.is_none_or(|limit| count == limit) || interrupt::stopped()))
}

/// Key, if there is one, and body; what is not text is shown with its bytes escaped.
fn line(message: &Message) -> String {
    let body = match std::str::from_utf8(message.payload()) {
        Ok(text) => text.to_owned(),
        Err(_) => message.payload().escape_ascii().to_string(),
    };
    match message.key() {
        Some(key) => format!("{key}\t{body}\n"),
        None => format!("{body}\n"),
    }
}
