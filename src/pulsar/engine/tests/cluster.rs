//! The model of the brokers: what is stored, who holds which session, and the faults that a broker can show.
//!
//! It works on decoded frames and knows nothing of the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::damage::Damage;
use super::schedule::{MS, Micros, SEC};
use crate::policy::rng::Rng;
use crate::pulsar::wire::command::{Command, MessageIdData};

/// What the brokers want done.
pub(super) enum Out {
    Frame {
        conn: usize,
        delay: Micros,
        frame: Command,
    },
    /// Arrives after what is sent later.
    Late {
        conn: usize,
        delay: Micros,
        frame: Command,
    },
    /// The broker drops a connection.
    Close {
        conn: usize,
    },
    Timer {
        at: Micros,
        timer: Timer,
    },
}

#[derive(Debug)]
pub(super) enum Timer {
    /// A connection that was asked whether it lives must have shown it by now.
    Liveness {
        conn: usize,
        due: Micros,
    },
    KeepAlive {
        conn: usize,
    },
    /// A receipt that was held back goes out at the latest now.
    Held {
        conn: usize,
    },
}

/// A PRODUCER request that is being decided.
#[derive(Debug)]
pub(super) struct Open {
    pub request: u64,
    pub producer_id: u64,
    pub name: String,
}

/// A producer that came back while its former self holds its place.
#[derive(Debug)]
pub(super) struct Comeback {
    pub topic: usize,
    pub conn: usize,
    pub open: Open,
}

/// Whether a connection lives: until when it may show it, and who waits to know.
#[derive(Debug)]
pub(super) struct Question {
    pub due: Micros,
    pub comebacks: Vec<Comeback>,
}

/// What happens to receipts of a lane, one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiptFault {
    Lose,
    Duplicate,
    Late(Micros),
    /// Comes after the next one.
    Swap,
}

/// What happens to requests to open, one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenFault {
    Refuse(i32),
    Silent,
    /// Opens and answers only after this time.
    Late(Micros),
    /// A close of a session long gone follows the answer.
    CloseAfter,
}

#[derive(Debug, Default)]
pub(super) struct BrokerState {
    pub host: String,
    pub down: bool,
    pub frozen: bool,
    pub max_message_size: i32,
}

impl BrokerState {
    pub(super) fn url(&self) -> String {
        format!("pulsar://{}:6650", self.host)
    }
}

/// The broker's end of a connection.
#[derive(Debug, Default)]
pub(super) struct ServerEnd {
    pub broker: usize,
    pub open: bool,
    pub greeted: bool,
    /// Producer id and topic.
    pub producers: Vec<(u64, usize)>,
    /// Consumer id, topic and subscription.
    pub consumers: Vec<(u64, usize)>,
    /// Producers whose sends are ignored until they are opened anew.
    pub broken: Vec<u64>,
    /// Requests to open a producer that are being decided; a close takes them back.
    pub opening: Vec<(u64, u64)>,
    /// Producers that the broker closed here.
    pub sent_away: Vec<u64>,
    pub question: Option<Question>,
    pub awaiting_pong: bool,
    pub heard: bool,
    pub held: Option<Command>,
    /// What it said in CONNECTED.
    pub limit: usize,
    /// It did something that is a reason to give it up.
    pub touched: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Session {
    pub conn: usize,
    pub producer_id: u64,
    pub name: String,
}

pub(super) struct Stored {
    pub entry: Bytes,
    pub messages: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    Unread,
    Pending,
    Acked,
}

/// The one subscription that a topic may have.
#[derive(Debug)]
pub(super) struct Subscription {
    pub shared: bool,
    pub states: Vec<EntryState>,
    pub redelivered: Vec<u32>,
    pub first_unread: usize,
    pub session: Option<Reader>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    pub conn: usize,
    pub consumer_id: u64,
    pub permits: i64,
    /// How often the client asked for everything anew; messages say it.
    pub epoch: Option<u64>,
}

pub(super) struct Topic {
    pub name: String,
    pub owner: usize,
    /// Between two brokers until then.
    pub away_until: Micros,
    pub terminated: bool,
    /// A stranger holds the exclusive place until then.
    pub taken_until: Micros,
    pub entries: Vec<Stored>,
    pub sessions: Vec<Session>,
    pub last_sequence: BTreeMap<String, u64>,
    pub subscription: Option<Subscription>,
    pub epoch: u64,
}

/// Counts for checks and scenarios.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    pub connects: u64,
    pub lookups: u64,
    pub producers: u64,
    pub subscribes: u64,
    pub sends: u64,
    pub pings: u64,
    pub closes: u64,
    pub acks: u64,
    pub redelivers: u64,
    pub flows: u64,
}

