//! The brokers that links go to: which link serves each, who waits for it, and when the next dial is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::Engine;
use super::attachment::{Assigned, FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE_UNDER_SENDS, Owner, Phase};
use super::event::{Action, LinkId};
use crate::policy::backoff::Backoff;
use crate::policy::rng::Rng;
use crate::pulsar::service_url::HostPort;

/// A target's place in the table. It is used again when nobody uses the target any more.
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

/// The table is looked through when it holds twice what was used at the last look, and this many more.
const SPARE: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Targets {
    places: Vec<Option<Target>>,
    free: Vec<TargetId>,
    by_place: BTreeMap<Place, TargetId>,
    used: usize,
}

impl Targets {
    pub(super) fn intern(&mut self, place: Place) -> TargetId {
        if let Some(id) = self.by_place.get(&place) {
            return *id;
        }
        let target = Target {
            place: place.clone(),
            link: None,
            waiters: Vec::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            not_before: None,
            lost: false,
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.places.push(None);
                TargetId(u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX))
            }
        };
        if let Some(slot) = self.places.get_mut(id.0 as usize) {
            *slot = Some(target);
        }
        self.by_place.insert(place, id);
        id
    }

    pub(super) fn get(&self, id: TargetId) -> Option<&Target> {
        self.places.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: TargetId) -> Option<&mut Target> {
        self.places.get_mut(id.0 as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TargetId, &Target)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(index, target)| Some((TargetId(index as u32), target.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (TargetId, &mut Target)> {
        let numbered = self.places.iter_mut().enumerate();
        numbered.filter_map(|(index, target)| Some((TargetId(index as u32), target.as_mut()?)))
    }

    /// Whether many may have come since the last look that nobody uses any more.
    pub(super) fn is_crowded(&self) -> bool {
        self.by_place.len() >= self.used.saturating_mul(2).saturating_add(SPARE)
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, kept: impl Fn(TargetId) -> bool) {
        let (places, free) = (&mut self.places, &mut self.free);
        self.by_place.retain(|_, id| {
            let keep = kept(*id);
            if !keep {
                if let Some(slot) = places.get_mut(id.0 as usize) {
                    *slot = None;
                    free.push(*id);
                }
            }
            keep
        });
        self.used = self.by_place.len();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }
}

impl Engine {
    /// The target of a place that somebody named; what nobody uses any more makes room for it.
    pub(super) fn target_at(&mut self, now: Instant, place: Place) -> TargetId {
        if self.targets.is_crowded() {
            self.drop_unused_targets(now);
        }
        self.targets.intern(place)
    }

    /// Forgets the places that no link, producer, consumer or look-up uses, and the links that nobody uses.
    fn drop_unused_targets(&mut self, now: Instant) {
        let lanes = self.lanes.values().map(|lane| &lane.attachment);
        let parts = self.parts.values().map(|part| &part.attachment);
        let mut used: BTreeSet<TargetId> = self.lookups.values().map(|lookup| lookup.at).collect();
        let mut links: BTreeSet<LinkId> = self.requests.values().map(|request| request.link).collect();
        for attachment in lanes.chain(parts) {
            used.extend(attachment.assigned.map(|Assigned(target)| target));
            links.extend(attachment.any_link());
            if let Phase::Linking { target } = attachment.phase {
                used.insert(target);
            }
        }
        let service = &self.options.service;
        let links = &links;
        used.extend(self.targets.iter().filter_map(|(id, target)| {
            let asked = matches!(&target.place, Place::Direct(host) if service.contains(host));
            let awaited = !target.waiters.is_empty() || target.gated(now).is_some();
            let link = target.link.and_then(|link| Some((link, self.links.get(&link)?)));
            let carries = link.is_some_and(|(link, state)| links.contains(&link) || !state.is_idle());
            (asked || awaited || carries).then_some(id)
        }));
        let idle = self.targets.iter().filter(|(id, _)| !used.contains(id)).filter_map(|(_, target)| target.link);
        for link in idle.collect::<Vec<_>>() {
            self.links.remove(&link);
            self.act(Action::CloseLink { link, reset: false });
        }
        self.targets.retain(|id| used.contains(&id));
        let hosts: BTreeSet<&HostPort> = self.targets.iter().map(|(_, target)| target.place.physical()).collect();
        self.last_addresses.retain(|host, _| hosts.contains(host));
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
