//! What `benches/admission.rs` measures: the permits of one producer with one lane. Not part of the interface.

#![allow(missing_docs)]

use std::sync::Arc;

use super::budget::Budget;
use super::permits::Permits;
use crate::policy::admission::{Admitted, Limits};
use crate::policy::budget::message_charge;

pub struct Sends<T>(Arc<Permits<T>>);

impl<T: Send + 'static> Sends<T> {
    pub fn new(max_pending: Option<usize>, memory: Option<usize>, look: impl Fn() + Send + Sync + 'static) -> Self {
        let limits = Limits { max_pending, send_timeout: Some(std::time::Duration::from_secs(30)) };
        Self(Permits::new(limits, 1, Arc::new(Budget::new(memory)), move |_| look()))
    }

    /// False if the message was not admitted.
    pub fn send(&self, item: T, body: usize) -> bool {
        self.0.admit(0, item, message_charge(body, 0), None, true).is_ok()
    }

    pub fn take(&self, into: &mut Taken<T>) {
        self.0.take(0, &mut into.0);
    }

    pub fn give_back(&self, count: usize, charge: usize) {
        self.0.returned(0, count, charge);
    }
}

pub struct Taken<T>(Vec<Admitted<T>>);

impl<T> Taken<T> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each message with its charge.
    pub fn drain(&mut self) -> impl Iterator<Item = (T, usize)> {
        self.0.drain(..).map(|admitted| (admitted.item, admitted.ticket.charge))
    }
}

impl<T> Default for Taken<T> {
    fn default() -> Self {
        Self::new()
    }
}
