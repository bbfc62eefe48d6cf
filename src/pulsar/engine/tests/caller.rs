//! Threads of the user: each call is taken apart into its critical sections, between which others run.

use bytes::Bytes;

use super::ops::Op;
use super::plan::{BUSY, CallerPlan};
use super::schedule::{MS, Micros, SEC};
use super::shell::{Called, Control};
use super::world::{Event, Stage, World};
use crate::error::{Error, ErrorKind};
use crate::pending::completion;
use crate::policy::admission::{Call, Decision, Offer, Served, WaiterId};
use crate::policy::budget::message_charge;
use crate::policy::progress::WatchId;
use crate::pulsar::engine::event::{Outgoing, Reply};
use crate::pulsar::wire::payload::{Content, Extras};

pub(super) enum Doing {
    Thinking,
    /// Admitted; the loop is not told yet.
    Telling {
        producer: usize,
        lane: usize,
        then: Option<u64>,
    },
    InLine {
        producer: usize,
        waiter: WaiterId,
        uid: u64,
        wait_for_answer: bool,
    },
    Awaiting(u64),
    /// The watch stands; the loop is not told yet.
    AskingFlush {
        producer: usize,
    },
    Flushing {
        producer: usize,
        targets: Vec<u64>,
    },
}

pub(super) struct Caller {
    pub left: u32,
    burst: u32,
    in_burst: u32,
    pub doing: Doing,
    /// Rises with every wait, so that an earlier alarm is void.
    pub turn: u32,
    /// What stands in its slot, and whether it was set already.
    told: Option<Decision<Outgoing>>,
    pub flush: Option<(WatchId, Vec<u64>)>,
}

thread_local! {
    /// What a callback was told, for the step that called it.
    static CALLED: std::cell::Cell<Option<(u64, bool)>> = const { std::cell::Cell::new(None) };
}

/// Runs a callback; gives the uid that it speaks for and whether it was told success.
pub(super) fn call_back((callback, result): Called) -> Option<(u64, bool)> {
    CALLED.set(None);
    callback(result);
    CALLED.take()
}

impl Caller {
    pub(super) fn new(plan: &CallerPlan) -> Self {
        Self {
            left: plan.sends,
            burst: plan.burst,
            in_burst: plan.burst,
            doing: Doing::Thinking,
            turn: 0,
            told: None,
            flush: None,
        }
    }
}

/// How a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Blocks for the answer.
    Send,
    SendWith,
    Submit,
}

impl World {
    pub(super) fn step_caller(&mut self, caller: usize) {
        match std::mem::replace(&mut self.callers[caller].doing, Doing::Thinking) {
            Doing::Thinking => self.call(caller),
            Doing::Telling { producer, lane, then } => {
                self.look(producer, lane);
                self.await_or_think(caller, then);
            }
            Doing::InLine { producer, waiter, uid, wait_for_answer } => match self.callers[caller].told.take() {
                Some(Decision::Admitted(_)) => self.await_or_think(caller, wait_for_answer.then_some(uid)),
                Some(Decision::Refused(error, _)) => {
                    self.returned(uid, &error);
                    self.think(caller);
                }
                None => self.callers[caller].doing = Doing::InLine { producer, waiter, uid, wait_for_answer },
            },
            Doing::Awaiting(uid) => match self.ops[uid as usize].fate {
                Some(_) => self.think(caller),
                None => self.callers[caller].doing = Doing::Awaiting(uid),
            },
            Doing::AskingFlush { producer } => {
                self.post(Control::Flush(producer));
                match self.callers[caller].flush.take() {
                    Some((_, targets)) => {
                        self.callers[caller].doing = Doing::Flushing { producer, targets };
                    }
                    None => self.think(caller),
                }
            }
            flushing @ Doing::Flushing { .. } => self.callers[caller].doing = flushing,
        }
    }

    fn await_or_think(&mut self, caller: usize, uid: Option<u64>) {
        match uid {
            Some(uid) if self.ops[uid as usize].fate.is_none() => self.callers[caller].doing = Doing::Awaiting(uid),
            _ => self.think(caller),
        }
    }

