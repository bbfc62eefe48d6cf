//! Messages received: read and unpacked by whoever receives them, so that a large one costs nobody else time.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use protobuf::Message as _;

use super::engine::event::Arrived;
use super::engine::malformed;
use super::handle::Handle;
use super::wire::endpoints::Endpoints;
use super::wire::{body, digest, pb};
use crate::error::Error;

/// A message received. Cloning is cheap.
#[derive(Clone)]
pub struct MessageView {
    pub(crate) inner: Arc<Received>,
}

#[derive(Clone)]
pub(crate) struct Received {
    pub topic: String,
    pub body: Bytes,
    pub message_id: String,
    pub receipt_handle: String,
    pub tag: Option<String>,
    pub keys: Vec<String>,
    pub properties: Vec<(String, String)>,
    pub group: Option<String>,
    pub delivery_attempt: u32,
    pub born_at: Option<SystemTime>,
    pub stored_at: Option<SystemTime>,
    pub deliver_at: Option<SystemTime>,
    pub queue_id: i32,
    pub queue_offset: Option<i64>,
    /// The body does not match its digest, or cannot be unpacked.
    pub corrupted: bool,
    pub endpoints: Endpoints,
}

impl MessageView {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// The body, unpacked.
    pub fn body(&self) -> &Bytes {
        &self.inner.body
    }

    /// The id that its producer gave it.
    pub fn message_id(&self) -> &str {
        &self.inner.message_id
    }

    /// Its tag.
    pub fn tag(&self) -> Option<&str> {
        self.inner.tag.as_deref()
    }

    /// Its keys.
    pub fn keys(&self) -> &[String] {
        &self.inner.keys
    }

    /// Its properties; the order is not kept.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.properties.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The group that it is ordered in.
    pub fn message_group(&self) -> Option<&str> {
        self.inner.group.as_deref()
    }

    /// How many times it has been delivered, this time included.
    pub fn delivery_attempt(&self) -> u32 {
        self.inner.delivery_attempt
    }

    /// When its producer sent it, by the producer's clock.
    pub fn born_at(&self) -> Option<SystemTime> {
        self.inner.born_at
    }

    /// When the server stored it.
    pub fn stored_at(&self) -> Option<SystemTime> {
        self.inner.stored_at
    }

    /// When it was to be delivered, if it was delayed.
    pub fn deliver_at(&self) -> Option<SystemTime> {
        self.inner.deliver_at
    }

    /// Its offset in its queue.
    pub fn queue_offset(&self) -> Option<i64> {
        self.inner.queue_offset
    }

    /// The queue that it came from.
    pub fn queue_id(&self) -> i32 {
        self.inner.queue_id
    }

    /// Whether the body arrived damaged: it does not match the digest that the server sent with it, or it cannot be
    /// unpacked. The body is then as it came.
    pub fn is_corrupted(&self) -> bool {
        self.inner.corrupted
    }

    /// The same message under a new receipt handle.
    pub(crate) fn with_handle(&self, receipt_handle: String) -> Self {
        Self { inner: Arc::new(Received { receipt_handle, ..(*self.inner).clone() }) }
    }

    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle {
            topic: &self.inner.topic,
            message_id: &self.inner.message_id,
            receipt_handle: &self.inner.receipt_handle,
            endpoints: &self.inner.endpoints,
        }
    }
}

impl Arrived {
    /// The message. Its body is part of the frame and not a copy.
    pub(crate) fn read(&self) -> Result<pb::Message, Error> {
        use pb::receive_message_response::Content;
        match pb::ReceiveMessageResponse::parse_from_tokio_bytes(&self.frame).map(|frame| frame.content) {
            Ok(Some(Content::Message(message))) => Ok(message),
            Ok(_) => Err(malformed("receive", "there is no message where one was announced")),
            Err(error) => Err(malformed("receive", error)),
        }
    }
}

/// Bodies are unpacked up to this size: no producer's limit is anywhere near.
const MOST_UNPACKED: usize = 128 * 1024 * 1024;

impl MessageView {
    /// Reads and unpacks what arrived. What cannot be read is left out, and comes again when its invisible duration is
    /// over; that nothing can be read is an error.
    pub(crate) fn read_all(arrived: Vec<Arrived>) -> Result<Vec<Self>, Error> {
        let mut unreadable = None;
        let mut views = Vec::with_capacity(arrived.len());
        for arrived in arrived {
            match arrived.read() {
                Ok(message) => views.push(Self::new(message, arrived.endpoints)),
                Err(error) => {
                    log::warn!("a message from {} is left out: {error}", arrived.endpoints);
                    unreadable = Some(error);
                }
            }
        }
        unreadable.filter(|_| views.is_empty()).map_or(Ok(views), Err)
    }

