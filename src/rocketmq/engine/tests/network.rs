//! The model of channels and proxies.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protobuf::{EnumOrUnknown, Message as _, MessageField};

use super::schedule::{MS, Micros, SEC};
use super::world::{Event, World};
use crate::rocketmq::engine::event::{self, CallEnd, CallId, EntryId, RpcEvent, SessionId, StreamId};
use crate::rocketmq::wire::endpoints::{AccessPoint, Endpoints};
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

/// A proxy.
pub(super) struct Endpoint {
    pub address: Endpoints,
    pub up: bool,
    pub slow: Micros,
    pub mute: bool,
    pub code: Option<i32>,
    /// Routes do not name it.
    pub left: bool,
    /// Sessions whose settings it has, and the topics that they are subscribed to.
    pub known: BTreeMap<SessionId, BTreeSet<String>>,
    pub refuses_settings: Option<i32>,
    pub settings_late: Micros,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Dialling,
    Ready,
    HalfOpen,
    /// Broken, and the channel does not know.
    Lying,
    Refused,
}

/// One channel: what an entry stands for.
pub(super) struct Link {
    pub endpoint: usize,
    pub wire: Wire,
    /// Counts its connections.
    pub generation: u32,
    pub closed: bool,
    /// The server asked for another.
    pub asked: bool,
    /// Starts of heartbeats that ended past their deadline, and whether one was told UNAVAILABLE while READY.
    pub late: BTreeSet<Micros>,
    pub unavailable: bool,
    /// Since when it has been dead without knowing it.
    pub dead_since: Option<Micros>,
    /// A call on it failed for want of a connection, and no heartbeat was well since.
    pub suspect: bool,
    /// When the last heartbeat began that was given up.
    pub given_up: Micros,
}

impl Link {
    pub(super) fn is_dead(&self) -> bool {
        self.wire == Wire::HalfOpen
    }

    fn reads_ready(&self) -> bool {
        matches!(self.wire, Wire::Ready | Wire::HalfOpen | Wire::Lying)
    }
}

pub(super) struct CallState {
    pub entry: EntryId,
    pub session: SessionId,
    pub method: Method,
    pub body: Bytes,
    pub op: Option<usize>,
    pub started: Micros,
    pub deadline: Micros,
    /// When the last of its events reaches the engine.
    pub posted: Micros,
    pub generation: u32,
    /// It waits for a connection, or for a thaw.
    pub stuck: bool,
    /// Its end was posted.
    pub over: bool,
    /// The engine was told, or has cancelled it.
    pub told: bool,
}

pub(super) struct StreamState {
    pub entry: EntryId,
    pub session: SessionId,
    pub writes: u32,
    /// When the last of them arrives.
    pub arrives: Micros,
    pub unsent: Vec<Bytes>,
    pub over: bool,
    pub told: bool,
}

impl Endpoint {
    pub(super) fn new(index: usize) -> Self {
        let address = AccessPoint::parse(&format!("10.0.0.{}:8081", index + 1)).unwrap().endpoints;
        Self {
            address,
            up: true,
            slow: 0,
            mute: false,
            code: None,
            left: false,
            known: BTreeMap::new(),
            refuses_settings: None,
            settings_late: 0,
        }
    }
}

pub(super) fn status(code: i32) -> MessageField<pb::Status> {
    MessageField::some(pb::Status { code: EnumOrUnknown::from_i32(code), ..Default::default() })
}

pub(super) fn bytes(message: &impl protobuf::Message) -> Bytes {
    Bytes::from(message.write_to_bytes().unwrap())
}

impl World {
    pub(super) fn post(&mut self, event: RpcEvent) {
        let pause = self.pause();
        if matches!(event, RpcEvent::Ended { .. }) && self.rng.chance(1, 30) {
            self.after(pause + 5, Event::Rpc(event.clone()));
        }
        self.after(pause, Event::Rpc(event));
    }

    /// Frames of a call and its end keep their order.
    pub(super) fn post_of_call(&mut self, call: CallId, event: RpcEvent) {
        let pause = self.pause();
        let state = self.calls.get_mut(&call).unwrap();
        let at = (self.now + pause).max(state.posted + 1);
        state.posted = at;
        if matches!(event, RpcEvent::Ended { .. }) && self.rng.chance(1, 30) {
            self.at(at + 5, Event::Rpc(event.clone()));
        }
        self.at(at, Event::Rpc(event));
    }

    /// A channel dials.
    pub(super) fn dial(&mut self, entry: EntryId, pause: Micros) {
        let Some(link) = self.links.get_mut(&entry) else { return };
        link.wire = Wire::Dialling;
        link.generation += 1;
        let generation = link.generation;
        let way = 2 * self.plan.latency;
        self.after(pause + way, Event::Dialled(entry, generation));
    }

