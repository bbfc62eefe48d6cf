//! The handle: start, stop, observe.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Sender, bounded};

use super::BrokerBuilder;
use super::connection::Ending;
use super::entry::{StoredMessage, unpack};
use super::input::Input;
use super::log::{Event, EventKind, Log};
use super::options::Options;
use super::state::{Counters, State, full_name};
use crate::pulsar::message_id::MessageId;
use crate::runtime::thread::spawn;

/// Inputs that wait for the owner; beyond that the readers wait, and with them the clients.
const WAITING_INPUTS: usize = 256;

/// An embedded Pulsar broker. See the [module](super) for what it plays.
///
/// Faults are switched on and off through `&self`, from any thread. Dropping the broker closes its port and its
/// connections and waits for its threads.
///
/// # Panics
/// Its methods panic when the broker's own thread has panicked, which is a defect of the testkit.
#[derive(Debug)]
pub struct Broker {
    inputs: Sender<Input>,
    log: Arc<Log>,
    counters: Arc<Counters>,
    address: SocketAddr,
    owner: Option<JoinHandle<()>>,
}

impl Broker {
    /// Starts a broker with the default options on a free port.
    ///
    /// # Errors
    /// When no port can be had or a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// Starts with other options.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder::default()
    }

    pub(super) fn with(options: Options) -> io::Result<Self> {
        let (inputs, to_handle) = bounded(WAITING_INPUTS);
        let (log, counters) = (Arc::new(Log::new(options.log_limit)), Arc::new(Counters::default()));
        let state = State::new(options, Arc::clone(&log), Arc::clone(&counters), inputs.clone())?;
        let address = state.address;
        let owner = spawn("kit-broker", move || state.run(&to_handle))?;
        Ok(Self { inputs, log, counters, address, owner: Some(owner) })
    }

    /// `pulsar://127.0.0.1:port`, for clients that connect to it directly.
    pub fn service_url(&self) -> String {
        format!("pulsar://{}", self.address)
    }

    /// Where it listens. Stays the same over [`stop`](Self::stop) and [`restart`](Self::restart).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a topic of `partitions` partitions, or changes their number. 0 takes the partitioning away.
    pub fn create_partitioned_topic(&self, topic: &str, partitions: u32) {
        let topic = full_name(topic);
        self.ask(move |state| {
            if partitions == 0 {
                state.partitions.remove(&topic);
            } else {
                state.partitions.insert(topic, partitions);
            }
        });
    }

    /// What clients have done so far, oldest first: everything, up to [`log_limit`](BrokerBuilder::log_limit) events.
    pub fn log(&self) -> Vec<Event> {
        self.log.all()
    }

    /// The number of events in the [`log`](Self::log) for which `is_meant` holds.
    pub fn count(&self, is_meant: impl Fn(&EventKind) -> bool) -> usize {
        self.log().iter().filter(|event| is_meant(&event.kind)).count()
    }

    /// Waits until `until` holds: it is called with the whole log, and again whenever that has grown. False when
    /// `limit` is over. It may call any other method of the broker.
    pub fn wait_for(&self, limit: Duration, until: impl FnMut(&[Event]) -> bool) -> bool {
        let now = Instant::now();
        // Practically for ever.
        let far = Duration::from_secs(365 * 24 * 3600);
        self.log.wait(now + limit.min(far), until)
    }

    /// The messages of a topic, unpacked, in the order in which they were stored; of a partitioned topic, those of
    /// all partitions, one partition after the other. Those that the backlog limit has pushed out are missing.
    pub fn messages(&self, topic: &str) -> Vec<StoredMessage> {
        let topic = full_name(topic);
        let entries: Vec<(MessageId, Bytes)> = self.ask(move |state| {
            let names = match state.partitions.get(&topic) {
                Some(&count) => (0..count).map(|n| format!("{topic}-partition-{n}").into()).collect(),
                None => vec![topic],
            };
            let topics = names.iter().filter_map(|name| state.topics.get(*state.topic_indexes.get(name)?));
            let entries = topics.flat_map(|topic| {
                topic.store.entries().map(|(id, entry)| {
                    (MessageId::new(topic.ledger as i64, id as i64, topic.partition), entry.bytes.clone())
                })
            });
            entries.collect()
        });
        let mut messages = Vec::new();
        for (id, bytes) in &entries {
            unpack(id, bytes, &mut messages);
        }
        messages
    }

    /// The entries that a subscription has acknowledged, in order. Empty when there is no such subscription.
    pub fn acked(&self, topic: &str, subscription: &str) -> Vec<MessageId> {
        let (topic, subscription) = (full_name(topic), subscription.to_owned());
        self.ask(move |state| {
            let Some(topic) = state.topic(&topic) else { return Vec::new() };
            let (ledger, partition) = (topic.ledger as i64, topic.partition);
            let Some(subscription) = topic.subscription(&subscription) else { return Vec::new() };
            subscription.acked().map(|entry| MessageId::new(ledger, entry as i64, partition)).collect()
        })
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.ask(|state| state.connections.len())
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.ask(|state| state.accepted)
    }

    /// SENDs stored (or discarded) since the start; neither those refused nor duplicates. Cheap.
    pub fn sends(&self) -> u64 {
        self.counters.sends.load(Ordering::Relaxed)
    }

    /// Messages in [`sends`](Self::sends). Cheap.
    pub fn received(&self) -> u64 {
        self.counters.messages.load(Ordering::Relaxed)
    }

    /// Goes away as a process does that is stopped: the port is closed, then every connection (FIN). Topics,
    /// messages and cursors stay for a [`restart`](Self::restart).
    pub fn stop(&self) {
        self.ask(|state| {
            state.close_port();
            let all = state.connection_ids();
            state.end_connections(&all, Ending::Fin);
        });
    }

    /// Comes back on the same port with what it had before it was [stopped](Self::stop). Stops first if it was not.
    ///
    /// # Errors
    /// When somebody else has taken the port meanwhile.
    pub fn restart(&self) -> io::Result<()> {
        self.stop();
        self.ask(super::state::State::open_port)
    }

    /// The same, but topics, messages, subscriptions, partitions and known sequence ids are gone. Faults stay in
    /// force, but for those of topics.
    ///
    /// # Errors
    /// When somebody else has taken the port meanwhile.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.stop();
        self.ask(|state| {
            state.forget_everything();
            state.open_port()
        })
    }

    /// Runs `act` on the owner thread and gives what it gives.
    pub(super) fn ask<T: Send + 'static>(&self, act: impl FnOnce(&mut State) -> T + Send + 'static) -> T {
        let (answer, answered) = bounded(1);
        let call = Box::new(move |state: &mut State| {
            // Whoever asked waits for it.
            let _ = answer.send(act(state));
        });
        let sent = self.inputs.send(Input::Call(call)).is_ok();
        match answered.recv() {
            Ok(value) if sent => value,
            _ => broken(),
        }
    }
}

#[allow(clippy::panic)] // documented on Broker: a test has no other way to learn of it
fn broken() -> ! {
    panic!("the test broker's own thread is gone");
}

impl Drop for Broker {
    fn drop(&mut self) {
        // If the owner is gone already, there is nobody left to tell.
        let _ = self.inputs.send(Input::Call(Box::new(|state| state.ending = true)));
        if let Some(owner) = self.owner.take() {
            let _ = owner.join();
        }
    }
}
