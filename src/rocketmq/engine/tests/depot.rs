//! The model of brokers that keep messages for consumers: polls, invisible times, receipt handles.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use protobuf::{EnumOrUnknown, Message as _, MessageField};

use super::network::{bytes, status};
use super::plan::TOPICS;
use super::schedule::{MS, Micros, SEC};
use super::world::{Event, Owner, World};
use crate::rocketmq::engine::event::{CallEnd, CallId, RpcEvent, SessionId};
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::pb;
use pb::receive_message_response::Content;

/// A message for a consumer's group.
pub(super) struct Stored {
    pub consumer: usize,
    pub topic: usize,
    pub endpoint: usize,
    pub visible_at: Micros,
    /// The one handle that is good.
    pub handle: Option<String>,
    pub done: bool,
    pub given: bool,
}

/// A receipt handle that was made.
#[derive(Default)]
pub(super) struct Handed {
    pub uid: usize,
    pub given: bool,
    pub acked: bool,
    pub refused: bool,
    /// The handle that took its place.
    pub changed_to: Option<String>,
}

/// A poll that the server holds.
#[derive(Clone)]
struct Waiting {
    consumer: usize,
    topic: usize,
    endpoint: usize,
    batch: usize,
    invisible: Micros,
}

#[derive(Default)]
pub(super) struct Depot {
    pub messages: Vec<Stored>,
    pub handles: BTreeMap<String, Handed>,
    waiting: BTreeMap<CallId, Waiting>,
}

impl Depot {
    fn make_handle(&mut self, uid: usize) -> String {
        let handle = format!("h{}", self.handles.len());
        self.handles.insert(handle.clone(), Handed { uid, ..Handed::default() });
        self.messages[uid].handle = Some(handle.clone());
        handle
    }

    /// The message whose good handle this is.
    fn holder(&self, handle: &str, endpoint: usize, now: Micros) -> Option<usize> {
        let uid = self.handles.get(handle)?.uid;
        let message = &self.messages[uid];
        let good = !message.done && message.visible_at > now && message.endpoint == endpoint;
        (good && message.handle.as_deref() == Some(handle)).then_some(uid)
    }
}

fn frame(content: Option<Content>) -> Bytes {
    bytes(&pb::ReceiveMessageResponse { content, ..Default::default() })
}

fn status_frame(code: i32) -> Bytes {
    frame(Some(Content::Status(pb::Status { code: EnumOrUnknown::from_i32(code), ..Default::default() })))
}

fn micros(duration: &MessageField<protobuf::well_known_types::duration::Duration>) -> Micros {
    duration.as_ref().map_or(0, |value| value.seconds as Micros * SEC + value.nanos as Micros / 1_000)
}

impl World {
    /// A message comes in for a consumer.
    pub(super) fn feed(&mut self, consumer: usize, topic: usize, endpoint: usize) -> usize {
        let uid = self.depot.messages.len();
        let (visible_at, handle, done, given) = (self.now, None, false, false);
        self.depot.messages.push(Stored { consumer, topic, endpoint, visible_at, handle, done, given });
        self.note("fed", uid as u64, endpoint as u64);
        self.visible(uid);
        uid
    }

    /// A message can be seen (again): a poll may wait for it.
    pub(super) fn visible(&mut self, uid: usize) {
        let message = &self.depot.messages[uid];
        if message.done || message.visible_at > self.now {
            return;
        }
        let place = (message.consumer, message.topic, message.endpoint);
        let of_it = |(_, poll): &(&CallId, &Waiting)| (poll.consumer, poll.topic, poll.endpoint) == place;
        let calls: Vec<CallId> = self.depot.waiting.iter().filter(of_it).map(|(call, _)| *call).collect();
        for call in calls {
            let state = &self.calls[&call];
            let link = &self.links[&state.entry];
            let gone = link.closed || link.generation != state.generation;
            // Who gave it up may have done so too late for the server to know.
            if gone || (state.over && self.rng.chance(1, 2)) {
                self.depot.waiting.remove(&call);
                continue;
            }
            return self.hand_out(call);
        }
    }

