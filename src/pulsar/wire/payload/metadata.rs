//! Reads message metadata.

use bytes::Bytes;

use super::{Key, base64};
use crate::pulsar::wire::field::{Fields, Value};
use crate::pulsar::wire::frame::WireError;

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

impl Metadata {
    /// `message` is a part of `memory`, which byte fields go on sharing.
    pub(super) fn decode(message: &[u8], memory: &Bytes) -> Result<Self, WireError> {
        let mut this = Self::default();
        let mut seen = Required::default();
        let mut key = RawKey::default();
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    this.producer_name = value.text()?;
                    seen.producer_name = true;
                }
                2 => {
                    this.sequence_id = value.u64()?;
                    seen.sequence_id = true;
                }
                3 => {
                    this.publish_time = value.u64()?;
                    seen.publish_time = true;
                }
                8 => this.compression = value.i32()?,
                9 => this.uncompressed_size = value.u32()?,
                11 => this.num_messages_in_batch = Some(value.i32()?),
                24 => this.highest_sequence_id = Some(value.u64()?),
                6 => key.text = Some(value.bytes()?),
                17 => key.is_base64 = value.bool()?,
                _ => this.rare_field(number, value, memory)?,
            }
        }
        seen.check()?;
        this.partition_key = key.decode();
        Ok(this)
    }

    fn rare_field(&mut self, number: u32, value: Value<'_>, memory: &Bytes) -> Result<(), WireError> {
        match number {
            4 => self.properties.push(key_value(value.bytes()?)?),
            5 => self.replicated_from = Some(value.text()?),
            12 => self.event_time = Some(value.u64()?),
            13..=15 => self.encrypted = true,
            16 => self.schema_version = Some(memory.slice_ref(value.bytes()?)),
            18 => self.ordering_key = Some(memory.slice_ref(value.bytes()?)),
            19 => self.deliver_at_time = Some(value.i64()?),
            20 => self.marker_type = Some(value.i32()?),
            25 => self.null_value = value.bool()?,
            26 => self.chunk_mut().uuid = value.text()?,
            27 => self.chunk_mut().count = value.i32()?,
            28 => self.chunk_mut().total_size = value.i32()?,
            29 => self.chunk_mut().id = value.i32()?,
            31 => value.repeated(|index| self.compacted_batch_indexes.push(index as i32))?,
            _ => {}
        }
        Ok(())
    }

    fn chunk_mut(&mut self) -> &mut Chunk {
        self.chunk.get_or_insert_default()
    }
}

impl SingleMetadata {
    /// `message` is a part of `memory`, which byte fields go on sharing. Gives the size of the body, too.
    #[inline]
    pub(super) fn decode(message: &[u8], memory: &Bytes) -> Result<(Self, usize), WireError> {
        let mut this = Self::default();
        let mut payload_size = None;
        let mut key = RawKey::default();
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => this.properties.push(key_value(value.bytes()?)?),
                2 => key.text = Some(value.bytes()?),
                3 => payload_size = Some(value.i32()?),
                4 => this.compacted_out = value.bool()?,
                5 => this.event_time = Some(value.u64()?),
                6 => key.is_base64 = value.bool()?,
                7 => this.ordering_key = Some(memory.slice_ref(value.bytes()?)),
                8 => this.sequence_id = Some(value.u64()?),
                9 => this.null_value = value.bool()?,
                _ => {}
            }
        }
        this.partition_key = key.decode();
        let payload_size = payload_size.ok_or(WireError::MissingField("payload_size"))?;
        Ok((this, usize::try_from(payload_size).map_err(|_| WireError::BadLength)?))
    }
}

#[derive(Default)]
struct Required {
    producer_name: bool,
    sequence_id: bool,
    publish_time: bool,
}

impl Required {
    fn check(&self) -> Result<(), WireError> {
        if !self.producer_name {
            return Err(WireError::MissingField("producer_name"));
        }
        if !self.sequence_id {
            return Err(WireError::MissingField("sequence_id"));
        }
        if !self.publish_time {
            return Err(WireError::MissingField("publish_time"));
        }
        Ok(())
    }
}

/// A partition key as it travels. Whether it is base64 may come before or after it.
#[derive(Default)]
struct RawKey<'a> {
    text: Option<&'a [u8]>,
    is_base64: bool,
}

impl RawKey<'_> {
    /// A key that claims to be base64 and is not is given as it came.
    fn decode(self) -> Option<Key> {
        let text = self.text?;
        let decoded = if self.is_base64 { base64::decode(text) } else { None };
        Some(match decoded {
            Some(bytes) => Key::Bytes(bytes.into()),
            None => Key::Text(String::from_utf8_lossy(text).into_owned()),
        })
    }
}

fn key_value(message: &[u8]) -> Result<(String, String), WireError> {
    let (mut key, mut content) = (None, None);
    let mut fields = Fields::new(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = Some(value.text()?),
            2 => content = Some(value.text()?),
            _ => {}
        }
    }
    match (key, content) {
        (Some(key), Some(content)) => Ok((key, content)),
        _ => Err(WireError::MissingField("key or value")),
    }
}
