//! Entries: what follows the command in SEND and MESSAGE. Metadata, checksum, batches.

mod base64;
mod metadata;
mod read;
mod write;

use bytes::Bytes;
#[cfg(test)]
pub(crate) use metadata::Chunk;
pub(crate) use metadata::{Metadata, SingleMetadata};
#[cfg(test)]
pub(crate) use read::{BatchItem, BrokerEntry, Entry};
pub(crate) use read::{BatchReader, parse_entry};
pub(crate) use write::{BatchWriter, SendHeader, encode_single_send};

pub(crate) use super::compress::decompress;
use super::compress::{CompressError, Compression, compress};

/// Before the broker's own metadata.
const BROKER_ENTRY_MAGIC: [u8; 2] = [0x0e, 0x02];
/// Before the checksum.
const CHECKSUM_MAGIC: [u8; 2] = [0x0e, 0x01];

/// What an outgoing message holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) payload: Bytes,
    /// Absent in the common case of a bare body, which then costs no more than the body.
    pub(crate) extras: Option<Box<Extras>>,
}

/// What a message may carry beside its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) key: Option<Key>,
    pub(crate) ordering_key: Option<Bytes>,
    /// Milliseconds since 1970, chosen by the user.
    pub(crate) event_time: Option<u64>,
    /// Milliseconds since 1970. Such a message travels alone, never in a batch.
    pub(crate) deliver_at: Option<i64>,
    /// "No value", which is not the same as an empty one.
    pub(crate) null_value: bool,
    /// The body's size before it was compressed, if that was done already. Such a message travels alone.
    pub(crate) packed: Option<u32>,
}

impl Content {
    /// Compresses the body here and now, so that the loop need not. Gives the body as it was, for
    /// [`unpack`](Self::unpack).
    pub(crate) fn pack(&mut self, compression: Compression) -> Result<Bytes, CompressError> {
        let size = u32::try_from(self.payload.len()).map_err(|_| CompressError::TooLarge)?;
        let mut packed = Vec::new();
        compress(compression, &self.payload, &mut packed)?;
        self.extras.get_or_insert_with(Box::default).packed = Some(size);
        Ok(std::mem::replace(&mut self.payload, packed.into()))
    }

    /// Takes [`pack`](Self::pack) back.
    pub(crate) fn unpack(&mut self, body: Bytes) {
        self.payload = body;
        if let Some(extras) = &mut self.extras {
            extras.packed = None;
        }
    }

    /// The bytes that travel: none if there is no value.
    fn body(&self) -> &[u8] {
        match &self.extras {
            Some(extras) if extras.null_value => &[],
            _ => &self.payload,
        }
    }
}

/// A partition key. Keys of bytes travel in base64.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Text(String),
    Bytes(Bytes),
}
