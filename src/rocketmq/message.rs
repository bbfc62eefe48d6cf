//! Messages to send.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::wire::names::{self, MessageFields, MessageLimits};
use super::wire::pb;
use crate::error::{Error, ErrorKind};

/// What a topic takes and a message is (`MessageType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageType {
    /// No order, delivered at once.
    Normal,
    /// In order within its message group.
    Fifo,
    /// Delivered at a later time.
    Delay,
}

impl MessageType {
    pub(crate) fn wire(self) -> pb::MessageType {
        match self {
            Self::Normal => pb::MessageType::NORMAL,
            Self::Fifo => pb::MessageType::FIFO,
            Self::Delay => pb::MessageType::DELAY,
        }
    }
}

/// A message to be sent: a topic, a body and what travels with it.
///
/// ```
/// use threadmq::rocketmq::Message;
///
/// let message = Message::new("orders", "a body").key("order-7").tag("paid").property("attempt", "1");
/// # let _ = message;
/// ```
#[derive(Clone)]
pub struct Message {
    pub(crate) topic: String,
    pub(crate) body: Bytes,
    tag: Option<String>,
    keys: Vec<String>,
    properties: Vec<(String, String)>,
    group: Option<String>,
    deliver_at: Option<SystemTime>,
    deliver_after: Option<Duration>,
}

impl Message {
    /// A message with this body and nothing else. A `Vec` or `Bytes` is taken over without a copy.
    pub fn new(topic: impl Into<String>, body: impl Into<Body>) -> Self {
        Self {
            topic: topic.into(),
            body: body.into().0,
            tag: None,
            keys: Vec::new(),
            properties: Vec::new(),
            group: None,
            deliver_at: None,
            deliver_after: None,
        }
    }

    /// What consumers can filter by (`SystemProperties.tag`). Not blank, without `|`.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// A key to look the message up by (`SystemProperties.keys`). May be given more than once; not blank.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Adds a property (`user_properties`): at most 128, 16 KiB altogether with tag and keys. The same name given
    /// again replaces the value.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.properties.retain(|(known, _)| *known != name);
        self.properties.push((name, value));
        self
    }

    /// Makes it a FIFO message: delivered in order within this group (`SystemProperties.message_group`). Less than 64
    /// bytes, not blank. Excludes a delivery time.
    pub fn message_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Makes it a delayed message: delivered no earlier than this (`SystemProperties.delivery_timestamp`, precise to
    /// about a second, at most a day ahead by default of the server). A time that is past means at once.
    pub fn deliver_at(mut self, at: SystemTime) -> Self {
        self.deliver_at = Some(at);
        self.deliver_after = None;
        self
    }

    /// As [`deliver_at`](Self::deliver_at), counted from the call to send.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = Some(delay);
        self.deliver_at = None;
        self
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// What kind of message it is, by what was set.
    pub fn message_type(&self) -> MessageType {
        if self.group.is_some() {
            MessageType::Fifo
        } else if self.deliver_at.is_some() || self.deliver_after.is_some() {
            MessageType::Delay
        } else {
            MessageType::Normal
        }
    }

    pub(crate) fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Bytes of keys and properties, for the memory limit.
    pub(crate) fn extra_bytes(&self) -> usize {
        let properties: usize = self.properties.iter().map(|(name, value)| name.len() + value.len()).sum();
        let keys: usize = self.keys.iter().map(String::len).sum();
        properties + keys + self.tag.as_ref().map_or(0, String::len) + self.group.as_ref().map_or(0, String::len)
    }

    /// Everything that no server would take, all at once.
    pub(crate) fn check(&self, namespace: &str, max_body_size: usize) -> Result<(), Error> {
        let fields = MessageFields {
            topic: &self.topic,
            namespace,
            body_bytes: self.body.len(),
            tag: self.tag.as_deref(),
            keys: &self.keys,
            message_group: self.group.as_deref(),
            is_timed: self.deliver_at.is_some() || self.deliver_after.is_some(),
            ..MessageFields::default()
        };
        let limits = MessageLimits { body_bytes: max_body_size, ..MessageLimits::default() };
        let properties = self.properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        names::check_message(&fields, properties, &limits)
    }

    /// The whole request that sends it.
    pub(crate) fn encode(
        &self,
        namespace: &str,
        message_id: &str,
        host: &str,
        now: SystemTime,
    ) -> Result<Bytes, Error> {
        use protobuf::Message as _;
        let deliver_at = self.deliver_at.or_else(|| self.deliver_after.and_then(|delay| now.checked_add(delay)));
        let properties = pb::SystemProperties {
            tag: self.tag.clone(),
            keys: self.keys.clone(),
            message_id: message_id.to_owned(),
            body_encoding: pb::Encoding::IDENTITY.into(),
            message_type: self.message_type().wire().into(),
            born_timestamp: protobuf::MessageField::some(now.into()),
            born_host: host.to_owned(),
            message_group: self.group.clone(),
            delivery_timestamp: deliver_at.map(Into::into).into(),
            ..Default::default()
        };
        let message = pb::Message {
            topic: resource(namespace, &self.topic),
            user_properties: self.properties.iter().cloned().collect(),
            system_properties: protobuf::MessageField::some(properties),
            body: self.body.clone(),
            ..Default::default()
        };
        let request = pb::SendMessageRequest { messages: vec![message], ..Default::default() };
        request.write_to_bytes().map(Bytes::from).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("message to {} cannot be encoded", self.topic)).with_source(error)
        })
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("body_bytes", &self.body.len())
            .field("tag", &self.tag)
            .field("keys", &self.keys)
            .field("message_group", &self.group)
            .finish_non_exhaustive()
    }
}

/// What can be the body of a message: bytes or text.
pub struct Body(Bytes);

impl From<Bytes> for Body {
    fn from(body: Bytes) -> Self {
        Self(body)
    }
}

impl From<Vec<u8>> for Body {
    fn from(body: Vec<u8>) -> Self {
        Self(body.into())
    }
}

impl From<String> for Body {
    fn from(body: String) -> Self {
        Self(body.into())
    }
}

impl From<&str> for Body {
    fn from(body: &str) -> Self {
        Self(Bytes::copy_from_slice(body.as_bytes()))
    }
}

impl From<&[u8]> for Body {
    fn from(body: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(body))
    }
}

/// What the server answered to a message that it stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReceipt {
    pub(crate) message_id: String,
    pub(crate) offset: i64,
    pub(crate) attempts: u32,
}

impl SendReceipt {
    /// The id of the message (`SendResultEntry.message_id`).
    pub fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Its offset in the queue that took it (`SendResultEntry.offset`).
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// How many times the message was handed to a connection: 1 unless an attempt failed.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// A name in a namespace.
pub(crate) fn resource(namespace: &str, name: &str) -> protobuf::MessageField<pb::Resource> {
    protobuf::MessageField::some(pb::Resource {
        resource_namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    })
}
