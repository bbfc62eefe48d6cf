//! What a consumer's user waits for: each is answered once, and by its time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::event::{Action, Answers, Arrived, CallId, ReplyOf, SessionId};
use super::poll::{Poll, PollKey};
use super::prepared::{Part, what};
use super::{Engine, Timer};
use crate::error::{Error, ErrorKind};
use crate::pending::Completion;
use crate::rocketmq::wire::method::Method;

pub(super) enum Operation {
    Receive {
        session: SessionId,
        max: usize,
        invisible: Duration,
        /// Until then it waits for messages.
        await_until: Instant,
        reply: ReplyOf<Vec<Arrived>>,
        /// Polls that answered that there is nothing, or failed.
        answered: BTreeSet<PollKey>,
        /// Polls that go again at a time.
        again: BTreeMap<PollKey, Instant>,
        heard: bool,
        failure: Option<Error>,
    },
    Prepared {
        session: SessionId,
        method: Method,
        due: Instant,
        parts: Vec<Part>,
        /// How many of them have no answer.
        open: usize,
        reply: Completion<Answers>,
    },
}

impl Operation {
    pub(super) fn session(&self) -> SessionId {
        match self {
            Self::Receive { session, .. } | Self::Prepared { session, .. } => *session,
        }
    }
}

impl Engine {
    /// Routes came, or a receive's pause is over.
    pub(super) fn resume_operations(&mut self, now: Instant, id: SessionId) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.session() == id)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.operation_again(now, number);
        }
    }

    pub(super) fn operation_again(&mut self, now: Instant, number: u64) {
        match self.operations.get(&number) {
            Some(Operation::Receive { session, .. }) => {
                let id = *session;
                self.start_polls(now, id, number);
            }
            Some(Operation::Prepared { parts, .. }) => {
                for part in 0..parts.len() {
                    self.start_part(now, number, part);
                }
            }
            None => {}
        }
    }

    pub(super) fn operation_due(&mut self, now: Instant, number: u64) {
        match self.operations.get(&number) {
            Some(Operation::Receive { session, heard, failure, .. }) => {
                // Silence is no empty queue. What comes slowly is none: the next receive gets it.
                let mut polls =
                    self.sessions.get(session).into_iter().flat_map(|session| session.receiver.polls.values());
                let coming = polls.any(Poll::has_begun);
                let silence = || Error::new(ErrorKind::Timeout, "receive: no server answered in time");
                let result = match failure {
                    _ if *heard || coming => Ok(Vec::new()),
                    Some(error) => Err(error.clone()),
                    None => Err(silence()),
                };
                self.end_receive(number, result);
            }
            Some(Operation::Prepared { session, method, parts, .. }) => {
                let id = *session;
                let text = format!("{}: the server did not answer in time", what(*method));
                // The call's deadline is the operation's: what it says of the link is lost if it is only forgotten.
                let calls: Vec<CallId> = parts.iter().filter_map(|part| part.call).collect();
                calls.into_iter().for_each(|call| self.give_up(now, call));
                self.end_operation(number, &Error::new(ErrorKind::Timeout, text));
                self.check_closed(now, id);
            }
            None => {}
        }
    }

    /// Answers an operation; what it has no result for gets `error`.
    pub(super) fn end_operation(&mut self, number: u64, error: &Error) {
        self.timers.cancel(Timer::Operation(number));
        self.timers.cancel(Timer::Again(number));
        match self.operations.remove(&number) {
            Some(Operation::Prepared { parts, reply, .. }) => {
                let mut answers = Vec::with_capacity(parts.len());
                for part in parts {
                    part.call.into_iter().for_each(|call| self.forget(call));
                    answers.push(part.end(error));
                }
                if mutant!(AnswersAreSwapped) {
                    answers.reverse();
                }
                self.act(Action::Answered(reply, Ok(answers)));
            }
            Some(Operation::Receive { session, invisible, reply, .. }) => {
                self.not_waiting(session, number, invisible);
                self.act(Action::Received { reply, result: Err(error.clone()) });
            }
            None => {}
        }
    }

    pub(super) fn has_operations(&self, id: SessionId) -> bool {
        self.operations.values().any(|operation| operation.session() == id)
    }

    pub(super) fn fail_operations(&mut self, id: SessionId, error: &Error) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.session() == id)
            .map(|(number, _)| *number)
            .collect();
        numbers.into_iter().for_each(|number| self.end_operation(number, error));
    }
}
