//! What a consumer group has seen of a topic: what is ready for it, what is out, what waits behind that.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::queue::{Ask, Hidden, Kept};
use crate::rocketmq::wire::pb;

#[derive(Default)]
pub(super) struct Group {
    /// By endpoint.
    shares: HashMap<usize, Share>,
    /// Messages that were handed out and not acknowledged, by index.
    seen: HashMap<usize, Seen>,
    handles: HashMap<String, usize>,
}

/// The messages of one endpoint.
#[derive(Default)]
struct Share {
    /// How many of them were looked at.
    looked: usize,
    /// They may go now.
    ready: BTreeSet<usize>,
    /// Delayed, or handed out: (again) visible at a time.
    hidden: Hidden,
    /// By message group.
    lines: HashMap<String, Line>,
    /// Lines whose next message may follow within the same receive.
    open: HashSet<String>,
}

/// A message group: its messages go one receive after another.
#[derive(Default)]
struct Line {
    waiting: BTreeSet<usize>,
    out: BTreeSet<usize>,
    /// The one that stands in `ready`.
    shown: Option<usize>,
}

struct Seen {
    endpoint: usize,
    attempts: u32,
    until: Instant,
    handle: String,
}

impl Share {
    /// A message is here, for the first time or again.
    fn offer(&mut self, index: usize, group: Option<&str>) {
        match group {
            Some(group) => {
                let line = self.lines.entry(group.to_owned()).or_default();
                line.out.remove(&index);
                line.waiting.insert(index);
                line.show(&mut self.ready);
            }
            None => {
                self.ready.insert(index);
            }
        }
    }
}

impl Line {
    /// Its first message is ready if none is out.
    fn show(&mut self, ready: &mut BTreeSet<usize>) {
        if let Some(shown) = self.shown.take() {
            ready.remove(&shown);
        }
        if self.out.is_empty() {
            self.shown = self.waiting.first().copied();
            ready.extend(self.shown);
        }
    }
}

impl Group {
    /// Takes in what is new at an endpoint, and what is visible again.
    pub(super) fn look(
        &mut self,
        now: Instant,
        endpoint: usize,
        taken: &[usize],
        messages: &[Kept],
        wanted: &dyn Fn(&pb::Message) -> bool,
    ) {
        let share = self.shares.entry(endpoint).or_default();
        for &index in taken.iter().skip(share.looked) {
            let Some(kept) = messages.get(index).filter(|kept| wanted(&kept.message)) else { continue };
            if kept.visible > now {
                share.hidden.insert((kept.visible, index));
            } else {
                share.offer(index, kept.group());
            }
        }
        share.looked = taken.len();
        while let Some((_, index)) = share.hidden.first().copied().filter(|(at, _)| *at <= now) {
            share.hidden.pop_first();
            if let Some(seen) = self.seen.get(&index) {
                self.handles.remove(&seen.handle);
            }
            share.offer(index, messages.get(index).and_then(Kept::group));
        }
    }

    /// The next message that may go.
    pub(super) fn next(&mut self, endpoint: usize) -> Option<usize> {
        self.shares.get_mut(&endpoint)?.ready.pop_first()
    }

    /// Hides a message that [`next`](Self::next) gave, and says how often it was handed out by now. `None` if that
    /// is too often: then it is done with.
    pub(super) fn hand_out(
        &mut self,
        now: Instant,
        index: usize,
        kept: &Kept,
        handle: String,
        ask: &Ask,
    ) -> Option<u32> {
        let share = self.shares.entry(ask.endpoint).or_default();
        let attempts = self.seen.get(&index).map_or(0, |seen| seen.attempts).saturating_add(1);
        let alive = attempts <= ask.max_attempts;
        if let Some(group) = kept.group() {
            let line = share.lines.entry(group.to_owned()).or_default();
            line.waiting.remove(&index);
            line.shown = line.waiting.first().copied();
            share.ready.extend(line.shown);
            share.open.insert(group.to_owned());
            if alive {
                line.out.insert(index);
            }
        }
        if !alive {
            self.seen.remove(&index);
            return None;
        }
        let until = now + ask.invisible;
        share.hidden.insert((until, index));
        self.handles.insert(handle.clone(), index);
        self.seen.insert(index, Seen { endpoint: ask.endpoint, attempts, until, handle });
        Some(attempts)
    }

    /// The receive is over: message groups with something out wait.
    pub(super) fn settle(&mut self, endpoint: usize) {
        let Some(share) = self.shares.get_mut(&endpoint) else { return };
        for group in std::mem::take(&mut share.open) {
            if let Some(line) = share.lines.get_mut(&group) {
                line.show(&mut share.ready);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, now: Instant, handle: &str, messages: &[Kept]) -> bool {
        let Some(index) = self.handles.get(handle).copied() else { return false };
        if self.seen.get(&index).is_none_or(|seen| seen.until <= now) {
            return false;
        }
        let Some(seen) = self.seen.remove(&index) else { return false };
        self.handles.remove(handle);
        let Some(share) = self.shares.get_mut(&seen.endpoint) else { return true };
        share.hidden.remove(&(seen.until, index));
        if let Some(line) = messages.get(index).and_then(Kept::group).and_then(|group| share.lines.get_mut(group)) {
            line.out.remove(&index);
            line.show(&mut share.ready);
        }
        true
    }

    pub(super) fn change(&mut self, now: Instant, handle: &str, to: Duration) -> Option<String> {
        let index = self.handles.get(handle).copied()?;
        let seen = self.seen.get_mut(&index).filter(|seen| seen.until > now)?;
        let until = now + to;
        if let Some(share) = self.shares.get_mut(&seen.endpoint) {
            share.hidden.remove(&(seen.until, index));
            share.hidden.insert((until, index));
        }
        seen.until = until;
        seen.handle = format!("{handle}+");
        self.handles.remove(handle);
        self.handles.insert(seen.handle.clone(), index);
        Some(seen.handle.clone())
    }

    pub(super) fn next_visible(&self, endpoint: usize) -> Option<Instant> {
        self.shares.get(&endpoint)?.hidden.first().map(|(at, _)| *at)
    }
}
