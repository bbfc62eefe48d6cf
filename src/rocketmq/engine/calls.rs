//! The calls under way, and how many there are to each address.

use std::collections::BTreeMap;
use std::time::Instant;

use super::addresses::AddressId;
use super::event::{CallId, EntryId, SessionId};
use super::poll::PollKey;
use crate::rocketmq::wire::method::Method;

/// A call under way.
pub(super) struct Call {
    pub session: SessionId,
    pub entry: EntryId,
    pub address: AddressId,
    pub started: Instant,
    /// When gRPC ends it at the latest.
    pub deadline: Instant,
    pub purpose: Purpose,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Route(String),
    Heartbeat,
    Send(u64),
    Poll(PollKey),
    /// Its operation, and its place there.
    Prepared(Method, u64, usize),
    Farewell,
}

impl Purpose {
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Route(_) => Method::QueryRoute,
            Self::Heartbeat => Method::Heartbeat,
            Self::Send(_) => Method::SendMessage,
            Self::Poll(_) => Method::ReceiveMessage,
            Self::Prepared(method, ..) => *method,
            Self::Farewell => Method::NotifyClientTermination,
        }
    }
}

/// There may be tens of thousands: what is asked at the end of each must not look at all of them.
#[derive(Default)]
pub(super) struct Calls {
    calls: BTreeMap<CallId, Call>,
    /// Never 0.
    at: BTreeMap<AddressId, usize>,
}

impl Calls {
    pub(super) fn insert(&mut self, id: CallId, call: Call) {
        *self.at.entry(call.address).or_default() += 1;
        self.calls.insert(id, call);
    }

    pub(super) fn remove(&mut self, id: &CallId) -> Option<Call> {
        let call = self.calls.remove(id)?;
        if let Some(count) = self.at.get_mut(&call.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.at.remove(&call.address);
            }
        }
        Some(call)
    }

    pub(super) fn get(&self, id: &CallId) -> Option<&Call> {
        self.calls.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&CallId, &Call)> {
        self.calls.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Call> {
        self.calls.values()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.at.is_empty()
    }

    /// Where calls are under way.
    pub(super) fn addresses(&self) -> impl Iterator<Item = AddressId> {
        self.at.keys().copied()
    }

    pub(super) fn any_at(&self, address: AddressId) -> bool {
        self.at.contains_key(&address)
    }
}
