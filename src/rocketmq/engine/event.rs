//! What goes into the engine and what comes out: commands, events of calls, actions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Recovery};
use crate::pending::Completion;
use crate::policy::text::one_line;
use crate::rocketmq::message::SendReceipt;
use crate::rocketmq::topic::TopicQueue;
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
    /// The user has let its stopped group go on: from this message.
    pub resumes: bool,
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
    /// After a failed message of a group its next ones fail too, until the group is resumed.
    pub stop_failed_groups: bool,
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

/// A message as it came, to be read and unpacked by whoever receives it.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// A whole `ReceiveMessageResponse`.
    pub frame: Bytes,
    /// Of the broker that holds it.
    pub endpoints: Endpoints,
}

/// A call that its caller has made ready.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// Of the broker that holds what it speaks of.
    pub endpoints: Endpoints,
    pub request: Bytes,
}

/// What was answered to prepared calls, in their order; not read yet.
pub(crate) type Answers = Vec<Result<Bytes, Error>>;

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
    /// Calls of one method, which has one answer.
    Prepared {
        session: SessionId,
        method: Method,
        calls: Vec<Prepared>,
        due: Instant,
        reply: Completion<Answers>,
    },
    /// Says what is known of a topic.
    Describe {
        session: SessionId,
        topic: String,
        reply: Completion<Vec<TopicQueue>>,
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

/// Why a call could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The channel has no connection.
    NoConnection,
    /// The channel is making its connection. Nothing failed.
    Dialling,
    /// TLS was not agreed on with this peer, for this reason.
    Tls { peer: String, reason: String },
    /// This peer speaks TLS, which the client was not told to.
    PeerSpeaksTls { peer: String },
    /// This peer speaks plaintext where TLS was asked for.
    PeerSpeaksPlaintext { peer: String },
    /// The user's supplier of credentials has none, for this reason.
    Credentials { reason: String },
}

impl Fault {
    /// Whether it says something bad of the endpoint.
    pub(crate) fn is_of_transport(&self) -> bool {
        !matches!(self, Self::Credentials { .. } | Self::Dialling)
    }

    /// Whether it may be otherwise at another endpoint.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        !matches!(self, Self::Credentials { .. })
    }

    /// The error of a call of this name.
    pub(crate) fn error(&self, what: &str) -> Error {
        let tls = |text: String| Error::new(ErrorKind::Tls, text).with_recovery(Recovery::AfterReconnect);
        match self {
            Self::NoConnection | Self::Dialling => {
                Error::new(ErrorKind::Transport, format!("{what}: there is no connection"))
            }
            Self::Tls { peer, reason } => tls(format!("{what}: no TLS connection to {peer}: {}", one_line(reason))),
            Self::PeerSpeaksTls { peer } => tls(format!(
                "{what}: the proxy at {peer} speaks TLS and the client does not: write https:// before the endpoints"
            )),
            Self::PeerSpeaksPlaintext { peer } => tls(format!(
                "{what}: the proxy at {peer} speaks plaintext and the client TLS: write http:// before the endpoints \
                 and give no TLS options, or switch TLS on in the proxy"
            )),
            Self::Credentials { reason } => {
                Error::new(ErrorKind::Authentication, format!("{what}: the credentials provider gave none"))
                    .with_recovery(Recovery::AfterBackoff)
                    .with_source(reason.clone())
            }
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The response of a unary call.
    Response(Bytes),
    /// A server stream that ended as it should.
    StreamOver,
    /// It was not started: nothing of it can have left.
    NotStarted(Fault),
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
    Answered(Completion<Answers>, Result<Answers, Error>),
    Described(Completion<Vec<TopicQueue>>, Result<Vec<TopicQueue>, Error>),
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
