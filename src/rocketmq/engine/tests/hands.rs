//! The engine without a world: a test answers each call itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protobuf::{Message as _, MessageField};

use super::network::{bytes, status};
use crate::error::Error;
use crate::pending::{Pending, Reply, completion};
use crate::policy::admission::{Admitted, Ticket};
use crate::rocketmq::engine::event::{
    Action, Answers, Arrived, CallEnd, CallId, Command, ConsumerSpec, EntryId, Opened, Outgoing, ProducerSpec, Role,
    RpcEvent, SessionId, SessionSpec, StreamId,
};
use crate::rocketmq::engine::{Engine, EngineOptions};
use crate::rocketmq::handle::{self, Handle, Places};
use crate::rocketmq::message::SendReceipt;
use crate::rocketmq::wire::endpoints::{AccessPoint, Endpoints};
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const SESSION: SessionId = SessionId(1);

/// A call that nobody has answered.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub id: CallId,
    pub entry: EntryId,
    pub method: Method,
    pub body: Bytes,
    pub timeout: Duration,
}

pub(super) struct Hands {
    pub engine: Engine,
    pub now: Instant,
    pub calls: Vec<Asked>,
    /// Open streams, and how often each was written on.
    pub streams: BTreeMap<StreamId, (EntryId, u32)>,
    /// Channels that are open.
    pub channels: BTreeMap<EntryId, Endpoints>,
    pub recovered: u32,
    /// Results of sends.
    pub settled: Vec<(u64, Result<SendReceipt, Error>)>,
    pub request_timeout: Duration,
    pub finished: bool,
}

pub(super) fn address(number: u32) -> Endpoints {
    AccessPoint::parse(&format!("10.1.{}.{}:8081", number / 250, 1 + number % 250)).unwrap().endpoints
}

