//! What callbacks, reader and progress share while a verification runs.

use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use threadmq::Error;

use super::events::EventLog;
use super::ledger::Ledger;
use super::read_back::ReadBack;

/// `P` is a place in the topic, by which a message that is delivered again is known.
pub struct Watch<P> {
    ledger: Mutex<Ledger>,
    read: Mutex<ReadBack<P>>,
    pub events: Option<EventLog>,
}

/// Answers that come later than this after the last of them was due do not come.
pub const GRACE: Duration = Duration::from_secs(10);
/// How long callbacks are watched for after the close, when events are logged.
pub const AFTERMATH: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

impl<P: Eq + Hash> Watch<P> {
    pub fn new(events: Option<EventLog>) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(Ledger::default()),
            read: Mutex::new(ReadBack::new(Instant::now())),
            events,
        })
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> MutexGuard<'_, ReadBack<P>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line for a progress bar.
    pub fn line(&self) -> String {
        let (sent, ok, timed_out, failed, open) = {
            let l = self.ledger();
            (l.sends.len(), l.stored, l.timed_out, l.failed + l.refused, l.accepted.saturating_sub(l.answered))
        };
        let read = self.read().count();
        format!("sent {sent}, stored {ok}, timed out {timed_out}, failed {failed}, open {open}, read back {read}")
    }

    pub fn mark(&self, what: &str, note: &str) {
        if let Some(events) = &self.events {
            events.mark(what, note);
        }
    }

    /// The body of the callback, which took the time first. An answer is the number of attempts or the error.
    pub fn answered(&self, number: u64, now: Instant, answer: Result<u32, Error>) {
        self.ledger().answer(number, now, answer.as_ref().copied());
        if let Some(events) = &self.events {
            events.answered(number, answer.err().map(|error| error.to_string()).as_deref());
        }
    }

    /// Waits until every accepted send is answered, at most `limit`.
    pub fn wait_answers(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            let ledger = self.ledger();
            if ledger.answered >= ledger.accepted {
                return;
            }
            drop(ledger);
            thread::sleep(LOOK);
        }
    }

    /// Waits for the end of the topic: all acknowledged messages are read, and nothing has come for `quiet`; or
    /// some are missing, and nothing has come for `patience`.
    pub fn wait_read(&self, quiet: Duration, patience: Duration) {
        let mut missing: Vec<u64> = self.ledger().acknowledged().collect();
        let mut since = Instant::now();
        loop {
            {
                let read = self.read();
                missing.retain(|number| !read.has(*number));
                since = since.max(read.last_arrival);
                let wait = if missing.is_empty() { quiet } else { patience };
                if since.elapsed() >= wait || read.ended.is_some() {
                    return;
                }
            }
            thread::sleep(LOOK);
        }
    }
}
