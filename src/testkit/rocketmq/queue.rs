//! A topic's messages, and what each group has seen of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

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
    /// The queue that took it.
    pub queue: usize,
    /// The endpoint that took it.
    pub endpoint: usize,
}

pub(super) struct Topic {
    pub accepts: MessageType,
    pub queues: usize,
    pub messages: Vec<Kept>,
    pub groups: BTreeMap<String, Group>,
}

pub(super) struct Kept {
    pub message: pb::Message,
    pub queue: usize,
    pub endpoint: usize,
    /// When it may be delivered.
    pub visible: Instant,
}

#[derive(Default)]
pub(super) struct Group {
    /// By index of the message.
    pub seen: BTreeMap<usize, Seen>,
}

pub(super) struct Seen {
    pub attempts: u32,
    pub until: Instant,
    pub handle: String,
    pub done: bool,
}

impl Topic {
    pub(super) fn store(&mut self, now: Instant, mut message: pb::Message, endpoint: usize, endpoints: usize) -> i64 {
        let properties = message.system_properties.mut_or_insert_default();
        let group = properties.message_group.clone();
        let own: Vec<usize> = (0..self.queues).filter(|queue| queue % endpoints == endpoint).collect();
        let number = match &group {
            Some(group) => {
                group.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)))
            }
            None => self.messages.len(),
        };
        let queue = own.get(number % own.len().max(1)).copied().unwrap_or(0);
        let offset = self.messages.iter().filter(|kept| kept.queue == queue).count() as i64;
        let delay = properties.delivery_timestamp.as_ref().map(|at| {
            let since = Duration::new(u64::try_from(at.seconds).unwrap_or(0), u32::try_from(at.nanos).unwrap_or(0));
            (SystemTime::UNIX_EPOCH + since).duration_since(SystemTime::now()).unwrap_or_default()
        });
        properties.store_timestamp = protobuf::MessageField::some(SystemTime::now().into());
        properties.queue_id = queue as i32;
        properties.queue_offset = Some(offset);
        let visible = now + delay.unwrap_or_default();
        self.messages.push(Kept { message, queue, endpoint, visible });
        offset
    }

    pub(super) fn stored(&self, index: usize) -> Option<Stored> {
        let kept = self.messages.get(index)?;
        let properties = kept.message.system_properties.clone().unwrap_or_default();
        Some(Stored {
            message_id: properties.message_id,
            body: kept.message.body.clone(),
            tag: properties.tag,
            message_group: properties.message_group,
            queue: kept.queue,
            endpoint: kept.endpoint,
        })
    }

    /// Up to `max` messages for a group, which others then do not see until `invisible` is over.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        group: &str,
        wanted: &dyn Fn(&pb::Message) -> bool,
        ask: &Ask,
        next_handle: &mut u64,
    ) -> Delivered {
        let state = self.groups.entry(group.to_owned()).or_default();
        let mut delivered = Delivered::default();
        for (index, kept) in self.messages.iter().enumerate() {
            if delivered.messages.len() >= ask.max {
                break;
            }
            if kept.endpoint != ask.endpoint || kept.visible > now || !wanted(&kept.message) {
                continue;
            }
            let seen = state.seen.get(&index);
            if seen.is_some_and(|seen| seen.done || seen.until > now) {
                continue;
            }
            // Within a message group one after another.
            let message_group = kept.message.system_properties.message_group.clone();
            let blocked = message_group.is_some()
                && self.messages.iter().enumerate().take(index).any(|(earlier, other)| {
                    other.message.system_properties.message_group == message_group
                        && state.seen.get(&earlier).is_none_or(|seen| !seen.done)
                        && !delivered.indexes.contains(&earlier)
                });
            if blocked {
                continue;
            }
            let attempts = seen.map_or(0, |seen| seen.attempts) + 1;
            *next_handle += 1;
            let handle = format!("{group}/{index}/{next_handle}");
            let done = attempts > ask.max_attempts;
            state.seen.insert(index, Seen { attempts, until: now + ask.invisible, handle: handle.clone(), done });
            if done {
                delivered.dead.push(index);
                continue;
            }
            let mut message = kept.message.clone();
            if let Some(properties) = message.system_properties.as_mut() {
                properties.receipt_handle = Some(handle);
                properties.delivery_attempt = Some(attempts as i32);
                properties.body_digest = protobuf::MessageField::some(digest(&message.body));
            }
            delivered.indexes.push(index);
            delivered.messages.push(message);
        }
        delivered
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
    pub indexes: Vec<usize>,
    pub dead: Vec<usize>,
}

fn digest(body: &[u8]) -> pb::Digest {
    let checksum = crate::rocketmq::wire::digest::checksum(pb::DigestType::MD5, body).unwrap_or_default();
    pb::Digest { type_: pb::DigestType::MD5.into(), checksum, ..Default::default() }
}
