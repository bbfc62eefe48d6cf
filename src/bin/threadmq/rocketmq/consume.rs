//! `threadmq rocketmq consume`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::rocketmq::MessageView;

use super::args::{INVISIBLE, MOST_AT_ONCE, ServerArgs};
use super::{connect, subscribe};
use crate::args::{duration, fresh, positive, seconds};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, print, print_result, rounded, table};

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
    /// Stop after so many messages [default: without limit]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    count: Option<u64>,
    /// Stop after so many seconds [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Stop when nothing has come for so long, such as 5s [default: wait]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<Duration>,
    /// Do not acknowledge: the messages come again after --invisible
    #[arg(long)]
    no_ack: bool,
    /// How long a message that was received is kept from others unless it is acknowledged, 10s to 12h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = invisible)]
    invisible: Duration,
    /// Count the messages, and do not print them
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object on standard output at the end, and nothing else there
    #[arg(long)]
    json: bool,
}

fn invisible(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if !(INVISIBLE..=Duration::from_secs(12 * 3600)).contains(&time) {
        return Err("from 10s to 12h".to_owned());
    }
    Ok(time)
}

/// How often Ctrl-C and the limits of time are looked at while a poll waits.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Received {
    count: u64,
    bytes: u64,
    last: Option<Instant>,
}

pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let client = connect(&args.server)?;
    let group = args.group.clone().unwrap_or_else(|| fresh("consume"));
    let consumer = subscribe(&client, &group, &args.topic, &args.server.endpoint)?;
    let shows = !args.quiet && !args.json;
    let shown = Arc::new(AtomicU64::new(0));
    // A bar between printed messages would be no help.
    let progress = (!shows).then(|| {
        let shown = Arc::clone(&shown);
        Progress::start(args.count, Elsewhere::Silent, move || {
            let count = shown.load(Ordering::Relaxed);
            (count, format!("{count} messages"))
        })
    });
    let started = Instant::now();
    // What the receiving thread hands over: a poll waits longer than Ctrl-C should.
    let (tell, told) = std::sync::mpsc::sync_channel::<Result<Vec<MessageView>, threadmq::Error>>(0);
    let receiving = {
        let (consumer, invisible, count) = (consumer.clone(), args.invisible, args.count);
        thread::spawn(move || {
            let mut left = count;
            while left != Some(0) {
                // No more than are wanted: others would have to wait for the rest.
                let most =
                    left.map_or(MOST_AT_ONCE, |left| MOST_AT_ONCE.min(usize::try_from(left).unwrap_or(MOST_AT_ONCE)));
                let result = consumer.receive(most, invisible);
                let failed = result.is_err();
                if let (Some(left), Ok(messages)) = (&mut left, &result) {
                    *left = left.saturating_sub(messages.len() as u64);
                }
                if tell.send(result).is_err() || failed {
                    return;
                }
            }
        })
    };
    let until = args.seconds.and_then(|span| started.checked_add(span));
    let mut received = Received::default();
    let mut failure = None;
    while args.count.is_none_or(|limit| received.count < limit) && !interrupt::stopped() {
        let idle = args.idle.and_then(|idle| received.last.unwrap_or(started).checked_add(idle));
        if until.into_iter().chain(idle).min().is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let messages = match told.recv_timeout(LOOK) {
            Ok(Ok(messages)) => messages,
            Ok(Err(error)) => {
                failure = Some(Failure::of("receive", &error));
                break;
            }
            Err(_) => continue,
        };
        for message in &messages {
            received.last = Some(Instant::now());
            received.count += 1;
            received.bytes += message.body().len() as u64;
            if shows {
                print(line(message));
            }
        }
        shown.store(received.count, Ordering::Relaxed);
        if !args.no_ack {
            let acked =
                consumer.ack_batch(&messages).and_then(|results| results.into_iter().collect::<Result<(), _>>());
            if let Err(error) = acked {
                failure = Some(Failure::of("acknowledge", &error));
                break;
            }
        }
    }
    drop(progress);
    drop(told);
    // Ends the poll under way.
    let _ = consumer.close();
    let _ = receiving.join();
    let _ = client.close();
    if let Some(failure) = failure {
        return Err(failure);
    }
    tell_all(args, &received, started, shows);
    Ok(Outcome::good_if(args.count.is_none_or(|limit| received.count == limit) || interrupt::stopped()))
}

fn tell_all(args: &Args, received: &Received, started: Instant, shows: bool) {
    let Received { count, bytes, last } = *received;
    let elapsed = last.map_or(0.0, |last| last.duration_since(started).as_secs_f64());
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
}

/// Keys, if there are any, and body; what is not text is shown with its bytes escaped.
fn line(message: &MessageView) -> String {
    let body = match std::str::from_utf8(message.body()) {
        Ok(text) => text.to_owned(),
        Err(_) => message.body().escape_ascii().to_string(),
    };
    match message.keys() {
        [] => format!("{body}\n"),
        keys => format!("{}\t{body}\n", keys.join(" ")),
    }
}