    /// The next call: soon within a burst, later between bursts.
    pub(super) fn think(&mut self, caller: usize) {
        let state = &mut self.callers[caller];
        state.doing = Doing::Thinking;
        if state.left == 0 && self.stage != Stage::Busy {
            return;
        }
        let delay = if state.in_burst > 0 {
            state.in_burst -= 1;
            self.rng.below(300)
        } else {
            let bursts = Micros::from(state.left / state.burst.max(1) + 1);
            state.in_burst = state.burst;
            let left = BUSY.saturating_sub(self.now);
            self.rng.below((2 * left / bursts).max(100 * MS))
        };
        self.after(delay, Event::Caller(caller));
    }

    fn call(&mut self, caller: usize) {
        let open: Vec<usize> = (0..self.producers.len()).filter(|at| self.producers[*at].open).collect();
        if open.is_empty() || self.callers[caller].left == 0 {
            if self.stage == Stage::Busy && self.callers[caller].left > 0 {
                self.after(SEC, Event::Caller(caller));
            }
            return;
        }
        let producer = open[self.rng.below(open.len() as u64) as usize];
        if self.rng.chance(1, 25) {
            self.begin_flush(caller, producer);
            return;
        }
        if self.rng.chance(1, 60) {
            self.ask_partitions();
        }
        self.callers[caller].left -= 1;
        let lane = self.rng.below(self.producers[producer].lanes.len() as u64) as usize;
        let size = self.random_size();
        let (way, may_wait) = match self.rng.below(10) {
            0..=2 => (Way::Send, true),
            3..=6 => (Way::SendWith, true),
            7..=8 => (Way::Submit, true),
            _ => (Way::Submit, false),
        };
        let offer = self.offer(producer, lane, size, way, may_wait);
        self.offered(caller, producer, lane, way, offer);
    }

    /// How the last call goes on after its offer.
    pub(super) fn offered(&mut self, caller: usize, producer: usize, lane: usize, way: Way, offer: Offer<Outgoing>) {
        let uid = self.ops.len() as u64 - 1;
        match offer {
            Offer::Admitted { look, .. } => {
                let then = (way == Way::Send).then_some(uid);
                if look {
                    self.callers[caller].doing = Doing::Telling { producer, lane, then };
                    let delay = self.pause();
                    self.after(delay, Event::Caller(caller));
                } else {
                    self.await_or_think(caller, then);
                }
            }
            Offer::Waiting { id, due, ask } => {
                if ask {
                    let delay = self.pause();
                    self.after(delay, Event::BudgetAsk(producer));
                }
                self.producers[producer].owners.push_back((id, caller, uid));
                let wait_for_answer = way == Way::Send;
                self.callers[caller].doing = Doing::InLine { producer, waiter: id, uid, wait_for_answer };
                self.callers[caller].turn += 1;
                if let Some(due) = due {
                    let due = self.micros(due);
                    self.ops[uid as usize].due = Some(due);
                    let delay = self.pause();
                    self.at(due + delay, Event::CallerTimeout(caller, self.callers[caller].turn));
                }
            }
            Offer::Refused(error, _) => {
                self.returned(uid, &error);
                self.think(caller);
            }
        }
    }

    /// One call up to the end of its step under the admission lock.
    pub(super) fn offer(
        &mut self,
        producer: usize,
        lane: usize,
        size: usize,
        way: Way,
        may_wait: bool,
    ) -> Offer<Outgoing> {
        let uid = self.ops.len() as u64;
        let mut payload = vec![0xA5; size.max(8)];
        payload[..8].copy_from_slice(&uid.to_le_bytes());
        let (reply, pending) = match way {
            Way::SendWith => {
                let callback = move |result: Result<_, Error>| CALLED.set(Some((uid, result.is_ok())));
                (Reply::Callback(Box::new(callback)), None)
            }
            Way::Send | Way::Submit => {
                let (completion, pending) = completion();
                (Reply::Completion(completion), Some(pending))
            }
        };
        // Delayed delivery: such a message travels alone.
        let lone = !self.plan.scripted && self.rng.chance(1, 30);
        let extras = lone.then(|| Box::new(Extras { deliver_at: Some(1), ..Extras::default() }));
        let content = Content { payload: Bytes::from(payload), extras };
        let last = self.producers[producer].lanes[lane].last_sequence.unwrap_or(0);
        let own_id = !self.plan.scripted && self.stage == Stage::Busy && self.rng.chance(1, 30);
        let sequence = own_id.then(|| last + self.rng.below(6));
        let item = Outgoing { content, reply, urgent: way == Way::Send };
        self.ops.push(Op {
            producer,
            lane,
            called_at: self.now,
            due: None,
            size: size.max(8),
            place: 0,
            sequence_id: 0,
            handed: false,
            fate: None,
            fixed_at: 0,
            called_back: false,
            pending,
            in_batch: None,
            probe: false,
        });
        let call = Call { lane, item, charge: message_charge(size.max(8), 0), sequence };
        let now = self.instant(self.now);
        let offer = self.producers[producer].admission.offer(now, call, may_wait, &self.budget);
        if !self.lurking.is_empty() && self.rng.chance(1, 4) {
            let fault = self.lurking.swap_remove(0);
            let delay = self.rng.below(2 * self.plan.latency + 5 * MS);
            self.after(delay, Event::Strike(fault));
        }
        self.note("offer", uid, producer as u64);
        if let Offer::Admitted { ticket, .. } = &offer {
            let ticket = *ticket;
            self.admitted(uid, &ticket);
        }
        offer
    }

