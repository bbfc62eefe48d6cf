//! A producer's results on their way to whoever waits for them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::engine::event::{Outgoing, SessionId, Settled};
use super::message::SendReceipt;
use crate::error::Error;
use crate::pending::Reply;
use crate::policy::admission::Admitted;
use crate::policy::progress::Watermark;
use crate::runtime::callback::{CallbackLane, CallbackPool, CallbackWork};
use crate::runtime::permits::Permits;

/// Callback lanes of a producer: a message group stays on one, so that its callbacks run in order; messages without
/// a group are spread.
const LANES: usize = 16;

/// What the driver and the handle of a producer share.
pub(super) struct Lane {
    pub permits: Arc<Permits<Outgoing>>,
    callbacks: Vec<CallbackLane>,
    /// Results are fixed in any order; flush goes by the places up to which all are.
    fixed: Mutex<Watermark>,
    returned: Arc<Mutex<Watermark>>,
    cursor: AtomicUsize,
    /// The largest body that the server takes now, in bytes.
    pub max_body_size: AtomicUsize,
}

impl Lane {
    pub(super) fn new(permits: Arc<Permits<Outgoing>>, pool: &CallbackPool, max_body_size: usize) -> Self {
        Self {
            permits,
            callbacks: (0..LANES).map(|_| pool.lane()).collect(),
            fixed: Mutex::default(),
            returned: Arc::default(),
            cursor: AtomicUsize::new(0),
            max_body_size: AtomicUsize::new(max_body_size),
        }
    }

    /// What was admitted and not taken yet. The driver's.
    pub(super) fn take(&self, into: &mut Vec<Admitted<Outgoing>>) {
        self.permits.take(0, into);
    }

    /// Answers a result that is fixed. The driver's.
    pub(super) fn settle(&self, settled: Settled) {
        let Settled { place, charge, group, reply, result, .. } = settled;
        let failure = match (&reply, &result) {
            (Reply::Callback(_), Err(error)) => Some((place, error.clone())),
            _ => None,
        };
        let work = match reply {
            Reply::Completion(completion) => {
                // Whoever has a result finds its room free.
                self.permits.released(1, charge);
                completion.settle(result);
                None
            }
            Reply::Callback(callback) => Some((callback, result)),
            Reply::Answered => {
                self.permits.released(1, charge);
                None
            }
        };
        let low = {
            let mut fixed = self.fixed.lock();
            fixed.add(place);
            fixed.low()
        };
        self.permits.fixed(0, low, failure);
        match work {
            None => told(&self.permits, &self.returned, place),
            Some(run) => {
                let index = match group {
                    Some(group) => {
                        let mut hasher = DefaultHasher::new();
                        group.hash(&mut hasher);
                        usize::try_from(hasher.finish() & 0xffff).unwrap_or(0)
                    }
                    None => self.cursor.fetch_add(1, Ordering::Relaxed),
                };
                let Some(lane) = self.callbacks.get(index % LANES) else { return };
                let (permits, returned) = (Arc::clone(&self.permits), Arc::clone(&self.returned));
                lane.push(Box::new(One { permits, returned, place, charge, run: Some(run), ran: false }));
            }
        }
    }
}

fn told(permits: &Permits<Outgoing>, returned: &Mutex<Watermark>, place: u64) {
    let advance = returned.lock().add(place);
    if advance > 0 {
        permits.told(0, usize::try_from(advance).unwrap_or(usize::MAX));
    }
}

type Run = (Box<dyn FnOnce(Result<SendReceipt, Error>) + Send>, Result<SendReceipt, Error>);

/// One callback.
struct One {
    permits: Arc<Permits<Outgoing>>,
    returned: Arc<Mutex<Watermark>>,
    place: u64,
    charge: usize,
    run: Option<Run>,
    ran: bool,
}

impl CallbackWork for One {
    fn run_next(&mut self) -> bool {
        let Some((callback, result)) = self.run.take() else { return false };
        // Before the call, which may panic: its permit comes back all the same.
        self.ran = true;
        callback(result);
        true
    }

    fn turn_over(&mut self) {
        if std::mem::take(&mut self.ran) {
            self.permits.released(1, self.charge);
            told(&self.permits, &self.returned, self.place);
        }
    }
}

/// Which producer has something to take.
pub(super) struct Look(pub SessionId);
