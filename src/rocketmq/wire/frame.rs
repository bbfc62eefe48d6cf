//! Frames of the answer to a receive, told apart without reading what is in them: that is left to whoever receives.

use protobuf::CodedInputStream;
use protobuf::rt::skip_field_for_tag;

/// Tags of the fields of `ReceiveMessageResponse.content`: field number times 8, and 2 for a length and its bytes.
const STATUS: u32 = 10;
const MESSAGE: u32 = 18;
const DELIVERY_TIMESTAMP: u32 = 26;

/// Whether it holds a message. As everywhere, of fields that exclude each other the last one counts. Whether the
/// message can be read is another matter.
pub(crate) fn is_message(frame: &[u8]) -> bool {
    let mut input = CodedInputStream::from_bytes(frame);
    let mut last = None;
    loop {
        match input.read_raw_tag_or_eof() {
            Ok(None) => return last == Some(MESSAGE),
            Ok(Some(tag)) => {
                if skip_field_for_tag(tag, &mut input).is_err() {
                    return false;
                }
                if matches!(tag, STATUS | MESSAGE | DELIVERY_TIMESTAMP) {
                    last = Some(tag);
                }
            }
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use protobuf::{Message as _, MessageField};

    use super::super::pb;
    use super::super::pb::receive_message_response::Content;
    use super::*;

    fn frame(content: Option<Content>) -> Vec<u8> {
        pb::ReceiveMessageResponse { content, ..Default::default() }.write_to_bytes().unwrap()
    }

    fn message() -> Vec<u8> {
        let topic = MessageField::some(pb::Resource { name: "topic".into(), ..Default::default() });
        frame(Some(Content::Message(pb::Message { topic, body: vec![7; 300].into(), ..Default::default() })))
    }

    #[test]
    fn each_kind() {
        assert!(is_message(&message()));
        assert!(is_message(&frame(Some(Content::Message(pb::Message::default())))), "an empty one");
        let status = frame(Some(Content::Status(pb::Status { message: "no".into(), ..Default::default() })));
        let time = frame(Some(Content::DeliveryTimestamp(Default::default())));
        for other in [&status, &time, &frame(None)] {
            assert!(!is_message(other));
        }
        // The last of several counts, as for the one that reads it whole.
        for frames in [[message(), status.clone()], [status, message()], [time.clone(), message()], [message(), time]] {
            let joined = frames.concat();
            let read = pb::ReceiveMessageResponse::parse_from_bytes(&joined).unwrap();
            assert_eq!(is_message(&joined), matches!(read.content, Some(Content::Message(_))));
        }
    }

    #[test]
    fn unknown_fields_are_passed_over_and_nonsense_is_none() {
        // Field 9 as a number, and as bytes.
        for unknown in [&[0x48, 5][..], &[0x4a, 2, 1, 2][..]] {
            assert!(is_message(&[unknown, &message()].concat()));
            assert!(is_message(&[&message(), unknown].concat()));
        }
        let whole = message();
        for end in 1..whole.len() {
            assert!(!is_message(&whole[..end]), "cut off at {end}");
        }
        // Field 2 as a number; an end of a group that never began; a length beyond all.
        for nonsense in [&[0x10, 5][..], &[0x14][..], &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..]]
        {
            assert!(!is_message(nonsense));
        }
    }
}