    pub(super) fn dialled(&mut self, entry: EntryId, generation: u32) {
        let Some(link) = self.links.get(&entry).filter(|link| !link.closed && link.generation == generation) else {
            return;
        };
        if link.wire != Wire::Dialling && link.wire != Wire::Refused {
            return;
        }
        if !self.endpoints[link.endpoint].up {
            self.set(entry, Wire::Refused);
            self.cut(entry);
            let pause = 200 * MS + self.rng.below(2 * SEC);
            return self.after(pause, Event::Dialled(entry, generation));
        }
        self.set(entry, Wire::Ready);
        self.release(entry);
    }

    /// What waited for the connection goes.
    pub(super) fn release(&mut self, entry: EntryId) {
        let way = self.plan.latency;
        let generation = self.links[&entry].generation;
        let stuck: Vec<CallId> =
            self.calls.iter().filter(|(_, c)| c.entry == entry && c.stuck).map(|(id, _)| *id).collect();
        for call in stuck {
            if let Some(state) = self.calls.get_mut(&call) {
                state.stuck = false;
                state.generation = generation;
            }
            self.after(way, Event::Arrive(call));
        }
        let streams: Vec<StreamId> = self.streams.iter().filter(|(_, s)| s.entry == entry).map(|(id, _)| *id).collect();
        for stream in streams {
            for body in std::mem::take(&mut self.streams.get_mut(&stream).unwrap().unsent) {
                self.send_to_stream(stream, way, body);
            }
        }
    }

    /// Writes on a stream keep their order.
    pub(super) fn send_to_stream(&mut self, stream: StreamId, way: Micros, body: Bytes) {
        let state = self.streams.get_mut(&stream).unwrap();
        let at = (self.now + way).max(state.arrives + 1);
        state.arrives = at;
        self.at(at, Event::ToStream(stream, body));
    }

    pub(super) fn set(&mut self, entry: EntryId, wire: Wire) {
        self.note("wire", wire as u64, self.links[&entry].endpoint as u64);
        let now = self.now;
        let link = self.links.get_mut(&entry).unwrap();
        link.wire = wire;
        link.dead_since = (wire == Wire::HalfOpen).then_some(now);
    }

    /// Calls and streams of a connection end.
    pub(super) fn cut(&mut self, entry: EntryId) {
        let calls: Vec<CallId> =
            self.calls.iter().filter(|(_, c)| c.entry == entry && !c.over).map(|(id, _)| *id).collect();
        for call in calls {
            self.end_call(call, CallEnd::Failed { code: 14, message: "broken".into() });
        }
        self.cut_streams(entry);
    }

    pub(super) fn cut_streams(&mut self, entry: EntryId) {
        let open: Vec<StreamId> =
            self.streams.iter().filter(|(_, s)| s.entry == entry && !s.over).map(|(id, _)| *id).collect();
        for stream in open {
            self.streams.get_mut(&stream).unwrap().over = true;
            self.post(RpcEvent::StreamEnded { stream, reason: "broken".into() });
        }
    }

    pub(super) fn end_call(&mut self, call: CallId, end: CallEnd) {
        let Some(state) = self.calls.get_mut(&call).filter(|state| !state.over) else { return };
        state.over = true;
        let ready = self.links[&state.entry].reads_ready();
        let streams = state.method == Method::ReceiveMessage;
        self.post_of_call(call, RpcEvent::Ended { call, ready, end });
        if streams && self.rng.chance(1, 20) {
            self.stray_frame(call);
        }
    }

    /// A call sets out.
    pub(super) fn set_out(&mut self, call: CallId, timeout: Micros) {
        self.after(timeout, Event::CallTimeout(call));
        let entry = self.calls[&call].entry;
        let way = self.plan.latency;
        match self.links[&entry].wire {
            Wire::Ready => self.after(way, Event::Arrive(call)),
            Wire::Dialling | Wire::HalfOpen => self.calls.get_mut(&call).unwrap().stuck = true,
            Wire::Refused => self.end_call(call, CallEnd::NotStarted(event::Fault::NoConnection)),
            Wire::Lying => self.end_call(call, CallEnd::Failed { code: 14, message: "broken".into() }),
        }
    }

    pub(super) fn arrive(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let link = &self.links[&state.entry];
        if link.generation != state.generation || !matches!(link.wire, Wire::Ready | Wire::HalfOpen) {
            return;
        }
        // Whoever gave it up may have done so too late for the server to know.
        if state.over && self.rng.chance(1, 2) {
            return;
        }
        if link.wire == Wire::HalfOpen {
            self.calls.get_mut(&call).unwrap().stuck = true;
            return;
        }
        let endpoint = link.endpoint;
        if self.endpoints[endpoint].code == Some(42900) && self.rng.chance(1, 2) {
            // A gateway in front throttles everything.
            let end = CallEnd::Failed { code: 8, message: "too much".into() };
            return self.after(self.plan.latency, Event::Answer(call, end));
        }
        let Some(state) = self.calls.get(&call) else { return };
        let (session, method, body, op) = (state.session, state.method, state.body.clone(), state.op);
        if method == Method::ReceiveMessage {
            return self.poll_arrived(call, endpoint);
        }
        let answer = self.serve(endpoint, session, method, &body, op);
        let delay = self.plan.latency + self.rng.below(self.plan.latency + self.endpoints[endpoint].slow);
        if !self.endpoints[endpoint].mute {
            self.after(delay, Event::Answer(call, CallEnd::Response(answer)));
        }
    }

