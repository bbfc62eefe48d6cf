//! Writes whole SEND frames.

use super::Content;
use crate::pulsar::wire::compress::{CompressError, Compression};

/// What a SEND states about its entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendHeader<'a> {
    pub(crate) producer_id: u64,
    pub(crate) producer_name: &'a str,
    /// Of the first message.
    pub(crate) sequence_id: u64,
    pub(crate) publish_time_ms: u64,
}

/// Appends the frame of one message outside of a batch. Returns the size that the broker's limit is about:
/// metadata and payload after compression. On an error `out` is as it was.
pub(crate) fn encode_single_send(
    header: &SendHeader<'_>,
    content: &Content,
    compression: Compression,
    out: &mut Vec<u8>,
) -> Result<usize, CompressError> {
    todo!("{header:?} {content:?} {compression:?} {out:?}")
}

/// Collects the messages of a batch and writes its frame. Made once and used again.
#[derive(Debug, Default)]
pub(crate) struct BatchWriter {
    body: Vec<u8>,
    count: i32,
}

impl BatchWriter {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a message. Its `deliver_at` is not written: such a message must travel alone.
    pub(crate) fn push(&mut self, sequence_id: u64, content: &Content) {
        todo!("{sequence_id} {content:?}")
    }

    /// Messages so far.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }

    /// Bytes so far, before compression and without the entry's own metadata.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The most that [`push`](Self::push) of this message adds to [`bytes`](Self::bytes).
    pub(crate) fn single_size(content: &Content) -> usize {
        todo!("{content:?}")
    }

    /// Appends the frame and starts afresh, also after an error; then `out` is as it was. Returns the size that
    /// the broker's limit is about: metadata and payload after compression.
    pub(crate) fn finish(
        &mut self,
        header: &SendHeader<'_>,
        highest_sequence_id: u64,
        compression: Compression,
        out: &mut Vec<u8>,
    ) -> Result<usize, CompressError> {
        todo!("{header:?} {highest_sequence_id} {compression:?} {out:?}")
    }

    /// Forgets the messages.
    pub(crate) fn clear(&mut self) {
        self.body.clear();
        self.count = 0;
    }
}
