//! Appends whole frames, size word included, to a buffer.

use protobuf::{Enum, Message as _};

#[cfg(test)]
use super::Send;
use super::{Ack, MessageIdData};
#[cfg(any(test, feature = "testkit"))]
use super::{Message, SendReceipt};
use crate::pulsar::wire::field::{put_bool, put_i32, put_message, put_u64, reserve_word, set_length, set_word};
use crate::pulsar::wire::frame::WORD;
use crate::pulsar::wire::pb::{self, base_command::Type};

/// Any command without an entry.
pub(crate) fn encode(command: &pb::BaseCommand, out: &mut Vec<u8>) {
    let start = begin(out);
    let written = command.write_to_vec(out);
    // Only a missing required field can fail, and our constructors set them all.
    debug_assert!(written.is_ok(), "{written:?}");
    end_command(out, start);
    end_frame(out, start, 0);
}

pub(crate) fn encode_ping(out: &mut Vec<u8>) {
    simple(out, Type::PING, |_| {});
}

pub(crate) fn encode_pong(out: &mut Vec<u8>) {
    simple(out, Type::PONG, |_| {});
}

pub(crate) fn encode_flow(consumer_id: u64, permits: u32, out: &mut Vec<u8>) {
    simple(out, Type::FLOW, |out| {
        put_u64(out, 1, consumer_id);
        put_u64(out, 2, u64::from(permits));
    });
}

pub(crate) fn encode_ack(ack: &Ack, out: &mut Vec<u8>) {
    simple(out, Type::ACK, |out| {
        put_u64(out, 1, ack.consumer_id);
        put_bool(out, 2, ack.cumulative);
        for id in &ack.message_ids {
            put_message_id(out, 3, id);
        }
        if let Some(error) = ack.validation_error {
            put_i32(out, 4, error);
        }
        if let Some(request_id) = ack.request_id {
            put_u64(out, 8, request_id);
        }
    });
}

#[cfg(any(test, feature = "testkit"))]
pub(crate) fn encode_receipt(receipt: &SendReceipt, out: &mut Vec<u8>) {
    simple(out, Type::SEND_RECEIPT, |out| {
        put_u64(out, 1, receipt.producer_id);
        put_u64(out, 2, receipt.sequence_id);
        if let Some(id) = &receipt.message_id {
            put_message_id(out, 3, id);
        }
        if let Some(highest) = receipt.highest_sequence_id {
            put_u64(out, 4, highest);
        }
    });
}

/// With its entry, which already holds checksum and metadata.
#[cfg(any(test, feature = "testkit"))]
pub(crate) fn encode_message(message: &Message, out: &mut Vec<u8>) {
    let start = begin(out);
    put_command(out, Type::MESSAGE, |out| {
        put_u64(out, 1, message.consumer_id);
        put_message_id(out, 2, &message.message_id);
        if message.redelivery_count != 0 {
            put_u64(out, 3, u64::from(message.redelivery_count));
        }
        for word in &message.ack_set {
            put_u64(out, 4, *word as u64);
        }
        if let Some(epoch) = message.consumer_epoch {
            put_u64(out, 5, epoch);
        }
    });
    end_command(out, start);
    out.extend_from_slice(&message.entry);
    end_frame(out, start, 0);
}

/// With its entry, which already holds checksum and metadata.
#[cfg(test)]
pub(crate) fn encode_send(send: &Send, out: &mut Vec<u8>) {
    let start = begin(out);
    put_send(out, send.producer_id, send.sequence_id, send.num_messages, send.highest_sequence_id, send.is_chunk);
    end_command(out, start);
    out.extend_from_slice(&send.entry);
    end_frame(out, start, 0);
}

/// The SEND command alone, between [`begin`] and [`end_command`].
#[inline]
pub(in crate::pulsar::wire) fn put_send(
    out: &mut Vec<u8>,
    producer_id: u64,
    sequence_id: u64,
    num_messages: i32,
    highest_sequence_id: Option<u64>,
    is_chunk: bool,
) {
    put_command(out, Type::SEND, |out| {
        put_u64(out, 1, producer_id);
        put_u64(out, 2, sequence_id);
        if num_messages != 1 {
            put_i32(out, 3, num_messages);
        }
        if let Some(highest) = highest_sequence_id {
            put_u64(out, 6, highest);
        }
        if is_chunk {
            put_bool(out, 7, true);
        }
    });
}

/// Leaves room for both size words and gives the frame's start.
pub(in crate::pulsar::wire) fn begin(out: &mut Vec<u8>) -> usize {
    let start = reserve_word(out);
    reserve_word(out);
    start
}

/// Fills in the command's size; what follows belongs to the entry.
pub(in crate::pulsar::wire) fn end_command(out: &mut [u8], start: usize) {
    set_length(out, start + 4);
}

/// Fills in the size of a frame that goes on with `rest` bytes behind `out`.
pub(in crate::pulsar::wire) fn end_frame(out: &mut [u8], start: usize, rest: usize) {
    let length = out.len().saturating_sub(start + WORD).saturating_add(rest);
    set_word(out, start, length as u32);
}

fn simple(out: &mut Vec<u8>, kind: Type, body: impl FnOnce(&mut Vec<u8>)) {
    let start = begin(out);
    put_command(out, kind, body);
    end_command(out, start);
    end_frame(out, start, 0);
}

/// A BaseCommand: its type, and the part that the type names, whose number is the type's.
fn put_command(out: &mut Vec<u8>, kind: Type, body: impl FnOnce(&mut Vec<u8>)) {
    let number = kind.value().unsigned_abs();
    put_u64(out, 1, u64::from(number));
    put_message(out, number, body);
}

fn put_message_id(out: &mut Vec<u8>, number: u32, id: &MessageIdData) {
    put_message(out, number, |out| {
        put_u64(out, 1, id.ledger);
        put_u64(out, 2, id.entry);
        if id.partition != -1 {
            put_i32(out, 3, id.partition);
        }
        if id.batch_index != -1 {
            put_i32(out, 4, id.batch_index);
        }
        for word in &id.ack_set {
            put_u64(out, 5, *word as u64);
        }
        if id.batch_size != 0 {
            put_i32(out, 6, id.batch_size);
        }
    });
}