    fn random_size(&mut self) -> usize {
        match self.rng.below(100) {
            0 => 5_000 + self.rng.below(4_000) as usize,
            1..=5 => 1_000 + self.rng.below(2_500) as usize,
            _ => 8 + self.rng.below(300) as usize,
        }
    }

    /// The loop is told that a lane has something to take.
    pub(super) fn look(&mut self, producer: usize, lane: usize) {
        self.looks.push_back((producer, lane));
        self.wake_loop();
    }

    pub(super) fn caller_timeout(&mut self, caller: usize, turn: u32) {
        if self.callers[caller].turn != turn {
            return;
        }
        match &self.callers[caller].doing {
            Doing::InLine { producer, waiter, uid, .. } => {
                let (producer, waiter, uid) = (*producer, *waiter, *uid);
                // Nothing if it was decided already: then somebody is on the way to tell us.
                let Some((_, served)) = self.producers[producer].admission.withdraw(waiter, &self.budget) else {
                    return;
                };
                self.producers[producer].owners.retain(|(id, _, _)| *id != waiter);
                self.carry_out(producer, served);
                self.returned(uid, &Error::new(ErrorKind::Timeout, "no room"));
                self.think(caller);
            }
            Doing::Flushing { producer, .. } => {
                let text = format!("a flush of producer {producer} does not end though every deadline is past");
                self.fail(text);
            }
            _ => {}
        }
    }

    /// What a change of an admission calls for, done by the thread that made it, after the lock is free.
    pub(super) fn carry_out(&mut self, producer: usize, served: Served<Outgoing>) {
        for (id, decision) in served.decided {
            let Some((waiter, caller, uid)) = self.producers[producer].owners.pop_front() else {
                self.fail("a decision without a waiter");
                return;
            };
            if waiter != id {
                self.fail("decisions out of the order of the line");
            }
            if let Decision::Admitted(ticket) = &decision {
                self.admitted(uid, ticket);
            }
            self.callers[caller].told = Some(decision);
            let delay = self.pause();
            self.after(delay, Event::Caller(caller));
        }
        for lane in served.look {
            let delay = self.pause();
            self.after(delay, Event::Look(producer, lane));
        }
        if served.ask {
            let delay = self.pause();
            self.after(delay, Event::BudgetAsk(producer));
        } else if served.serve_turns {
            let delay = self.pause();
            self.after(delay, Event::BudgetServe);
        }
    }

    /// A result that somebody may wait for is there.
    pub(super) fn answer_ready(&mut self, uid: u64) {
        let op = &mut self.ops[uid as usize];
        if op.pending.as_mut().is_none_or(|pending| pending.try_wait().is_none()) {
            self.fail(format!("message {uid}: somebody else got its answer"));
            return;
        }
        op.called_back = true;
        let waiting = |caller: &Caller| match caller.doing {
            Doing::Awaiting(other) => other == uid,
            _ => false,
        };
        if let Some(caller) = self.callers.iter().position(waiting) {
            let delay = self.pause();
            self.after(delay, Event::Caller(caller));
        }
    }
}
