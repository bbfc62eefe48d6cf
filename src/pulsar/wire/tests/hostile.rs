//! Bytes of a broken or malicious peer: never a panic, never memory out of proportion.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;

use super::common::*;
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::frame::next_frame;
use crate::pulsar::wire::payload::*;
use crate::pulsar::wire::pb;

/// Hands `bytes` to every decoder there is.
fn feed(bytes: &[u8], count: i32) {
    let shared = Bytes::copy_from_slice(bytes);
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = next_frame(&mut buffer, 1 << 20) {
        digest(decode(frame));
    }
    digest(decode(shared.clone()));
    if let Ok(entry) = parse_entry(shared.clone()) {
        digest_entry(entry);
    }
    assert!(BatchReader::new(shared, count).count() <= bytes.len() + 1);
}

fn digest(command: Result<Command, crate::pulsar::wire::frame::WireError>) {
    let entry = match command {
        Ok(Command::Send(send)) => send.entry,
        Ok(Command::Message(message)) => message.entry,
        _ => return,
    };
    if let Ok(entry) = parse_entry(entry) {
        digest_entry(entry);
    }
}

fn digest_entry(entry: Entry) {
    let metadata = &entry.metadata;
    if let Ok(plain) = decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, 1 << 16) {
        let count = metadata.num_messages_in_batch.unwrap_or(1);
        assert!(BatchReader::new(plain.clone(), count).count() <= plain.len() + 1);
    }
}

fn generated_command() -> impl Strategy<Value = pb::BaseCommand> {
    (number(), number(), text(), message_id(), 0..9).prop_map(|(a, b, text, id, which)| match which {
        0 => connect(&text, "token", text.as_bytes(), Some(&text)),
        1 => lookup(&text, a, true),
        2 => producer(&ProducerOpen {
            topic: &text,
            producer_id: a,
            request_id: b,
            name: Some(&text),
            user_provided_name: true,
            epoch: 1,
            access_mode: pb::ProducerAccessMode::Shared,
            topic_epoch: None,
            properties: &[],
        }),
        3 => producer_success(a, &text, 5, Some(b), true),
        4 => redeliver(a, &[id.clone(), id]),
        5 => error(a, 3, &text),
        6 => send_error(a, b, 9, &text),
        7 => connected(&text, 5),
        _ => close_consumer(a, b),
    })
}

/// A whole valid frame of any kind.
fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    fn framed(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }
    let header = SendHeader { producer_id: 1, producer_name: "p", sequence_id: 2, publish_time_ms: 3 };
    prop_oneof![
        receipt().prop_map(|receipt| framed(|out| encode_receipt(&receipt, out))),
        ack().prop_map(|ack| framed(|out| encode_ack(&ack, out))),
        message().prop_map(|message| framed(|out| encode_message(&message, out))),
        generated_command().prop_map(|command| framed(|out| encode(&command, out))),
        (content(), prop::sample::select(codecs())).prop_map(move |(content, codec)| framed(|out| {
            encode_single_send(&header, &content, codec, out).unwrap();
        })),
        (vec(content(), 1..5), prop::sample::select(codecs())).prop_map(move |(contents, codec)| framed(|out| {
            let mut batch = BatchWriter::default();
            contents.iter().for_each(|content| batch.push(1, content));
            batch.finish_into(&header, 1, codec, out).unwrap();
        })),
    ]
}

/// The entry of a frame, with the checksum taken off so that damage behind it is reached.
fn bare_entry(frame: &[u8]) -> Option<Bytes> {
    match decode(only_frame(frame)).ok()? {
        Command::Send(send) => send.entry.get(6..).map(Bytes::copy_from_slice),
        _ => None,
    }
}

proptest! {
    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..300), count: i32, small in 0..20) {
        feed(&bytes, count);
        feed(&bytes, small);
    }

    /// Noise that gets past the first length.
    #[test]
    fn noise_in_a_frame(bytes in vec(any::<u8>(), 0..200), kind in 0u8..82, body in vec(any::<u8>(), 0..100)) {
        feed(&sized(&sized(&bytes)), 3);
        let mut command = vec![8, kind];
        let mut tag = u32::from(kind) << 3 | 2;
        while tag >= 0x80 {
            command.push(tag as u8 | 0x80);
            tag >>= 7;
        }
        command.push(tag as u8);
        command.push(body.len() as u8);
        command.extend_from_slice(&body);
        feed(&sized(&sized(&command)), 3);
        feed(&[0x0e, 0x02].iter().copied().chain(sized(&bytes)).chain(sized(&body)).collect::<Vec<_>>(), 3);
    }

    #[test]
    fn truncated_frames(frame in valid_frame(), keep: prop::sample::Index) {
        let keep = keep.index(frame.len());
        let mut buffer = BytesMut::from(&frame[..keep]);
        prop_assert_eq!(next_frame(&mut buffer, 1 << 20), Ok(None));
        feed(&frame[..keep], 3);
        // Cut off, but with a size word that fits.
        feed(&sized(&frame[4.min(keep)..keep]), 3);
        if let Some(entry) = bare_entry(&frame) {
            feed(&entry[..keep.min(entry.len())], 3);
        }
    }

    #[test]
    fn mutated_frames(
        frame in valid_frame(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        count in 0..2000,
    ) {
        let mutate = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes
        };
        feed(&mutate(&frame), count);
        // Damage behind size words that fit.
        feed(&[&frame[..8], &mutate(&frame[8..])].concat(), count);
        if let Some(entry) = bare_entry(&frame) {
            feed(&mutate(&entry), count);
        }
    }
}
