//! What the broker saw, in order, with times.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::pulsar::message_id::MessageId;

/// Something that a client did, as the broker saw it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// When the bytes were read.
    pub at: Instant,
    /// Which connection: 1 for the first that the broker accepted, then rising, never used again.
    pub connection: u64,
    /// What it was.
    pub kind: EventKind,
}

/// What a client did. Topics are full names: `persistent://tenant/namespace/topic`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EventKind {
    /// A TCP connection came in.
    #[non_exhaustive]
    Accepted {
        /// The client's end.
        from: SocketAddr,
    },
    /// CONNECT.
    #[non_exhaustive]
    Connect {
        /// The protocol version that the client states.
        protocol_version: i32,
        /// The client's name and version.
        client_version: String,
        /// The authentication method; empty for none.
        auth_method: String,
        /// The credentials.
        auth_data: Bytes,
        /// Whether the client can renew its credentials on the open connection.
        supports_auth_refresh: bool,
        /// Whether the client reads the broker's own metadata before an entry.
        supports_broker_entry_metadata: bool,
        /// The broker behind the proxy that the client wants.
        proxy_to_broker_url: Option<String>,
    },
    /// AUTH_RESPONSE.
    #[non_exhaustive]
    AuthResponse {
        /// The authentication method.
        auth_method: String,
        /// The credentials.
        auth_data: Bytes,
    },
    /// PING.
    Ping,
    /// PONG.
    Pong,
    /// PARTITIONED_METADATA.
    #[non_exhaustive]
    Partitions {
        /// The topic.
        topic: Arc<str>,
    },
    /// LOOKUP.
    #[non_exhaustive]
    Lookup {
        /// The topic.
        topic: Arc<str>,
        /// As the redirect before it said; false on the first.
        authoritative: bool,
    },
    /// PRODUCER.
    #[non_exhaustive]
    Producer {
        /// The topic.
        topic: Arc<str>,
        /// The client's number for it.
        producer_id: u64,
        /// The name, if the client gave one.
        name: Option<String>,
        /// Whether the user chose the name. False for one that a broker made earlier.
        user_provided_name: bool,
        /// One more at each attempt.
        epoch: u64,
        /// 0 Shared, 1 Exclusive, 2 WaitForExclusive, 3 ExclusiveWithFencing.
        access_mode: i32,
        /// The topic epoch that the client holds.
        topic_epoch: Option<u64>,
    },
    /// SEND. Not recorded by a broker that discards.
    #[non_exhaustive]
    Send {
        /// The topic.
        topic: Arc<str>,
        /// The client's number for the producer.
        producer_id: u64,
        /// Of the first message.
        sequence_id: u64,
        /// Of the last message of a batch.
        highest: Option<u64>,
        /// As the command states it.
        num_messages: i32,
        /// Size of the whole frame, without its size word.
        bytes: usize,
        /// Whether the entry's checksum is right. Always true when checksums are not verified.
        intact: bool,
    },
    /// CLOSE_PRODUCER.
    #[non_exhaustive]
    CloseProducer {
        /// The client's number for the producer.
        producer_id: u64,
    },
    /// SUBSCRIBE.
    #[non_exhaustive]
    Subscribe {
        /// The topic.
        topic: Arc<str>,
        /// The subscription.
        subscription: Arc<str>,
        /// The client's number for the consumer.
        consumer_id: u64,
        /// The consumer's name, if it has one.
        consumer_name: Option<String>,
        /// 0 Exclusive, 1 Shared, 2 Failover, 3 Key_Shared.
        subscription_type: i32,
        /// Whether the subscription outlives its consumers.
        durable: bool,
        /// Where to start, for a reader.
        start: Option<MessageId>,
    },
    /// FLOW. Not recorded by a broker that discards.
    #[non_exhaustive]
    Flow {
        /// The client's number for the consumer.
        consumer_id: u64,
        /// Messages that the consumer takes in addition.
        permits: u32,
    },
    /// ACK. Not recorded by a broker that discards.
    #[non_exhaustive]
    Ack {
        /// The client's number for the consumer.
        consumer_id: u64,
        /// Everything up to the id.
        cumulative: bool,
        /// What is acknowledged.
        ids: Vec<MessageId>,
        /// Why the messages are given up: a number of the protocol's `ValidationError`.
        validation_error: Option<i32>,
        /// Whether the client wants an answer.
        wants_answer: bool,
    },
    /// REDELIVER_UNACKNOWLEDGED_MESSAGES.
    #[non_exhaustive]
    Redeliver {
        /// The client's number for the consumer.
        consumer_id: u64,
        /// Empty means everything.
        ids: Vec<MessageId>,
    },
    /// CLOSE_CONSUMER.
    #[non_exhaustive]
    CloseConsumer {
        /// The client's number for the consumer.
        consumer_id: u64,
    },
    /// UNSUBSCRIBE.
    #[non_exhaustive]
    Unsubscribe {
        /// The client's number for the consumer.
        consumer_id: u64,
    },
    /// SEEK.
    #[non_exhaustive]
    Seek {
        /// The client's number for the consumer.
        consumer_id: u64,
        /// Where to, by id.
        to: Option<MessageId>,
        /// Where to, by publish time in milliseconds since 1970.
        to_time: Option<u64>,
    },
    /// GET_LAST_MESSAGE_ID.
    #[non_exhaustive]
    LastMessageId {
        /// The client's number for the consumer.
        consumer_id: u64,
    },
    /// A command that this broker does not play; the protocol's number of its type.
    Other(i32),
    /// Bytes that are not the protocol. The broker closes the connection.
    Malformed(String),
    /// The connection is gone.
    #[non_exhaustive]
    ConnectionClosed {
        /// Whether it ended with a reset (RST), not with a FIN.
        by_reset: bool,
        /// Whether the client ended it. False: the broker did.
        by_client: bool,
    },
}

/// The events, shared with whoever waits for one.
#[derive(Debug, Default)]
pub(super) struct Log {
    events: Mutex<Vec<Event>>,
    grown: Condvar,
}

impl Log {
    pub(super) fn append(&self, events: &mut Vec<Event>) {
        if !events.is_empty() {
            self.events.lock().append(events);
            self.grown.notify_all();
        }
    }

    pub(super) fn all(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// Runs `until` on what is there and again whenever there is more. It runs outside of the lock, so that it
    /// may ask the broker anything.
    pub(super) fn wait(&self, end: Instant, mut until: impl FnMut(&[Event]) -> bool) -> bool {
        let mut seen = Vec::new();
        loop {
            if until(&seen) {
                return true;
            }
            let mut events = self.events.lock();
            while events.len() == seen.len() {
                if self.grown.wait_until(&mut events, end).timed_out() && events.len() == seen.len() {
                    return false;
                }
            }
            seen.extend_from_slice(events.get(seen.len()..).unwrap_or_default());
        }
    }
}
