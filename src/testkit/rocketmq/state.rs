//! What the proxy knows: topics, sessions, streams, rules, counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::mpsc::UnboundedSender;
use protobuf::Message as _;

use super::queue::{Ask, Stored, Topic};
use super::script::{Effect, Rpc, Rules};
use crate::rocketmq::MessageType;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;
use pb::telemetry_command::Command;

const DEFAULT_ATTEMPTS: u32 = 16;
/// As the real server: polls are no shorter and no longer.
const SHORTEST_POLL: Duration = Duration::from_secs(5);
const LONGEST_POLL: Duration = Duration::from_secs(20);

pub(super) struct State {
    endpoints: Vec<Endpoint>,
    topics: BTreeMap<String, Topic>,
    attempts: HashMap<String, u32>,
    dead: HashMap<String, Vec<Stored>>,
    /// Clients whose settings are known.
    clients: BTreeSet<String>,
    streams: BTreeMap<u64, Stream>,
    streams_without_settings: u64,
    traces: Vec<String>,
    rules: Rules,
    counts: HashMap<(usize, Rpc), u64>,
    max_body_size: usize,
    next_handle: u64,
}

struct Endpoint {
    listening: SocketAddr,
    advertised: SocketAddr,
}

struct Stream {
    endpoint: usize,
    client: String,
    frames: UnboundedSender<Bytes>,
    written: bool,
    /// Its commands are not answered.
    deaf: bool,
}

/// A receive that waits.
pub(super) struct Poll {
    pub until: Instant,
    frames: Option<UnboundedSender<Bytes>>,
    topic: String,
    group: String,
    filter: pb::FilterExpression,
    ask: Ask,
}

impl Poll {
    /// One that is never answered.
    pub(super) fn deaf(now: Instant, frames: UnboundedSender<Bytes>) -> Self {
        Self {
            until: now + Duration::from_secs(3600),
            frames: Some(frames),
            topic: String::new(),
            group: String::new(),
            filter: pb::FilterExpression::default(),
            ask: Ask { endpoint: usize::MAX, max: 0, invisible: Duration::ZERO, max_attempts: 0 },
        }
    }
}

