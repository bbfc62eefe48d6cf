//! The brokers that links go to: which link serves each, who waits for it, and when the next dial is allowed.

use std::collections::BTreeMap;
use std::time::Instant;

use super::attachment::{FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE_UNDER_SENDS, Owner};
use super::event::LinkId;
use crate::policy::backoff::Backoff;
use crate::policy::rng::Rng;
use crate::pulsar::service_url::HostPort;

/// Index of a target; targets are few and are kept for the client's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TargetId(pub u32);

/// A logical broker and where to connect to reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Direct(HostPort),
    /// Through a proxy, which is told the broker in CONNECT.
    Proxied {
        via: HostPort,
        broker: HostPort,
    },
}

impl Place {
    /// The address that is dialled.
    pub(super) fn physical(&self) -> &HostPort {
        match self {
            Self::Direct(host) | Self::Proxied { via: host, .. } => host,
        }
    }
}

/// Who waits for a link to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    Owner(Owner),
    Lookup(u64),
}

#[derive(Debug)]
pub(super) struct Target {
    pub place: Place,
    /// The link that serves it or is being made.
    pub link: Option<LinkId>,
    pub waiters: Vec<Waiter>,
    backoff: Backoff,
    /// No dial before this time.
    pub not_before: Option<Instant>,
    /// A ready link was lost and no new one is ready yet.
    pub lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct Targets {
    all: Vec<Target>,
    by_place: BTreeMap<Place, TargetId>,
}

impl Targets {
    pub(super) fn intern(&mut self, place: Place) -> TargetId {
        if let Some(id) = self.by_place.get(&place) {
            return *id;
        }
        let id = TargetId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        self.by_place.insert(place.clone(), id);
        self.all.push(Target {
            place,
            link: None,
            waiters: Vec::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            not_before: None,
            lost: false,
        });
        id
    }

    pub(super) fn get(&self, id: TargetId) -> Option<&Target> {
        self.all.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: TargetId) -> Option<&mut Target> {
        self.all.get_mut(id.0 as usize)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (TargetId, &mut Target)> {
        self.all.iter_mut().enumerate().map(|(index, target)| (TargetId(index as u32), target))
    }
}

impl Target {
    /// The link is gone: sets when the next dial is allowed.
    pub(super) fn failed(&mut self, now: Instant, sends_wait: bool, rng: &mut Rng) {
        let cap = if sends_wait { LONGEST_PAUSE_UNDER_SENDS } else { LONGEST_PAUSE };
        self.link = None;
        self.not_before = Some(now + self.backoff.next_capped(rng, cap));
    }

    /// The broker answered something: its next outage starts with the shortest pause.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
    }

    /// Whether a dial has to wait at `now`, and until when.
    pub(super) fn gated(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    pub(super) fn wait(&mut self, waiter: Waiter) {
        if !self.waiters.contains(&waiter) {
            self.waiters.push(waiter);
        }
    }
}
