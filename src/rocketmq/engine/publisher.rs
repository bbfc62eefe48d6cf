//! The sends of a session: which may go, and where to.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::addresses::AddressId;
use super::event::{CallId, Outgoing, Role, SessionId, Settled};
use super::route::Route;
use super::settings::Settings;
use crate::error::{Delivery, Error, ErrorKind, Recovery};
use crate::policy::admission::Ticket;
use crate::rocketmq::message::SendReceipt;
use crate::rocketmq::wire::queue as fifo;

/// An attempt that has less than this, or than a tenth of the whole send timeout, would end unanswered.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(20);

/// The sends of one session.
#[derive(Default)]
pub(super) struct Publisher {
    pub(super) max_attempts: u32,
    in_flight: usize,
    pub(super) sends: BTreeMap<u64, Send>,
    /// Places that may go now, in order.
    pub(super) ready: BTreeSet<u64>,
    /// Places that pause, by when they go on.
    pausing: BTreeSet<(Instant, u64)>,
    /// Message groups with something in flight, and who waits behind it.
    groups: HashMap<Arc<str>, VecDeque<u64>>,
    stop_failed_groups: bool,
    /// Groups that wait for the user, and what their messages are told.
    stopped: HashMap<Arc<str>, Error>,
    /// Calls under way by endpoint.
    pub(super) load: BTreeMap<AddressId, usize>,
    pub(super) cursor: usize,
}

pub(super) struct Send {
    pub(super) ticket: Ticket,
    pub(super) message: Outgoing,
    pub(super) attempts: u32,
    /// Over all attempts.
    pub(super) worst: Delivery,
    pub(super) last: Option<Error>,
    pub(super) tried: Vec<AddressId>,
    /// Until when it pauses.
    paused: Option<Instant>,
    pub(super) call: Option<(CallId, AddressId)>,
}

impl Publisher {
    pub(super) fn new(role: &Role, seed: u64) -> Self {
        match role {
            Role::Producer(spec) => Self {
                max_attempts: spec.max_attempts.max(1),
                in_flight: spec.in_flight.max(1),
                stop_failed_groups: spec.stop_failed_groups,
                cursor: usize::try_from(seed & 0xffff).unwrap_or(0),
                ..Self::default()
            },
            Role::SimpleConsumer(_) => Self::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sends.is_empty()
    }

    pub(super) fn oldest_due(&self) -> Option<Instant> {
        self.sends.values().next().and_then(|send| send.ticket.due)
    }

    /// Takes a send out, with its result. The next of its group may go.
    pub(super) fn settle(
        &mut self,
        session: SessionId,
        place: u64,
        result: Result<SendReceipt, Error>,
    ) -> Option<(Settled, Option<CallId>)> {
        let send = self.sends.remove(&place)?;
        self.ready.remove(&place);
        if let Some(at) = send.paused {
            self.pausing.remove(&(at, place));
        }
        let call = send.call.map(|(call, address)| {
            self.unload(address);
            call
        });
        if let Some(group) = &send.message.group {
            self.leave_group(group, place);
        }
        let Outgoing { group, reply, .. } = send.message;
        let charge = send.ticket.charge;
        Some((Settled { session, place, charge, group, reply, result }, call))
    }

    fn leave_group(&mut self, group: &Arc<str>, place: u64) {
        let Some(line) = self.groups.get_mut(group) else { return };
        let was_first = line.front() == Some(&place);
        // It rises. Nearly always it is the first one that goes, and a line may be as long as all that is in flight.
        if let Ok(at) = line.binary_search(&place) {
            line.remove(at);
        }
        match line.front() {
            Some(next) if was_first => {
                self.ready.insert(*next);
            }
            Some(_) => {}
            None => {
                self.groups.remove(group);
            }
        }
    }

    /// A message of the group failed: the places that wait behind it and may not go any more, and what to tell them.
    /// Nothing if groups go on, or if it is stopped already.
    pub(super) fn stop(&mut self, group: &Arc<str>, error: &Error) -> Option<(Vec<u64>, Error)> {
        if !self.stop_failed_groups || self.stopped.contains_key(group) {
            return None;
        }
        let error = Error::new(
            ErrorKind::Misuse,
            format!("message group {group} is stopped, because a message of it failed; resume_group lets it go on"),
        )
        .with_source(error.clone());
        self.stopped.insert(Arc::clone(group), error.clone());
        let line = self.groups.get(group).map(|line| line.iter().copied().collect()).unwrap_or_default();
        Some((line, error))
    }

    /// Why a message may not go that came just now.
    pub(super) fn stopped(&mut self, place: u64) -> Option<Error> {
        let message = &self.sends.get(&place)?.message;
        let group = message.group.as_ref()?;
        if message.resumes {
            self.stopped.remove(group);
        }
        self.stopped.get(group).cloned()
    }

    pub(super) fn unload(&mut self, address: AddressId) {
        if let Some(load) = self.load.get_mut(&address) {
            *load = load.saturating_sub(1);
            if *load == 0 {
                self.load.remove(&address);
            }
        }
    }

    /// Everything ends with `error`; what was handed to a connection is in doubt.
    pub(super) fn fail_all(&mut self, session: SessionId, error: &Error) -> Vec<Settled> {
        let places: Vec<u64> = self.sends.keys().copied().collect();
        places
            .into_iter()
            .filter_map(|place| {
                let error = self.sends.get(&place)?.fate(error);
                self.settle(session, place, Err(error)).map(|(settled, _)| settled)
            })
            .collect()
    }

    /// Messages of the front of groups, and all that have none, in order.
    pub(super) fn push(&mut self, ticket: Ticket, message: Outgoing) {
        let place = ticket.place;
        let first = match &message.group {
            Some(group) => {
                let line = self.groups.entry(Arc::clone(group)).or_default();
                line.push_back(place);
                line.len() == 1 || mutant!(GroupsRunAhead)
            }
            None => true,
        };
        if first {
            self.ready.insert(place);
        }
        let send = Send {
            ticket,
            message,
            attempts: 0,
            worst: Delivery::NotSent,
            last: None,
            tried: Vec::new(),
            paused: None,
            call: None,
        };
        self.sends.insert(place, send);
    }

    /// A place goes on at this time.
    pub(super) fn pause(&mut self, place: u64, until: Instant) {
        let Some(send) = self.sends.get_mut(&place) else { return };
        send.paused = Some(until);
        self.pausing.insert((until, place));
    }

    /// Whose pauses are over is ready. When the next one is.
    pub(super) fn wake(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, place)) = self.pausing.first().copied() {
            if at > now {
                return Some(at);
            }
            self.pausing.pop_first();
            if let Some(send) = self.sends.get_mut(&place) {
                send.paused = None;
                self.ready.insert(place);
            }
        }
        None
    }

    /// The next place from `from` on that may go now.
    pub(super) fn next_ready(&self, from: u64) -> Option<u64> {
        self.ready.range(from..).next().copied()
    }
}