impl State {
    pub(super) fn new(endpoints: usize) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            endpoints: (0..endpoints).map(|_| Endpoint { listening: nowhere, advertised: nowhere }).collect(),
            topics: BTreeMap::new(),
            attempts: HashMap::new(),
            dead: HashMap::new(),
            clients: BTreeSet::new(),
            streams: BTreeMap::new(),
            streams_without_settings: 0,
            traces: Vec::new(),
            rules: Rules::default(),
            counts: HashMap::new(),
            max_body_size: 4 * 1024 * 1024,
            next_handle: 0,
        }
    }

    pub(super) fn listen(&mut self, endpoint: usize, addr: SocketAddr) {
        if let Some(known) = self.endpoints.get_mut(endpoint) {
            *known = Endpoint { listening: addr, advertised: addr };
        }
    }

    pub(super) fn advertise(&mut self, endpoint: usize, addr: SocketAddr) {
        if let Some(known) = self.endpoints.get_mut(endpoint) {
            known.advertised = addr;
        }
    }

    pub(super) fn advertised(&self, endpoint: usize) -> SocketAddr {
        self.endpoints.get(endpoint).map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)), |known| known.advertised)
    }

    pub(super) fn listening(&self, endpoint: usize) -> SocketAddr {
        self.endpoints.get(endpoint).map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)), |known| known.listening)
    }

    pub(super) fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    pub(super) fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    pub(super) fn create_topic(&mut self, topic: String, accepts: MessageType, queues: usize) {
        let queues = queues.max(self.endpoints.len());
        self.topics.insert(topic, Topic { accepts, queues, messages: Vec::new(), groups: BTreeMap::new() });
    }

    pub(super) fn max_attempts(&mut self, group: String, attempts: u32) {
        self.attempts.insert(group, attempts);
    }

    pub(super) fn set_max_body_size(&mut self, bytes: usize) {
        self.max_body_size = bytes;
    }

    pub(super) fn stored(&self, topic: &str) -> Vec<Stored> {
        self.topics
            .get(topic)
            .map(|topic| (0..topic.messages.len()).filter_map(|index| topic.stored(index)).collect())
            .unwrap_or_default()
    }

    pub(super) fn dead_letters(&self, group: &str) -> Vec<Stored> {
        self.dead.get(group).cloned().unwrap_or_default()
    }

    pub(super) fn calls(&self, endpoint: usize, rpc: Rpc) -> u64 {
        self.counts.get(&(endpoint, rpc)).copied().unwrap_or(0)
    }

    pub(super) fn streams_without_settings(&self) -> u64 {
        self.streams_without_settings
    }

    pub(super) fn streams(&self, endpoint: usize) -> usize {
        self.streams.values().filter(|stream| stream.endpoint == endpoint).count()
    }

    pub(super) fn thread_traces(&self) -> Vec<String> {
        self.traces.clone()
    }

    pub(super) fn end_streams(&mut self) {
        self.streams.clear();
    }

    pub(super) fn forget_settings(&mut self) {
        self.clients.clear();
    }

    pub(super) fn stop(&mut self) {
        self.streams.clear();
    }

    /// A call is here: it is counted, and what it is to come to.
    pub(super) fn arrived(&mut self, endpoint: usize, method: Method) -> Option<Effect> {
        let rpc = Rpc::of(method)?;
        *self.counts.entry((endpoint, rpc)).or_default() += 1;
        self.rules.take(rpc, endpoint)
    }

    /// When a message becomes visible next.
    pub(super) fn next_visible(&self) -> Option<Instant> {
        let delayed = self.topics.values().flat_map(|topic| topic.messages.iter().map(|kept| kept.visible));
        let seen = self.topics.values().flat_map(|topic| {
            topic.groups.values().flat_map(|group| group.seen.values().filter(|seen| !seen.done).map(|seen| seen.until))
        });
        let now = Instant::now();
        delayed.chain(seen).filter(|at| *at > now).min()
    }

    /// Carries out a unary call.
    pub(super) fn call(&mut self, now: Instant, endpoint: usize, method: Method, client: &str, body: &[u8]) -> Bytes {
        match method {
            Method::QueryRoute => match pb::QueryRouteRequest::parse_from_bytes(body) {
                Ok(request) => self.query_route(&request),
                Err(_) => Self::refusal(method, BAD_REQUEST, "unreadable"),
            },
            Method::Heartbeat if !self.clients.contains(client) => {
                Self::refusal(method, pb::Code::UNRECOGNIZED_CLIENT_TYPE as i32, "no settings of this client are known")
            }
            Method::SendMessage => match pb::SendMessageRequest::parse_from_bytes(body) {
                Ok(request) => self.send(now, endpoint, request),
                Err(_) => Self::refusal(method, BAD_REQUEST, "unreadable"),
            },
            Method::AckMessage => match pb::AckMessageRequest::parse_from_bytes(body) {
                Ok(request) => self.ack(now, &request),
                Err(_) => Self::refusal(method, BAD_REQUEST, "unreadable"),
            },
            Method::ChangeInvisibleDuration => match pb::ChangeInvisibleDurationRequest::parse_from_bytes(body) {
                Ok(request) => self.change(now, &request),
                Err(_) => Self::refusal(method, BAD_REQUEST, "unreadable"),
            },
            Method::Heartbeat | Method::NotifyClientTermination => Self::refusal(method, OK, "OK"),
            _ => Self::refusal(method, pb::Code::NOT_IMPLEMENTED as i32, "not a part of the embedded proxy"),
        }
    }

    /// An answer that is a status and nothing else: in all answers the status is the field 1, in that to a poll too.
    pub(super) fn refusal(_method: Method, code: i32, text: &str) -> Bytes {
        encode(&pb::HeartbeatResponse { status: status(code, text), ..Default::default() })
    }

    fn query_route(&self, request: &pb::QueryRouteRequest) -> Bytes {
        let name = &request.topic.name;
        let Some(topic) = self.topics.get(name) else {
            let text = format!("topic {name} does not exist");
            return Self::refusal(Method::QueryRoute, pb::Code::TOPIC_NOT_FOUND as i32, &text);
        };
        let queue = |number: usize| {
            let endpoint = number % self.endpoints.len();
            let addr = self.advertised(endpoint);
            let address =
                pb::Address { host: addr.ip().to_string(), port: i32::from(addr.port()), ..Default::default() };
            let endpoints = pb::Endpoints {
                scheme: pb::AddressScheme::IPv4.into(),
                addresses: vec![address],
                ..Default::default()
            };
            let broker = pb::Broker {
                name: format!("broker-{endpoint}"),
                id: 0,
                endpoints: protobuf::MessageField::some(endpoints),
                ..Default::default()
            };
            pb::MessageQueue {
                topic: request.topic.clone(),
                id: number as i32,
                permission: pb::Permission::READ_WRITE.into(),
                broker: protobuf::MessageField::some(broker),
                accept_message_types: vec![topic.accepts.wire().into()],
                ..Default::default()
            }
        };
        encode(&pb::QueryRouteResponse {
            status: status(OK, "OK"),
            message_queues: (0..topic.queues).map(queue).collect(),
            ..Default::default()
        })
    }

    fn send(&mut self, now: Instant, endpoint: usize, request: pb::SendMessageRequest) -> Bytes {
        let method = Method::SendMessage;
        let Some(message) = request.messages.into_iter().next() else {
            return Self::refusal(method, pb::Code::MESSAGE_CORRUPTED as i32, "no message");
        };
        if message.body.len() > self.max_body_size {
            return Self::refusal(method, pb::Code::MESSAGE_BODY_TOO_LARGE as i32, "the body is too large");
        }
        let endpoints = self.endpoints.len();
        let name = message.topic.name.clone();
        let Some(topic) = self.topics.get_mut(&name) else {
            return Self::refusal(method, pb::Code::TOPIC_NOT_FOUND as i32, &format!("topic {name} does not exist"));
        };
        let kind = message.system_properties.message_type.enum_value_or_default();
        if kind != topic.accepts.wire() {
            let text = format!("the topic takes {:?}, not {kind:?}", topic.accepts);
            return Self::refusal(method, pb::Code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE as i32, &text);
        }
        let message_id = message.system_properties.message_id.clone();
        let offset = topic.store(now, message, endpoint, endpoints);
        let entry = pb::SendResultEntry { status: status(OK, "OK"), message_id, offset, ..Default::default() };
        encode(&pb::SendMessageResponse { status: status(OK, "OK"), entries: vec![entry], ..Default::default() })
    }

    pub(super) fn poll(
        &mut self,
        now: Instant,
        endpoint: usize,
        client: &str,
        body: &[u8],
        frames: UnboundedSender<Bytes>,
    ) -> Option<Poll> {
        let refuse = |code: pb::Code, text: &str| {
            let _ = frames.unbounded_send(Self::refusal(Method::ReceiveMessage, code as i32, text));
        };
        let Ok(request) = pb::ReceiveMessageRequest::parse_from_bytes(body) else {
            refuse(pb::Code::BAD_REQUEST, "unreadable");
            return None;
        };
        if !self.clients.contains(client) {
            refuse(pb::Code::UNRECOGNIZED_CLIENT_TYPE, "no settings of this client are known");
            return None;
        }
        let topic = request.message_queue.topic.name.clone();
        if !self.topics.contains_key(&topic) {
            refuse(pb::Code::TOPIC_NOT_FOUND, "the topic does not exist");
            return None;
        }
        let span = |value: &protobuf::well_known_types::duration::Duration| {
            Duration::new(u64::try_from(value.seconds).unwrap_or(0), u32::try_from(value.nanos).unwrap_or(0))
        };
        let invisible = request.invisible_duration.as_ref().map(span).unwrap_or_default();
        let wait = request.long_polling_timeout.as_ref().map(span).unwrap_or(LONGEST_POLL);
        let group = request.group.name.clone();
        let max_attempts = self.attempts.get(&group).copied().unwrap_or(DEFAULT_ATTEMPTS);
        let max = usize::try_from(request.batch_size).unwrap_or(1).clamp(1, 32);
        Some(Poll {
            until: now + wait.clamp(SHORTEST_POLL, LONGEST_POLL).min(wait.max(Duration::from_millis(1))),
            frames: Some(frames),
            topic,
            group,
            filter: request.filter_expression.unwrap_or_default(),
            ask: Ask { endpoint, max, invisible, max_attempts },
        })
    }

    /// Whether a poll is over: it got messages, or its time is up.
    pub(super) fn serve(&mut self, now: Instant, poll: &mut Poll) -> bool {
        let Some(frames) = &poll.frames else { return true };
        if frames.is_closed() {
            return true;
        }
        let Some(topic) = self.topics.get_mut(&poll.topic) else { return poll.until <= now };
        let filter = poll.filter.clone();
        let wanted = move |message: &pb::Message| matches(&filter, message);
        let delivered = topic.deliver(now, &poll.group, &wanted, &poll.ask, &mut self.next_handle);
        for index in &delivered.dead {
            self.dead.entry(poll.group.clone()).or_default().extend(topic.stored(*index));
        }
        if delivered.messages.is_empty() && poll.until > now {
            return false;
        }
        let send = |content: pb::receive_message_response::Content| {
            let frame = pb::ReceiveMessageResponse { content: Some(content), ..Default::default() };
            let _ = frames.unbounded_send(encode(&frame));
        };
        use pb::receive_message_response::Content;
        let (code, text) = match delivered.messages.is_empty() {
            true => (pb::Code::MESSAGE_NOT_FOUND as i32, "no new message"),
            false => (OK, "OK"),
        };
        send(Content::Status(status(code, text).unwrap_or_default()));
        delivered.messages.into_iter().for_each(|message| send(Content::Message(message)));
        send(Content::DeliveryTimestamp(std::time::SystemTime::now().into()));
        poll.frames = None;
        true
    }

    fn ack(&mut self, now: Instant, request: &pb::AckMessageRequest) -> Bytes {
        let (group, name) = (&request.group.name, &request.topic.name);
        let mut entries = Vec::new();
        for entry in &request.entries {
            let seen = self.seen(name, group, &entry.receipt_handle);
            let (code, text) = match seen {
                Some(seen) if seen.until > now => {
                    seen.done = true;
                    (OK, "OK")
                }
                _ => (pb::Code::INVALID_RECEIPT_HANDLE as i32, "the receipt handle is over or unknown"),
            };
            entries.push(pb::AckMessageResultEntry {
                message_id: entry.message_id.clone(),
                receipt_handle: entry.receipt_handle.clone(),
                status: status(code, text),
                ..Default::default()
            });
        }
        let mut codes: Vec<i32> = entries.iter().map(|entry| entry.status.code.value()).collect();
        codes.dedup();
        let code = match codes.as_slice() {
            [one] => *one,
            _ => pb::Code::MULTIPLE_RESULTS as i32,
        };
        encode(&pb::AckMessageResponse { status: status(code, ""), entries, ..Default::default() })
    }

    fn change(&mut self, now: Instant, request: &pb::ChangeInvisibleDurationRequest) -> Bytes {
        let invisible = request.invisible_duration.as_ref().map(|value| {
            Duration::new(u64::try_from(value.seconds).unwrap_or(0), u32::try_from(value.nanos).unwrap_or(0))
        });
        self.next_handle += 1;
        let number = self.next_handle;
        let seen = self.seen(&request.topic.name, &request.group.name, &request.receipt_handle);
        let Some(seen) = seen.filter(|seen| seen.until > now) else {
            let code = pb::Code::INVALID_RECEIPT_HANDLE as i32;
            return Self::refusal(Method::ChangeInvisibleDuration, code, "the receipt handle is over or unknown");
        };
        seen.until = now + invisible.unwrap_or_default();
        seen.handle = format!("{}+{number}", seen.handle);
        let receipt_handle = seen.handle.clone();
        encode(&pb::ChangeInvisibleDurationResponse { status: status(OK, "OK"), receipt_handle, ..Default::default() })
    }

    fn seen(&mut self, topic: &str, group: &str, handle: &str) -> Option<&mut super::queue::Seen> {
        let group = self.topics.get_mut(topic)?.groups.get_mut(group)?;
        group.seen.values_mut().find(|seen| seen.handle == handle && !seen.done)
    }

    pub(super) fn open_stream(
        &mut self,
        endpoint: usize,
        client: String,
        stream: u64,
        frames: UnboundedSender<Bytes>,
        deaf: bool,
    ) {
        self.streams.insert(stream, Stream { endpoint, client, frames, written: false, deaf });
    }

    pub(super) fn stream_ended(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    pub(super) fn telemetry(&mut self, stream: u64, body: &[u8]) {
        let max_body_size = i32::try_from(self.max_body_size).unwrap_or(i32::MAX);
        let Some(open) = self.streams.get_mut(&stream) else { return };
        let Ok(command) = pb::TelemetryCommand::parse_from_bytes(body) else { return };
        let first = !std::mem::replace(&mut open.written, true);
        match command.command {
            Some(Command::Settings(mut settings)) => {
                self.clients.insert(open.client.clone());
                if open.deaf {
                    return;
                }
                if let Some(pb::settings::Pub_sub::Publishing(publishing)) = &mut settings.pub_sub {
                    publishing.max_body_size = max_body_size;
                    publishing.validate_message_type = true;
                }
                let answer = pb::TelemetryCommand {
                    status: status(OK, "OK"),
                    command: Some(Command::Settings(settings)),
                    ..Default::default()
                };
                let _ = open.frames.unbounded_send(encode(&answer));
                return;
            }
            Some(Command::ThreadStackTrace(trace)) => self.traces.push(trace.thread_stack_trace.unwrap_or_default()),
            _ => {}
        }
        if first {
            self.streams_without_settings += 1;
        }
    }

    /// Writes a command on all streams of an endpoint.
    pub(super) fn command(&mut self, endpoint: usize, command: Command) {
        let body = encode(&pb::TelemetryCommand { command: Some(command), ..Default::default() });
        for stream in self.streams.values().filter(|stream| stream.endpoint == endpoint) {
            let _ = stream.frames.unbounded_send(body.clone());
        }
    }
}

