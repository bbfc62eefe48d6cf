//! What must hold after each step, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::TOPICS;
use super::schedule::{MS, Micros, SEC};
use super::world::{Owner, Stage, TICK, World};
use crate::error::ErrorKind;
use crate::rocketmq::engine::event::{CallEnd, CallId, SessionId};
use crate::rocketmq::engine::session::State;
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::{code, pb};
use protobuf::Message as _;

/// A half-open link that nobody uses is replaced within a period, two deadlines and a second.
const DEAD: Micros = 17 * SEC + 500 * MS;

impl World {
    /// The latest for what is due: the program cannot answer while it stands still.
    pub(super) fn allowed(&self, due: Micros) -> Micros {
        let over = |at: Micros, (from, to): &(Micros, Micros)| {
            if (*from..=*to + TICK).contains(&(at + TICK)) { *to } else { at }
        };
        self.leaps.iter().fold(due, over)
    }

    pub(super) fn must_be_answered(&mut self, due: Micros, what: &str) {
        if self.now > due + TICK && self.now > self.allowed(due) + TICK {
            self.fail(format!("{what} takes too long"));
        }
    }

    /// The engine learns how a call ended that it waits for.
    pub(super) fn call_told(&mut self, call: CallId, ready: bool, end: &CallEnd) {
        let state = &self.calls[&call];
        let (entry, session, started, op) = (state.entry, state.session, state.started, state.op);
        let link = self.links.get_mut(&entry).unwrap();
        let transport = matches!(end, CallEnd::Failed { code: 4 | 14, .. } | CallEnd::NotStarted(_));
        match (state.method, end) {
            (Method::Heartbeat, CallEnd::Failed { code: 4, .. }) if ready => drop(link.late.insert(started)),
            (Method::Heartbeat, CallEnd::Failed { code: 14, .. }) if ready => link.unavailable = true,
            (Method::Heartbeat, CallEnd::Response(body)) => {
                let answer = pb::HeartbeatResponse::parse_from_bytes(body).unwrap();
                if code::is_success(answer.status.code.value()) {
                    link.late.clear();
                    (link.unavailable, link.suspect) = (false, false);
                }
            }
            (Method::Heartbeat, _) => {}
            (Method::QueryRoute, end) => {
                let topic = pb::QueryRouteRequest::parse_from_bytes(&state.body).unwrap().topic.name.clone();
                let good = match end {
                    CallEnd::Response(body) => {
                        let answer = pb::QueryRouteResponse::parse_from_bytes(body).unwrap();
                        code::is_success(answer.status.code.value())
                    }
                    _ => false,
                };
                if !good {
                    *self.route_failures.entry((session, topic)).or_default() += 1;
                }
                link.suspect |= transport;
            }
            _ => link.suspect |= transport,
        }
        if let Some(op) = op {
            let op = &mut self.ops[op];
            op.counted += u32::from(!matches!(end, CallEnd::NotStarted(_) | CallEnd::Cancelled));
            if op.stored.len() > 1 {
                self.happened("a send is stored twice");
            }
        }
    }

    /// What users see, and what must be true of the engine, after each step.
    pub(super) fn look_after(&mut self) {
        self.look_at_producers();
        self.look_at_consumers();
        self.check_channels();
    }

    fn look_at_producers(&mut self) {
        let mut late = Vec::new();
        let mut failed = Vec::new();
        for shell in &mut self.shells {
            if let Some(result) = shell.opening.as_mut().and_then(|pending| pending.try_wait()) {
                shell.opening = None;
                shell.open = result.is_ok();
                failed.extend(result.err().map(|error| (shell.session, error)));
            }
            if let Some((pending, until)) = &mut shell.closing {
                match pending.try_wait() {
                    Some(_) => shell.closing = None,
                    None => late.push(*until),
                }
            }
        }
        if let Some((pending, until)) = &mut self.shutdown {
            match pending.try_wait() {
                Some(result) => {
                    let dropped = result.is_err_and(|error| error.kind() == ErrorKind::Internal);
                    self.shutdown = None;
                    if dropped {
                        self.fail("the end of the client is told to nobody");
                    }
                }
                // Farewells take half a second at most.
                None => late.push(*until + SEC / 2 + TICK),
            }
        }
        for until in late {
            self.must_be_answered(until, "a close");
        }
        for (session, error) in failed {
            self.start_failed(session, &error);
        }
    }

    fn check_channels(&mut self) {
        let mut overdue = None;
        for (endpoint, entry) in &self.current {
            let Some(since) = self.links[entry].dead_since else { continue };
            let cooldown = self.recovered.get(endpoint).map_or(0, |last| last + 30 * SEC + 500 * MS);
            if self.now > (since + DEAD).max(cooldown) && !self.engine.sessions.is_empty() {
                overdue = Some(*endpoint);
            }
        }
        if let Some(endpoint) = overdue {
            self.fail(format!("the dead connection to endpoint {endpoint} is not replaced in time"));
        }
        let isolated: Vec<_> =
            self.engine.isolated.iter().map(|address| self.engine.addresses.endpoints(*address).cloned()).collect();
        for address in isolated {
            let endpoint = self.endpoints.iter().position(|known| Some(&known.address) == address.as_ref());
            let entry = endpoint.and_then(|endpoint| self.current.get(&endpoint));
            if !entry.is_some_and(|entry| self.links[entry].suspect) {
                self.fail("an endpoint is isolated whose connection did not fail");
            }
        }
    }

