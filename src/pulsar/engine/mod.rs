//! The Pulsar client as a pure machine: commands, frames and deadlines go in, actions and bytes come out.
//!
//! The engine never reads the clock, never blocks and never panics on what a peer sent. After each `handle_*`
//! the driver drains [`Engine::poll_action`] before the next. Its only drivers are the event loop and the
//! simulated world of its tests.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::policy::admission::Admitted;
use crate::policy::deadline::DeadlineQueue;
use crate::policy::now::Now;
use crate::policy::rng::Rng;
use crate::pulsar::service_url::HostPort;
use crate::pulsar::wire::command as wire;

mod ack;
mod attach;
mod attachment;
mod batch;
#[cfg(all(feature = "bench", feature = "testkit"))]
pub(crate) mod bench;
mod connection;
mod consumer;
mod dial;
pub(crate) mod event;
mod lane;
mod links;
mod liveness;
mod lookup;
mod operation;
mod producer;
mod requests;
mod responses;
pub(crate) mod retry;
mod targets;
#[cfg(test)]
mod tests;
mod transmit;
mod unsubscribe;
pub(crate) mod write_buffer;

use attachment::Owner;
use batch::Writers;
use connection::Connection;
use consumer::{Consumer, Part};
use event::{Action, Command, ConsumerId, DeadlineKey, LaneId, LinkId, Outgoing, PartId, ProducerId};
use lane::Lane;
use lookup::Lookup;
use operation::Operation;
use producer::Producer;
use requests::Request;
use targets::Targets;

/// Deadline for dial and handshake together.
pub(crate) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one request to be answered, and default for a user's operation.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Keep-alive interval.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// What the engine is told once.
#[derive(Debug, Clone)]
pub(crate) struct EngineOptions {
    /// The hosts of the service URL, at least one.
    pub service: Vec<HostPort>,
    pub tls: bool,
    pub client_version: String,
    pub auth_method: String,
    pub auth_data: Vec<u8>,
    pub connection_timeout: Duration,
    pub operation_timeout: Duration,
    pub keep_alive: Duration,
    pub seed: u64,
}

/// What an engine has counted; the shell adds its own figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineStats {
    /// Longest time from the call of a send to its result being fixed.
    pub longest_answer: Duration,
    /// Longest time by which a result was fixed after its deadline.
    pub longest_overdue: Duration,
    /// Links that were lost after they had been ready, and replaced.
    pub recoveries: u64,
    /// Links closed because they did not answer.
    pub dead_links: u64,
}

/// The loop's own short timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum LoopTimer {
    Batch(LaneId),
    AckGroup(PartId),
    Redelivery(PartId),
}

pub(crate) struct Engine {
    options: EngineOptions,
    rng: Rng,
    actions: VecDeque<Action>,
    targets: Targets,
    /// Index into the service hosts of the one that look-ups use now.
    service_cursor: usize,
    links: BTreeMap<LinkId, Connection>,
    /// Attempts beside the first of a dial, and the link that they are for.
    attempts: BTreeMap<LinkId, LinkId>,
    last_addresses: BTreeMap<HostPort, Vec<std::net::SocketAddr>>,
    requests: BTreeMap<u64, Request>,
    lookups: BTreeMap<u64, Lookup>,
    operations: BTreeMap<u64, Operation>,
    producers: BTreeMap<ProducerId, Producer>,
    lanes: BTreeMap<LaneId, Lane>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    parts: BTreeMap<PartId, Part>,
    timers: DeadlineQueue<LoopTimer>,
    /// Links that may have something to transmit.
    dirty: Vec<LinkId>,
    writers: Writers,
    next_link: u64,
    next_request: u64,
    next_lookup: u64,
    next_operation: u64,
    shutdown: Option<operation::Shutdown>,
    stats: EngineStats,
}

impl Engine {
    pub(crate) fn new(options: EngineOptions) -> Self {
        let mut rng = Rng::new(options.seed);
        let hosts = options.service.len().max(1) as u64;
        Self {
            service_cursor: rng.below(hosts) as usize,
            rng,
            options,
            actions: VecDeque::new(),
            targets: Targets::default(),
            links: BTreeMap::new(),
            attempts: BTreeMap::new(),
            last_addresses: BTreeMap::new(),
            requests: BTreeMap::new(),
            lookups: BTreeMap::new(),
            operations: BTreeMap::new(),
            producers: BTreeMap::new(),
            lanes: BTreeMap::new(),
            consumers: BTreeMap::new(),
            parts: BTreeMap::new(),
            timers: DeadlineQueue::new(),
            dirty: Vec::new(),
            writers: Writers::default(),
            next_link: 0,
            next_request: 0,
            next_lookup: 0,
            next_operation: 0,
            shutdown: None,
            stats: EngineStats::default(),
        }
    }

