//! Appends whole frames, size word included, to a buffer.

use super::{Ack, Message, Send, SendReceipt};
use crate::pulsar::wire::pb;

/// Any command without an entry.
pub(crate) fn encode(command: &pb::BaseCommand, out: &mut Vec<u8>) {
    todo!("{command:?} {out:?}")
}

pub(crate) fn encode_ping(out: &mut Vec<u8>) {
    todo!("{out:?}")
}

pub(crate) fn encode_pong(out: &mut Vec<u8>) {
    todo!("{out:?}")
}

pub(crate) fn encode_flow(consumer_id: u64, permits: u32, out: &mut Vec<u8>) {
    todo!("{consumer_id} {permits} {out:?}")
}

pub(crate) fn encode_ack(ack: &Ack, out: &mut Vec<u8>) {
    todo!("{ack:?} {out:?}")
}

pub(crate) fn encode_receipt(receipt: &SendReceipt, out: &mut Vec<u8>) {
    todo!("{receipt:?} {out:?}")
}

/// With its entry, which already holds checksum and metadata.
pub(crate) fn encode_message(message: &Message, out: &mut Vec<u8>) {
    todo!("{message:?} {out:?}")
}

/// With its entry, which already holds checksum and metadata.
pub(crate) fn encode_send(send: &Send, out: &mut Vec<u8>) {
    todo!("{send:?} {out:?}")
}