const OK: i32 = pb::Code::OK as i32;
const BAD_REQUEST: i32 = pb::Code::BAD_REQUEST as i32;

pub(super) fn reconnect_command() -> Command {
    Command::ReconnectEndpointsCommand(pb::ReconnectEndpointsCommand { nonce: "1".to_owned(), ..Default::default() })
}

pub(super) fn threads_command() -> Command {
    Command::PrintThreadStackTraceCommand(pb::PrintThreadStackTraceCommand {
        nonce: "1".to_owned(),
        ..Default::default()
    })
}

fn status(code: i32, text: &str) -> protobuf::MessageField<pb::Status> {
    let code = protobuf::EnumOrUnknown::from_i32(code);
    protobuf::MessageField::some(pb::Status { code, message: text.to_owned(), ..Default::default() })
}

/// Tags alone: the embedded proxy knows no SQL, and lets all pass there.
fn matches(filter: &pb::FilterExpression, message: &pb::Message) -> bool {
    if filter.type_.enum_value_or_default() != pb::FilterType::TAG {
        return true;
    }
    let expression = filter.expression.trim();
    if expression.is_empty() || expression == "*" {
        return true;
    }
    let tag = message.system_properties.tag.as_deref().unwrap_or_default();
    expression.split("||").any(|wanted| wanted.trim() == tag)
}

fn encode(message: &impl protobuf::Message) -> Bytes {
    message.write_to_bytes().map(Bytes::from).unwrap_or_default()
}
