//! Reads entries and batches.

use bytes::Bytes;

use super::{Metadata, SingleMetadata};
use crate::pulsar::wire::frame::WireError;

/// An entry, taken apart. The payload may still be compressed and a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) broker_entry: Option<BrokerEntry>,
    pub(crate) metadata: Metadata,
    pub(crate) payload: Bytes,
}

/// What the broker adds to an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BrokerEntry {
    /// Milliseconds since 1970, by the broker's clock.
    pub(crate) timestamp: Option<u64>,
    /// Index of the entry's last message in the topic.
    pub(crate) index: Option<u64>,
}

/// Takes an entry apart and checks its checksum, if it has one.
pub(crate) fn parse_entry(entry: Bytes) -> Result<Entry, WireError> {
    todo!("{entry:?}")
}

/// The messages of a batch, in order. Ends after the first error.
#[derive(Debug)]
pub(crate) struct BatchReader {
    rest: Bytes,
    count: i32,
    next: i32,
}

/// One message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchItem {
    pub(crate) index: i32,
    pub(crate) metadata: SingleMetadata,
    pub(crate) payload: Bytes,
}

impl BatchReader {
    /// `payload` after decompression; `count` is the entry's `num_messages_in_batch`.
    pub(crate) fn new(payload: Bytes, count: i32) -> Self {
        Self { rest: payload, count, next: 0 }
    }
}

impl Iterator for BatchReader {
    type Item = Result<BatchItem, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        todo!("{:?} {} {}", self.rest, self.count, self.next)
    }
}
