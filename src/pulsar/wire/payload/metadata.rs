//! Reads message metadata.

use bytes::Bytes;

use super::Key;

/// The metadata of an entry: a message, or what the messages of a batch share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) producer_name: String,
    pub(crate) sequence_id: u64,
    /// Milliseconds since 1970, by the producer's clock.
    pub(crate) publish_time: u64,
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) partition_key: Option<Key>,
    pub(crate) ordering_key: Option<Bytes>,
    /// A number of the protocol's `CompressionType`, also when this build does not know it.
    pub(crate) compression: i32,
    pub(crate) uncompressed_size: u32,
    /// Present: the payload is a batch, also of one.
    pub(crate) num_messages_in_batch: Option<i32>,
    pub(crate) event_time: Option<u64>,
    pub(crate) deliver_at_time: Option<i64>,
    pub(crate) highest_sequence_id: Option<u64>,
    pub(crate) null_value: bool,
    /// Present: written by the broker for itself; not for users.
    pub(crate) marker_type: Option<i32>,
    pub(crate) compacted_batch_indexes: Vec<i32>,
    pub(crate) replicated_from: Option<String>,
    pub(crate) schema_version: Option<Bytes>,
    pub(crate) chunk: Option<Chunk>,
    /// The payload is encrypted.
    pub(crate) encrypted: bool,
}

/// Which piece of a message in several entries this is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) uuid: String,
    pub(crate) id: i32,
    pub(crate) count: i32,
    /// Of all chunks together, still compressed.
    pub(crate) total_size: i32,
}

/// The metadata of one message of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SingleMetadata {
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) partition_key: Option<Key>,
    pub(crate) event_time: Option<u64>,
    pub(crate) ordering_key: Option<Bytes>,
    pub(crate) sequence_id: Option<u64>,
    pub(crate) null_value: bool,
    /// Removed by compaction: skip it.
    pub(crate) compacted_out: bool,
}
