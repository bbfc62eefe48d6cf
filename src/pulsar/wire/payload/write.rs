//! Writes whole SEND frames.

use bytes::Bytes;

use super::{CHECKSUM_MAGIC, Content, Extras, Key, base64};
use crate::pulsar::wire::command::{begin, end_command, end_frame, put_send};
use crate::pulsar::wire::compress::{CompressError, Compression, compress};
use crate::pulsar::wire::field::{
    put_bool, put_bytes, put_bytes_header, put_i32, put_message, put_u64, reserve_word, set_length, set_word,
};
use crate::pulsar::wire::frame::WORD;

/// The most that metadata without the user's parts takes, and a command: for one reservation instead of many.
const HEADER_ROOM: usize = 192;

/// The most that SingleMessageMetadata takes with its size word, but without the user's parts.
const SINGLE_ROOM: usize = WORD + 6 + 11;

/// Sizes on the wire are signed 32-bit numbers; the limit of every broker is far below.
const MAX_BODY: usize = i32::MAX as usize - 64 * 1024;

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
    let packed = content.extras.as_ref().and_then(|extras| extras.packed);
    let body = content.body();
    let uncompressed = packed.map_or(body.len(), |size| usize::try_from(size).unwrap_or(usize::MAX));
    let frame = Frame { header, num_messages: 1, highest_sequence_id: None, uncompressed, compression };
    let start = out.len();
    let written = frame.write(out, packed.is_some(), body, |out| {
        if let Some(extras) = content.extras.as_deref() {
            put_properties(out, 4, &extras.properties);
            put_keys(out, extras, KeyFields { key: 6, is_base64: 17, ordering_key: 18 });
            if let Some(time) = extras.event_time {
                put_u64(out, 12, time);
            }
            if let Some(time) = extras.deliver_at {
                put_u64(out, 19, time as u64);
            }
            if extras.null_value {
                put_bool(out, 25, true);
            }
        }
    });
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Collects the messages of a batch and writes its frame. Made once and used again.
///
/// What goes before the messages is known only after the last one, so room is left for it in front of them: they
/// are written where they stay.
#[derive(Debug, Default)]
pub(crate) struct BatchWriter {
    /// Room for the head, and the messages.
    body: Vec<u8>,
    room: usize,
    count: i32,
    /// Key and ordering key of the first message, as fields of the entry's metadata.
    keys: Vec<u8>,
    head: Vec<u8>,
}

impl BatchWriter {
    /// Starts a batch of messages that take about `bytes`, for a producer of this name.
    pub(crate) fn start(&mut self, producer_name: &str, bytes: usize) {
        self.clear();
        self.room = HEADER_ROOM + producer_name.len();
        self.body.reserve(self.room + bytes);
        self.body.resize(self.room, 0);
    }

    /// Adds a message. Its `deliver_at` is not written: such a message must travel alone.
    pub(crate) fn push(&mut self, sequence_id: u64, content: &Content) {
        let payload = content.body();
        if self.count == 0 {
            if let Some(extras) = content.extras.as_deref() {
                put_keys(&mut self.keys, extras, KeyFields { key: 6, is_base64: 17, ordering_key: 18 });
                self.room += self.keys.len();
                self.body.resize(self.room, 0);
            }
        }
        let out = &mut self.body;
        out.reserve(SINGLE_ROOM + payload.len());
        let size = reserve_word(out);
        if let Some(extras) = content.extras.as_deref() {
            put_properties(out, 1, &extras.properties);
            put_keys(out, extras, KeyFields { key: 2, is_base64: 6, ordering_key: 7 });
            if let Some(time) = extras.event_time {
                put_u64(out, 5, time);
            }
            if extras.null_value {
                put_bool(out, 9, true);
            }
        }
        put_i32(out, 3, i32::try_from(payload.len()).unwrap_or(i32::MAX));
        put_u64(out, 8, sequence_id);
        set_length(out, size);
        out.extend_from_slice(payload);
        self.count = self.count.saturating_add(1);
    }

    /// Messages so far.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }

    /// Bytes so far, before compression and without the entry's own metadata.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.body.len().saturating_sub(self.room)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The most that [`push`](Self::push) of this message adds to [`bytes`](Self::bytes).
    pub(crate) fn single_size(content: &Content) -> usize {
        let mut size = SINGLE_ROOM + content.body().len();
        if let Some(extras) = content.extras.as_deref() {
            // Two more lengths a property, each with tag, and the pair's own.
            size += extras.properties.iter().map(|(key, value)| 18 + key.len() + value.len()).sum::<usize>();
            size += match &extras.key {
                Some(Key::Text(text)) => 6 + text.len(),
                Some(Key::Bytes(bytes)) => 8 + base64::encoded_len(bytes.len()),
                None => 0,
            };
            size += extras.ordering_key.as_ref().map_or(0, |key| 6 + key.len());
            size += 11 + 2;
        }
        size
    }

