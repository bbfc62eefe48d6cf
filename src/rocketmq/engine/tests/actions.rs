//! Carries out what the engine asks for, and looks at each thing that it asks.

use protobuf::Message as _;

use super::app::Endless;
use super::network::{CallState, Link, StreamState, Wire};
use super::plan::Trigger;
use super::schedule::{Micros, SEC};
use super::world::{Owner, TICK, World};
use crate::error::{ErrorKind, Recovery};
use crate::pending::Reply;
use crate::rocketmq::engine::event::{Action, CallEnd, EntryId, RpcEvent, SessionId, Settled};
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

/// How long after its deadline the engine ends a call itself.
const GRACE: Micros = SEC;

impl World {
    pub(super) fn carry_out(&mut self) {
        let mut closed = Vec::new();
        let mut replaced = Vec::new();
        while let Some(action) = self.engine.poll_action() {
            if self.finished {
                return self.fail("the engine goes on after its end");
            }
            match action {
                Action::Connect { entry, endpoints, .. } => replaced.extend(self.connect(entry, &endpoints)),
                Action::CloseChannel { entry } => {
                    replaced.retain(|old| *old != entry);
                    self.close_channel(entry);
                }
                Action::Call { call, session, entry, method, body, timeout } => {
                    self.check_use(session, entry);
                    let op = if method == Method::SendMessage { self.hand_over(&body, session) } else { None };
                    self.note("call", call.0, method as u64);
                    let generation = self.links[&entry].generation;
                    let timeout = timeout.as_micros() as Micros;
                    let (started, deadline, posted) = (self.now, self.now + timeout, 0);
                    let (stuck, over, told) = (false, false, false);
                    let state = CallState {
                        entry,
                        session,
                        method,
                        body,
                        op,
                        started,
                        deadline,
                        posted,
                        generation,
                        stuck,
                        over,
                        told,
                    };
                    self.calls.insert(call, state);
                    self.live.insert(call);
                    self.set_out(call, timeout);
                }
                Action::CancelCall { call } => {
                    let Some(state) = self.calls.get_mut(&call) else {
                        return self.fail("cancels what it never began");
                    };
                    if std::mem::replace(&mut state.told, true) {
                        self.fail("cancels a call that ended");
                    }
                    self.live.remove(&call);
                    let (entry, deadline) = (self.calls[&call].entry, self.calls[&call].deadline);
                    let past = CallEnd::Failed { code: 4, message: "past its deadline".into() };
                    if deadline + GRACE <= self.now {
                        // The engine ends it as one that was not answered by its deadline.
                        self.call_told(call, true, &past);
                        if let Some(op) = self.calls[&call].op {
                            self.ops[op].late += 1;
                        }
                    } else if self.calls[&call].method == Method::Heartbeat {
                        self.heartbeat_given_up(call);
                    } else if deadline <= self.now {
                        self.links.get_mut(&entry).unwrap().suspect = true;
                    }
                    let steps = self.steps;
                    if let Some(op) = self.calls[&call].op {
                        self.ops[op].cancelled_in = steps;
                    }
                    if self.calls[&call].method == Method::QueryRoute {
                        self.happened("a route query is cut off");
                    }
                    // Its end comes all the same, as what it was on the way to be or as cancelled.
                    self.end_call(call, CallEnd::Cancelled);
                }
                Action::OpenStream { stream, session, entry } => {
                    self.check_use(session, entry);
                    self.note("stream", stream.0, session.0);
                    let (writes, arrives, unsent, over, told) = (0, 0, Vec::new(), false, false);
                    self.streams.insert(stream, StreamState { entry, session, writes, arrives, unsent, over, told });
                    if matches!(self.links[&entry].wire, Wire::Refused | Wire::Lying) {
                        self.streams.get_mut(&stream).unwrap().over = true;
                        self.post(RpcEvent::StreamEnded { stream, reason: "refused".into() });
                    }
                }
                Action::WriteStream { stream, body } => {
                    let Some(state) = self.streams.get_mut(&stream) else { return self.fail("writes on no stream") };
                    state.writes += 1;
                    let first = state.writes == 1;
                    let told = state.told;
                    let wire = self.links[&state.entry].wire;
                    if wire != Wire::Ready {
                        state.unsent.push(body.clone());
                    } else {
                        let way = self.plan.latency;
                        self.send_to_stream(stream, way, body.clone());
                    }
                    let command = pb::TelemetryCommand::parse_from_bytes(&body).unwrap().command;
                    if first && !matches!(command, Some(pb::telemetry_command::Command::Settings(_))) {
                        self.fail("Settings are not the first write of a stream");
                    }
                    if told {
                        self.fail("writes on a stream that ended");
                    }
                }
                Action::CancelStream { stream } => {
                    let Some(state) = self.streams.get_mut(&stream) else { return self.fail("cancels no stream") };
                    let told = std::mem::replace(&mut state.told, true);
                    let over = std::mem::replace(&mut state.over, true);
                    if told {
                        self.fail("cancels a stream that ended");
                    }
                    if !over {
                        self.post(RpcEvent::StreamEnded { stream, reason: "cancelled".into() });
                    }
                }
                Action::Settle(settled) => self.settle(settled),
                Action::Opened(reply, result) => reply.settle(result),
                Action::Done(reply, result) => reply.settle(result),
                Action::SessionClosed { session } => {
                    closed.push(session);
                    self.session_closed(session);
                }
                Action::Finished => self.finished = true,
                Action::Received { reply: Reply::Completion(reply), result } => reply.settle(result),
                Action::Received { .. } => self.fail("a receive goes to nobody"),
                Action::Answered(reply, result) => reply.settle(result),
                Action::Described(reply, result) => reply.settle(result),
                Action::BodyLimit { .. } | Action::Recovered => {}
            }
        }
        if !replaced.is_empty() {
            self.fail("a replaced channel stays open");
        }
        for session in closed {
            self.note("closed", session.0, 0);
            let left = self
                .calls
                .values()
                .any(|call| call.session == session && !call.told && call.method != Method::NotifyClientTermination);
            if left || self.streams.values().any(|stream| stream.session == session && !stream.told) {
                self.fail("a closed session leaves a call or a stream behind");
            }
        }
        if self.streams.values().rev().take(4).any(|stream| stream.writes == 0) {
            self.fail("a stream without Settings");
        }
    }

