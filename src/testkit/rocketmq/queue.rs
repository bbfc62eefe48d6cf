//! A topic's messages, and what each group has seen of them. What a receive or an acknowledgement costs depends on
//! the messages that it is about, not on how many are stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::share::Group;
use crate::rocketmq::MessageType;
use crate::rocketmq::wire::pb;

/// A message as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The id that its producer gave it.
    pub message_id: String,
    /// The body.
    pub body: Bytes,
    /// Its tag.
    pub tag: Option<String>,
    /// Its message group.
    pub message_group: Option<String>,
    /// When it is to be delivered, if it is delayed.
    pub deliver_at: Option<SystemTime>,
    /// The queue that took it.
    pub queue: usize,
    /// The endpoint that took it.
    pub endpoint: usize,
}

pub(super) struct Topic {
    pub accepts: MessageType,
    pub queues: usize,
    /// What its queues are spread over.
    pub endpoints: Vec<usize>,
    messages: Vec<Kept>,
    /// Indexes of messages by the endpoint that took them, in order.
    taken: BTreeMap<usize, Vec<usize>>,
    /// Messages so far, by queue.
    offsets: HashMap<usize, i64>,
    groups: BTreeMap<String, Group>,
}

pub(super) struct Kept {
    pub message: pb::Message,
    pub queue: usize,
    pub endpoint: usize,
    /// When it may be delivered.
    pub visible: Instant,
}

impl Kept {
    pub(super) fn group(&self) -> Option<&str> {
        self.message.system_properties.message_group.as_deref()
    }
}

pub(super) struct Ask {
    pub endpoint: usize,
    pub max: usize,
    pub invisible: Duration,
    pub max_attempts: u32,
}

#[derive(Default)]
pub(super) struct Delivered {
    pub messages: Vec<pb::Message>,
    pub dead: Vec<usize>,
}

impl Topic {
    pub(super) fn new(accepts: MessageType, queues: usize, endpoints: Vec<usize>) -> Self {
        let (messages, taken, offsets, groups) = Default::default();
        Self { accepts, queues: queues.max(endpoints.len()), endpoints, messages, taken, offsets, groups }
    }

    /// Where a queue is.
    pub(super) fn endpoint_of(&self, queue: usize) -> usize {
        queue.checked_rem(self.endpoints.len()).and_then(|at| self.endpoints.get(at)).copied().unwrap_or(0)
    }

    /// Its offset in the queue that took it.
    pub(super) fn store(&mut self, now: Instant, mut message: pb::Message, endpoint: usize) -> i64 {
        let own: Vec<usize> = (0..self.queues).filter(|queue| self.endpoint_of(*queue) == endpoint).collect();
        let properties = message.system_properties.mut_or_insert_default();
        let number = match &properties.message_group {
            Some(group) => {
                group.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)))
            }
            None => self.messages.len(),
        };
        let queue = number.checked_rem(own.len()).and_then(|at| own.get(at)).copied().unwrap_or(0);
        let next = self.offsets.entry(queue).or_default();
        let offset = *next;
        *next += 1;
        let delay = delivery(properties).and_then(|at| at.duration_since(SystemTime::now()).ok()).unwrap_or_default();
        properties.store_timestamp = protobuf::MessageField::some(SystemTime::now().into());
        properties.queue_id = i32::try_from(queue).unwrap_or(i32::MAX);
        properties.queue_offset = Some(offset);
        self.taken.entry(endpoint).or_default().push(self.messages.len());
        self.messages.push(Kept { message, queue, endpoint, visible: now + delay });
        offset
    }

    pub(super) fn all(&self) -> Vec<Stored> {
        self.messages.iter().map(Stored::of).collect()
    }

    pub(super) fn stored(&self, index: usize) -> Option<Stored> {
        self.messages.get(index).map(Stored::of)
    }

    pub(super) fn message(&self, index: usize) -> Option<pb::Message> {
        self.messages.get(index).map(|kept| kept.message.clone())
    }

    /// Up to `max` messages for a group, which others then do not see until `invisible` is over. A message that is
    /// not wanted is passed for good.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        group: &str,
        wanted: &dyn Fn(&pb::Message) -> bool,
        ask: &Ask,
        next_handle: &mut u64,
    ) -> Delivered {
        let taken = self.taken.get(&ask.endpoint).map(Vec::as_slice).unwrap_or_default();
        let state = self.groups.entry(group.to_owned()).or_default();
        state.look(now, ask.endpoint, taken, &self.messages, wanted);
        let mut delivered = Delivered::default();
        while delivered.messages.len() < ask.max {
            let Some(index) = state.next(ask.endpoint) else { break };
            let Some(kept) = self.messages.get(index) else { continue };
            *next_handle += 1;
            let handle = format!("{group}/{index}/{next_handle}");
            let Some(attempts) = state.hand_out(now, index, kept, handle.clone(), ask) else {
                delivered.dead.push(index);
                continue;
            };
            let mut message = kept.message.clone();
            let properties = message.system_properties.mut_or_insert_default();
            properties.receipt_handle = Some(handle);
            properties.delivery_attempt = Some(i32::try_from(attempts).unwrap_or(i32::MAX));
            properties.body_digest = protobuf::MessageField::some(digest(&kept.message.body));
            delivered.messages.push(message);
        }
        state.settle(ask.endpoint);
        delivered
    }

    /// The message of this handle needs no further delivery. False if the handle is over or unknown.
    pub(super) fn acknowledge(&mut self, now: Instant, group: &str, handle: &str) -> bool {
        self.groups.get_mut(group).is_some_and(|group| group.acknowledge(now, handle, &self.messages))
    }

    /// The message of this handle is hidden for so long from now on. The new handle.
    pub(super) fn change(&mut self, now: Instant, group: &str, handle: &str, to: Duration) -> Option<String> {
        self.groups.get_mut(group)?.change(now, handle, to)
    }

    /// When something that a group does not see yet at an endpoint becomes visible.
    pub(super) fn next_visible(&self, group: &str, endpoint: usize) -> Option<Instant> {
        self.groups.get(group)?.next_visible(endpoint)
    }
}

impl Stored {
    fn of(kept: &Kept) -> Self {
        let properties = kept.message.system_properties.clone().unwrap_or_default();
        Self {
            deliver_at: delivery(&properties),
            message_id: properties.message_id,
            body: kept.message.body.clone(),
            tag: properties.tag,
            message_group: properties.message_group,
            queue: kept.queue,
            endpoint: kept.endpoint,
        }
    }
}

fn delivery(properties: &pb::SystemProperties) -> Option<SystemTime> {
    let at = properties.delivery_timestamp.as_ref()?;
    let since = Duration::new(u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?.min(999_999_999));
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn digest(body: &[u8]) -> pb::Digest {
    let checksum = crate::rocketmq::wire::digest::checksum(pb::DigestType::MD5, body).unwrap_or_default();
    pb::Digest { type_: pb::DigestType::MD5.into(), checksum, ..Default::default() }
}

/// Indexes that wait for a time.
pub(super) type Hidden = BTreeSet<(Instant, usize)>;
