//! Callback threads: lanes in order, one thread a lane at a time; permits come back after the callbacks returned.

use super::caller::{Way, call_back};
use super::schedule::{MS, SEC};
use super::shell::Job;
use super::world::{Event, Stage, World};
use crate::policy::admission::Offer;

#[derive(Default)]
pub(super) struct Worker {
    /// The lane that it works on, and what is left of its job.
    work: Option<(usize, usize, Job, usize)>,
}

impl World {
    /// A lane has something for the callback threads.
    pub(super) fn lane_ready(&mut self, producer: usize, lane: usize) {
        let shell = &mut self.producers[producer].lanes[lane];
        if shell.queued || shell.jobs.is_empty() {
            return;
        }
        shell.queued = true;
        self.lane_queue.push_back((producer, lane));
        if let Some(idle) = self.workers.iter().position(|worker| worker.work.is_none()) {
            let delay = self.pause();
            self.after(delay, Event::Worker(idle));
        }
    }

    pub(super) fn step_worker(&mut self, worker: usize) {
        let Some((producer, lane, job, at)) = self.workers[worker].work.take() else {
            let Some((producer, lane)) = self.lane_queue.pop_front() else { return };
            let Some(job) = self.producers[producer].lanes[lane].jobs.pop_front() else {
                self.producers[producer].lanes[lane].queued = false;
                return;
            };
            self.workers[worker].work = Some((producer, lane, job, 0));
            self.after(1, Event::Worker(worker));
            return;
        };
        self.run_job(worker, producer, lane, job, at);
    }

    fn run_job(&mut self, worker: usize, producer: usize, lane: usize, mut job: Job, at: usize) {
        let mut at = at;
        while let Some((uid, called)) = job.items.get_mut(at) {
            let (uid, called) = (*uid, called.take());
            at += 1;
            let Some(called) = called else {
                continue;
            };
            self.run_callback(producer, lane, uid, called);
            let delay = match self.rng.below(if self.plan.slow_callbacks { 40 } else { 400 }) {
                0 => self.rng.below(SEC),
                1..=3 => self.rng.below(20 * MS),
                _ => self.rng.below(50),
            };
            self.workers[worker].work = Some((producer, lane, job, at));
            self.after(delay, Event::Worker(worker));
            return;
        }
        self.give_back(producer, lane, job.items.len(), job.charge);
        self.producers[producer].lanes[lane].queued = false;
        self.lane_ready(producer, lane);
        self.after(1, Event::Worker(worker));
    }

    fn run_callback(&mut self, producer: usize, lane: usize, uid: u64, called: super::shell::Called) {
        let told = call_back(called);
        let op = &mut self.ops[uid as usize];
        let shell = &mut self.producers[producer].lanes[lane];
        let in_order = op.place > shell.called_back;
        shell.called_back = op.place;
        let stored = op.fate == Some(super::ops::Fate::Stored);
        let twice = std::mem::replace(&mut op.called_back, true);
        self.note("callback", uid, 0);
        if told != Some((uid, stored)) || twice || !in_order {
            self.fail(format!("callback of {uid}: told {told:?}, twice {twice}, in order {in_order}"));
        }
        if self.stage != Stage::Busy || self.plan.scripted {
            return;
        }
        if self.rng.chance(1, 30) {
            // On a callback thread admission never parks.
            if let Offer::Admitted { look, .. } = self.offer(producer, lane, 20, Way::SendWith, false) {
                if look {
                    self.look(producer, lane);
                }
            } else if let Some(op) = self.ops.last_mut() {
                op.fate = Some(super::ops::Fate::Returned(crate::error::ErrorKind::WouldBlock));
            }
        } else if self.rng.chance(1, 6_000) {
            self.close_producer(producer, SEC);
        }
    }

    /// Permits come back in bulk, and the line is served.
    pub(super) fn give_back(&mut self, producer: usize, lane: usize, count: usize, charge: usize) {
        let shell = &mut self.producers[producer];
        let served = shell.admission.release(count, charge, &self.budget);
        let ended = shell.progress.returned(lane, count as u64);
        self.note("returned", producer as u64, count as u64);
        self.carry_out(producer, served);
        for (caller, failure) in ended {
            self.flushed(caller, failure.as_ref());
        }
    }
}
