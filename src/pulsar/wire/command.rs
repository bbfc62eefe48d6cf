//! Commands in both directions: the frequent ones as small types of our own, the rest as generated types.

#[cfg(any(test, feature = "testkit"))]
mod answers;
mod build;
mod decode;
mod encode;

#[cfg(any(test, feature = "testkit"))]
pub(crate) use answers::*;
pub(crate) use build::*;
use bytes::Bytes;
pub(crate) use decode::decode;
pub(crate) use encode::*;

use super::pb;

/// One frame, decoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    Send(Send),
    SendReceipt(SendReceipt),
    Message(Message),
    Ack(Ack),
    Flow {
        consumer_id: u64,
        permits: u32,
    },
    Ping,
    Pong,
    /// Any other command of the protocol; the part that its type names is present.
    Other(Box<pb::BaseCommand>),
    /// A type number that this build does not know. Not an error: newer brokers may announce things.
    Unknown(i32),
}

/// Where an entry is, or a message in it. Absent numbers read as the protocol's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MessageIdData {
    pub(crate) ledger: u64,
    pub(crate) entry: u64,
    /// −1 when the topic is not partitioned.
    pub(crate) partition: i32,
    /// −1 when the whole entry is meant.
    pub(crate) batch_index: i32,
    /// 0 when not known.
    pub(crate) batch_size: i32,
    /// Words of the bit set of a batch. From the client: 1 = still unacknowledged.
    pub(crate) ack_set: Vec<i64>,
}

impl MessageIdData {
    /// The id of a whole entry of a topic without partitions.
    pub(crate) fn new(ledger: u64, entry: u64) -> Self {
        Self { ledger, entry, partition: -1, batch_index: -1, batch_size: 0, ack_set: Vec::new() }
    }
}

/// SEND. A client writes it in one go with the entry (see `payload`); this form is what a broker reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Send {
    pub(crate) producer_id: u64,
    pub(crate) sequence_id: u64,
    pub(crate) num_messages: i32,
    pub(crate) highest_sequence_id: Option<u64>,
    pub(crate) is_chunk: bool,
    pub(crate) entry: Bytes,
}

/// SEND_RECEIPT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SendReceipt {
    pub(crate) producer_id: u64,
    pub(crate) sequence_id: u64,
    pub(crate) highest_sequence_id: Option<u64>,
    pub(crate) message_id: Option<MessageIdData>,
}

/// MESSAGE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) consumer_id: u64,
    pub(crate) message_id: MessageIdData,
    pub(crate) redelivery_count: u32,
    /// Words of the bit set of a batch; 0 = already acknowledged. Empty: all are to be delivered.
    pub(crate) ack_set: Vec<i64>,
    pub(crate) consumer_epoch: Option<u64>,
    pub(crate) entry: Bytes,
}

/// ACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) consumer_id: u64,
    pub(crate) cumulative: bool,
    pub(crate) message_ids: Vec<MessageIdData>,
    /// Why the messages are given up: a number of the protocol's `ValidationError`.
    pub(crate) validation_error: Option<i32>,
    /// Set when an ACK_RESPONSE is wanted.
    pub(crate) request_id: Option<u64>,
}