    fn new(message: pb::Message, endpoints: Endpoints) -> Self {
        let pb::Message { topic, user_properties, system_properties, body: packed, .. } = message;
        let properties = system_properties.into_option().unwrap_or_default();

        let intact =
            !matches!(digest::check(properties.body_digest.as_ref(), &packed), digest::Verdict::Corrupt { .. });
        let unpacked = body::unpack(properties.body_encoding.value(), &packed, MOST_UNPACKED);
        if let Err(error) = &unpacked {
            log::warn!("message {} is damaged: {error}", properties.message_id);
        }
        let corrupted = !intact || unpacked.is_err();
        let time = |at: protobuf::MessageField<protobuf::well_known_types::timestamp::Timestamp>| {
            let at = at.into_option()?;
            let since = Duration::new(u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?.min(999_999_999));
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        let inner = Received {
            topic: topic.into_option().unwrap_or_default().name,
            body: unpacked.unwrap_or(packed),
            message_id: properties.message_id,
            receipt_handle: properties.receipt_handle.unwrap_or_default(),
            tag: properties.tag,
            keys: properties.keys,
            properties: user_properties.into_iter().collect(),
            group: properties.message_group,
            delivery_attempt: properties.delivery_attempt.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
            born_at: time(properties.born_timestamp),
            stored_at: time(properties.store_timestamp),
            deliver_at: time(properties.delivery_timestamp),
            queue_id: properties.queue_id,
            queue_offset: properties.queue_offset,
            corrupted,
            endpoints,
        };
        Self { inner: Arc::new(inner) }
    }
}

impl PartialEq for MessageView {
    /// The same delivery of the same message.
    fn eq(&self, other: &Self) -> bool {
        self.inner.message_id == other.inner.message_id && self.inner.receipt_handle == other.inner.receipt_handle
    }
}

impl fmt::Debug for MessageView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageView")
            .field("topic", &self.inner.topic)
            .field("message_id", &self.inner.message_id)
            .field("body_bytes", &self.inner.body.len())
            .field("delivery_attempt", &self.inner.delivery_attempt)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use protobuf::MessageField;

    use super::super::wire::endpoints::AccessPoint;
    use super::*;
    use crate::error::ErrorKind;

    fn arrived(frame: Vec<u8>) -> Arrived {
        Arrived { frame: frame.into(), endpoints: AccessPoint::parse("127.0.0.1:8081").unwrap().endpoints }
    }

    fn with_id(id: &str, body: &[u8]) -> Arrived {
        let message = pb::Message {
            system_properties: MessageField::some(pb::SystemProperties { message_id: id.into(), ..Default::default() }),
            body: Bytes::copy_from_slice(body),
            ..Default::default()
        };
        let content = Some(pb::receive_message_response::Content::Message(message));
        arrived(pb::ReceiveMessageResponse { content, ..Default::default() }.write_to_bytes().unwrap())
    }

    #[test]
    fn the_body_is_part_of_the_frame() {
        let one = with_id("1", &[7; 100]);
        let views = MessageView::read_all(vec![one.clone()]).unwrap();
        let [view] = &views[..] else { panic!("{views:?}") };
        assert_eq!((view.message_id(), &view.body()[..], view.is_corrupted()), ("1", &[7; 100][..], false));
        assert!(one.frame.as_ptr_range().contains(&view.body().as_ptr()), "no copy");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        // A message of one byte, which is no field. A topic that is not UTF-8.
        let nonsense = || arrived(vec![0x12, 1, 0xff]);
        let no_text = arrived(vec![0x12, 5, 0x0a, 3, 0x12, 1, 0xff]);
        let views = MessageView::read_all(vec![nonsense(), with_id("1", b""), no_text.clone()]).unwrap();
        assert_eq!(views.iter().map(MessageView::message_id).collect::<Vec<_>>(), ["1"]);
        // Nothing at all is not the same as an empty queue.
        for none in [vec![nonsense()], vec![no_text, nonsense()], vec![arrived(Vec::new())]] {
            assert_eq!(MessageView::read_all(none).unwrap_err().kind(), ErrorKind::Protocol);
        }
        assert!(MessageView::read_all(Vec::new()).unwrap().is_empty());
    }
}