    /// A heartbeat is given up with its session: another has to look in its place.
    pub(super) fn heartbeat_given_up(&mut self, call: CallId) {
        let (entry, started, now) = (self.calls[&call].entry, self.calls[&call].started, self.now);
        let link = self.links.get_mut(&entry).unwrap();
        if std::mem::replace(&mut link.given_up, started) != started {
            link.dead_since = link.dead_since.map(|since| now.min(since + 3 * SEC + 100 * MS));
        }
    }

    pub(super) fn dead_under_close(&mut self) {
        let closing = self.engine.sessions.values().any(|session| matches!(session.state, State::Closing { .. }));
        if closing && self.current.values().any(|entry| self.links[entry].dead_since.is_some()) {
            self.happened("a dead channel under a session that closes");
        }
    }

    /// A consumer gave a topic up a second ago, and all is well.
    pub(super) fn check_told(&mut self, index: usize) {
        let consumer = &self.consumers[index];
        let topics: BTreeSet<String> = consumer.topics.iter().map(|topic| TOPICS[*topic].to_owned()).collect();
        let told = |endpoint: usize| self.endpoints[endpoint].known.get(&consumer.session) == Some(&topics);
        if consumer.open && !(told(0) && told(1)) {
            self.fail("a change of subscriptions is not told");
        }
    }

    /// All has been well for a minute.
    pub(super) fn check_probing(&mut self) {
        if let Some((endpoint, _)) = self.current.iter().find(|(_, entry)| self.links[entry].is_dead()) {
            self.fail(format!("the dead connection to endpoint {endpoint} was never replaced"));
        }
        let mut open: BTreeMap<SessionId, BTreeSet<String>> = BTreeMap::new();
        open.extend(self.shells.iter().filter(|shell| shell.open).map(|shell| (shell.session, BTreeSet::new())));
        for consumer in self.consumers.iter().filter(|consumer| consumer.open) {
            let topics = consumer.topics.iter().map(|topic| TOPICS[*topic].to_owned()).collect();
            open.insert(consumer.session, topics);
        }
        for (session, topics) in open {
            if self.now < self.start_due[&session] + 5 * SEC {
                continue;
            }
            for endpoint in 0..2 {
                if self.endpoints[endpoint].known.get(&session) != Some(&topics) {
                    let text = format!("endpoint {endpoint} does not know the settings of session {}", session.0);
                    self.fail(text);
                }
            }
        }
    }

    /// Everything has come to its end.
    pub(super) fn verdict(&mut self) {
        assert_eq!(self.stage, Stage::Over);
        if !self.finished {
            return self.fail("the engine does not end");
        }
        // What is remembered for a while is forgotten by now.
        let now = self.instant(self.now);
        self.engine.handle_timeout(now);
        if self.engine.poll_action().is_some() {
            return self.fail("the engine acts after its end");
        }
        let engine = &self.engine;
        let left = [
            (engine.calls.is_empty(), "calls"),
            (engine.streams.is_empty(), "streams"),
            (engine.sessions.is_empty(), "sessions"),
            (engine.operations.is_empty(), "operations"),
            (engine.timers.is_empty(), "timers"),
            (engine.isolated.is_empty(), "isolated endpoints"),
            (engine.addresses.is_empty(), "addresses"),
            (engine.recovery.is_empty(), "guards"),
        ];
        if let Some((_, what)) = left.iter().find(|(empty, _)| !empty) {
            let timers = format!("{:?}", engine.timers);
            return self.fail(format!("the engine keeps {what}: {timers}"));
        }
        if !self.current.is_empty() {
            return self.fail("channels stay open");
        }
        if let Some(uid) = self.ops.iter().position(|op| op.settled.is_some() == op.withdrawn) {
            return self.fail(format!("send {uid} was not answered, or though it was not accepted"));
        }
        if self.shells.iter().any(|shell| shell.admission.pending() + shell.admission.charge() > 0) {
            return self.fail("permits are missing");
        }
        for uid in 0..self.ops.len() {
            use crate::error::Delivery::{NotSent, Refused};
            let op = &self.ops[uid];
            match op.settled {
                Some(Some(NotSent | Refused)) if !op.stored.is_empty() => {
                    return self.fail(format!("send {uid} was denied and is stored"));
                }
                _ => {}
            }
        }
        let mut last = BTreeMap::new();
        for ((session, place), uid) in &self.by_place {
            let op = &self.ops[*uid];
            let (Some(None), Some(group)) = (op.settled, &op.group) else { continue };
            let first = op.stored.first().copied();
            if last.insert((*session, group.clone()), first).is_some_and(|before| before >= first) {
                let text = format!("place {place} of {group} was stored out of order");
                return self.fail(text);
            }
        }
        for (session, (owner, over)) in &self.sessions {
            if !over {
                let text = format!("session {} of {owner:?} does not end", session.0);
                return self.fail(text);
            }
            if let Owner::Consumer(index) = owner {
                if self.consumers[*index].is_receiving() || self.consumers[*index].is_acking() {
                    return self.fail("a consumer waits for an answer");
                }
            }
        }
    }
}
