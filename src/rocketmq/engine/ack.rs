//! A simple consumer's answers to what it received: acknowledgements, other invisible durations.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Action, CallEnd, Handle, SessionId};
use super::operation::{Operation, Part};
use super::{Engine, Purpose, Timer, closed, malformed, response};
use crate::error::Error;
use crate::pending::Completion;
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::{code, pb};

/// A call that could not be started, or was cut off by a recovery, is made again after this.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

impl Engine {
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        id: SessionId,
        handles: Vec<Handle>,
        due: Instant,
        reply: Completion<Vec<Result<(), Error>>>,
    ) {
        if !self.sessions.contains_key(&id) {
            self.act(Action::Acked(reply, Err(closed("consumer"))));
            return;
        }
        let mut by_place: BTreeMap<(String, AddressId), Vec<usize>> = BTreeMap::new();
        for (index, handle) in handles.iter().enumerate() {
            let address = self.addresses.number(&handle.endpoints);
            by_place.entry((handle.topic.clone(), address)).or_default().push(index);
        }
        let parts: Vec<Part> =
            by_place.into_values().map(|indexes| Part { indexes, call: None, done: false }).collect();
        let number = self.id();
        let (count, results) = (parts.len(), handles.iter().map(|_| None).collect());
        self.operations.insert(number, Operation::Ack { session: id, due, handles, parts, results, reply });
        self.timers.arm(Timer::Operation(number), due);
        if count == 0 {
            self.end_operation(number, &closed("consumer"));
        }
        for part in 0..count {
            self.start_ack(now, number, part);
        }
    }

    pub(super) fn start_ack(&mut self, now: Instant, number: u64, index: usize) {
        let Some(Operation::Ack { session: id, due, handles, parts, .. }) = self.operations.get(&number) else {
            return;
        };
        let (id, due) = (*id, *due);
        let Some(part) = parts.get(index).filter(|part| !part.done && part.call.is_none()) else { return };
        let Some(first) = part.indexes.first().and_then(|first| handles.get(*first)) else { return };
        let Some(session) = self.sessions.get(&id) else { return };
        let entries = part.indexes.iter().filter_map(|index| handles.get(*index)).map(|handle| pb::AckMessageEntry {
            message_id: handle.message_id.clone(),
            receipt_handle: handle.receipt_handle.clone(),
            ..Default::default()
        });
        let request = pb::AckMessageRequest {
            group: session.group_resource(),
            topic: resource(&session.spec.namespace, &first.topic),
            entries: entries.collect(),
            ..Default::default()
        };
        let timeout =
            session.spec.request_timeout.min(due.saturating_duration_since(now)).max(Duration::from_millis(1));
        let address = self.addresses.number(&first.endpoints);
        let purpose = Purpose::Ack(number, index);
        let call = self.call(now, id, address, purpose, encode(&request), timeout);
        if let Some(Operation::Ack { parts, .. }) = self.operations.get_mut(&number) {
            if let Some(part) = parts.get_mut(index) {
                part.call = Some(call);
            }
        }
    }

    pub(super) fn ack_ended(&mut self, now: Instant, number: u64, index: usize, end: CallEnd) {
        let Some(Operation::Ack { session: id, handles, parts, results, .. }) = self.operations.get_mut(&number) else {
            return;
        };
        let id = *id;
        let Some(part) = parts.get_mut(index) else { return };
        part.call = None;
        if matches!(end, CallEnd::NotStarted(_) | CallEnd::Cancelled) {
            self.timers.arm(Timer::Again(number), now + AGAIN_PAUSE);
            return;
        }
        part.done = true;
        let outcome = response(end, "acknowledge").and_then(|body| {
            pb::AckMessageResponse::parse_from_bytes(&body).map_err(|error| malformed("acknowledge", error))
        });
        // By handle, so that a batch of many thousands does not hold up everybody else. The first of two entries counts.
        let entries = outcome.as_ref().map(|answer| answer.entries.iter().rev()).into_iter().flatten();
        let own: HashMap<&str, Option<&pb::Status>> =
            entries.map(|entry| (entry.receipt_handle.as_str(), entry.status.as_ref())).collect();
        for at in &part.indexes {
            let (Some(handle), Some(result)) = (handles.get(*at), results.get_mut(*at)) else { continue };
            *result = Some(match &outcome {
                Ok(answer) => {
                    let own = own.get(handle.receipt_handle.as_str()).copied().flatten();
                    let what = || format!("acknowledge {}", handle.message_id);
                    let whole = answer.status.as_ref();
                    match own.or(whole).map(|status| status.code.value()) {
                        Some(code) if own.is_none() && code::is_mixed(code) => {
                            Err(malformed(&what(), "its result is missing among several"))
                        }
                        Some(code) if code::is_success(code) => Ok(()),
                        _ => code::check(own.or(whole), &what()),
                    }
                }
                Err(error) => Err(error.clone()),
            });
        }
        if parts.iter().all(|part| part.done) {
            self.end_operation(number, &closed("consumer"));
            self.check_closed(now, id);
        }
    }

    pub(super) fn change_invisible(
        &mut self,
        now: Instant,
        id: SessionId,
        handle: Handle,
        invisible: Duration,
        due: Instant,
        reply: Completion<String>,
    ) {
        if !self.sessions.contains_key(&id) {
            self.act(Action::Changed(reply, Err(closed("consumer"))));
            return;
        }
        let number = self.id();
        self.operations.insert(number, Operation::Change { session: id, due, handle, invisible, call: None, reply });
        self.timers.arm(Timer::Operation(number), due);
        self.start_change(now, number);
    }

    pub(super) fn start_change(&mut self, now: Instant, number: u64) {
        let Some(Operation::Change { session: id, due, handle, invisible, call: None, .. }) =
            self.operations.get(&number)
        else {
            return;
        };
        let (id, due, endpoints) = (*id, *due, handle.endpoints.clone());
        let Some(session) = self.sessions.get(&id) else { return };
        let request = pb::ChangeInvisibleDurationRequest {
            group: session.group_resource(),
            topic: resource(&session.spec.namespace, &handle.topic),
            receipt_handle: handle.receipt_handle.clone(),
            invisible_duration: protobuf::MessageField::some((*invisible).into()),
            message_id: handle.message_id.clone(),
            ..Default::default()
        };
        let timeout =
            session.spec.request_timeout.min(due.saturating_duration_since(now)).max(Duration::from_millis(1));
        let address = self.addresses.number(&endpoints);
        let purpose = Purpose::Change(number);
        let made = self.call(now, id, address, purpose, encode(&request), timeout);
        if let Some(Operation::Change { call, .. }) = self.operations.get_mut(&number) {
            *call = Some(made);
        }
    }

    pub(super) fn change_ended(&mut self, now: Instant, number: u64, end: CallEnd) {
        let Some(Operation::Change { session: id, call, handle, .. }) = self.operations.get_mut(&number) else {
            return;
        };
        let id = *id;
        let replaced = mutant!(KeepsTheOldHandle).then(|| handle.receipt_handle.clone());
        *call = None;
        if matches!(end, CallEnd::NotStarted(_) | CallEnd::Cancelled) {
            self.timers.arm(Timer::Again(number), now + AGAIN_PAUSE);
            return;
        }
        let what = "change of the invisible duration";
        let result = response(end, what).and_then(|body| {
            let answer =
                pb::ChangeInvisibleDurationResponse::parse_from_bytes(&body).map_err(|error| malformed(what, error))?;
            code::check(answer.status.as_ref(), what)?;
            if answer.receipt_handle.is_empty() {
                return Err(malformed(what, "there is no receipt handle"));
            }
            Ok(replaced.unwrap_or(answer.receipt_handle))
        });
        self.timers.cancel(Timer::Operation(number));
        if let Some(Operation::Change { reply, .. }) = self.operations.remove(&number) {
            self.act(Action::Changed(reply, result));
        }
        self.check_closed(now, id);
    }
}
