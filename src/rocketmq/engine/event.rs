//! What goes into the engine and what comes out: commands, events of calls, actions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::Error;
use crate::pending::Completion;
use crate::rocketmq::message::SendReceipt;
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

pub(crate) use crate::pending::Reply as ReplyOf;

/// Where the result of a send goes.
pub(crate) type Reply = ReplyOf<SendReceipt>;

/// One generation of a channel to an address.
pub(crate) use crate::policy::recovery::EntryId;

/// One producer or consumer: what the server knows by its client id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(pub u64);

/// One call to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId(pub u64);

/// One telemetry stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StreamId(pub u64);

/// A message on its way out, encoded by its caller.
pub(crate) struct Outgoing {
    pub topic: Arc<str>,
    pub kind: pb::MessageType,
    pub group: Option<Arc<str>>,
    /// A whole `SendMessageRequest`.
    pub request: Bytes,
    pub reply: Reply,
    pub body_size: usize,
}

/// What a session is for.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    Producer(ProducerSpec),
    SimpleConsumer(ConsumerSpec),
}

#[derive(Debug, Clone)]
pub(crate) struct ProducerSpec {
    pub topics: Vec<String>,
    pub max_attempts: u32,
    /// Messages in flight, over all endpoints.
    pub in_flight: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct ConsumerSpec {
    pub group: String,
    pub subscriptions: BTreeMap<String, pb::FilterExpression>,
    pub await_duration: Duration,
}

/// A producer or consumer as the engine is told of it.
#[derive(Debug, Clone)]
pub(crate) struct SessionSpec {
    pub namespace: String,
    pub request_timeout: Duration,
    pub role: Role,
}

/// What a handle learns of its session once it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opened {
    pub max_body_size: usize,
}

/// A message as it came, to be unpacked by whoever receives it.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub message: Box<pb::Message>,
    /// Of the broker that holds it.
    pub endpoints: Endpoints,
}

/// A message to be acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub topic: String,
    pub message_id: String,
    pub receipt_handle: String,
    /// Of the broker that holds it.
    pub endpoints: Endpoints,
}

/// A call of a user.
pub(crate) enum Command {
    Open {
        session: SessionId,
        spec: Box<SessionSpec>,
        due: Instant,
        reply: Completion<Opened>,
    },
    /// `None` ends the subscription.
    Subscribe {
        session: SessionId,
        topic: String,
        filter: Option<pb::FilterExpression>,
        reply: Completion<()>,
    },
    Receive {
        session: SessionId,
        max: usize,
        invisible: Duration,
        reply: ReplyOf<Vec<Arrived>>,
    },
    Ack {
        session: SessionId,
        handles: Vec<Handle>,
        due: Instant,
        reply: Completion<Vec<Result<(), Error>>>,
    },
    ChangeInvisible {
        session: SessionId,
        handle: Handle,
        invisible: Duration,
        due: Instant,
        reply: Completion<String>,
    },
    Close {
        session: SessionId,
        flush_until: Instant,
        reply: Option<Completion<()>>,
    },
    Shutdown {
        flush_until: Instant,
        reply: Completion<()>,
    },
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The response of a unary call.
    Response(Bytes),
    /// A server stream that ended as it should.
    StreamOver,
    /// It was not started, because the channel has no connection.
    NotStarted,
    /// A status of gRPC's own.
    Failed { code: i32, message: String },
    /// We cancelled it.
    Cancelled,
}

/// What the transport reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RpcEvent {
    /// `ready` is the state of the call's channel, read when it ended.
    Ended {
        call: CallId,
        ready: bool,
        end: CallEnd,
    },
    /// A frame of a call with a stream of responses.
    Frame {
        call: CallId,
        body: Bytes,
    },
    StreamFrame {
        stream: StreamId,
        body: Bytes,
    },
    StreamEnded {
        stream: StreamId,
        reason: String,
    },
}

/// A result that is fixed.
pub(crate) struct Settled {
    pub session: SessionId,
    pub place: u64,
    pub charge: usize,
    pub group: Option<Arc<str>>,
    pub reply: Reply,
    pub result: Result<SendReceipt, Error>,
}

/// What the engine asks of its driver.
pub(crate) enum Action {
    /// `first` is the place of the address to begin with.
    Connect {
        entry: EntryId,
        endpoints: Endpoints,
        first: usize,
    },
    /// The channel goes; its calls were cancelled before.
    CloseChannel {
        entry: EntryId,
    },
    Call {
        call: CallId,
        session: SessionId,
        entry: EntryId,
        method: Method,
        body: Bytes,
        timeout: Duration,
    },
    CancelCall {
        call: CallId,
    },
    OpenStream {
        stream: StreamId,
        session: SessionId,
        entry: EntryId,
    },
    WriteStream {
        stream: StreamId,
        body: Bytes,
    },
    CancelStream {
        stream: StreamId,
    },
    Settle(Settled),
    Received {
        reply: ReplyOf<Vec<Arrived>>,
        result: Result<Vec<Arrived>, Error>,
    },
    Opened(Completion<Opened>, Result<Opened, Error>),
    Acked(Completion<Vec<Result<(), Error>>>, Result<Vec<Result<(), Error>>, Error>),
    Changed(Completion<String>, Result<String, Error>),
    Done(Completion<()>, Result<(), Error>),
    /// The largest body that the server takes changed.
    BodyLimit {
        session: SessionId,
        max_body_size: usize,
    },
    SessionClosed {
        session: SessionId,
    },
    /// A transport was replaced.
    Recovered,
    Finished,
}
