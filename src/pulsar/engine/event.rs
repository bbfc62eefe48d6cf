//! What goes into the engine and what comes out: commands, keys of deadlines, actions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind};
use crate::pending::Completion;
use crate::policy::admission::Admitted;
use crate::pulsar::message_id::MessageId;
use crate::pulsar::service_url::HostPort;
use crate::pulsar::wire::command::MessageIdData;
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::payload::Content;
use crate::pulsar::wire::pb;

/// One connection attempt and the connection that it becomes. Never reused, so that an event of an old
/// connection cannot be taken for one of its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId(pub u64);

/// One partition of a producer; its number is the protocol's `producer_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LaneId(pub u64);

/// One partition of a consumer; its number is the protocol's `consumer_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartId(pub u64);

/// A producer handle's object: all its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProducerId(pub u64);

/// A consumer handle's object: all its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConsumerId(pub u64);

/// Where the result of a send goes.
pub(crate) type Reply = crate::pending::Reply<SendReceipt>;

/// What the broker answered to a message that it stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReceipt {
    pub(crate) message_id: MessageId,
    pub(crate) sequence_id: u64,
    pub(crate) attempts: u32,
}

impl SendReceipt {
    /// Where the broker stored the message (`CommandSendReceipt.message_id`, with the index in its batch).
    ///
    /// A broker with deduplication that has seen the sequence id before answers with ledger and entry
    /// `u64::MAX`: the message is stored, but not by this send.
    pub fn message_id(&self) -> &MessageId {
        &self.message_id
    }

    /// The sequence id that the message was sent with.
    pub fn sequence_id(&self) -> u64 {
        self.sequence_id
    }

    /// How many times the message was handed to a connection: 1 unless links were lost.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// A message on its way out.
pub(crate) struct Outgoing {
    pub content: Content,
    pub reply: Reply,
    /// A caller waits for this one: its batch does not sit out the batch delay.
    pub urgent: bool,
}

/// What all lanes of a producer share.
#[derive(Debug)]
pub(crate) struct ProducerSpec {
    pub name: Option<String>,
    pub access_mode: pb::ProducerAccessMode,
    pub properties: Vec<(String, String)>,
    pub initial_sequence_id: Option<u64>,
    pub compression: Compression,
    pub batching: Option<Batching>,
}

/// How messages are gathered into batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    pub max_messages: usize,
    pub max_bytes: usize,
    pub max_delay: Duration,
}

/// What the handle learns when its producer is open.
#[derive(Debug, Clone)]
pub(crate) struct ProducerOpened {
    pub lanes: Vec<LaneOpened>,
}

#[derive(Debug, Clone)]
pub(crate) struct LaneOpened {
    pub name: String,
    pub next_sequence_id: u64,
}

/// What all parts of a consumer share.
#[derive(Debug)]
pub(crate) struct ConsumerSpec {
    pub subscription: String,
    pub sub_type: pb::command_subscribe::SubType,
    pub name: String,
    pub initial_position: pb::command_subscribe::InitialPosition,
    pub properties: Vec<(String, String)>,
    pub queue_size: u32,
    pub ack_group_delay: Duration,
    pub ack_group_max: usize,
    pub nack_delay: Duration,
}

/// What the user's threads ask of the engine.
pub(crate) enum Command {
    /// How many partitions a topic has (0: not partitioned).
    Partitions {
        topic: String,
        due: Instant,
        reply: Completion<u32>,
    },
    OpenProducer {
        producer: ProducerId,
        spec: Arc<ProducerSpec>,
        lanes: Vec<(LaneId, String)>,
        due: Instant,
        reply: Completion<ProducerOpened>,
    },
    /// Send what is admitted up to now without waiting for batches to fill.
    Flush {
        producer: ProducerId,
    },
    /// Flush until `flush_until`, answer the rest with `Closed`, leave the broker by `due`.
    CloseProducer {
        producer: ProducerId,
        flush_until: Instant,
        due: Instant,
        reply: Option<Completion<()>>,
    },
    OpenConsumer {
        consumer: ConsumerId,
        spec: Arc<ConsumerSpec>,
        parts: Vec<(PartId, String)>,
        due: Instant,
        reply: Completion<()>,
    },
    /// The application took messages that used `permits` of the part's session.
    Permits {
        part: PartId,
        session: u32,
        permits: u32,
    },
    Ack {
        part: PartId,
        ack: AckCommand,
    },
    /// Ask for redelivery of an entry after the consumer's delay.
    NegativeAck {
        part: PartId,
        message_id: MessageIdData,
    },
    Unsubscribe {
        consumer: ConsumerId,
        due: Instant,
        reply: Completion<()>,
    },
    CloseConsumer {
        consumer: ConsumerId,
        due: Instant,
        reply: Option<Completion<()>>,
    },
    /// Close everything, answer everything, drop all links by `due`.
    Shutdown {
        flush_until: Instant,
        due: Instant,
        reply: Completion<()>,
    },
}

