//! The broker's state, owned by one thread.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::connection::{Common, Ending, Link};
use super::input::Input;
use super::listener::Listener;
use super::log::{Event, EventKind, Log};
use super::options::Options;
use super::script::Script;
use super::sessions::{ConsumerSession, ProducerSession, Waiting};
use super::timers::{Job, Timers};
use super::topic::Topic;
use crate::pulsar::wire::command;
use crate::pulsar::wire::pb;

/// Inputs handled before anything is written: receipts of many sends then leave in one write.
const INPUTS_A_TURN: usize = 64;

/// The owner's view of a connection.
pub(super) struct Connection {
    pub(super) link: Link,
    out: Vec<u8>,
    pub(super) reads_broker_entries: bool,
    pub(super) producers: HashMap<u64, ProducerSession>,
    /// Numbers of producers that the broker closed or the client gave up; what still comes for them is late.
    pub(super) closed_producers: Vec<u64>,
    pub(super) consumers: HashMap<u64, ConsumerSession>,
    /// For its own life, whatever the broker's mode.
    pub(super) mute: Option<Mute>,
    /// By its own mode or the broker's.
    muted: bool,
}

/// What a broker still does that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mute {
    Silent,
    /// It answers CONNECT, and sends PINGs.
    PingOnly,
}

/// What becomes of the answer to the request at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answering {
    AtOnce,
    Late(Duration),
    Lost,
}

/// Where look-ups lead.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) advertised: Option<String>,
    pub(super) assigned: HashMap<Arc<str>, String>,
    /// With the `authoritative` of the redirect.
    pub(super) redirects: HashMap<Arc<str>, (String, bool)>,
    pub(super) redirect_loop: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sends: AtomicU64,
    pub(super) messages: AtomicU64,
}

pub(super) struct State {
    pub(super) options: Options,
    pub(super) common: Arc<Common>,
    pub(super) counters: Arc<Counters>,
    log: Arc<Log>,
    events: Vec<Event>,
    inputs: Sender<Input>,
    listener: Option<Listener>,
    pub(super) address: SocketAddr,
    pub(super) hang_up: bool,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) accepted: u64,
    pub(super) topics: Vec<Topic>,
    pub(super) topic_indexes: HashMap<Arc<str>, usize>,
    pub(super) partitions: HashMap<Arc<str>, u32>,
    ledgers: u64,
    pub(super) sessions: u64,
    pub(super) script: Script,
    pub(super) routes: Routes,
    /// Requests that wait until an old connection has shown whether it lives; by that connection.
    pub(super) checks: HashMap<u64, Vec<Waiting>>,
    pub(super) answering: Answering,
    pub(super) mute: Option<Mute>,
    /// Counts the changes of `mute`, so that older PING rounds end.
    pub(super) mute_changes: u64,
    timers: Timers,
    pub(super) ending: bool,
}

impl State {
    pub(super) fn new(
        options: Options,
        log: Arc<Log>,
        counters: Arc<Counters>,
        inputs: Sender<Input>,
    ) -> io::Result<Self> {
        let listener = Listener::open((options.ip, options.port).into(), options.receive_buffer, &inputs)?;
        let common = Common {
            max_message_size: options.max_message_size.into(),
            verify_checksums: options.verify_checksums,
            ..Common::default()
        };
        Ok(Self {
            common: Arc::new(common),
            counters,
            log,
            events: Vec::new(),
            inputs,
            address: listener.address(),
            listener: Some(listener),
            hang_up: false,
            connections: BTreeMap::new(),
            accepted: 0,
            topics: Vec::new(),
            topic_indexes: HashMap::new(),
            partitions: HashMap::new(),
            ledgers: 0,
            sessions: 0,
            script: Script::default(),
            routes: Routes::default(),
            checks: HashMap::new(),
            answering: Answering::AtOnce,
            mute: None,
            mute_changes: 0,
            timers: Timers::default(),
            ending: false,
            options,
        })
    }