/// A route that names one queue at each of these addresses.
pub(super) fn route(addresses: &[u32]) -> CallEnd {
    let queue = |number: &u32| pb::MessageQueue {
        permission: pb::Permission::READ_WRITE.into(),
        broker: MessageField::some(pb::Broker {
            name: format!("broker-{number}"),
            endpoints: MessageField::some(address(*number).to_proto()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let message_queues = addresses.iter().map(queue).collect();
    CallEnd::Response(bytes(&pb::QueryRouteResponse { status: status(20000), message_queues, ..Default::default() }))
}

pub(super) fn refused(code: i32) -> CallEnd {
    CallEnd::Response(bytes(&pb::QueryRouteResponse { status: status(code), ..Default::default() }))
}

pub(super) fn late() -> CallEnd {
    CallEnd::Failed { code: 4, message: "late".into() }
}

pub(super) fn filter(expression: &str) -> pb::FilterExpression {
    pb::FilterExpression { expression: expression.into(), type_: pb::FilterType::TAG.into(), ..Default::default() }
}

impl Hands {
    pub(super) fn new() -> Self {
        let options = EngineOptions { access: address(0), platform: "hands".into(), seed: 1 };
        Self {
            engine: Engine::new(options),
            now: Instant::now() + 1000 * SECOND,
            calls: Vec::new(),
            streams: BTreeMap::new(),
            channels: BTreeMap::new(),
            recovered: 0,
            settled: Vec::new(),
            request_timeout: 3 * SECOND,
            finished: false,
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            assert!(!self.finished, "nothing comes after the end");
            match action {
                Action::Connect { entry, endpoints, .. } => drop(self.channels.insert(entry, endpoints)),
                Action::CloseChannel { entry } => {
                    assert!(self.channels.remove(&entry).is_some());
                    assert!(self.calls.iter().all(|call| call.entry != entry), "a channel is closed under a call");
                    assert!(self.streams.values().all(|(on, _)| *on != entry), "a channel is closed under a stream");
                }
                Action::Call { call: id, entry, method, body, timeout, .. } => {
                    self.calls.push(Asked { id, entry, method, body, timeout });
                }
                Action::CancelCall { call } => self.calls.retain(|asked| asked.id != call),
                Action::OpenStream { stream, entry, .. } => drop(self.streams.insert(stream, (entry, 0))),
                Action::WriteStream { stream, body } => {
                    let (_, writes) = self.streams.get_mut(&stream).unwrap();
                    *writes += 1;
                    let command = pb::TelemetryCommand::parse_from_bytes(&body).unwrap().command;
                    let settings = matches!(command, Some(pb::telemetry_command::Command::Settings(_)));
                    assert!(settings || *writes > 1, "Settings come first");
                }
                Action::CancelStream { stream } => drop(self.streams.remove(&stream).unwrap()),
                Action::Opened(reply, result) => reply.settle(result),
                Action::Done(reply, result) => reply.settle(result),
                Action::Received { reply: Reply::Completion(reply), result } => reply.settle(result),
                Action::Answered(reply, result) => reply.settle(result),
                Action::Settle(settled) => self.settled.push((settled.place, settled.result)),
                Action::Recovered => self.recovered += 1,
                Action::Finished => self.finished = true,
                _ => {}
            }
        }
    }

    pub(super) fn command(&mut self, command: Command) {
        self.engine.handle_command(self.now, command);
        self.drain();
    }

    pub(super) fn event(&mut self, event: RpcEvent) {
        self.engine.handle_rpc(self.now, event);
        self.drain();
    }

    /// Time passes, and the engine wakes whenever it asks to.
    pub(super) fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.engine.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    pub(super) fn open(&mut self, role: Role, due: Duration) -> Pending<Opened> {
        let (reply, pending) = completion();
        let request_timeout = self.request_timeout;
        let spec = Box::new(SessionSpec { namespace: String::new(), request_timeout, role });
        self.command(Command::Open { session: SESSION, spec, due: self.now + due, reply });
        pending
    }

    pub(super) fn producer(&mut self) -> Pending<Opened> {
        let spec =
            ProducerSpec { topics: vec!["topic".into()], max_attempts: 3, in_flight: 10, stop_failed_groups: false };
        self.open(Role::Producer(spec), 60 * SECOND)
    }

    /// A producer beside the first.
    pub(super) fn another_producer(&mut self) -> Pending<Opened> {
        let spec =
            ProducerSpec { topics: vec!["topic".into()], max_attempts: 3, in_flight: 10, stop_failed_groups: false };
        let (reply, pending) = completion();
        let (namespace, request_timeout) = (String::new(), self.request_timeout);
        let spec = Box::new(SessionSpec { namespace, request_timeout, role: Role::Producer(spec) });
        self.command(Command::Open { session: SessionId(2), spec, due: self.now + 60 * SECOND, reply });
        pending
    }

    pub(super) fn consumer(&mut self, topics: &[&str]) -> Pending<Opened> {
        let subscriptions = topics.iter().map(|topic| ((*topic).to_owned(), filter("*"))).collect();
        let await_duration = 10 * SECOND;
        let spec = ConsumerSpec { group: "group".into(), subscriptions, await_duration };
        self.open(Role::SimpleConsumer(spec), 60 * SECOND)
    }

    /// Calls of a method that wait for their answers.
    pub(super) fn asked(&self, method: Method) -> Vec<Asked> {
        self.calls.iter().filter(|asked| asked.method == method).cloned().collect()
    }

    pub(super) fn end(&mut self, call: CallId, end: CallEnd) {
        self.calls.retain(|asked| asked.id != call);
        self.event(RpcEvent::Ended { call, ready: true, end });
    }

    /// Answers all calls of a method so; at least one.
    pub(super) fn answer(&mut self, method: Method, end: &CallEnd) {
        let asked = self.asked(method);
        assert!(!asked.is_empty(), "{method:?}");
        asked.into_iter().for_each(|asked| self.end(asked.id, end.clone()));
    }

    /// Answers the Settings of all streams.
    pub(super) fn settle_streams(&mut self) {
        let settings = pb::telemetry_command::Command::Settings(Default::default());
        let answer = pb::TelemetryCommand { status: status(20000), command: Some(settings), ..Default::default() };
        for stream in self.streams.keys().copied().collect::<Vec<_>>() {
            self.event(RpcEvent::StreamFrame { stream, body: bytes(&answer) });
        }
    }

    /// Heartbeats that are out are answered well.
    pub(super) fn beat(&mut self) {
        let good = CallEnd::Response(bytes(&pb::HeartbeatResponse { status: status(20000), ..Default::default() }));
        self.asked(Method::Heartbeat).into_iter().for_each(|asked| self.end(asked.id, good.clone()));
    }

    /// A message of no group is admitted. Its result goes into `settled`.
    pub(super) fn send(&mut self, place: u64, timeout: Duration) {
        let (called_at, due) = (self.now, Some(self.now + timeout));
        let ticket = Ticket { lane: 0, place, sequence_id: 0, called_at, due, charge: 1 };
        let item = Outgoing {
            topic: "topic".into(),
            kind: pb::MessageType::NORMAL,
            group: None,
            resumes: false,
            request: Bytes::new(),
            reply: Reply::Answered,
            body_size: 1,
        };
        self.engine.handle_admitted(self.now, SESSION, &mut vec![Admitted { ticket, item }]);
        self.drain();
    }

    pub(super) fn receive(&mut self, max: usize, invisible: Duration) -> Pending<Vec<Arrived>> {
        let (reply, pending) = completion();
        let reply = Reply::Completion(reply);
        self.command(Command::Receive { session: SESSION, max, invisible, reply });
        pending
    }

    pub(super) fn subscribe(&mut self, topic: &str, filter: Option<pb::FilterExpression>) {
        let (reply, mut pending) = completion();
        self.command(Command::Subscribe { session: SESSION, topic: topic.into(), filter, reply });
        assert!(pending.try_wait().unwrap().is_ok());
    }

    pub(super) fn ack(&mut self, handles: &[Handle<'_>], limit: Duration) -> (Places, Pending<Answers>) {
        let (places, calls) = handle::acknowledge("", "group", handles);
        let (reply, pending) = completion();
        let (method, due) = (Method::AckMessage, self.now + limit);
        self.command(Command::Prepared { session: SESSION, method, calls, due, reply });
        (places, pending)
    }

    pub(super) fn close(&mut self, limit: Duration) -> Pending<()> {
        let (reply, pending) = completion();
        self.command(Command::Close { session: SESSION, flush_until: self.now + limit, reply: Some(reply) });
        pending
    }

    /// A frame with a message.
    pub(super) fn message(&mut self, call: CallId, topic: &str, handle: &str) {
        let properties = pb::SystemProperties { receipt_handle: Some(handle.into()), ..Default::default() };
        let message = pb::Message {
            topic: crate::rocketmq::message::resource("", topic),
            system_properties: MessageField::some(properties),
            ..Default::default()
        };
        let content = Some(pb::receive_message_response::Content::Message(message));
        let body = bytes(&pb::ReceiveMessageResponse { content, ..Default::default() });
        self.event(RpcEvent::Frame { call, body });
    }

    /// A poll ends with a status and nothing else.
    pub(super) fn end_poll(&mut self, call: CallId, code: i32) {
        let status = pb::Status { code: protobuf::EnumOrUnknown::from_i32(code), ..Default::default() };
        let content = Some(pb::receive_message_response::Content::Status(status));
        let body = bytes(&pb::ReceiveMessageResponse { content, ..Default::default() });
        self.event(RpcEvent::Frame { call, body });
        self.end(call, CallEnd::StreamOver);
    }
}
