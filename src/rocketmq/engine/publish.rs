//! Sends: where each message goes, its attempts, and its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protobuf::Message as _;

use super::addresses::AddressId;
use super::event::{Action, CallEnd, Fault, Outgoing, Role, SessionId, Settled};
use super::publisher::Choice;
use super::route::Route;
use super::session::State;
use super::{Call, Engine, Purpose, Timer, closed, malformed, response};
use crate::error::{Delivery, Error, ErrorKind, Recovery};
use crate::policy::admission::{Admitted, Ticket};
use crate::rocketmq::message::SendReceipt;
use crate::rocketmq::wire::{code, pb};

/// While no endpoint has a connection, sends look again after this.
const NO_CONNECTION_PAUSE: Duration = Duration::from_millis(100);

impl Engine {
    pub(super) fn admitted(&mut self, now: Instant, id: SessionId, messages: &mut Vec<Admitted<Outgoing>>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            let error = closed("producer");
            for Admitted { ticket, item } in messages.drain(..) {
                let Ticket { place, charge, .. } = ticket;
                let Outgoing { group, reply, .. } = item;
                self.act(Action::Settle(Settled {
                    session: id,
                    place,
                    charge,
                    group,
                    reply,
                    result: Err(error.clone()),
                }));
            }
            return;
        };
        let mut stopped = Vec::new();
        for Admitted { ticket, item } in messages.drain(..) {
            let place = ticket.place;
            session.publisher.push(ticket, item);
            stopped.extend(session.publisher.stopped(place).map(|error| (place, error)));
        }
        for (place, error) in stopped {
            self.settle_send(now, id, place, Err(error));
        }
        self.arm_due(id);
        self.pump(now, id);
    }

    fn arm_due(&mut self, id: SessionId) {
        if let Some(due) = self.sessions.get(&id).and_then(|session| session.publisher.oldest_due()) {
            let late = if mutant!(DueIsLate) { 4 * NO_CONNECTION_PAUSE } else { Duration::ZERO };
            self.timers.arm(Timer::Due(id), due + late);
        }
    }

    pub(super) fn pump_all(&mut self, now: Instant) {
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.pump(now, id);
        }
    }

    /// Starts what can be started.
    pub(super) fn pump(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(at) = session.publisher.wake(now) {
            self.timers.arm(Timer::Pump(id), at);
        }
        let starting = matches!(session.state, State::Starting { .. });
        // A consumer's topics are asked for until they are known; a producer's when something is sent to them.
        if starting || (matches!(session.spec.role, Role::SimpleConsumer(_)) && !session.is_closing()) {
            let missing = |route: &Route| !route.known && (starting || route.hopeless().is_none());
            let missing: Vec<String> =
                session.routes.iter().filter(|(_, route)| missing(route)).map(|(topic, _)| topic.clone()).collect();
            for topic in missing {
                self.ask_route(now, id, &topic);
            }
        }
        if starting {
            return;
        }
        let mut from = 0;
        while let Some(place) = self.sessions.get(&id).and_then(|session| session.publisher.next_ready(from)) {
            if !self.start_send(now, id, place) {
                break;
            }
            from = place + 1;
        }
    }

    /// False if nothing else can be started now.
    fn start_send(&mut self, now: Instant, id: SessionId, place: u64) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let Some(send) = session.publisher.sends.get(&place) else { return true };
        if send.is_too_late(now) {
            // Its timeout answers it.
            session.publisher.ready.remove(&place);
            return true;
        }
        let topic = Arc::clone(&send.message.topic);
        let choice = match session.routes.get(&*topic) {
            Some(route) if route.known => session.publisher.choose(send, route, &self.isolated, &session.settings),
            Some(route) if route.hopeless().is_some() => {
                let error = route.error.clone().unwrap_or_else(|| closed("topic"));
                Choice::Refused(error.in_context(&format!("send to {topic}")))
            }
            _ => {
                // Stays ready: the route's answer pumps again.
                self.ask_route(now, id, &topic);
                return true;
            }
        };
        match choice {
            Choice::To(address) => {
                self.attempt(now, id, place, address);
                true
            }
            Choice::Full => false,
            Choice::Refused(error) => {
                // Not about this message, of which nothing was sent this time.
                let fate =
                    self.sessions.get(&id).and_then(|session| Some(session.publisher.sends.get(&place)?.fate(&error)));
                self.settle_send(now, id, place, Err(fate.unwrap_or(error)));
                if self.sessions.contains_key(&id) {
                    // A place that this round has passed may have become ready.
                    self.timers.arm(Timer::Pump(id), now);
                }
                true
            }
        }
    }

    fn attempt(&mut self, now: Instant, id: SessionId, place: u64, address: AddressId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let request_timeout = session.spec.request_timeout;
        let publisher = &mut session.publisher;
        publisher.ready.remove(&place);
        publisher.cursor = publisher.cursor.wrapping_add(1);
        let max_attempts = publisher.max_attempts;
        let Some(send) = publisher.sends.get_mut(&place) else { return };
        let left = max_attempts.saturating_sub(send.attempts).max(1);
        let timeout = match send.ticket.due {
            // A fair share of what is left, so that the last attempt has as much as the first.
            Some(due) => request_timeout.min(due.saturating_duration_since(now) / left).max(Duration::from_millis(1)),
            None => request_timeout,
        };
        send.attempts += 1;
        send.tried.push(address);
        let request = send.message.request.clone();
        *publisher.load.entry(address).or_default() += 1;
        let call = self.call(now, id, address, Purpose::Send(place), request, timeout);
        if let Some(send) = self.sessions.get_mut(&id).and_then(|session| session.publisher.sends.get_mut(&place)) {
            send.call = Some((call, address));
        }
    }

    pub(super) fn send_ended(&mut self, now: Instant, call: &Call, place: u64, end: CallEnd) {
        let id = call.session;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let isolated = &self.isolated;
        let publisher = &mut session.publisher;
        publisher.unload(call.address);
        let Some(send) = publisher.sends.get_mut(&place) else { return };
        send.call = None;
        let topic = Arc::clone(&send.message.topic);
        // Nobody reads it where all is well.
        let what = || format!("send to {topic}");
        let answer = match end {
            // Neither counts: nothing was tried, or we broke it off.
            CallEnd::NotStarted(fault) => {
                send.attempts = send.attempts.saturating_sub(1);
                let untried = |at: &AddressId| !isolated.contains(at) && !send.tried.contains(at);
                let elsewhere = session.routes.get(&*send.message.topic).is_some_and(|route| {
                    send.message.group.is_none() && route.writable().any(|queue| untried(&queue.address))
                });
                if elsewhere && fault.is_of_endpoint() {
                    publisher.ready.insert(place);
                } else {
                    send.tried.clear();
                    // What failed before says more than that nothing has failed yet.
                    if fault != Fault::Dialling || send.last.is_none() {
                        send.last = Some(fault.error(&what()));
                    }
                    publisher.pause(place, now + NO_CONNECTION_PAUSE);
                }
                self.pump(now, id);
                return;
            }
            CallEnd::Cancelled => {
                if !mutant!(CutOffSendsCount) {
                    send.attempts = send.attempts.saturating_sub(1);
                }
                send.worst = Delivery::Unknown;
                publisher.ready.insert(place);
                return; // who cancelled it pumps
            }
            CallEnd::Response(body) => parse(&body, what, send.attempts),
            end => response(end, &what()).and_then(|body| parse(&body, what, send.attempts)),
        };
        let error = match answer {
            Ok(receipt) => {
                self.settle_send(now, id, place, Ok(receipt));
                self.pump(now, id);
                return;
            }
            Err(error) => error,
        };
        send.worst = send.worst.max(error.delivery());
        if error.code().is_some_and(code::is_settings_missing) {
            self.settings_missing(now, id, call.address);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let settings = &session.settings;
        let publisher = &mut session.publisher;
        let Some(send) = publisher.sends.get_mut(&place) else { return };
        if send.attempts >= publisher.max_attempts || error.recovery() == Recovery::Never {
            let error = error.with_delivery(send.worst).with_attempts(send.attempts);
            self.settle_send(now, id, place, Err(error));
        } else if error.kind() == ErrorKind::Throttled {
            let until = now + settings.pause.after(send.attempts);
            send.last = Some(error);
            publisher.pause(place, until);
        } else {
            send.last = Some(error);
            publisher.ready.insert(place);
        }
        self.pump(now, id);
    }

    /// Fixes a result.
    fn settle_send(&mut self, now: Instant, id: SessionId, place: u64, result: Result<SendReceipt, Error>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let ticket = session.publisher.sends.get(&place).map(|send| send.ticket);
        let Some((settled, call)) = session.publisher.settle(id, place, result) else { return };
        if let Some(ticket) = ticket {
            let age = now.saturating_duration_since(ticket.called_at);
            self.stats.longest_answer = self.stats.longest_answer.max(age);
            if let Some(due) = ticket.due {
                let overdue = now.saturating_duration_since(due);
                self.stats.longest_overdue = self.stats.longest_overdue.max(overdue);
            }
        }
        let stops = match (&settled.result, &settled.group) {
            (Err(error), Some(group)) => session.publisher.stop(group, error),
            _ => None,
        };
        self.act(Action::Settle(settled));
        if let Some(call) = call {
            self.give_up(now, call);
        }
        let (line, error) = stops.unzip();
        for place in line.into_iter().flatten() {
            if let Some(error) = &error {
                self.settle_send(now, id, place, Err(error.clone()));
            }
        }
        self.check_closed(now, id);
    }

    /// Fixes the result of everything that is due.
    pub(super) fn expire_sends(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let due: Vec<u64> = session
            .publisher
            .sends
            .iter()
            .take_while(|(_, send)| send.ticket.due.is_some_and(|due| due <= now))
            .map(|(place, _)| *place)
            .collect();
        for place in due {
            let Some(session) = self.sessions.get(&id) else { continue };
            let Some(send) = session.publisher.sends.get(&place) else { continue };
            let allowed =
                send.ticket.due.map(|due| due.saturating_duration_since(send.ticket.called_at)).unwrap_or_default();
            let text = format!("send to {} was not answered within {allowed:?}", send.message.topic);
            let route = session.routes.get(&*send.message.topic).and_then(|route| route.error.as_ref());
            let error = match (&send.last, route) {
                (Some(last), _) => Error::new(ErrorKind::Timeout, text).with_source(last.clone()),
                (None, Some(last)) => {
                    Error::new(ErrorKind::Timeout, format!("{text}: {last}")).with_source(last.clone())
                }
                (None, None) => Error::new(ErrorKind::Timeout, text),
            };
            let error = send.fate(&error);
            self.settle_send(now, id, place, Err(error));
        }
        self.arm_due(id);
        self.pump(now, id);
    }

    pub(super) fn fail_sends(&mut self, now: Instant, id: SessionId, error: &Error) {
        let Some(session) = self.sessions.get(&id) else { return };
        for place in session.publisher.sends.keys().copied().collect::<Vec<_>>() {
            let fate =
                self.sessions.get(&id).and_then(|session| Some(session.publisher.sends.get(&place)?.fate(error)));
            if let Some(error) = fate {
                self.settle_send(now, id, place, Err(error));
            }
        }
    }
}

fn parse(body: &[u8], what: impl Fn() -> String, attempts: u32) -> Result<SendReceipt, Error> {
    let answer = pb::SendMessageResponse::parse_from_bytes(body).map_err(|error| malformed(&what(), error))?;
    let entry = answer.entries.into_iter().next();
    // One message, one entry: its own status says more than the whole's.
    let status = entry.as_ref().and_then(|entry| entry.status.as_ref()).or(answer.status.as_ref());
    if !status.is_some_and(|status| code::is_success(status.code.value())) {
        code::check(status, &what())?;
    }
    let entry = entry.ok_or_else(|| malformed(&what(), "an answer without a result"))?;
    Ok(SendReceipt { message_id: entry.message_id, offset: entry.offset, attempts })
}
