//! What became of the messages of `produce`, and how that is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use threadmq::{Error, ErrorKind};

use crate::progress::{Elsewhere, Progress};
use crate::report::{Object, grouped, rounded, table};

#[derive(Debug, Default)]
pub struct Answers {
    accepted: u64,
    bytes: u64,
    ok: u64,
    timed_out: u64,
    failed: u64,
    refused: u64,
    last: Option<String>,
    /// The first error of each kind, and how many there were.
    errors: BTreeMap<String, (u64, String)>,
}

impl Answers {
    pub fn all_stored(&self) -> bool {
        self.timed_out + self.failed + self.refused == 0
    }

    /// The call's result, and the bytes that it was about.
    pub fn sent(&mut self, bytes: u64, result: Result<(), Error>) {
        match result {
            Ok(()) => {
                self.accepted += 1;
                self.bytes += bytes;
            }
            Err(error) => {
                self.refused += 1;
                self.note(&error);
            }
        }
    }

    /// The answer: the message's id or the error.
    pub fn answered(&mut self, result: Result<String, Error>) {
        match result {
            Ok(id) => {
                self.ok += 1;
                self.last = Some(id);
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::Timeout => self.timed_out += 1,
                    _ => self.failed += 1,
                }
                self.note(&error);
            }
        }
    }

    fn note(&mut self, error: &Error) {
        let kind = format!("{:?}, {:?}", error.kind(), error.delivery());
        self.errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
    }
}

pub type Shared = Arc<Mutex<Answers>>;

pub fn with<R>(answers: &Shared, act: impl FnOnce(&mut Answers) -> R) -> R {
    act(&mut answers.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A bar until it is dropped.
pub fn show(answers: &Shared, count: Option<u64>) -> Progress {
    let answers = Arc::clone(answers);
    Progress::start(count, Elsewhere::Silent, move || {
        with(&answers, |a| {
            let text = format!("{} ok, {} timed out, {} failed", a.ok, a.timed_out, a.failed + a.refused);
            (a.ok + a.timed_out + a.failed + a.refused, text)
        })
    })
}

pub fn object(answers: &Answers, elapsed: Duration) -> Object {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    Object::new()
        .with("messages", answers.accepted)
        .with("ok", answers.ok)
        .with("timed_out", answers.timed_out)
        .with("failed", answers.failed)
        .with("refused", answers.refused)
        .with("seconds", rounded(seconds, 3))
        .with("msgs_per_s", rounded(answers.accepted as f64 / seconds, 1))
        .with("mb_per_s", rounded(answers.bytes as f64 / 1e6 / seconds, 3))
        .with("last_message_id", answers.last.clone())
}

pub fn text(answers: &Answers, elapsed: Duration, topic: &str) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut rows = vec![
        ("topic", topic.to_owned()),
        ("stored", format!("{} of {} messages", grouped(answers.ok), grouped(answers.accepted + answers.refused))),
        ("timed out", grouped(answers.timed_out)),
        ("failed", grouped(answers.failed)),
        ("refused", grouped(answers.refused)),
        ("time", format!("{seconds:.3} s, {:.0} messages/s", answers.accepted as f64 / seconds)),
    ];
    if let Some(last) = &answers.last {
        rows.push(("last id", last.clone()));
    }
    for (kind, (count, first)) in &answers.errors {
        rows.push(("error", format!("{count} times {kind}: {first}")));
    }
    table(&rows)
}
