//! Reads commands. The frequent ones by hand; unknown fields, any order and repetition (the last one counts)
//! are accepted, and nothing recurses.

use bytes::Bytes;
use protobuf::{Enum, Message as _};

use super::{Ack, Command, Message, MessageIdData, Send, SendReceipt};
use crate::pulsar::wire::field::{Fields, last_field};
use crate::pulsar::wire::frame::{WORD, WireError};
use crate::pulsar::wire::pb::{self, base_command::Type};

/// Reads one frame as `next_frame` gives it. The entry of SEND and MESSAGE shares the frame's memory.
pub(crate) fn decode(frame: Bytes) -> Result<Command, WireError> {
    let (word, rest) = frame.split_first_chunk::<WORD>().ok_or(WireError::Truncated)?;
    let size = usize::try_from(u32::from_be_bytes(*word)).map_err(|_| WireError::BadLength)?;
    let (command, entry) = rest.split_at_checked(size).ok_or(WireError::BadLength)?;
    let (mut number, mut last) = (None, None);
    let mut fields = Fields::new(command);
    while let Some((at, value)) = fields.next()? {
        match at {
            1 => number = Some(value.i32()?),
            _ => last = Some((at, value)),
        }
    }
    let number = number.ok_or(WireError::MissingField("type"))?;
    let Some(kind) = Type::from_i32(number) else {
        return Ok(Command::Unknown(number));
    };
    // PING and PONG say all with their type.
    match kind {
        Type::PING => return Ok(Command::Ping),
        Type::PONG => return Ok(Command::Pong),
        _ => {}
    }
    // The part that a type names has the type's number in BaseCommand.
    let field = u32::try_from(number).map_err(|_| WireError::BadProtobuf)?;
    let body = match last {
        Some((at, value)) if at == field => Some(value),
        // Something follows it, or it is not there: look again.
        _ => last_field(command, field)?,
    };
    let body = body.ok_or(WireError::MissingField("command body"))?.bytes()?;
    Ok(match kind {
        Type::SEND => Command::Send(send(body, frame.slice_ref(entry))?),
        Type::SEND_RECEIPT => Command::SendReceipt(receipt(body)?),
        Type::MESSAGE => Command::Message(message(body, frame.slice_ref(entry))?),
        Type::ACK => Command::Ack(ack(body)?),
        Type::FLOW => flow(body)?,
        _ => {
            let parsed = pb::BaseCommand::parse_from_bytes(command).map_err(|_| WireError::BadProtobuf)?;
            Command::Other(Box::new(parsed))
        }
    })
}

fn send(body: &[u8], entry: Bytes) -> Result<Send, WireError> {
    let (mut producer_id, mut sequence_id) = (None, None);
    let mut num_messages = 1;
    let mut highest_sequence_id = None;
    let mut is_chunk = false;
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => producer_id = Some(value.u64()?),
            2 => sequence_id = Some(value.u64()?),
            3 => num_messages = value.i32()?,
            6 => highest_sequence_id = Some(value.u64()?),
            7 => is_chunk = value.bool()?,
            _ => {}
        }
    }
    Ok(Send {
        producer_id: producer_id.ok_or(WireError::MissingField("producer_id"))?,
        sequence_id: sequence_id.ok_or(WireError::MissingField("sequence_id"))?,
        num_messages,
        highest_sequence_id,
        is_chunk,
        entry,
    })
}

fn receipt(body: &[u8]) -> Result<SendReceipt, WireError> {
    let (mut producer_id, mut sequence_id) = (None, None);
    let (mut highest_sequence_id, mut id) = (None, None);
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => producer_id = Some(value.u64()?),
            2 => sequence_id = Some(value.u64()?),
            3 => id = Some(message_id(value.bytes()?)?),
            4 => highest_sequence_id = Some(value.u64()?),
            _ => {}
        }
    }
    Ok(SendReceipt {
        producer_id: producer_id.ok_or(WireError::MissingField("producer_id"))?,
        sequence_id: sequence_id.ok_or(WireError::MissingField("sequence_id"))?,
        highest_sequence_id,
        message_id: id,
    })
}

fn message(body: &[u8], entry: Bytes) -> Result<Message, WireError> {
    let (mut consumer_id, mut id) = (None, None);
    let mut redelivery_count = 0;
    let mut ack_set = Vec::new();
    let mut consumer_epoch = None;
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => consumer_id = Some(value.u64()?),
            2 => id = Some(message_id(value.bytes()?)?),
            3 => redelivery_count = value.u32()?,
            4 => value.repeated(|word| ack_set.push(word as i64))?,
            5 => consumer_epoch = Some(value.u64()?),
            _ => {}
        }
    }
    Ok(Message {
        consumer_id: consumer_id.ok_or(WireError::MissingField("consumer_id"))?,
        message_id: id.ok_or(WireError::MissingField("message_id"))?,
        redelivery_count,
        ack_set,
        consumer_epoch,
        entry,
    })
}

fn ack(body: &[u8]) -> Result<Ack, WireError> {
    let (mut consumer_id, mut cumulative) = (None, None);
    let mut message_ids = Vec::new();
    let (mut validation_error, mut request_id) = (None, None);
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => consumer_id = Some(value.u64()?),
            2 => {
                cumulative = match value.i32()? {
                    0 => Some(false),
                    1 => Some(true),
                    _ => return Err(WireError::BadProtobuf),
                };
            }
            3 => message_ids.push(message_id(value.bytes()?)?),
            4 => validation_error = Some(value.i32()?),
            8 => request_id = Some(value.u64()?),
            _ => {}
        }
    }
    Ok(Ack {
        consumer_id: consumer_id.ok_or(WireError::MissingField("consumer_id"))?,
        cumulative: cumulative.ok_or(WireError::MissingField("ack_type"))?,
        message_ids,
        validation_error,
        request_id,
    })
}

fn flow(body: &[u8]) -> Result<Command, WireError> {
    let (mut consumer_id, mut permits) = (None, None);
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => consumer_id = Some(value.u64()?),
            2 => permits = Some(value.u32()?),
            _ => {}
        }
    }
    Ok(Command::Flow {
        consumer_id: consumer_id.ok_or(WireError::MissingField("consumer_id"))?,
        permits: permits.ok_or(WireError::MissingField("messagePermits"))?,
    })
}

/// The id of a chunked message's first entry, which may nest, is not followed.
fn message_id(body: &[u8]) -> Result<MessageIdData, WireError> {
    let (mut ledger, mut entry) = (None, None);
    let mut id = MessageIdData::new(0, 0);
    let mut fields = Fields::new(body);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => ledger = Some(value.u64()?),
            2 => entry = Some(value.u64()?),
            3 => id.partition = value.i32()?,
            4 => id.batch_index = value.i32()?,
            5 => value.repeated(|word| id.ack_set.push(word as i64))?,
            6 => id.batch_size = value.i32()?,
            _ => {}
        }
    }
    id.ledger = ledger.ok_or(WireError::MissingField("ledgerId"))?;
    id.entry = entry.ok_or(WireError::MissingField("entryId"))?;
    Ok(id)
}