    /// Messages admitted to a lane, in order. They are taken out; the vector's room stays with the caller.
    pub(crate) fn handle_admitted(&mut self, now: Now, lane: LaneId, messages: &mut Vec<Admitted<Outgoing>>) {
        self.admitted(now.instant, lane, messages);
    }

    /// A call of a user.
    pub(crate) fn handle_command(&mut self, now: Now, command: Command) {
        match command {
            Command::Partitions { topic, due, reply } => self.ask_partitions(now.instant, topic, due, reply),
            Command::OpenProducer { producer, spec, lanes, due, reply } => {
                self.open_producer(now.instant, producer, spec, lanes, due, reply);
            }
            Command::Flush { producer } => self.flush_producer(now.instant, producer),
            Command::CloseProducer { producer, flush_until, due, reply } => {
                self.close_producer(now.instant, producer, flush_until, due, reply);
            }
            Command::OpenConsumer { consumer, spec, parts, due, reply } => {
                self.open_consumer(now.instant, consumer, spec, parts, due, reply);
            }
            Command::Permits { part, session, permits } => self.permits_used(part, session, permits),
            Command::Ack { part, ack } => self.acknowledge(now.instant, part, ack),
            Command::NegativeAck { part, message_id } => self.negative_ack(now.instant, part, message_id),
            Command::Unsubscribe { consumer, due, reply } => self.unsubscribe(now.instant, consumer, due, reply),
            Command::CloseConsumer { consumer, due, reply } => self.close_consumer(now.instant, consumer, due, reply),
            Command::Shutdown { flush_until, due, reply } => self.shut_down(now.instant, flush_until, due, reply),
        }
    }

    /// A frame of a link. Frames of links that are gone are dropped.
    pub(crate) fn handle_frame(&mut self, now: Now, link: LinkId, frame: wire::Command) {
        self.frame(now.instant, link, frame);
    }

    /// A watched key was posted back. Early and stale calls are no-ops.
    pub(crate) fn handle_deadline(&mut self, now: Now, key: DeadlineKey) {
        let now = now.instant;
        match key {
            DeadlineKey::Lane(lane) => self.lane_due(now, lane),
            DeadlineKey::Link(link) => self.link_due(now, link),
            DeadlineKey::Target(target) => self.target_due(now, targets::TargetId(target)),
            DeadlineKey::AttachLane(lane) => self.attach_due(now, Owner::Lane(lane)),
            DeadlineKey::AttachPart(part) => self.attach_due(now, Owner::Part(part)),
            DeadlineKey::Request(request) => self.request_due(now, request),
            DeadlineKey::Operation(operation) => self.operation_due(now, operation),
            DeadlineKey::LastChance(lane) => self.last_chance(now, lane),
        }
    }

    /// The loop's own timers: batch delay, ack grouping, redelivery. Call when [`poll_timeout`](Self::poll_timeout) is due.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        while let Some(timer) = self.timers.pop_due(now.instant) {
            match timer {
                LoopTimer::Batch(lane) => self.schedule_lane(now.instant, lane),
                LoopTimer::AckGroup(part) => self.flush_acks(part),
                LoopTimer::Redelivery(part) => self.redeliver_due(now.instant, part),
            }
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A link that may have something to transmit; each is named once until it has something anew.
    pub(crate) fn poll_dirty(&mut self) -> Option<LinkId> {
        let link = self.dirty.pop()?;
        if let Some(connection) = self.links.get_mut(&link) {
            connection.dirty = false;
        }
        Some(link)
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// The largest frame that a link may receive now, without its size word.
    pub(crate) fn frame_limit(&self, link: LinkId) -> usize {
        use crate::pulsar::wire::frame::{DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING};
        let size = self.links.get(&link).map_or(DEFAULT_MAX_MESSAGE_SIZE, |link| link.max_message_size as usize);
        size.saturating_add(FRAME_PADDING)
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.stats
    }

    /// The thread that drives the engine is ending by a defect: everything it owes is answered as unknown.
    pub(crate) fn abandon(&mut self, now: Instant) {
        let error = Error::new(ErrorKind::Internal, "the event loop of the client ended by a defect");
        self.fail_everything(now, &error);
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn watch(&mut self, key: DeadlineKey, at: Instant) {
        self.actions.push_back(Action::Watch { key, at });
    }
}