impl Send {
    /// Whether there is no time for another attempt. A cancelled one costs more than it can bring.
    pub(super) fn is_too_late(&self, now: Instant) -> bool {
        let Ticket { due, called_at, .. } = self.ticket;
        due.is_some_and(|due| {
            let allowed = due.saturating_duration_since(called_at);
            due.saturating_duration_since(now) < SHORTEST_ATTEMPT.min(allowed / 10)
        })
    }

    /// An error that ends this send from outside: a call under way is in doubt.
    pub(super) fn fate(&self, error: &Error) -> Error {
        let delivery = if self.call.is_some() && !mutant!(DoubtIsDenied) { Delivery::Unknown } else { self.worst };
        error.with_delivery(delivery).with_attempts(self.attempts)
    }
}

/// What came of looking for a queue.
pub(super) enum Choice {
    To(AddressId),
    /// All endpoints carry their share.
    Full,
    Refused(Error),
}

impl Publisher {
    /// The endpoint for a send's next attempt: one that was not tried, is not isolated and has room, in turn. If all
    /// were tried, or all are isolated, that no longer counts.
    pub(super) fn choose(
        &self,
        send: &Send,
        route: &Route,
        isolated: &BTreeSet<AddressId>,
        settings: &Settings,
    ) -> Choice {
        let message = &send.message;
        if settings.validate_message_type {
            let accepts = route.queues.first().map(|queue| queue.accepts.as_slice()).unwrap_or_default();
            if !accepts.is_empty() && !accepts.contains(&message.kind) {
                let text = format!(
                    "send to {}: the topic takes {accepts:?}, the message is {:?}",
                    message.topic, message.kind
                );
                return Choice::Refused(Error::new(ErrorKind::Misuse, text));
            }
        }
        if message.body_size > settings.max_body_size {
            let (size, most) = (message.body_size, settings.max_body_size);
            let text = format!("body of {size} bytes to {}: the server takes {most} bytes", message.topic);
            return Choice::Refused(Error::new(ErrorKind::TooLarge, text));
        }
        let queues = route.writable().count();
        if queues == 0 {
            let text = format!("send to {}: no queue of the topic can be written", message.topic);
            return Choice::Refused(Error::new(ErrorKind::Unavailable, text).with_recovery(Recovery::AfterRefresh));
        }
        if let Some(group) = &message.group {
            // Always the same queue, so that order holds; also if its endpoint is out of favour.
            let queue = fifo::of_group(group, queues).and_then(|index| route.writable().nth(index));
            return queue.map_or(Choice::Full, |queue| Choice::To(queue.address));
        }
        let in_turn = || route.writable().map(|queue| queue.address).cycle().skip(self.cursor % queues).take(queues);
        let share = self.in_flight.div_ceil(route.endpoints().max(1)).max(1);
        let room = |address: &AddressId| self.load.get(address).copied().unwrap_or(0) < share;
        let fresh = |address: &AddressId| !isolated.contains(address) && !send.tried.contains(address);
        let well = |address: &AddressId| !isolated.contains(address);
        let ranks: [&dyn Fn(&AddressId) -> bool; 3] = [&fresh, &well, &|_| true];
        for rank in ranks {
            if in_turn().any(|address| rank(&address)) {
                let found = in_turn().find(|address| rank(address) && room(address));
                return found.map_or(Choice::Full, Choice::To);
            }
        }
        Choice::Full
    }
}