    /// Calls and streams are begun only for a session that lives, on the present channel of an address.
    fn check_use(&mut self, session: SessionId, entry: EntryId) {
        if self.sessions.get(&session).is_none_or(|(_, over)| *over) {
            self.fail("a call or stream of a session that is closed");
        }
        if !self.current.values().any(|current| *current == entry) {
            self.fail("a call or stream on a channel that is not the present one");
        }
    }

    /// The old channel if it is a replacement.
    fn connect(&mut self, entry: EntryId, endpoints: &Endpoints) -> Option<EntryId> {
        let endpoint = self.endpoints.iter().position(|known| known.address == *endpoints).unwrap();
        self.note("connect", endpoint as u64, 0);
        if self.shutdown.is_some() && self.sessions.values().all(|(_, over)| *over) {
            self.fail("connects after the close");
        }
        let old = self.current.insert(endpoint, entry);
        if let Some(old) = old {
            self.replacements += 1;
            let link = &self.links[&old];
            let (asked, unavailable) = (link.asked, link.unavailable);
            let evidence = unavailable || link.late.len() >= 2;
            self.happened(match (asked, unavailable) {
                (true, _) => "a channel is replaced: the server asks",
                (_, true) => "a channel is replaced: unavailable",
                _ => "a channel is replaced: deadlines",
            });
            if !asked && !evidence {
                self.fail("a channel is replaced whose heartbeats were well");
            }
            let last = self.recovered.insert(endpoint, self.now);
            if !asked && last.is_some_and(|last| (30 * SEC..30 * SEC + SEC / 10).contains(&(self.now - last))) {
                self.happened("evidence waits for the end of a cooldown");
            }
            if !asked && last.is_some_and(|last| self.now < last + 30 * SEC) {
                self.fail("two replacements within 30 s");
            }
        }
        let link = Link {
            endpoint,
            wire: Wire::Dialling,
            generation: 0,
            closed: false,
            asked: false,
            late: Default::default(),
            unavailable: false,
            dead_since: None,
            suspect: false,
            given_up: 0,
        };
        if self.retired.get(&endpoint).is_some_and(|at| self.now < at + 30 * SEC) {
            self.happened("an endpoint comes back within 30 s");
        }
        self.links.insert(entry, link);
        self.dial(entry, 0);
        old
    }

    fn close_channel(&mut self, entry: EntryId) {
        let Some(link) = self.links.get_mut(&entry) else { return self.fail("closes no channel") };
        link.closed = true;
        let endpoint = link.endpoint;
        self.note("close channel", endpoint as u64, 0);
        if self.current.get(&endpoint) == Some(&entry) {
            self.current.remove(&endpoint);
            self.retired.insert(endpoint, self.now);
        }
        if self.live.iter().map(|id| &self.calls[id]).any(|call| call.entry == entry && !call.told) {
            self.fail("a channel is closed under a call");
        }
        if self.streams.values().any(|stream| stream.entry == entry && !stream.told) {
            self.fail("a channel is closed under a stream");
        }
    }

    /// A send is handed to a call.
    fn hand_over(&mut self, body: &[u8], session: SessionId) -> Option<usize> {
        let request = pb::SendMessageRequest::parse_from_bytes(body).unwrap();
        let uid: usize = request.messages[0].system_properties.message_id.parse().unwrap();
        self.trigger(Trigger::Send);
        let op = &mut self.ops[uid];
        op.handed += 1;
        let (settled, group) = (op.settled.is_some(), op.group.clone());
        if settled {
            self.fail("sends what is answered");
        }
        if group.is_some() {
            let same = |other: &usize| self.ops[*other].group == group && self.ops[*other].session == session;
            if self.live.iter().map(|id| &self.calls[id]).any(|call| !call.told && call.op.as_ref().is_some_and(same)) {
                self.fail("two of a group in flight");
            }
        }
        Some(uid)
    }

