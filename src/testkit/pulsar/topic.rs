//! Topics: the entries that are stored, who produces, who is subscribed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::entry::{Corruption, deliver_at};
use super::receipts::ReceiptScript;
use super::subscription::Subscription;

/// What a producer sent in one SEND.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Checksum, metadata and payload as they came.
    pub(super) bytes: Bytes,
    pub(super) num_messages: u32,
    /// Index in the topic of the last message.
    pub(super) index: u64,
    /// Milliseconds since 1970.
    pub(super) stored_at: u64,
    /// Milliseconds since 1970: shared subscriptions wait for it.
    pub(super) deliver_at: Option<u64>,
}

/// Which session of which connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) connection: u64,
    /// The client's number for its producer or consumer.
    pub(super) id: u64,
}

/// Who has a producer name.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) place: Place,
    pub(super) epoch: u64,
    pub(super) user_provided_name: bool,
    pub(super) exclusive: bool,
}

/// The entries of a topic. Their ids rise by one and are never used again.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Oldest first; the id of the first is `first`.
    entries: VecDeque<Entry>,
    first: u64,
    bytes: usize,
    messages: u64,
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Arc<str>,
    /// −1 for a topic without partitions.
    pub(super) partition: i32,
    pub(super) ledger: u64,
    pub(super) store: Store,
    pub(super) producers: HashMap<Arc<str>, Holder>,
    /// Raised by each exclusive producer.
    pub(super) epoch: Option<u64>,
    /// The last sequence id of each producer name.
    pub(super) last_sequence_ids: HashMap<Arc<str>, u64>,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) receipts: ReceiptScript,
    /// What happens to the next deliveries.
    pub(super) corruptions: VecDeque<Corruption>,
    pub(super) terminated: bool,
}

impl Topic {
    pub(super) fn new(name: Arc<str>, ledger: u64) -> Self {
        let partition = name.rsplit_once("-partition-").and_then(|(_, n)| n.parse().ok()).unwrap_or(-1);
        Self {
            name,
            partition,
            ledger,
            store: Store::default(),
            producers: HashMap::new(),
            epoch: None,
            last_sequence_ids: HashMap::new(),
            subscriptions: Vec::new(),
            receipts: ReceiptScript::default(),
            corruptions: VecDeque::new(),
            terminated: false,
        }
    }

    pub(super) fn subscription(&mut self, name: &str) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|subscription| &*subscription.name == name)
    }

    /// Drops the oldest entries that every subscription has acknowledged, until `size` more bytes fit in. False if
    /// they still do not.
    pub(super) fn make_room(&mut self, size: usize, limit: usize) -> bool {
        if !self.store.fits(size, limit) {
            let needed = self.subscriptions.iter().map(Subscription::mark_delete).min().unwrap_or(u64::MAX);
            self.store.make_room(size, limit, needed);
        }
        self.store.fits(size, limit)
    }
}

impl Store {
    /// The id that the next entry gets.
    pub(super) fn end(&self) -> u64 {
        self.first.saturating_add(self.entries.len() as u64)
    }

    /// The id of the oldest entry that is still there.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn entry(&self, id: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// With their ids.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        (self.first..).zip(&self.entries)
    }

    fn fits(&self, size: usize, limit: usize) -> bool {
        self.bytes.saturating_add(size) <= limit
    }

    fn make_room(&mut self, size: usize, limit: usize, needed: u64) {
        while self.first < needed && !self.fits(size, limit) {
            let Some(dropped) = self.entries.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(dropped.bytes.len());
            self.first = self.first.saturating_add(1);
        }
    }

    /// Stores an entry and gives its id. `keep` off: it only counts.
    pub(super) fn push(&mut self, bytes: Bytes, num_messages: u32, now_ms: u64, keep: bool) -> u64 {
        let id = self.end();
        self.messages = self.messages.saturating_add(u64::from(num_messages));
        if keep {
            self.bytes = self.bytes.saturating_add(bytes.len());
            let index = self.messages.saturating_sub(1);
            // A delayed message is never in a batch.
            let deliver_at = if num_messages == 1 { deliver_at(&bytes) } else { None };
            self.entries.push_back(Entry { bytes, num_messages, index, stored_at: now_ms, deliver_at });
        } else {
            self.first = self.first.saturating_add(1);
        }
        id
    }
}
