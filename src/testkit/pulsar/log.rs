//! What the broker saw, in order, with times.

use std::collections::VecDeque;
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

impl EventKind {
    /// What comes again and again for as long as a client works, and tells nothing about its sessions.
    fn is_traffic(&self) -> bool {
        matches!(
            self,
            Self::Send { .. } | Self::Ack { .. } | Self::Flow { .. } | Self::Redeliver { .. } | Self::Ping | Self::Pong
        )
    }
}

/// The events, shared with whoever waits for one.
#[derive(Debug)]
pub(super) struct Log {
    kept: Mutex<Kept>,
    grown: Condvar,
}

/// What is still there of all events, each with its number.
#[derive(Debug)]
struct Kept {
    limit: usize,
    traffic: VecDeque<(u64, Event)>,
    sessions: VecDeque<(u64, Event)>,
    next: u64,
    dropped: u64,
}

impl Log {
    pub(super) fn new(limit: usize) -> Self {
        let kept = Kept { limit, traffic: VecDeque::new(), sessions: VecDeque::new(), next: 0, dropped: 0 };
        Self { kept: Mutex::new(kept), grown: Condvar::new() }
    }

    pub(super) fn append(&self, events: &mut Vec<Event>) {
        if !events.is_empty() {
            self.kept.lock().append(events);
            self.grown.notify_all();
        }
    }

    pub(super) fn all(&self) -> Vec<Event> {
        self.kept.lock().since(0)
    }

    /// Runs `until` on what is there and again whenever there is more. It runs outside of the lock, so that it
    /// may ask the broker anything.
    pub(super) fn wait(&self, end: Instant, mut until: impl FnMut(&[Event]) -> bool) -> bool {
        let mut seen = Vec::new();
        let (mut next, mut dropped) = (0, 0);
        loop {
            if until(&seen) {
                return true;
            }
            let mut kept = self.kept.lock();
            while kept.next == next {
                if self.grown.wait_until(&mut kept, end).timed_out() && kept.next == next {
                    return false;
                }
            }
            if kept.dropped == dropped {
                seen.append(&mut kept.since(next));
            } else {
                seen = kept.since(0);
            }
            (next, dropped) = (kept.next, kept.dropped);
        }
    }
}

impl Kept {
    fn append(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            let queue = if event.kind.is_traffic() { &mut self.traffic } else { &mut self.sessions };
            queue.push_back((self.next, event));
            self.next += 1;
        }
        let count = self.traffic.len() + self.sessions.len();
        if count > self.limit {
            // Some more than needed, so that those who wait do not read everything anew each time.
            self.drop_oldest(count - self.limit + self.limit / 8);
        }
    }

    fn drop_oldest(&mut self, count: usize) {
        let traffic = count.min(self.traffic.len());
        self.traffic.drain(..traffic);
        let sessions = (count - traffic).min(self.sessions.len());
        self.sessions.drain(..sessions);
        self.dropped += (traffic + sessions) as u64;
    }

    /// The events from this number on, in order.
    fn since(&self, number: u64) -> Vec<Event> {
        let from = |queue: &VecDeque<(u64, Event)>| queue.partition_point(|(at, _)| *at < number);
        let mut traffic = self.traffic.range(from(&self.traffic)..).peekable();
        let mut sessions = self.sessions.range(from(&self.sessions)..).peekable();
        let mut merged = Vec::with_capacity(traffic.len() + sessions.len());
        loop {
            let first = match (traffic.peek(), sessions.peek()) {
                (Some((one, _)), Some((other, _))) if one < other => traffic.next(),
                (_, Some(_)) => sessions.next(),
                (_, None) => traffic.next(),
            };
            match first {
                Some((_, event)) => merged.push(event.clone()),
                None => return merged,
            }
        }
    }
}