    pub(super) fn answer(&mut self, call: CallId, end: CallEnd) {
        let Some(state) = self.calls.get(&call) else { return };
        let link = &self.links[&state.entry];
        if link.generation == state.generation && link.wire == Wire::Ready && !link.closed {
            self.end_call(call, end);
        }
    }

    fn serve(&mut self, at: usize, session: SessionId, method: Method, body: &[u8], op: Option<usize>) -> Bytes {
        let known = self.endpoints[at].known.contains_key(&session);
        let code = if known { 20000 } else { 40015 };
        match method {
            Method::QueryRoute => {
                if let Some(code) = self.routes_fail {
                    return bytes(&pb::QueryRouteResponse { status: status(code), ..Default::default() });
                }
                let asked = pb::QueryRouteRequest::parse_from_bytes(body).unwrap();
                let kind = if asked.topic.name == "fifo" { pb::MessageType::FIFO } else { pb::MessageType::NORMAL };
                let queue = |at: usize, id: i32| pb::MessageQueue {
                    id,
                    permission: pb::Permission::READ_WRITE.into(),
                    broker: MessageField::some(pb::Broker {
                        name: format!("broker-{at}"),
                        endpoints: MessageField::some(self.endpoints[at].address.to_proto()),
                        ..Default::default()
                    }),
                    accept_message_types: vec![kind.into()],
                    ..Default::default()
                };
                let named = (0..2).filter(|at| !self.endpoints[*at].left);
                let message_queues = named.flat_map(|at| [queue(at, 0), queue(at, 1)]).collect();
                bytes(&pb::QueryRouteResponse { status: status(20000), message_queues, ..Default::default() })
            }
            Method::Heartbeat => bytes(&pb::HeartbeatResponse { status: status(code), ..Default::default() }),
            Method::SendMessage => {
                let code = self.endpoints[at].code.unwrap_or(code);
                // A server that fails may have stored it all the same.
                let uid = op.unwrap();
                if code == 20000 || (code >= 50000 && self.rng.chance(1, 2)) {
                    self.stores += 1;
                    self.ops[uid].stored.push(self.stores);
                    self.note("stored", uid as u64, at as u64);
                }
                let entry =
                    pb::SendResultEntry { status: status(code), message_id: uid.to_string(), ..Default::default() };
                let entries = if code == 20000 { vec![entry] } else { Vec::new() };
                bytes(&pb::SendMessageResponse { status: status(code), entries, ..Default::default() })
            }
            Method::AckMessage => self.serve_ack(at, body),
            Method::ChangeInvisibleDuration => self.serve_change(at, body),
            _ => {
                self.endpoints[at].known.remove(&session);
                bytes(&pb::NotifyClientTerminationResponse { status: status(20000), ..Default::default() })
            }
        }
    }

    pub(super) fn written_to_stream(&mut self, stream: StreamId, body: &[u8]) {
        let Some(state) = self.streams.get(&stream).filter(|state| !state.over) else { return };
        let link = &self.links[&state.entry];
        if link.wire != Wire::Ready {
            return;
        }
        let (endpoint, session) = (link.endpoint, state.session);
        let Ok(command) = pb::TelemetryCommand::parse_from_bytes(body) else { return };
        if let Some(pb::telemetry_command::Command::ThreadStackTrace(trace)) = &command.command {
            match trace.nonce == "why"
                && trace.thread_stack_trace.as_ref().is_some_and(|text| text.contains("tmq-rocketmq"))
            {
                true => self.happened("a thread stack is told"),
                false => self.fail("a thread stack that nobody asked for"),
            }
        }
        if let Some(pb::telemetry_command::Command::Settings(settings)) = command.command {
            let code = self.endpoints[endpoint].refuses_settings.unwrap_or(20000);
            if code == 20000 {
                let topics = settings.subscription().subscriptions.iter().map(|entry| entry.topic.name.clone());
                self.endpoints[endpoint].known.insert(session, topics.collect());
            }
            let command = Some(pb::telemetry_command::Command::Settings(settings));
            let answer = pb::TelemetryCommand { status: status(code), command, ..Default::default() };
            let way = self.plan.latency + self.endpoints[endpoint].settings_late;
            self.after(way, Event::Rpc(RpcEvent::StreamFrame { stream, body: bytes(&answer) }));
        }
    }
}
