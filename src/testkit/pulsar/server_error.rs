//! The protocol's error codes, as a test names them.

use std::fmt;

/// An error code that a broker answers with; see [`Broker::fail_next`](super::Broker::fail_next).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerError(i32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl ServerError {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The broker failed in a way of its own.
    UNKNOWN = 0;
    /// The metadata store failed.
    METADATA = 1;
    /// The storage failed.
    PERSISTENCE = 2;
    /// The credentials are not accepted.
    AUTHENTICATION = 3;
    /// The credentials do not allow this.
    AUTHORIZATION = 4;
    /// Another consumer has the exclusive subscription.
    CONSUMER_BUSY = 5;
    /// The broker starts, or the topic is moving.
    SERVICE_NOT_READY = 6;
    /// The backlog is over its quota; the client may keep what it has pending.
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7;
    /// The backlog is over its quota; clients usually fail what they have pending.
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8;
    /// The entry was damaged on its way.
    CHECKSUM = 9;
    /// The protocol version is not spoken.
    UNSUPPORTED_VERSION = 10;
    /// The topic does not exist.
    TOPIC_NOT_FOUND = 11;
    /// The subscription does not exist.
    SUBSCRIPTION_NOT_FOUND = 12;
    /// The consumer does not exist.
    CONSUMER_NOT_FOUND = 13;
    /// Too many requests at once.
    TOO_MANY_REQUESTS = 14;
    /// The topic is terminated: nothing can be written any more.
    TOPIC_TERMINATED = 15;
    /// Another producer has this name.
    PRODUCER_BUSY = 16;
    /// The name of the topic is not valid.
    INVALID_TOPIC_NAME = 17;
    /// The schema does not fit that of the topic.
    INCOMPATIBLE_SCHEMA = 18;
    /// The consumer's key range is taken.
    CONSUMER_ASSIGN = 19;
    /// There is no coordinator for the transaction.
    TRANSACTION_COORDINATOR_NOT_FOUND = 20;
    /// The transaction's state does not allow this.
    INVALID_TXN_STATUS = 21;
    /// The broker does not allow this.
    NOT_ALLOWED = 22;
    /// Two transactions collide.
    TRANSACTION_CONFLICT = 23;
    /// The transaction does not exist.
    TRANSACTION_NOT_FOUND = 24;
    /// An exclusive producer is there, or has been since.
    PRODUCER_FENCED = 25;
}

impl ServerError {
    /// The error of this number, also of one that the protocol does not define: newer brokers may send such.
    pub const fn from_code(code: i32) -> Self {
        Self(code)
    }

    /// The number on the wire.
    pub const fn code(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "ServerError({})", self.0),
        }
    }
}