pub(super) struct Cluster {
    pub brokers: Vec<BrokerState>,
    pub topics: Vec<Topic>,
    pub by_name: BTreeMap<String, usize>,
    pub conns: Vec<ServerEnd>,
    pub out: Vec<Out>,
    pub dedup: bool,
    /// How often each message was stored, by uid.
    pub stored: BTreeMap<u64, u32>,
    /// Messages whose SEND was answered with an error, by uid.
    pub refused: BTreeSet<u64>,
    /// Messages that the broker will never accept, by uid.
    pub not_allowed: BTreeSet<u64>,
    /// SENDs that were damaged on the way. What followed them was stored, so their place in the order is lost, and
    /// under deduplication they are too.
    pub damages: Vec<Damage>,
    /// Messages in the order in which each topic stored them first.
    pub order: Vec<Vec<u64>>,
    pub receipt_faults: BTreeMap<u64, VecDeque<ReceiptFault>>,
    pub send_errors: BTreeMap<u64, VecDeque<i32>>,
    pub producer_faults: BTreeMap<u64, VecDeque<OpenFault>>,
    pub consumer_faults: BTreeMap<u64, VecDeque<OpenFault>>,
    /// Receipts name the last id of a batch, sometimes.
    pub either_end: bool,
    pub redirects: bool,
    /// Look-ups send the client to the broker through the one that it asked.
    pub proxied: bool,
    pub lookup_code: Option<i32>,
    pub lookup_silent: bool,
    pub keep_alive: Micros,
    /// What each consumer may be sent before it takes something.
    pub queue_sizes: BTreeMap<u64, i64>,
    pub counts: Counts,
    /// A defect that the model saw.
    pub violation: Option<String>,
    next_name: u64,
}

impl Cluster {
    pub(super) fn new(brokers: usize, topics: &[(String, usize)], dedup: bool) -> Self {
        let state = |index| BrokerState {
            host: format!("broker-{index}"),
            max_message_size: 5 * 1024 * 1024,
            ..BrokerState::default()
        };
        let topic = |(name, owner): &(String, usize)| Topic {
            name: name.clone(),
            owner: *owner,
            away_until: 0,
            terminated: false,
            taken_until: 0,
            entries: Vec::new(),
            sessions: Vec::new(),
            last_sequence: BTreeMap::new(),
            subscription: None,
            epoch: 0,
        };
        Self {
            brokers: (0..brokers).map(state).collect(),
            topics: topics.iter().map(topic).collect(),
            by_name: topics.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect(),
            conns: Vec::new(),
            out: Vec::new(),
            dedup,
            stored: BTreeMap::new(),
            refused: BTreeSet::new(),
            not_allowed: BTreeSet::new(),
            damages: Vec::new(),
            order: vec![Vec::new(); topics.len()],
            receipt_faults: BTreeMap::new(),
            send_errors: BTreeMap::new(),
            producer_faults: BTreeMap::new(),
            consumer_faults: BTreeMap::new(),
            either_end: false,
            redirects: false,
            proxied: false,
            lookup_code: None,
            lookup_silent: false,
            keep_alive: 30 * SEC,
            queue_sizes: BTreeMap::new(),
            counts: Counts::default(),
            violation: None,
            next_name: 0,
        }
    }

    pub(super) fn accept(&mut self, broker: usize) -> usize {
        self.conns.push(ServerEnd { broker, open: true, ..ServerEnd::default() });
        self.conns.len() - 1
    }

    pub(super) fn reply(&mut self, conn: usize, frame: Command) {
        self.out.push(Out::Frame { conn, delay: 0, frame });
    }

    pub(super) fn reply_with(&mut self, conn: usize, command: crate::pulsar::wire::pb::BaseCommand) {
        self.reply(conn, Command::Other(Box::new(command)));
    }

    /// The broker's end is gone: its sessions end.
    pub(super) fn ended(&mut self, now: Micros, conn: usize) {
        let end = &mut self.conns[conn];
        if !end.open {
            return;
        }
        end.open = false;
        let (producers, consumers) = (std::mem::take(&mut end.producers), std::mem::take(&mut end.consumers));
        for (producer_id, topic) in producers {
            self.topics[topic].sessions.retain(|session| (session.conn, session.producer_id) != (conn, producer_id));
        }
        for (consumer_id, topic) in consumers {
            self.end_reader(now, conn, consumer_id, topic);
        }
        self.liveness_known(now, conn, false);
    }

    /// The broker closes a connection.
    pub(super) fn drop_conn(&mut self, now: Micros, conn: usize) {
        if self.conns[conn].open {
            self.ended(now, conn);
            self.out.push(Out::Close { conn });
        }
    }

    pub(super) fn timer(&mut self, now: Micros, timer: Timer) {
        match timer {
            Timer::Liveness { conn, due } => self.liveness_due(now, conn, due),
            Timer::KeepAlive { conn } => self.check_client(now, conn),
            Timer::Held { conn } => {
                if let Some(held) = self.conns[conn].held.take() {
                    self.reply(conn, held);
                }
            }
        }
    }

    /// Twice an interval without a frame: the client is dead.
    fn check_client(&mut self, now: Micros, conn: usize) {
        let at = now + self.keep_alive;
        let end = &mut self.conns[conn];
        if !end.open {
            return;
        }
        if end.awaiting_pong && !end.heard {
            self.drop_conn(now, conn);
            return;
        }
        end.awaiting_pong = !end.heard;
        end.heard = false;
        if end.awaiting_pong {
            self.reply(conn, Command::Ping);
        }
        self.out.push(Out::Timer { at, timer: Timer::KeepAlive { conn } });
    }

    pub(super) fn unique_name(&mut self) -> String {
        self.next_name += 1;
        format!("auto-{}", self.next_name)
    }

    /// How long storing takes.
    pub(super) fn storing(rng: &mut Rng) -> Micros {
        if rng.chance(1, 40) { rng.below(200 * MS) } else { rng.below(4 * MS) }
    }

    pub(super) fn message_id(topic: usize, entry: usize) -> MessageIdData {
        MessageIdData::new(topic as u64 + 1, entry as u64)
    }
}
