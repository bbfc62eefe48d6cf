//! Opens the codec to `benches/codec.rs`.
#![allow(missing_docs)] // not public: see `__bench`

use bytes::{Bytes, BytesMut};

use super::command::{self, Command, MessageIdData, SendReceipt};
use super::compress::Compression;
use super::frame::next_frame;
use super::payload::{BatchReader, BatchWriter, Content, SendHeader, parse_entry};
use crate::error::Error;

/// Writes the same batch over and over, as a busy producer does.
pub struct Batches {
    writer: BatchWriter,
    contents: Vec<Content>,
    compression: Compression,
}

impl Batches {
    pub fn new(messages: usize, size: usize, compression: Compression) -> Self {
        // Bodies that differ a little, as real ones do.
        let content = |i: usize| Content { payload: (0..size).map(|j| (i * j) as u8 & 15).collect(), extras: None };
        let contents = (0..messages).map(content).collect();
        Self { writer: BatchWriter::default(), contents, compression }
    }

    /// The frame of one batch.
    pub fn write(&mut self) -> Bytes {
        let mut sequence_id = 1_000_000;
        let header =
            SendHeader { producer_id: 1, producer_name: "bench-1-1", sequence_id, publish_time_ms: 1_700_000_000_000 };
        let bytes = self.contents.iter().map(BatchWriter::single_size).sum();
        self.writer.start(header.producer_name, bytes);
        for content in &self.contents {
            self.writer.push(sequence_id, content);
            sequence_id += 1;
        }
        self.writer.finish(&header, sequence_id - 1, self.compression).map_or_else(|_| Bytes::new(), |(frame, _)| frame)
    }
}

/// A receipt as a broker writes it.
pub fn receipt() -> Vec<u8> {
    let mut out = Vec::new();
    let message_id = Some(MessageIdData::new(123_456, 7_890));
    let receipt =
        SendReceipt { producer_id: 1, sequence_id: 1_000_000, highest_sequence_id: Some(1_000_999), message_id };
    command::encode_receipt(&receipt, &mut out);
    out
}

/// Reads all receipts in `buffer` and adds up their entries.
pub fn read_receipts(buffer: &mut BytesMut) -> Result<u64, Error> {
    let mut sum = 0;
    while let Some(frame) = next_frame(buffer, 1 << 20)? {
        if let Command::SendReceipt(receipt) = command::decode(frame)? {
            sum += receipt.message_id.map_or(0, |id| id.entry);
        }
    }
    Ok(sum)
}

/// Reads the batch in a SEND frame and adds up the sizes of its messages.
pub fn read_batch(frame: &Bytes) -> Result<usize, Error> {
    let Command::Send(send) = command::decode(frame.slice(4..))? else {
        return Ok(0);
    };
    let entry = parse_entry(send.entry)?;
    BatchReader::new(entry.payload, entry.metadata.num_messages_in_batch.unwrap_or(0))
        .map(|item| Ok(item?.payload.len()))
        .sum()
}
