//! Calls to flush, from the watch to its end.

use super::caller::Doing;
use super::ops::TICK;
use super::schedule::Micros;
use super::world::{Event, World};
use crate::error::Error;
use crate::policy::progress::{Flushed, Watched};

impl World {
    pub(super) fn begin_flush(&mut self, caller: usize, producer: usize) {
        let shell = &mut self.producers[producer];
        let targets = shell.admission.last_places();
        let watched = shell.progress.watch(Flushed::Fixed, targets.clone(), || caller);
        self.trace.note(self.now, "flush", producer as u64, caller as u64);
        match watched {
            Watched::Already(_) => self.think(caller),
            Watched::Waiting(id) => {
                self.callers[caller].flush = Some((id, targets));
                self.callers[caller].doing = Doing::AskingFlush { producer };
                self.callers[caller].turn += 1;
                let turn = self.callers[caller].turn;
                let delay = self.pause();
                self.after(delay, Event::Caller(caller));
                // Everything admitted by now is due by then.
                if let Some(timeout) = self.plan.producers[producer].send_timeout {
                    self.after(timeout.as_micros() as Micros + TICK, Event::CallerTimeout(caller, turn));
                }
            }
        }
    }

    /// A flush ended: everything up to its targets has its result.
    pub(super) fn flushed(&mut self, caller: usize, _failure: Option<&Error>) {
        let doing = std::mem::replace(&mut self.callers[caller].doing, Doing::Thinking);
        let (producer, targets) = match doing {
            Doing::Flushing { producer, targets } => (producer, targets),
            Doing::AskingFlush { producer } => match self.callers[caller].flush.take() {
                Some((_, targets)) => {
                    // It ended before it was asked for; the asking still comes.
                    self.callers[caller].doing = Doing::AskingFlush { producer };
                    self.callers[caller].turn += 1;
                    (producer, targets)
                }
                None => return,
            },
            other => {
                self.callers[caller].doing = other;
                self.fail("a flush ended that nobody waits for");
                return;
            }
        };
        // The result that ends it is the one being fixed now.
        for (lane, target) in self.producers[producer].lanes.iter().zip(&targets) {
            if lane.settled < *target {
                self.failure = Some(format!("a flush ended at {} of {target}", lane.settled));
            }
        }
        self.callers[caller].turn += 1;
        if matches!(self.callers[caller].doing, Doing::Thinking) {
            self.think(caller);
        }
    }
}
