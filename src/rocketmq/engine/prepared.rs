//! Calls that users' threads have made ready: acknowledgements, other invisible durations. Their answers go back as
//! they came, to be read where they were asked for.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::event::{Action, Answers, CallEnd, CallId, Prepared, SessionId};
use super::operation::Operation;
use super::{Engine, Purpose, Timer, closed, response};
use crate::error::{Delivery, Error};
use crate::pending::Completion;
use crate::rocketmq::wire::method::Method;

/// A call that could not be started, or was cut off by a recovery, is made again after this.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// One of an operation's calls.
pub(super) struct Part {
    prepared: Prepared,
    pub call: Option<CallId>,
    /// A call of it may have arrived whose answer did not.
    in_doubt: bool,
    answer: Option<Result<Bytes, Error>>,
}

impl Part {
    /// What was answered; if nothing was, `error`, which says whether it may have been carried out.
    pub(super) fn end(self, error: &Error) -> Result<Bytes, Error> {
        let in_doubt = self.in_doubt || self.call.is_some();
        let unanswered = || if in_doubt { error.clone().with_delivery(Delivery::Unknown) } else { error.clone() };
        self.answer.unwrap_or_else(|| Err(unanswered()))
    }
}

impl Engine {
    pub(super) fn prepared(
        &mut self,
        now: Instant,
        id: SessionId,
        method: Method,
        calls: Vec<Prepared>,
        due: Instant,
        reply: Completion<Answers>,
    ) {
        if !self.sessions.contains_key(&id) {
            self.act(Action::Answered(reply, Err(closed("consumer"))));
            return;
        }
        let parts: Vec<Part> =
            calls.into_iter().map(|prepared| Part { prepared, call: None, in_doubt: false, answer: None }).collect();
        let (number, count) = (self.id(), parts.len());
        self.operations.insert(number, Operation::Prepared { session: id, method, due, parts, open: count, reply });
        if count == 0 {
            return self.end_operation(number, &closed("consumer"));
        }
        self.timers.arm(Timer::Operation(number), due);
        for part in 0..count {
            self.start_part(now, number, part);
        }
    }

    /// Makes the call of a part that has neither one nor an answer.
    pub(super) fn start_part(&mut self, now: Instant, number: u64, index: usize) {
        let Some(Operation::Prepared { session: id, method, due, parts, .. }) = self.operations.get(&number) else {
            return;
        };
        let (id, method, due) = (*id, *method, *due);
        let Some(part) = parts.get(index).filter(|part| part.answer.is_none() && part.call.is_none()) else { return };
        let (address, request) = (self.addresses.number(&part.prepared.endpoints), part.prepared.request.clone());
        let Some(session) = self.sessions.get(&id) else { return };
        let timeout =
            session.spec.request_timeout.min(due.saturating_duration_since(now)).max(Duration::from_millis(1));
        let call = self.call(now, id, address, Purpose::Prepared(method, number, index), request, timeout);
        if let Some(part) = self.part(number, index) {
            part.call = Some(call);
        }
    }

    pub(super) fn part_ended(&mut self, now: Instant, number: u64, index: usize, end: CallEnd) {
        let Some(Operation::Prepared { session: id, method, parts, open, .. }) = self.operations.get_mut(&number)
        else {
            return;
        };
        let (id, what) = (*id, what(*method));
        let Some(part) = parts.get_mut(index) else { return };
        part.call = None;
        if matches!(end, CallEnd::NotStarted(_) | CallEnd::Cancelled) {
            part.in_doubt |= end == CallEnd::Cancelled;
            self.timers.arm(Timer::Again(number), now + AGAIN_PAUSE);
            return;
        }
        part.answer = Some(response(end, what));
        *open = open.saturating_sub(1);
        if *open == 0 {
            self.end_operation(number, &closed("consumer"));
            self.check_closed(now, id);
        }
    }

    fn part(&mut self, number: u64, index: usize) -> Option<&mut Part> {
        match self.operations.get_mut(&number)? {
            Operation::Prepared { parts, .. } => parts.get_mut(index),
            Operation::Receive { .. } => None,
        }
    }
}

/// What errors call it.
pub(super) fn what(method: Method) -> &'static str {
    match method {
        Method::ChangeInvisibleDuration => "change of the invisible duration",
        _ => "acknowledge",
    }
}