    /// The frame, and the size that the broker's limit is about: metadata and payload after compression. Starts
    /// afresh, also after an error.
    pub(crate) fn finish(
        &mut self,
        header: &SendHeader<'_>,
        highest_sequence_id: u64,
        compression: Compression,
    ) -> Result<(Bytes, usize), CompressError> {
        let count = self.count;
        let messages = self.body.get(self.room..).unwrap_or_default();
        let highest = Some(highest_sequence_id);
        let uncompressed = messages.len();
        let frame = Frame { header, num_messages: count, highest_sequence_id: highest, uncompressed, compression };
        let metadata = |out: &mut Vec<u8>| {
            out.extend_from_slice(&self.keys);
            put_i32(out, 11, count);
            put_u64(out, 24, highest_sequence_id);
        };
        self.head.clear();
        if compression == Compression::None || messages.is_empty() {
            let marks = frame.begin(&mut self.head, metadata);
            let size = frame.end(&mut self.head, marks, messages)?;
            if let Some(unused) = self.room.checked_sub(self.head.len()) {
                if let Some(room) = self.body.get_mut(unused..self.room) {
                    room.copy_from_slice(&self.head);
                }
                let written = std::mem::take(&mut self.body);
                self.clear();
                return Ok((Bytes::from(written).slice(unused..), size));
            }
            // Only if the reckoning above misses a field.
            self.head.extend_from_slice(messages);
            self.clear();
            return Ok((Bytes::copy_from_slice(&self.head), size));
        }
        let size = frame.write(&mut self.head, false, messages, metadata);
        self.clear();
        Ok((Bytes::copy_from_slice(&self.head), size?))
    }

    /// As [`finish`](Self::finish), appended to `out`.
    #[cfg(test)]
    pub(crate) fn finish_into(
        &mut self,
        header: &SendHeader<'_>,
        highest_sequence_id: u64,
        compression: Compression,
        out: &mut Vec<u8>,
    ) -> Result<usize, CompressError> {
        let (frame, size) = self.finish(header, highest_sequence_id, compression)?;
        out.extend_from_slice(&frame);
        Ok(size)
    }

    /// Forgets the messages.
    pub(crate) fn clear(&mut self) {
        self.body.clear();
        self.keys.clear();
        self.count = 0;
        self.room = 0;
    }
}

/// A SEND frame but for the part of the metadata that differs between a message and a batch.
struct Frame<'a> {
    header: &'a SendHeader<'a>,
    num_messages: i32,
    highest_sequence_id: Option<u64>,
    /// The size of the body before it was compressed.
    uncompressed: usize,
    compression: Compression,
}

/// Where in a frame the words stand that are filled in last.
struct Marks {
    start: usize,
    checksum: usize,
    size: usize,
}

impl Frame<'_> {
    /// Appends the frame; on an error `out` holds a part of it. A body that is `packed` is compressed already.
    fn write(
        &self,
        out: &mut Vec<u8>,
        packed: bool,
        body: &[u8],
        metadata: impl FnOnce(&mut Vec<u8>),
    ) -> Result<usize, CompressError> {
        if body.len() > MAX_BODY {
            return Err(CompressError::TooLarge);
        }
        let as_is = packed || self.compression() == Compression::None;
        out.reserve(HEADER_ROOM + self.header.producer_name.len() + if as_is { body.len() } else { 0 });
        let marks = self.begin(out, metadata);
        compress(if as_is { Compression::None } else { self.compression }, body, out)?;
        self.end(out, marks, &[])
    }

    /// Nothing to gain on nothing, and an empty body then needs no care on the other side.
    fn compression(&self) -> Compression {
        if self.uncompressed == 0 { Compression::None } else { self.compression }
    }

    /// Appends everything before the body.
    fn begin(&self, out: &mut Vec<u8>, metadata: impl FnOnce(&mut Vec<u8>)) -> Marks {
        let header = self.header;
        let start = out.len();
        begin(out);
        put_send(out, header.producer_id, header.sequence_id, self.num_messages, self.highest_sequence_id, false);
        end_command(out, start);

        out.extend_from_slice(&CHECKSUM_MAGIC);
        let checksum = reserve_word(out);
        let size = reserve_word(out);
        put_bytes(out, 1, header.producer_name.as_bytes());
        put_u64(out, 2, header.sequence_id);
        put_u64(out, 3, header.publish_time_ms);
        let compression = self.compression();
        if compression != Compression::None {
            put_i32(out, 8, compression.number());
        }
        put_u64(out, 9, self.uncompressed as u64);
        metadata(out);
        set_length(out, size);
        Marks { start, checksum, size }
    }

    /// Fills in sizes and checksum, where `rest` is what follows `out`.
    fn end(&self, out: &mut [u8], marks: Marks, rest: &[u8]) -> Result<usize, CompressError> {
        let counted = out.len().saturating_sub(marks.size + WORD).saturating_add(rest.len());
        if counted > MAX_BODY {
            return Err(CompressError::TooLarge);
        }
        let sum = crc32c::crc32c(out.get(marks.size..).unwrap_or_default());
        set_word(out, marks.checksum, crc32c::crc32c_append(sum, rest));
        end_frame(out, marks.start, rest.len());
        Ok(counted)
    }
}

/// The numbers of the key fields, which differ between an entry and a message in a batch.
struct KeyFields {
    key: u32,
    is_base64: u32,
    ordering_key: u32,
}

fn put_keys(out: &mut Vec<u8>, extras: &Extras, fields: KeyFields) {
    match &extras.key {
        Some(Key::Text(text)) => put_bytes(out, fields.key, text.as_bytes()),
        Some(Key::Bytes(bytes)) => {
            put_bytes_header(out, fields.key, base64::encoded_len(bytes.len()));
            base64::encode(bytes, out);
            put_bool(out, fields.is_base64, true);
        }
        None => {}
    }
    if let Some(key) = &extras.ordering_key {
        put_bytes(out, fields.ordering_key, key);
    }
}

fn put_properties(out: &mut Vec<u8>, number: u32, properties: &[(String, String)]) {
    for (key, value) in properties {
        put_message(out, number, |out| {
            put_bytes(out, 1, key.as_bytes());
            put_bytes(out, 2, value.as_bytes());
        });
    }
}
