//! Reads entries and batches.

use bytes::{Buf, Bytes};

use super::{BROKER_ENTRY_MAGIC, CHECKSUM_MAGIC, Metadata, SingleMetadata};
use crate::pulsar::wire::field::Fields;
use crate::pulsar::wire::frame::{WORD, WireError};

/// The least that a message takes in a batch: its metadata's size, and `payload_size` in the metadata.
const LEAST_SINGLE: usize = WORD + 2;

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
pub(crate) fn parse_entry(mut entry: Bytes) -> Result<Entry, WireError> {
    let mut broker_entry = None;
    if entry.starts_with(&BROKER_ENTRY_MAGIC) {
        entry.advance(BROKER_ENTRY_MAGIC.len());
        let size = take_word(&mut entry)?;
        let message = entry.get(..size).ok_or(WireError::Truncated)?;
        broker_entry = Some(BrokerEntry::decode(message)?);
        entry.advance(size);
    }
    if entry.starts_with(&CHECKSUM_MAGIC) {
        entry.advance(CHECKSUM_MAGIC.len());
        let stated = take_word(&mut entry)?;
        if usize::try_from(crc32c::crc32c(&entry)) != Ok(stated) {
            return Err(WireError::ChecksumMismatch);
        }
    }
    let size = take_word(&mut entry)?;
    let message = entry.get(..size).ok_or(WireError::Truncated)?;
    let metadata = Metadata::decode(message, &entry)?;
    entry.advance(size);
    Ok(Entry { broker_entry, metadata, payload: entry })
}

#[inline]
fn take_word(entry: &mut Bytes) -> Result<usize, WireError> {
    let word = *entry.first_chunk::<WORD>().ok_or(WireError::Truncated)?;
    entry.advance(WORD);
    usize::try_from(u32::from_be_bytes(word)).map_err(|_| WireError::BadLength)
}

impl BrokerEntry {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut this = Self::default();
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => this.timestamp = Some(value.u64()?),
                2 => this.index = Some(value.u64()?),
                _ => {}
            }
        }
        Ok(this)
    }
}

/// The messages of a batch, in order. Ends after the first error.
#[derive(Debug)]
pub(crate) struct BatchReader {
    rest: Bytes,
    /// Messages still to come, or why the batch as a whole is refused.
    left: Result<usize, WireError>,
    index: i32,
}

/// One message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchItem {
    pub(crate) index: i32,
    pub(crate) metadata: SingleMetadata,
    pub(crate) payload: Bytes,
}

impl BatchReader {
    /// `payload` after decompression; `count` is the entry's `num_messages_in_batch`. A count that the payload
    /// cannot hold is an error before the first message.
    pub(crate) fn new(payload: Bytes, count: i32) -> Self {
        let left = match usize::try_from(count) {
            Ok(count) if count <= payload.len() / LEAST_SINGLE => Ok(count),
            Ok(_) => Err(WireError::Truncated),
            Err(_) => Err(WireError::BadLength),
        };
        Self { rest: payload, left, index: 0 }
    }

    #[inline]
    fn take_one(&mut self) -> Result<BatchItem, WireError> {
        let size = take_word(&mut self.rest)?;
        let message = self.rest.get(..size).ok_or(WireError::Truncated)?;
        let (metadata, payload_size) = SingleMetadata::decode(message, &self.rest)?;
        self.rest.advance(size);
        if self.rest.len() < payload_size {
            return Err(WireError::Truncated);
        }
        Ok(BatchItem { index: self.index, metadata, payload: self.rest.split_to(payload_size) })
    }
}

impl Iterator for BatchReader {
    type Item = Result<BatchItem, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let taken = match self.left {
            Ok(0) => return None,
            Ok(left) => {
                self.left = Ok(left - 1);
                self.take_one()
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(_) => self.index += 1,
            Err(_) => self.left = Ok(0),
        }
        Some(taken)
    }
}