    fn settle(&mut self, settled: Settled) {
        let Settled { session, place, charge, group, result, .. } = settled;
        let Some(uid) = self.by_place.get(&(session, place)).copied() else { return self.fail("settles no send") };
        let Owner::Producer(index) = self.owner_of(session) else { return self.fail("a send of a consumer") };
        let fate = result.as_ref().err().map(|error| error.delivery());
        self.note("settled", uid as u64, fate.map_or(9, |fate| fate as u64));
        let (now, op) = (self.now, &mut self.ops[uid]);
        if op.settled.replace(fate).is_some() {
            self.fail("a send is answered twice");
        }
        let op = &self.ops[uid];
        if now > op.due + TICK && now > self.allowed(op.due) + TICK {
            self.fail(format!("a send is answered {} us late", now - op.due));
        }
        let op = &self.ops[uid];
        let attempts = match &result {
            Ok(receipt) => receipt.attempts,
            Err(error) => error.attempts(),
        };
        // The last one may still be under way: it is cancelled next.
        let under_way = self.live.iter().any(|call| self.calls[call].op == Some(uid));
        let in_flight = u32::from(op.cancelled_in == self.steps || under_way);
        if !(op.counted - op.late..=op.counted + in_flight).contains(&attempts) {
            let text = format!("{attempts} attempts are told, {} were made", op.counted);
            self.fail(text);
        }
        let op = &self.ops[uid];
        if let Err(error) = &result {
            let final_error = error.kind() == ErrorKind::Closed || error.recovery() == Recovery::Never;
            if now < op.due && !final_error && attempts < self.plan.producers[index].max_attempts {
                self.fail(format!("a send gives up too early: {error}"));
            }
            if error.kind() == ErrorKind::Throttled {
                self.happened("a send is throttled to its end");
            }
        } else if op.handed > op.counted {
            self.happened("a send that was cut off is stored");
        }
        let op = &self.ops[uid];
        if let Ok(receipt) = &result {
            if op.stored.is_empty() || receipt.message_id != uid.to_string() {
                self.fail("a receipt of what was not stored");
            }
        }
        let probe = self.ops[uid].probe;
        if probe && self.plan.producers[index].send_timeout.as_secs() >= 3 {
            if let Err(error) = &result {
                self.fail(format!("all is well, and a send fails: {error}"));
            }
        }
        if let Some(group) = group {
            if let Some(last) = self.shells[index].answered.insert(group, place) {
                if last >= place {
                    self.fail("answers of a group out of order");
                }
            }
        }
        let served = self.shells[index].admission.release(1, charge, &Endless);
        self.served(index, served);
    }

    fn session_closed(&mut self, session: SessionId) {
        let (owner, over) = self.sessions[&session];
        if over {
            return self.fail("a session is closed twice");
        }
        self.sessions.insert(session, (owner, true));
        let index = match owner {
            Owner::Producer(index) => index,
            Owner::Consumer(index) => {
                self.consumers[index].open = false;
                return;
            }
        };
        self.shells[index].open = false;
        self.shells[index].opening = None;
        let served = self.shells[index].admission.close();
        self.served(index, served);
        let mut taken = self.take(index);
        if !taken.is_empty() {
            let now = self.instant(self.now);
            self.engine.handle_admitted(now, session, &mut taken);
        }
    }

    /// What happened to a call or stream reaches the engine.
    pub(super) fn deliver(&mut self, event: RpcEvent) {
        if self.finished {
            return;
        }
        match &event {
            RpcEvent::Ended { call, ready, end } => {
                self.live.remove(call);
                let state = self.calls.get_mut(call).unwrap();
                if std::mem::replace(&mut state.told, true) {
                    self.happened("a call ends that was given up");
                } else {
                    self.call_told(*call, *ready, end);
                }
                let (call, code) = (call.0, matches!(end, CallEnd::Response(_)));
                self.note("ended", call, u64::from(code));
            }
            RpcEvent::StreamFrame { stream, body } => {
                let state = &self.streams[stream];
                let command = pb::TelemetryCommand::parse_from_bytes(body).ok().and_then(|command| command.command);
                let reconnect = pb::telemetry_command::Command::ReconnectEndpointsCommand(Default::default());
                if !state.told && command == Some(reconnect) {
                    self.links.get_mut(&state.entry).unwrap().asked = true;
                    self.asked_now = Some(state.entry);
                }
            }
            RpcEvent::StreamEnded { stream, .. } => self.streams.get_mut(stream).unwrap().told = true,
            RpcEvent::Frame { call, .. } if self.calls[call].told => self.happened("a frame comes after its call"),
            RpcEvent::Frame { .. } => {}
        }
        self.engine(|engine, now| engine.handle_rpc(now, event));
        if let Some(entry) = self.asked_now.take() {
            if self.current.values().any(|current| *current == entry) {
                self.fail("the server asks for a new connection and there is none");
            }
        }
    }
}
