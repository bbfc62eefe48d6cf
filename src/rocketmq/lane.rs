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

/// So many callbacks without a group that end together share a lane: a slow one holds up those behind it.
const TOGETHER: usize = 8;

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

    /// Answers results that are fixed. The driver's.
    pub(super) fn settle(&self, settled: impl Iterator<Item = Settled>) {
        let mut spread = Vec::new();
        // Places of results that nobody's callback waits for.
        let mut answered = Vec::new();
        let mut low = 0;
        for Settled { place, charge, group, reply, result, .. } in settled {
            let failure = match (&reply, &result) {
                (Reply::Callback(_), Err(error)) => Some((place, error.clone())),
                _ => None,
            };
            let run = match reply {
                Reply::Completion(completion) => {
                    // Whoever has a result finds its room free.
                    self.permits.released(1, charge);
                    completion.settle(result);
                    None
                }
                Reply::Callback(callback) => Some(Run { callback, result, place, charge }),
                Reply::Answered => {
                    self.permits.released(1, charge);
                    None
                }
            };
            low = {
                let mut fixed = self.fixed.lock();
                fixed.add(place);
                fixed.low()
            };
            if failure.is_some() {
                self.permits.fixed(0, low, failure);
            }
            match (run, group) {
                (None, _) => answered.push(place),
                (Some(run), Some(group)) => {
                    let mut hasher = DefaultHasher::new();
                    group.hash(&mut hasher);
                    self.push(usize::try_from(hasher.finish() & 0xffff).unwrap_or(0), vec![run]);
                }
                (Some(run), None) => {
                    spread.push(run);
                    if spread.len() == TOGETHER {
                        self.push(self.cursor.fetch_add(1, Ordering::Relaxed), std::mem::take(&mut spread));
                    }
                }
            }
        }
        self.permits.fixed(0, low, None);
        if !spread.is_empty() {
            self.push(self.cursor.fetch_add(1, Ordering::Relaxed), spread);
        }
        if !answered.is_empty() {
            told(&self.permits, &self.returned, &answered);
        }
    }

    fn push(&self, lane: usize, runs: Vec<Run>) {
        let Some(lane) = self.callbacks.get(lane % LANES) else { return };
        lane.push(Box::new(Callbacks {
            permits: Arc::clone(&self.permits),
            returned: Arc::clone(&self.returned),
            left: runs.len(),
            runs: runs.into_iter(),
            ran: Vec::new(),
            charge: 0,
        }));
    }
}

fn told(permits: &Permits<Outgoing>, returned: &Mutex<Watermark>, places: &[u64]) {
    let advance: u64 = {
        let mut returned = returned.lock();
        places.iter().map(|place| returned.add(*place)).sum()
    };
    if advance > 0 {
        permits.told(0, usize::try_from(advance).unwrap_or(usize::MAX));
    }
}

struct Run {
    callback: Box<dyn FnOnce(Result<SendReceipt, Error>) + Send>,
    result: Result<SendReceipt, Error>,
    place: u64,
    charge: usize,
}

/// Callbacks that run one after another.
struct Callbacks {
    permits: Arc<Permits<Outgoing>>,
    returned: Arc<Mutex<Watermark>>,
    left: usize,
    runs: std::vec::IntoIter<Run>,
    /// Places whose callbacks returned since the last turn, and what their messages were charged.
    ran: Vec<u64>,
    charge: usize,
}

impl CallbackWork for Callbacks {
    fn run_next(&mut self) -> bool {
        let Some(Run { callback, result, place, charge }) = self.runs.next() else { return false };
        // Before the call, which may panic: its permit comes back all the same.
        self.ran.push(place);
        self.charge += charge;
        callback(result);
        true
    }

    fn turn_over(&mut self) {
        if !self.ran.is_empty() {
            self.permits.released(self.ran.len(), std::mem::take(&mut self.charge));
            told(&self.permits, &self.returned, &self.ran);
            self.ran.clear();
        }
    }

    fn callbacks(&self) -> usize {
        self.left
    }
}

/// Which producer has something to take.
pub(super) struct Look(pub SessionId);