    /// The owner thread.
    pub(super) fn run(mut self, inputs: &Receiver<Input>) {
        while !self.ending {
            let first = match self.timers.next_due() {
                Some(due) => inputs.recv_deadline(due),
                None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            while let Some(job) = self.timers.take_due(Instant::now()) {
                job(&mut self);
            }
            match first {
                Ok(input) => self.handle(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            for input in inputs.try_iter().take(INPUTS_A_TURN) {
                self.handle(input);
            }
            self.flush();
        }
        self.close_port();
        self.end_connections(&self.connection_ids(), Ending::Fin);
        self.publish_events();
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Accepted { stream, from, at } => self.on_accepted(stream, from, at),
            Input::Read { connection, at, items } => {
                self.on_alive(connection);
                for item in items {
                    self.on_incoming(connection, at, item);
                }
            }
            Input::Gone { connection, at, by_reset, malformed } => {
                if self.connections.contains_key(&connection) {
                    let by_client = malformed.is_none();
                    if let Some(error) = malformed {
                        self.note(at, connection, EventKind::Malformed(error.to_string()));
                    }
                    self.note(at, connection, EventKind::ConnectionClosed { by_reset, by_client });
                    self.remove_connections(&[connection], Ending::Fin);
                }
            }
            Input::Call(call) => call(self),
        }
        self.publish_events();
    }

    fn on_accepted(&mut self, stream: std::net::TcpStream, from: SocketAddr, at: Instant) {
        if self.listener.is_none() {
            // Accepted just before the port was closed.
            return;
        }
        self.accepted += 1;
        let id = self.accepted;
        self.note(at, id, EventKind::Accepted { from });
        match Link::open(id, stream, &self.common, &self.inputs) {
            Ok(link) => {
                self.connections.insert(id, Connection::new(link, self.mute.is_some()));
            }
            Err(error) => log::error!("the test broker cannot serve a connection: {error}"),
        }
        if self.hang_up {
            self.end_connections(&[id], Ending::Reset);
        }
    }

    /// Ends connections from our side. They are closed when this returns.
    pub(super) fn end_connections(&mut self, ids: &[u64], ending: Ending) {
        let now = Instant::now();
        for &id in ids {
            if self.connections.contains_key(&id) {
                let by_reset = ending == Ending::Reset;
                self.note(now, id, EventKind::ConnectionClosed { by_reset, by_client: false });
            }
        }
        self.remove_connections(ids, ending);
    }

    fn remove_connections(&mut self, ids: &[u64], ending: Ending) {
        // Whoever sees the connection end finds in the log why.
        self.publish_events();
        let mut removed = Vec::new();
        for id in ids {
            if let Some(mut connection) = self.connections.remove(id) {
                connection.flush();
                connection.link.begin_end(ending);
                removed.push((*id, connection));
            }
        }
        for (id, mut connection) in removed {
            for producer in std::mem::take(&mut connection.producers).into_values() {
                self.release_producer(id, &producer);
            }
            for (consumer_id, consumer) in std::mem::take(&mut connection.consumers) {
                self.release_consumer(id, consumer_id, &consumer);
            }
            connection.link.finish();
            for waiting in self.checks.remove(&id).unwrap_or_default() {
                self.resume(waiting, false);
            }
        }
    }

    pub(super) fn connection_ids(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    pub(super) fn close_port(&mut self) {
        self.listener = None;
    }

    pub(super) fn open_port(&mut self) -> io::Result<()> {
        if self.listener.is_none() {
            self.listener = Some(Listener::open(self.address, self.options.receive_buffer, &self.inputs)?);
        }
        Ok(())
    }

    /// The topic's place; made if it is not there.
    pub(super) fn topic_index(&mut self, name: &str) -> usize {
        let name = full_name(name);
        if let Some(&index) = self.topic_indexes.get(&name) {
            return index;
        }
        self.ledgers += 1;
        let index = self.topics.len();
        self.topics.push(Topic::new(Arc::clone(&name), self.ledgers));
        self.topic_indexes.insert(name, index);
        index
    }

    pub(super) fn topic(&mut self, name: &str) -> Option<&mut Topic> {
        let index = self.topic_index(name);
        self.topics.get_mut(index)
    }

    /// Ledgers are not used again, so that ids from before mean nothing.
    pub(super) fn forget_everything(&mut self) {
        self.topics.clear();
        self.topic_indexes.clear();
        self.partitions.clear();
    }

    pub(super) fn note(&mut self, at: Instant, connection: u64, kind: EventKind) {
        self.events.push(Event { at, connection, kind });
    }

    pub(super) fn publish_events(&mut self) {
        self.log.append(&mut self.events);
    }

    pub(super) fn later(&mut self, delay: Duration, job: Job) {
        let now = Instant::now();
        self.timers.add(now.checked_add(delay).unwrap_or(now), job);
    }

    /// Answers the request at hand, as its fate has it.
    pub(super) fn answer(&mut self, connection: u64, answer: pb::BaseCommand) {
        match self.answering {
            Answering::AtOnce => self.push(connection, &answer),
            Answering::Late(delay) => {
                self.later(delay, Box::new(move |state| state.push(connection, &answer)));
            }
            Answering::Lost => {}
        }
    }

    pub(super) fn push(&mut self, connection: u64, answer: &pb::BaseCommand) {
        self.write(connection, |out| command::encode(answer, out));
    }

    pub(super) fn write(&mut self, connection: u64, encode: impl FnOnce(&mut Vec<u8>)) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.write(encode);
        }
    }

    fn flush(&mut self) {
        for connection in self.connections.values_mut() {
            connection.flush();
        }
    }

    /// After a change of the broker's own mode.
    pub(super) fn set_mute(&mut self, mute: Option<Mute>) {
        self.mute = mute;
        self.mute_changes += 1;
        for connection in self.connections.values_mut() {
            connection.muted = connection.mute.or(mute).is_some();
        }
    }
}

impl Connection {
    fn new(link: Link, muted: bool) -> Self {
        Self {
            link,
            out: Vec::new(),
            reads_broker_entries: false,
            producers: HashMap::new(),
            closed_producers: Vec::new(),
            consumers: HashMap::new(),
            mute: None,
            muted,
        }
    }

    pub(super) fn mute(&mut self, mute: Mute) {
        self.mute = Some(mute);
        self.muted = true;
    }

    /// Nothing, if the connection is muted.
    pub(super) fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if !self.muted {
            encode(&mut self.out);
        }
    }

    /// Also on a muted connection.
    pub(super) fn write_anyway(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.out);
    }

    pub(super) fn flush(&mut self) {
        if !self.out.is_empty() {
            self.link.write(std::mem::take(&mut self.out));
        }
    }
}

/// `orders` is short for `persistent://public/default/orders`, `a/b/orders` for `persistent://a/b/orders`.
pub(super) fn full_name(name: &str) -> Arc<str> {
    if name.contains("://") {
        name.into()
    } else if name.split('/').count() == 3 {
        format!("persistent://{name}").into()
    } else {
        format!("persistent://public/default/{name}").into()
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(super) fn add(&self, messages: u32) {
        self.sends.fetch_add(1, Ordering::Relaxed);
        self.messages.fetch_add(u64::from(messages), Ordering::Relaxed);
    }
}
