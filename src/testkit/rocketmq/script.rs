//! What calls are to come to, other than their answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::state::State;
use crate::rocketmq::wire::method::Method;

/// A call of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rpc {
    /// Routes of a topic.
    QueryRoute,
    /// A sign of life.
    Heartbeat,
    /// A message to be stored.
    SendMessage,
    /// A poll for messages.
    ReceiveMessage,
    /// Acknowledgements.
    AckMessage,
    /// Another invisible duration.
    ChangeInvisibleDuration,
    /// The stream of settings and commands.
    Telemetry,
    /// A client's leave.
    NotifyClientTermination,
}

impl Rpc {
    pub(super) fn of(method: Method) -> Option<Self> {
        Some(match method {
            Method::QueryRoute => Self::QueryRoute,
            Method::Heartbeat => Self::Heartbeat,
            Method::SendMessage => Self::SendMessage,
            Method::ReceiveMessage => Self::ReceiveMessage,
            Method::AckMessage => Self::AckMessage,
            Method::ChangeInvisibleDuration => Self::ChangeInvisibleDuration,
            Method::Telemetry => Self::Telemetry,
            Method::NotifyClientTermination => Self::NotifyClientTermination,
            _ => return None,
        })
    }
}

/// What becomes of a call. A stream of [telemetry](Rpc::Telemetry) counts when it is opened, and what is said here of
/// answers holds for its answers to Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It is carried out, and answered after this time.
    Late(Duration),
    /// It is carried out and never answered.
    Silent,
    /// It is not carried out and never answered.
    Lost,
    /// It is not carried out, and answered with this status of the service and this text.
    Status(i32, String),
    /// It is not carried out, and ended with this status of gRPC's own; a stream of telemetry as soon as it is opened.
    Grpc(i32, String),
    /// It is not carried out, and answered with these bytes.
    Bytes(Vec<u8>),
    /// It is not carried out, and answered with these frames, which then come to this end. A call that has one answer
    /// gets the first of them.
    Frames(Vec<Vec<u8>>, End),
    /// It is carried out, and comes to this end after so many frames of its answer.
    Cut(usize, End),
}

/// How a stream of answers ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// As one that is complete.
    Well,
    /// With a status of gRPC's own.
    Grpc(i32, String),
    /// It does not.
    Never,
}

/// A call that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// What was called.
    pub rpc: Rpc,
    /// The endpoint.
    pub endpoint: usize,
    /// When.
    pub at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Rules(HashMap<(Rpc, usize), Vec<Rule>>);

#[derive(Debug)]
struct Rule {
    effect: Effect,
    /// `None` means for ever.
    left: Option<u64>,
    /// Calls that pass before it holds.
    skip: u64,
    /// It holds for the last of so many calls, again and again.
    every: u64,
    passed: u64,
}

impl Rules {
    pub(super) fn take(&mut self, rpc: Rpc, endpoint: usize) -> Option<Effect> {
        let rules = self.0.get_mut(&(rpc, endpoint))?;
        let rule = rules.first_mut()?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.passed += 1;
        if rule.passed < rule.every {
            return None;
        }
        rule.passed = 0;
        let effect = rule.effect.clone();
        if let Some(left) = &mut rule.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                rules.remove(0);
            }
        }
        Some(effect)
    }
}

/// What calls of a kind are to come to. Rules hold one after another in the order in which they were given.
#[must_use = "say what is to happen"]
pub struct Script<'a> {
    state: &'a Mutex<State>,
    rpc: Rpc,
    endpoint: Option<usize>,
    count: Option<u64>,
    skip: u64,
    every: u64,
}

impl<'a> Script<'a> {
    pub(super) fn new(state: &'a Mutex<State>, rpc: Rpc) -> Self {
        Self { state, rpc, endpoint: None, count: None, skip: 0, every: 1 }
    }

    /// Only at this endpoint. By default at all, each counting for itself.
    pub fn at(mut self, endpoint: usize) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    /// Only the next so many calls. By default all from now on.
    pub fn next(mut self, calls: u64) -> Self {
        self.count = Some(calls);
        self
    }

    /// So many calls pass first.
    pub fn after(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// Only every so many calls. By default each.
    pub fn every(mut self, calls: u64) -> Self {
        self.every = calls;
        self
    }

    /// Adds the rule.
    pub fn then(self, effect: Effect) {
        let mut state = self.state.lock();
        let endpoints = match self.endpoint {
            Some(endpoint) => endpoint..endpoint + 1,
            None => 0..state.endpoint_count(),
        };
        for endpoint in endpoints {
            let (every, passed) = (self.every, 0);
            let rule = Rule { effect: effect.clone(), left: self.count, skip: self.skip, every, passed };
            state.rules().0.entry((self.rpc, endpoint)).or_default().push(rule);
        }
    }

    /// Removes all rules of this kind.
    pub fn behave(self) {
        let endpoint = self.endpoint;
        let rpc = self.rpc;
        self.state
            .lock()
            .rules()
            .0
            .retain(|(known, at), _| *known != rpc || endpoint.is_some_and(|endpoint| endpoint != *at));
    }
}
