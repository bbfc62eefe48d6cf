//! Turning a lane's queue into frames: what goes together, when, and the frame itself.

use std::time::Instant;

use bytes::Bytes;

use super::event::{Batching, Outcome, Outgoing};
use super::lane::{Flight, Lane, Waiting, too_large};
use crate::error::{Delivery, Error, ErrorKind};
use crate::policy::admission::Admitted;
use crate::policy::now::Now;
use crate::pulsar::wire::compress::{CompressError, Compression};
use crate::pulsar::wire::payload::{BatchWriter, Content, SendHeader, encode_single_send};

/// When a lane's queue has something to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Now,
    At(Instant),
    Empty,
}

/// Room for the entry's own metadata beside a batch's messages.
const METADATA_ROOM: usize = 512;

/// Frames up to this size are copied into a buffer of just their size; larger ones keep the one they were written in.
const COPY_LIMIT: usize = 4096;

/// What frames are written with, made once and used again.
#[derive(Default)]
pub(super) struct Writers {
    batch: BatchWriter,
    single: Vec<u8>,
}

impl Writers {
    fn single(
        &mut self,
        header: &SendHeader<'_>,
        content: &Content,
        compression: Compression,
    ) -> Result<(Bytes, usize), CompressError> {
        self.single.clear();
        let size = encode_single_send(header, content, compression, &mut self.single)?;
        let frame = match self.single.len() {
            ..=COPY_LIMIT => Bytes::copy_from_slice(&self.single),
            _ => Bytes::from(std::mem::take(&mut self.single)),
        };
        Ok((frame, size))
    }
}

/// Whether a message cannot share a batch: delayed delivery is decided per entry, and large ones gain nothing.
fn goes_alone(content: &Content, size: usize, batching: Option<Batching>) -> bool {
    let single = content.extras.as_ref().is_some_and(|extras| extras.deliver_at.is_some() || extras.packed.is_some());
    single || batching.is_none_or(|batching| size > batching.max_bytes)
}

impl Lane {
    /// Takes admitted messages.
    pub(super) fn push(&mut self, messages: &mut Vec<Admitted<Outgoing>>) {
        for message in messages.drain(..) {
            let content = &message.item.content;
            let size = BatchWriter::single_size(content);
            let alone = goes_alone(content, size, self.spec.batching);
            self.queue_bytes += size;
            self.lone += usize::from(alone);
            if message.item.urgent {
                self.flush_through = message.ticket.place;
            }
            self.queue.push_back(Waiting { message, size, alone });
        }
    }

    /// Lets everything admitted so far go without waiting for more.
    pub(super) fn flush(&mut self) {
        if let Some(last) = self.queue.back() {
            self.flush_through = last.message.ticket.place;
        }
    }

    pub(super) fn readiness(&self, now: Instant) -> Readiness {
        let Some(front) = self.queue.front() else { return Readiness::Empty };
        let Some(batching) = self.spec.batching else { return Readiness::Now };
        let full = self.queue.len() >= batching.max_messages || self.queue_bytes >= batching.max_bytes;
        let ticket = &front.message.ticket;
        let at = ticket.called_at + batching.max_delay;
        if full || self.lone > 0 || ticket.place <= self.flush_through || at <= now {
            return Readiness::Now;
        }
        Readiness::At(at)
    }

    /// Encodes the next message or batch of the queue. A frame that is too large for the broker, or that its codec
    /// refuses, becomes a flight that has its result already, so that results stay in order.
    pub(super) fn freeze(&mut self, now: Now, writers: &mut Writers) -> bool {
        let count = self.gather();
        if count == 0 {
            return false;
        }
        let encoded = match self.encode(now, count, writers) {
            // A batch may be larger than expected next to a small limit; its messages may still fit alone.
            Ok((_, size)) if size > self.limit && count > 1 => return self.freeze_first(now, writers),
            other => other,
        };
        self.fly(now, count, encoded);
        true
    }

    fn freeze_first(&mut self, now: Now, writers: &mut Writers) -> bool {
        let encoded = self.encode(now, 1, writers);
        self.fly(now, 1, encoded);
        true
    }

    /// How many messages of the front go into the next frame.
    fn gather(&self) -> usize {
        let Some(batching) = self.spec.batching else { return self.queue.len().min(1) };
        let max_bytes = batching.max_bytes.min(self.limit.saturating_sub(METADATA_ROOM));
        let (mut count, mut bytes) = (0, 0);
        for waiting in self.queue.iter().take(batching.max_messages) {
            if count > 0 && (waiting.alone || bytes + waiting.size > max_bytes) {
                break;
            }
            count += 1;
            bytes += waiting.size;
            if waiting.alone {
                break;
            }
        }
        count
    }

    fn encode(&self, now: Now, count: usize, writers: &mut Writers) -> Result<(Bytes, usize), CompressError> {
        let Some(Waiting { message: first, .. }) = self.queue.front() else { return Ok((Bytes::new(), 0)) };
        let header = SendHeader {
            producer_id: self.id.0,
            producer_name: self.name.as_deref().unwrap_or_default(),
            sequence_id: first.ticket.sequence_id,
            publish_time_ms: now.unix_ms,
        };
        if count == 1 {
            return writers.single(&header, &first.item.content, self.spec.compression);
        }
        let writer = &mut writers.batch;
        writer.start(header.producer_name, self.queue.iter().take(count).map(|waiting| waiting.size).sum());
        let mut highest = first.ticket.sequence_id;
        for Waiting { message, .. } in self.queue.iter().take(count) {
            highest = message.ticket.sequence_id;
            writer.push(highest, &message.item.content);
        }
        writer.finish(&header, highest, self.spec.compression)
    }

    fn fly(&mut self, now: Now, count: usize, encoded: Result<(Bytes, usize), CompressError>) {
        let members = self.take_queue(count);
        let (Some(first), Some(last)) = (members.first(), members.last()) else { return };
        let (sequence_id, highest_sequence_id) = (first.sequence_id, last.sequence_id);
        let (frame, size, outcome) = match encoded {
            Ok((_, size)) if size > self.limit => {
                (Bytes::new(), 0, Some(Outcome::Failed(too_large(&self.topic, size, self.limit))))
            }
            Ok((frame, size)) => (frame, size, None),
            Err(error) => {
                let text = format!("compression of a message to {}: {error}", self.topic);
                let error = Error::new(ErrorKind::Internal, text).with_delivery(Delivery::NotSent);
                (Bytes::new(), 0, Some(Outcome::Failed(error)))
            }
        };
        self.flights.push_back(Flight {
            sequence_id,
            highest_sequence_id,
            frame,
            size,
            count,
            members,
            attempts: 0,
            refused: false,
            handed_at: now.instant,
            outcome,
        });
    }
}