impl Command {
    /// Answers a command that nobody will carry out any more, because the client is closed.
    pub(crate) fn refuse(self) {
        let closed = || Error::new(ErrorKind::Closed, "the client is closed");
        match self {
            Self::Partitions { reply, .. } => reply.settle(Err(closed())),
            Self::OpenProducer { reply, .. } => reply.settle(Err(closed())),
            Self::OpenConsumer { reply, .. } | Self::Unsubscribe { reply, .. } => reply.settle(Err(closed())),
            Self::CloseProducer { reply: Some(reply), .. } | Self::CloseConsumer { reply: Some(reply), .. } => {
                reply.settle(Ok(()));
            }
            Self::Shutdown { reply, .. } => reply.settle(Ok(())),
            _ => {}
        }
    }
}

/// An acknowledgement of whole entries.
pub(crate) enum AckCommand {
    Individual(MessageIdData),
    Cumulative(MessageIdData),
    /// An entry that could not be read (`CommandAck.ValidationError`); its unread messages' permits go back.
    Invalid {
        message_id: MessageIdData,
        error: pb::command_ack::ValidationError,
    },
}

/// What a timer thread is asked to watch. The state that a key speaks of lives in the engine: a key that
/// fires early is a no-op, one that fires late is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DeadlineKey {
    /// The oldest message of a lane is due (sweeper).
    Lane(LaneId),
    /// Dial, handshake and liveness of a link (supervisor).
    Link(LinkId),
    /// The next dial to a target is allowed (supervisor).
    Target(u32),
    /// The next try to attach a lane (supervisor).
    AttachLane(LaneId),
    /// The next try to attach a part of a consumer (supervisor).
    AttachPart(PartId),
    /// A request is overdue (sweeper).
    Request(u64),
    /// An open, close or look-up call of a user is overdue (supervisor).
    Operation(u64),
    /// One more try shortly before the oldest message of an outage is due (supervisor).
    LastChance(LaneId),
}

/// Which thread watches a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watcher {
    Supervisor,
    Sweeper,
}

const KEY_BITS: u32 = 56;

impl DeadlineKey {
    pub(crate) fn watcher(self) -> Watcher {
        match self {
            Self::Lane(_) | Self::Request(_) => Watcher::Sweeper,
            _ => Watcher::Supervisor,
        }
    }

    /// The key as one number, as the timer threads carry it. Ids are counters that never reach 2^56.
    pub(crate) fn pack(self) -> u64 {
        let (kind, id) = match self {
            Self::Lane(lane) => (0, lane.0),
            Self::Link(link) => (1, link.0),
            Self::Target(target) => (2, u64::from(target)),
            Self::AttachLane(lane) => (3, lane.0),
            Self::AttachPart(part) => (4, part.0),
            Self::Request(request) => (5, request),
            Self::Operation(operation) => (6, operation),
            Self::LastChance(lane) => (7, lane.0),
        };
        (kind << KEY_BITS) | (id & ((1 << KEY_BITS) - 1))
    }

