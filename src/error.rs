//! What can go wrong: one [`Error`] type for both systems, and [`SendError`], which gives the message back.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What kind of thing went wrong. Match on this to decide; never on the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option or address is not usable as given. Raised by `build`, `create`, `subscribe` and `start`.
    Config,
    /// The call is not allowed as it was made, for example a sequence id that does not rise.
    Misuse,
    /// The client, producer or consumer is closed, or was closed before the operation ended.
    Closed,
    /// The time allowed for the operation is over.
    Timeout,
    /// The operation would have to wait where waiting is not allowed.
    WouldBlock,
    /// The message is larger than the server accepts or than the memory limit allows.
    TooLarge,
    /// The connection could not be made or was lost.
    Transport,
    /// The TLS handshake failed.
    Tls,
    /// The server does not accept the credentials.
    Authentication,
    /// The credentials are accepted, but do not allow the operation.
    Authorization,
    /// The topic, subscription or other resource does not exist.
    NotFound,
    /// Somebody else holds what was asked for, for example an exclusive producer's place.
    Conflict,
    /// The server asks for fewer requests.
    Throttled,
    /// The server cannot serve this now and may be able to later.
    Unavailable,
    /// The peer sent something that the protocol does not allow.
    Protocol,
    /// The server or this build does not know the feature.
    Unsupported,
    /// The server failed in a way of its own; see [`Error::code`].
    Broker,
    /// A defect in threadmq, or in user code that it ran.
    Internal,
}

/// What would help after an [`Error`]. The client obeys the same answer in its own retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Nothing: the same call fails again until somebody changes something.
    Never,
    /// The same call later, on the same connection.
    AfterBackoff,
    /// The same call on a new connection.
    AfterReconnect,
    /// The same call after a new look-up of the topic or route.
    AfterRefresh,
    /// The same call to another server of the cluster.
    Elsewhere,
}

/// Whether the server may hold the message (or have carried out the request) that an [`Error`] is about.
///
/// Ordered from the best case to the worst; over several attempts the worst one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delivery {
    /// No byte was handed to a socket. It never leaves later.
    NotSent,
    /// The server said no.
    Refused,
    /// In doubt: it was handed to a socket and no answer came.
    Unknown,
}

/// An error of threadmq: what it was, what would help, and whether the server may hold the message.
///
/// Cloning is cheap: the thousand messages of a failed batch share one cause. The text is one clause that
/// names the operation and the topic or peer; use [`kind`](Self::kind), [`recovery`](Self::recovery) and
/// [`code`](Self::code) to decide.
#[derive(Clone)]
pub struct Error {
    cause: Arc<Cause>,
    delivery: Delivery,
    attempts: u32,
}

struct Cause {
    kind: ErrorKind,
    recovery: Recovery,
    code: Option<i32>,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error that was never sent. `text` is one clause without a full stop.
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        let cause = Cause { kind, recovery: default_recovery(kind), code: None, text: text.into(), source: None };
        Self { cause: Arc::new(cause), delivery: Delivery::NotSent, attempts: 0 }
    }

    /// The same error about a message with another fate. Shares the cause.
    pub(crate) fn with_delivery(&self, delivery: Delivery) -> Self {
        Self { cause: Arc::clone(&self.cause), delivery, attempts: self.attempts }
    }

    /// The same error after so many attempts. Shares the cause.
    pub(crate) fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    pub(crate) fn with_recovery(self, recovery: Recovery) -> Self {
        self.rebuild(|cause| cause.recovery = recovery)
    }

    /// The same text about something of another kind.
    #[cfg(feature = "rocketmq")]
    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        self.rebuild(|cause| {
            cause.kind = kind;
            cause.recovery = default_recovery(kind);
        })
    }

    pub(crate) fn with_code(self, code: i32) -> Self {
        self.rebuild(|cause| cause.code = Some(code))
    }

    pub(crate) fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = source.into();
        self.rebuild(|cause| cause.source = Some(source))
    }

    /// The same kind, recovery and code, with `context` before the text. Keeps the original as the source.
    pub(crate) fn in_context(&self, context: &str) -> Self {
        let cause = Cause {
            kind: self.cause.kind,
            recovery: self.cause.recovery,
            code: self.cause.code,
            text: format!("{context}: {}", self.cause.text),
            source: Some(Box::new(self.clone())),
        };
        Self { cause: Arc::new(cause), delivery: self.delivery, attempts: self.attempts }
    }

    /// Builders run before the error is shared, so the cause is still ours alone.
    fn rebuild(mut self, change: impl FnOnce(&mut Cause)) -> Self {
        match Arc::get_mut(&mut self.cause) {
            Some(cause) => change(cause),
            None => debug_assert!(false, "an error was shared before it was whole: put `with_delivery` last"),
        }
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind
    }

    /// What would help.
    pub fn recovery(&self) -> Recovery {
        self.cause.recovery
    }

    /// Whether the server may hold the message or have carried out the request.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// How many times the message was handed to a connection: 0 if it was never sent.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The server's own error code, as it was sent, also when this build does not know it.
    ///
    /// For Pulsar this is the number in the protocol's `ServerError`; for RocketMQ that of its `Code` (five digits), or
    /// gRPC's own status (0 to 16) if the call ended without an answer.
    pub fn code(&self) -> Option<i32> {
        self.cause.code
    }
}

/// What usually helps against errors of a kind; sites that know better say so.
fn default_recovery(kind: ErrorKind) -> Recovery {
    match kind {
        ErrorKind::Transport | ErrorKind::Protocol => Recovery::AfterReconnect,
        ErrorKind::Timeout
        | ErrorKind::WouldBlock
        | ErrorKind::Throttled
        | ErrorKind::Unavailable
        | ErrorKind::Broker => Recovery::AfterBackoff,
        _ => Recovery::Never,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.cause.kind)
            .field("recovery", &self.cause.recovery)
            .field("delivery", &self.delivery)
            .field("text", &self.cause.text);
        if let Some(code) = self.cause.code {
            out.field("code", &code);
        }
        if let Some(source) = &self.cause.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A send that failed, and why; with the message if it was not accepted.
///
/// A message that is refused at admission is given back whole, to be sent again or kept, and its callback never
/// runs. Once a message is accepted its fate is told by an [`Error`] alone, and `message` is `None`.
pub struct SendError<M> {
    error: Error,
    message: Option<Box<M>>,
}

impl<M> SendError<M> {
    /// Refused at admission: the message goes back.
    pub(crate) fn new(error: Error, message: M) -> Self {
        Self { error, message: Some(Box::new(message)) }
    }

    /// Failed after it was accepted.
    pub(crate) fn accepted(error: Error) -> Self {
        Self { error, message: None }
    }

    /// The same with the message turned into what the user gave.
    pub(crate) fn map<N>(self, change: impl FnOnce(M) -> N) -> SendError<N> {
        SendError { error: self.error, message: self.message.map(|message| Box::new(change(*message))) }
    }

    /// Why it failed.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The message, unchanged, if it was not accepted.
    pub fn message(&self) -> Option<&M> {
        self.message.as_deref()
    }

    /// Takes both apart.
    pub fn into_parts(self) -> (Error, Option<M>) {
        (self.error, self.message.map(|message| *message))
    }

    /// What kind of thing went wrong; the same as `error().kind()`.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Whether the broker may hold the message; the same as `error().delivery()`.
    pub fn delivery(&self) -> Delivery {
        self.error.delivery()
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> StdError for SendError<M> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl<M> From<SendError<M>> for Error {
    fn from(failed: SendError<M>) -> Self {
        failed.error
    }
}
