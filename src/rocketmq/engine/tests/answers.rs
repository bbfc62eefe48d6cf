//! What consumers are answered, and what must be true of it.

use super::consumers::{Acking, Changing, Held, Receiving, handles};
use super::world::{Stage, World};
use crate::error::{Error, ErrorKind, Recovery};
use crate::rocketmq::engine::event::{Answers, Arrived, SessionId};
use crate::rocketmq::handle;
use crate::rocketmq::wire::method::Method;

impl World {
    /// What the user has been answered.
    pub(super) fn look_at_consumers(&mut self) {
        for index in 0..self.consumers.len() {
            if self.consumers[index].is_waiting() || self.consumers[index].closing.is_some() {
                self.look_at(index);
            }
        }
    }

    fn look_at(&mut self, index: usize) {
        let session = self.consumers[index].session;
        if let Some(result) = self.consumers[index].opening.as_mut().and_then(|pending| pending.try_wait()) {
            self.consumers[index].opening = None;
            self.consumers[index].open = result.is_ok() && self.consumers[index].closing.is_none();
            if let Err(error) = result {
                self.start_failed(session, &error);
            }
        }
        let mut at = 0;
        while let Some(receive) = self.consumers[index].receives.get_mut(at) {
            match receive.answer.try_wait() {
                Some(result) => {
                    let receive = self.consumers[index].receives.remove(at);
                    self.received(index, &receive, result);
                }
                None => {
                    let due = receive.due;
                    self.must_be_answered(due, "a receive");
                    at += 1;
                }
            }
        }
        let mut at = 0;
        while let Some(ack) = self.consumers[index].acks.get_mut(at) {
            match ack.answer.try_wait() {
                Some(result) => {
                    let ack = self.consumers[index].acks.remove(at);
                    self.acked(&ack, result);
                }
                None => {
                    let due = ack.due;
                    self.must_be_answered(due, "an ack");
                    at += 1;
                }
            }
        }
        let mut at = 0;
        while let Some(change) = self.consumers[index].changes.get_mut(at) {
            match change.answer.try_wait() {
                Some(result) => {
                    let change = self.consumers[index].changes.remove(at);
                    self.changed(index, change, result);
                }
                None => {
                    let due = change.due;
                    self.must_be_answered(due, "a change");
                    at += 1;
                }
            }
        }
        let over = self.sessions.get(&session).is_some_and(|(_, over)| *over);
        let consumer = &mut self.consumers[index];
        consumer.told.retain_mut(|pending| pending.try_wait().is_none());
        if over && (consumer.is_receiving() || consumer.is_acking() || !consumer.told.is_empty()) {
            self.fail("a session that is over owes answers");
        }
        let mut late = false;
        let (now, consumer) = (self.now, &mut self.consumers[index]);
        if let Some((pending, until)) = &mut consumer.closing {
            match pending.try_wait() {
                Some(_) => consumer.closing = None,
                None => late = now > *until,
            }
        }
        if late {
            let due = self.consumers[index].closing.as_ref().map_or(0, |(_, until)| *until);
            self.must_be_answered(due, "a close");
        }
    }

    fn internal(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Internal {
            self.fail("an operation was dropped without an answer");
        }
    }

    fn received(&mut self, index: usize, receive: &Receiving, result: Result<Vec<Arrived>, Error>) {
        let session = self.consumers[index].session;
        let count = result.as_ref().map_or(99, |messages| messages.len() as u64);
        self.note("received", session.0, count);
        self.must_be_answered(receive.due, "a receive");
        let polls = |id| self.calls[id].session == session && self.calls[id].method == Method::ReceiveMessage;
        if self.live.iter().any(polls) {
            self.happened("a poll outlives its receive");
        }
        let messages = match result {
            Ok(messages) => messages,
            Err(error) => {
                self.internal(&error);
                self.happened("a receive fails");
                if self.stage == Stage::Probing && error.kind() != ErrorKind::Closed {
                    self.fail(format!("all is well, and a receive fails: {error}"));
                }
                return;
            }
        };
        match messages.len() {
            0 => self.happened("a receive finds nothing"),
            count if count > receive.max => self.fail("more messages than were asked for"),
            _ => self.happened("a receive brings messages"),
        }
        for arrived in messages {
            let Ok(message) = arrived.read() else { return self.fail("a message that cannot be read") };
            let endpoints = arrived.endpoints;
            let handle = message.system_properties.receipt_handle.clone().unwrap_or_default();
            let Some(handed) = self.depot.handles.get_mut(&handle) else {
                return self.fail("a message that no server handed out");
            };
            if std::mem::replace(&mut handed.given, true) {
                return self.fail("a message is given twice under one handle");
            }
            let uid = handed.uid;
            let stored = &mut self.depot.messages[uid];
            stored.given = true;
            let (topic, at) = (stored.topic, stored.endpoint);
            if !self.consumers[index].topics.contains(&topic) || stored.consumer != index {
                return self.fail("a message of a topic that is not subscribed");
            }
            if self.endpoints[at].address != endpoints {
                return self.fail("a message of another broker");
            }
            self.consumers[index].held.push(Held { uid, topic, handle, endpoints });
        }
    }

    fn acked(&mut self, ack: &Acking, result: Result<Answers, Error>) {
        self.must_be_answered(ack.due, "an ack");
        let results = match result {
            Ok(answers) => ack.places.results(&handles(&ack.held), answers),
            Err(error) => return self.internal(&error),
        };
        self.note("acked", results.len() as u64, results.iter().filter(|result| result.is_ok()).count() as u64);
        if results.len() != ack.held.len() {
            return self.fail("not one result for each handle");
        }
        for (held, result) in ack.held.iter().zip(results) {
            let known = self.depot.handles.get(&held.handle);
            let (acked, refused) = known.map_or((false, true), |handed| (handed.acked, handed.refused));
            match result {
                Ok(()) if !acked => self.fail("an ack is reported that the server did not take"),
                Err(error) if error.code() == Some(40013) => {
                    self.happened("a handle is refused");
                    if !refused {
                        self.fail("an ack is reported as refused that the server did not refuse");
                    }
                }
                Err(error) => {
                    self.internal(&error);
                    if self.stage == Stage::Probing && error.kind() != ErrorKind::Closed {
                        self.fail(format!("all is well, and an ack fails: {error}"));
                    }
                }
                Ok(()) => {}
            }
        }
    }

    fn changed(&mut self, index: usize, change: Changing, result: Result<Answers, Error>) {
        self.must_be_answered(change.due, "a change");
        match result.and_then(|answers| handle::changed(&change.held.handle(), answers)) {
            Ok(handle) => {
                let now_good = self.depot.handles.get(&change.held.handle).and_then(|handed| handed.changed_to.clone());
                if now_good.as_ref() != Some(&handle) {
                    return self.fail("a change gives another handle than the server's");
                }
                self.happened("an invisible duration is changed");
                self.consumers[index].held.push(Held { handle, ..change.held });
            }
            Err(error) => self.internal(&error),
        }
    }

    /// A start failed: by its time, or because of a close, a final answer, or three bad ones for a topic.
    pub(super) fn start_failed(&mut self, session: SessionId, error: &Error) {
        self.happened("a start fails");
        let final_answer = error.recovery() == Recovery::Never;
        let tried = self.route_failures.iter().any(|((of, _), count)| *of == session && *count >= 3);
        let in_time = self.now < self.start_due.get(&session).copied().unwrap_or(0);
        if in_time && error.kind() != ErrorKind::Closed && !final_answer && !tried {
            self.fail(format!("a start fails too early: {error}"));
        }
    }
}
