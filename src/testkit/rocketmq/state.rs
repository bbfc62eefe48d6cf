//! What the proxy knows: topics, clients, rules, counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;

use super::queue::{Stored, Topic};
use super::script::{Arrival, Effect, Rpc, Rules};
use super::streams::Streams;
use crate::rocketmq::MessageType;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

const DEFAULT_ATTEMPTS: u32 = 16;
/// So many of the latest calls are remembered.
const HISTORY: usize = 100_000;

pub(super) struct State {
    endpoints: Vec<Endpoint>,
    pub topics: BTreeMap<String, Topic>,
    attempts: HashMap<String, u32>,
    dead: HashMap<String, Vec<Stored>>,
    /// Clients whose settings are known.
    pub clients: BTreeSet<String>,
    pub streams: Streams,
    rules: Rules,
    counts: HashMap<(usize, Rpc), u64>,
    history: VecDeque<Arrival>,
    pub max_body_size: usize,
    pub backoff: Option<pb::RetryPolicy>,
    pub next_handle: u64,
}

struct Endpoint {
    listening: SocketAddr,
    advertised: SocketAddr,
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
            streams: Streams::default(),
            rules: Rules::default(),
            counts: HashMap::new(),
            history: VecDeque::new(),
            max_body_size: 4 * 1024 * 1024,
            backoff: None,
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
        let endpoints = (0..self.endpoints.len()).collect();
        self.topics.insert(topic, Topic::new(accepts, queues, endpoints));
    }

    pub(super) fn delete_topic(&mut self, topic: &str) {
        self.topics.remove(topic);
    }

    pub(super) fn route_topic(&mut self, topic: &str, queues: usize, endpoints: &[usize]) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.queues = queues;
            topic.endpoints = endpoints.to_vec();
        }
    }

    pub(super) fn limit_attempts(&mut self, group: String, attempts: u32) {
        self.attempts.insert(group, attempts);
    }

    pub(super) fn max_attempts(&self, group: &str) -> u32 {
        self.attempts.get(group).copied().unwrap_or(DEFAULT_ATTEMPTS)
    }

    pub(super) fn stored(&self, topic: &str) -> Vec<Stored> {
        self.topics.get(topic).map(Topic::all).unwrap_or_default()
    }

    pub(super) fn dead_letters(&self, group: &str) -> Vec<Stored> {
        self.dead.get(group).cloned().unwrap_or_default()
    }

    /// A message was handed out too often: it goes to the group's topic of dead letters.
    pub(super) fn bury(&mut self, now: Instant, topic: &str, group: &str, endpoint: usize, index: usize) {
        let Some(topic) = self.topics.get(topic) else { return };
        self.dead.entry(group.to_owned()).or_default().extend(topic.stored(index));
        let Some(mut message) = topic.message(index) else { return };
        if let Some(properties) = message.system_properties.as_mut() {
            (properties.message_group, properties.delivery_timestamp) = Default::default();
        }
        let name = format!("%DLQ%{group}");
        message.topic.mut_or_insert_default().name.clone_from(&name);
        let endpoints: Vec<usize> = (0..self.endpoints.len()).collect();
        let letters =
            self.topics.entry(name).or_insert_with(|| Topic::new(MessageType::Normal, endpoints.len(), endpoints));
        letters.store(now, message, endpoint);
    }

    pub(super) fn calls(&self, endpoint: usize, rpc: Rpc) -> u64 {
        self.counts.get(&(endpoint, rpc)).copied().unwrap_or(0)
    }

    pub(super) fn history(&self) -> Vec<Arrival> {
        self.history.iter().copied().collect()
    }

    pub(super) fn forget_settings(&mut self) {
        self.clients.clear();
    }

    pub(super) fn stop(&mut self) {
        self.streams.end_all();
    }

    /// A call is here: it is counted, and what it is to come to.
    pub(super) fn arrived(&mut self, now: Instant, endpoint: usize, method: Method) -> Option<Effect> {
        let rpc = Rpc::of(method)?;
        *self.counts.entry((endpoint, rpc)).or_default() += 1;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Arrival { rpc, endpoint, at: now });
        self.rules.take(rpc, endpoint)
    }
}

pub(super) const OK: i32 = pb::Code::OK as i32;

pub(super) fn status(code: i32, text: &str) -> protobuf::MessageField<pb::Status> {
    let code = protobuf::EnumOrUnknown::from_i32(code);
    protobuf::MessageField::some(pb::Status { code, message: text.to_owned(), ..Default::default() })
}

/// An answer that is a status and nothing else: in all answers the status is the field 1, in that to a poll too.
pub(super) fn refusal(code: i32, text: &str) -> Bytes {
    encode(&pb::HeartbeatResponse { status: status(code, text), ..Default::default() })
}

pub(super) fn encode(message: &impl protobuf::Message) -> Bytes {
    message.write_to_bytes().map(Bytes::from).unwrap_or_default()
}

pub(super) fn span(value: &protobuf::well_known_types::duration::Duration) -> std::time::Duration {
    std::time::Duration::new(
        u64::try_from(value.seconds).unwrap_or(0),
        u32::try_from(value.nanos).unwrap_or(0).min(999_999_999),
    )
}