    pub(super) fn poll_arrived(&mut self, call: CallId, endpoint: usize) {
        let state = &self.calls[&call];
        let (session, left) = (state.session, state.deadline.saturating_sub(self.now));
        let Owner::Consumer(consumer) = self.sessions[&session].0 else {
            return self.fail("a producer polls");
        };
        let request = pb::ReceiveMessageRequest::parse_from_bytes(&state.body).unwrap();
        let name = &request.message_queue.topic.name;
        let topic = TOPICS.iter().position(|topic| topic == name).unwrap();
        let batch = request.batch_size as usize;
        let polling = micros(&request.long_polling_timeout);
        if request.group.name != format!("group-{consumer}") || !(1..=32).contains(&batch) {
            self.fail("a poll of another group, or of no messages");
        }
        if polling > self.plan.consumers[consumer].wait.as_micros() as Micros {
            self.fail("a poll that is longer than its receive waits");
        }
        let broken = self.endpoints[endpoint].code;
        let code = if !self.endpoints[endpoint].known.contains_key(&session) {
            Some(if self.rng.chance(1, 2) { 40015 } else { 50001 })
        } else if left < 5 * SEC {
            Some(40018)
        } else {
            broken
        };
        if let Some(code) = code {
            if code == 42900 {
                self.happened("a poll is throttled");
            }
            return self.send_frames(call, vec![status_frame(code)]);
        }
        let invisible = micros(&request.invisible_duration);
        self.depot.waiting.insert(call, Waiting { consumer, topic, endpoint, batch, invisible });
        if self.can_hand_out(call) {
            return self.hand_out(call);
        }
        let until = polling.clamp(5 * SEC, 20 * SEC).min(left - 500 * MS);
        self.after(until, Event::PollOver(call));
    }

    fn sees(&self, poll: &Waiting, message: &Stored) -> bool {
        (message.consumer, message.topic, message.endpoint) == (poll.consumer, poll.topic, poll.endpoint)
            && !message.done
            && message.visible_at <= self.now
    }

    fn can_hand_out(&self, call: CallId) -> bool {
        let poll = &self.depot.waiting[&call];
        self.depot.messages.iter().any(|message| self.sees(poll, message))
    }

    fn hand_out(&mut self, call: CallId) {
        let Some(poll) = self.depot.waiting.remove(&call) else { return };
        let found = (0..self.depot.messages.len()).filter(|uid| self.sees(&poll, &self.depot.messages[*uid]));
        let found: Vec<usize> = found.take(poll.batch).collect();
        let mut frames = vec![status_frame(20000)];
        for uid in found {
            let handle = self.depot.make_handle(uid);
            self.depot.messages[uid].visible_at = self.now + poll.invisible;
            self.after(poll.invisible, Event::Visible(uid));
            self.note("handed out", uid as u64, call.0);
            frames.push(message_frame(poll.topic, uid, handle));
        }
        if self.rng.chance(1, 20) {
            frames.push(frame(None));
        }
        frames.push(frame(Some(Content::DeliveryTimestamp(Default::default()))));
        self.send_frames(call, frames);
    }

    pub(super) fn poll_over(&mut self, call: CallId) {
        if self.depot.waiting.remove(&call).is_some() {
            self.send_frames(
                call,
                vec![status_frame(40401), frame(Some(Content::DeliveryTimestamp(Default::default())))],
            );
        }
    }

    fn send_frames(&mut self, call: CallId, frames: Vec<Bytes>) {
        let endpoint = self.links[&self.calls[&call].entry].endpoint;
        if self.endpoints[endpoint].mute {
            return;
        }
        let mut at = self.plan.latency + self.rng.below(self.plan.latency + self.endpoints[endpoint].slow);
        for body in frames {
            self.after(at, Event::PollFrame(call, body));
            let most = if self.rng.chance(1, 10) { 200 * MS } else { MS };
            at += 1 + self.rng.below(most);
        }
        self.after(at, Event::Answer(call, CallEnd::StreamOver));
    }