    pub(crate) fn unpack(packed: u64) -> Option<Self> {
        let id = packed & ((1 << KEY_BITS) - 1);
        Some(match packed >> KEY_BITS {
            0 => Self::Lane(LaneId(id)),
            1 => Self::Link(LinkId(id)),
            2 => Self::Target(u32::try_from(id).ok()?),
            3 => Self::AttachLane(LaneId(id)),
            4 => Self::AttachPart(PartId(id)),
            5 => Self::Request(id),
            6 => Self::Operation(id),
            7 => Self::LastChance(LaneId(id)),
            _ => return None,
        })
    }
}

/// One message whose result is fixed.
pub(crate) struct Member {
    pub place: u64,
    pub sequence_id: u64,
    pub called_at: Instant,
    pub due: Option<Instant>,
    pub charge: usize,
    /// Its caller waits and is told the result, so that no flush has to.
    pub waited_for: bool,
    pub reply: Reply,
}

impl Member {
    /// What is left of a message without its content.
    pub(super) fn of(Admitted { ticket, item }: Admitted<Outgoing>) -> Self {
        Self {
            place: ticket.place,
            sequence_id: ticket.sequence_id,
            called_at: ticket.called_at,
            due: ticket.due,
            charge: ticket.charge,
            waited_for: item.urgent,
            reply: item.reply,
        }
    }
}

/// The messages of a frame; without batches there is one.
pub(crate) type Members = SmallVec<[Member; 1]>;

/// The result of some neighbouring messages of a lane.
pub(crate) enum Outcome {
    /// `first_index` is the place in the stored batch of the first member; members before it had timed out.
    Stored {
        message_id: MessageIdData,
        attempts: u32,
        first_index: usize,
        batch_size: Option<usize>,
    },
    Failed(Error),
}

/// Results that are fixed, in the lane's order. The shell answers, runs callbacks, and returns permits.
pub(crate) struct Settle {
    pub lane: LaneId,
    pub members: Members,
    pub outcome: Outcome,
}

/// An answer to a call of a user.
pub(crate) enum Answer {
    Partitions(Completion<u32>, Result<u32, Error>),
    ProducerOpened(Completion<ProducerOpened>, Result<ProducerOpened, Error>),
    Done(Completion<()>, Result<(), Error>),
}

/// An entry for a consumer's queue, still packed.
pub(crate) struct Delivery {
    pub part: PartId,
    pub session: u32,
    pub message_id: MessageIdData,
    pub redelivery_count: u32,
    pub ack_set: Vec<i64>,
    pub entry: Bytes,
    /// The broker's limit, which bounds what a body may decompress to.
    pub max_message_size: usize,
}

/// What the shell is to do.
pub(crate) enum Action {
    /// Look the host's addresses up and report them.
    Resolve {
        link: LinkId,
        host: HostPort,
    },
    /// Connect the link to this address, dropping an earlier attempt of the same link.
    Connect {
        link: LinkId,
        address: SocketAddr,
    },
    /// Drop the socket; by reset if `reset`, so that the kernel does not deliver old bytes to a thawed peer.
    CloseLink {
        link: LinkId,
        reset: bool,
    },
    /// Post the key back at or after this time.
    Watch {
        key: DeadlineKey,
        at: Instant,
    },
    /// The key needs no post any more; one that comes all the same is a no-op.
    Unwatch {
        key: DeadlineKey,
    },
    Settle(Settle),
    Answer(Answer),
    /// A lane takes no more messages; what is not yet taken is answered with the error.
    LaneFailed {
        lane: LaneId,
        error: Error,
    },
    /// The largest message that the lane's broker accepts now.
    LaneLimit {
        lane: LaneId,
        max_message_size: u32,
    },
    /// The lane is gone; nothing about it follows.
    LaneClosed {
        lane: LaneId,
    },
    Deliver(Delivery),
    /// A new session of a part begins: what was delivered before and not taken is dropped. With `refund` the
    /// subscription goes on, so the permits of what was dropped, or taken and not yet told, are told at once; what
    /// is being taken meanwhile is told with its old session, which counts as long as the subscription lasts.
    ResetPart {
        part: PartId,
        session: u32,
        refund: bool,
    },
    /// The part will deliver nothing more.
    PartEnded {
        part: PartId,
        error: Error,
    },
    /// A dead link was found and a new one took its place.
    Recovered,
    /// All is closed and answered; the loop may end.
    Finished,
}
