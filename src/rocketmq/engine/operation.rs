//! What a consumer's user waits for: each is answered once, and by its time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::event::{Action, Arrived, CallId, Handle, ReplyOf, SessionId};
use super::poll::{Poll, PollKey};
use super::{Engine, Timer};
use crate::error::{Error, ErrorKind};
use crate::pending::Completion;

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
    Ack {
        session: SessionId,
        due: Instant,
        handles: Vec<Handle>,
        parts: Vec<Part>,
        results: Vec<Option<Result<(), Error>>>,
        reply: Completion<Vec<Result<(), Error>>>,
    },
    Change {
        session: SessionId,
        due: Instant,
        handle: Handle,
        invisible: Duration,
        call: Option<CallId>,
        reply: Completion<String>,
    },
}

/// Handles of one topic and endpoint.
pub(super) struct Part {
    pub indexes: Vec<usize>,
    pub call: Option<CallId>,
    pub done: bool,
}

impl Operation {
    pub(super) fn session(&self) -> SessionId {
        match self {
            Self::Receive { session, .. } | Self::Ack { session, .. } | Self::Change { session, .. } => *session,
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
            Some(Operation::Ack { parts, .. }) => {
                for part in 0..parts.len() {
                    self.start_ack(now, number, part);
                }
            }
            Some(Operation::Change { .. }) => self.start_change(now, number),
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
            Some(operation) => {
                let id = operation.session();
                let error = Error::new(ErrorKind::Timeout, "the server did not answer in time");
                self.end_operation(number, &error);
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
            Some(Operation::Ack { parts, results, reply, .. }) => {
                parts.into_iter().filter_map(|part| part.call).for_each(|call| self.forget(call));
                let mut results: Vec<_> =
                    results.into_iter().map(|result| result.unwrap_or_else(|| Err(error.clone()))).collect();
                if mutant!(AckResultsAreSwapped) {
                    results.reverse();
                }
                if mutant!(AckLosesAResult) {
                    results.pop();
                }
                self.act(Action::Acked(reply, Ok(results)));
            }
            Some(Operation::Change { call, reply, .. }) => {
                call.into_iter().for_each(|call| self.forget(call));
                self.act(Action::Changed(reply, Err(error.clone())));
            }
            Some(Operation::Receive { reply, .. }) => {
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