    pub(super) fn poll_frame(&mut self, call: CallId, body: Bytes) {
        let Some(state) = self.calls.get(&call).filter(|state| !state.over) else { return };
        let link = &self.links[&state.entry];
        if link.generation == state.generation && link.wire == super::network::Wire::Ready && !link.closed {
            self.post_of_call(call, RpcEvent::Frame { call, body });
        }
    }

    /// A frame comes after the end of its call: nobody may hear of it.
    pub(super) fn stray_frame(&mut self, call: CallId) {
        let body = message_frame(0, 0, "stray".into());
        let at = self.calls[&call].posted + 1 + self.rng.below(self.plan.latency);
        self.at(at, Event::Rpc(RpcEvent::Frame { call, body }));
    }

    pub(super) fn serve_ack(&mut self, at: usize, body: &[u8]) -> Bytes {
        if let Some(code) = self.endpoints[at].code {
            return bytes(&pb::AckMessageResponse { status: status(code), ..Default::default() });
        }
        let request = pb::AckMessageRequest::parse_from_bytes(body).unwrap();
        let (mut entries, mut good) = (Vec::new(), 0);
        for entry in request.entries {
            let holder = self.depot.holder(&entry.receipt_handle, at, self.now);
            if let Some(uid) = holder {
                self.depot.messages[uid].done = true;
                good += 1;
            }
            if let Some(handed) = self.depot.handles.get_mut(&entry.receipt_handle) {
                handed.acked |= holder.is_some();
                handed.refused |= holder.is_none();
            }
            entries.push(pb::AckMessageResultEntry {
                message_id: entry.message_id,
                receipt_handle: entry.receipt_handle,
                status: status(if holder.is_some() { 20000 } else { 40013 }),
                ..Default::default()
            });
        }
        let code = match good {
            0 => 40013,
            _ if good == entries.len() => 20000,
            _ => {
                self.happened("a batch of acks has both results");
                30000
            }
        };
        if self.rng.chance(1, 3) {
            entries.reverse();
        } else if code == 20000 && self.rng.chance(1, 3) {
            entries.clear();
        }
        bytes(&pb::AckMessageResponse { status: status(code), entries, ..Default::default() })
    }

    pub(super) fn serve_change(&mut self, at: usize, body: &[u8]) -> Bytes {
        let mut answer = pb::ChangeInvisibleDurationResponse::new();
        let request = pb::ChangeInvisibleDurationRequest::parse_from_bytes(body).unwrap();
        let code = self.endpoints[at].code.unwrap_or(20000);
        answer.status = status(code);
        if code == 20000 {
            match self.depot.holder(&request.receipt_handle, at, self.now) {
                Some(uid) => {
                    let handle = self.depot.make_handle(uid);
                    self.depot.handles.get_mut(&request.receipt_handle).unwrap().changed_to = Some(handle.clone());
                    let invisible = micros(&request.invisible_duration);
                    self.depot.messages[uid].visible_at = self.now + invisible;
                    self.after(invisible, Event::Visible(uid));
                    answer.receipt_handle = handle;
                }
                None => {
                    if let Some(handed) = self.depot.handles.get_mut(&request.receipt_handle) {
                        handed.refused = true;
                    }
                    answer.status = status(40013);
                }
            }
        }
        bytes(&answer)
    }

    /// The broker forgets who holds what: everything can be seen again.
    pub(super) fn expire_all(&mut self, endpoint: usize) {
        for uid in 0..self.depot.messages.len() {
            let message = &mut self.depot.messages[uid];
            if message.endpoint == endpoint && !message.done {
                message.visible_at = self.now;
                self.visible(uid);
            }
        }
    }

    pub(super) fn owner_of(&self, session: SessionId) -> Owner {
        self.sessions[&session].0
    }
}

fn message_frame(topic: usize, uid: usize, handle: String) -> Bytes {
    let properties = pb::SystemProperties {
        message_id: uid.to_string(),
        receipt_handle: Some(handle),
        invisible_duration: MessageField::some(Duration::from_secs(10).into()),
        ..Default::default()
    };
    frame(Some(Content::Message(pb::Message {
        topic: resource("", TOPICS[topic]),
        system_properties: MessageField::some(properties),
        ..Default::default()
    })))
}
