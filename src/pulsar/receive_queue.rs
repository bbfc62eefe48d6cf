//! A consumer's queue between the loop, which never waits on it, and the threads that receive.
//!
//! What lies in it is bounded by the permits that the broker was given. An entry lies there packed; the thread that
//! takes it unpacks it, so that decompression and checksums cost the loop nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::engine::event::{AckCommand, Command, Delivery, PartId};
use super::event_loop::Post;
use super::message::Message;
use super::unpack::{Unpacked, unpack};
use crate::error::{Error, ErrorKind};

pub(super) struct ReceiveQueue {
    state: Mutex<State>,
    arrived: Condvar,
    post: Post,
    /// Permits are told once this many were used.
    threshold: u32,
}

struct State {
    entries: VecDeque<Delivery>,
    ready: VecDeque<Message>,
    /// A thread is unpacking an entry: the others wait, so that order is kept.
    unpacking: bool,
    parts: BTreeMap<PartId, PartState>,
    ended: Option<Error>,
}

struct PartState {
    topic: Arc<str>,
    session: u32,
    /// The session that the present subscription began with.
    subscribed: u32,
    used: u32,
}

impl ReceiveQueue {
    pub(super) fn new(parts: &[(PartId, String)], queue_size: u32, post: Post) -> Self {
        let parts = parts
            .iter()
            .map(|(part, topic)| {
                (*part, PartState { topic: topic.as_str().into(), session: 0, subscribed: 0, used: 0 })
            })
            .collect();
        Self {
            state: Mutex::new(State {
                entries: VecDeque::new(),
                ready: VecDeque::new(),
                unpacking: false,
                parts,
                ended: None,
            }),
            arrived: Condvar::new(),
            post,
            threshold: (queue_size / 2).max(1),
        }
    }

    // The loop's side.

    pub(super) fn deliver(&self, delivery: Delivery) {
        let mut state = self.state.lock();
        if state.parts.get(&delivery.part).is_none_or(|part| part.session != delivery.session) {
            return;
        }
        state.entries.push_back(delivery);
        drop(state);
        self.arrived.notify_one();
    }

    /// A new session of a part: what the old one delivered is dropped. With `refund` the subscription goes on, so
    /// the permits of what was dropped, and of what was used and not told, go back.
    pub(super) fn reset(&self, id: PartId, session: u32, refund: bool) {
        let mut state = self.state.lock();
        let mut permits = 0u32;
        if refund {
            let entries = state.entries.iter().filter(|entry| entry.part == id);
            permits = entries.map(|entry| super::unpack::permits(&entry.entry)).fold(0, u32::saturating_add);
            let ready = state.ready.iter().filter(|message| message.entry.part == id).count();
            permits = permits.saturating_add(u32::try_from(ready).unwrap_or(u32::MAX));
        }
        let dropped: VecDeque<Message> = {
            let (gone, kept) = std::mem::take(&mut state.ready).into_iter().partition(|one| one.entry.part == id);
            state.ready = kept;
            gone
        };
        state.entries.retain(|entry| entry.part != id);
        if let Some(part) = state.parts.get_mut(&id) {
            part.session = session;
            let used = std::mem::take(&mut part.used);
            if refund {
                permits = permits.saturating_add(used);
            } else {
                part.subscribed = session;
            }
        }
        drop(state);
        drop(dropped);
        if permits > 0 {
            self.post.command(Command::Permits { part: id, session, permits });
        }
    }

    /// A part delivers nothing more. Receivers are told when none is left.
    pub(super) fn end(&self, id: PartId, error: Error) {
        let mut state = self.state.lock();
        state.parts.remove(&id);
        if state.parts.is_empty() {
            state.ended.get_or_insert(error);
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// The handle was closed: receivers wait no more, and what lies in the queue is dropped.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.ended = Some(Error::new(ErrorKind::Closed, "the consumer is closed"));
        let dropped = (std::mem::take(&mut state.entries), std::mem::take(&mut state.ready));
        drop(state);
        drop(dropped);
        self.arrived.notify_all();
    }

    // The receivers' side.

    /// The next message; `Ok(None)` if there is none by the deadline.
    pub(super) fn receive(&self, deadline: Option<Instant>) -> Result<Option<Message>, Error> {
        let mut state = self.state.lock();
        loop {
            if let Some(message) = state.ready.pop_front() {
                let part = message.entry.part;
                let told = message.entry.session;
                let more = !state.ready.is_empty() || !state.entries.is_empty();
                let flow = self.use_permits(&mut state, part, told, 1);
                drop(state);
                if let Some(flow) = flow {
                    self.post.command(flow);
                }
                if more {
                    self.arrived.notify_one();
                }
                return Ok(Some(message));
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            if !state.unpacking {
                if let Some(delivery) = state.entries.pop_front() {
                    let topic = state.parts.get(&delivery.part).map(|part| Arc::clone(&part.topic));
                    state.unpacking = true;
                    drop(state);
                    let unpacked = unpack(delivery, topic.unwrap_or_else(|| "".into()));
                    state = self.state.lock();
                    state.unpacking = false;
                    let flow = self.unpacked(&mut state, unpacked);
                    if let Some(flow) = flow {
                        // Posting is a short lock and perhaps a wake; receivers may wait that long.
                        self.post.command(flow);
                    }
                    continue;
                }
            }
            let timed_out = match deadline {
                Some(deadline) if Instant::now() >= deadline => true,
                Some(deadline) => {
                    self.arrived.wait_until(&mut state, deadline);
                    false
                }
                None => {
                    self.arrived.wait(&mut state);
                    false
                }
            };
            if timed_out {
                return Ok(None);
            }
        }
    }

    /// An entry was unpacked: its messages are ready, unless its session is over. Permits of what it had and nobody
    /// will see go back, also of an entry whose session was voided within its subscription: no reset has seen it.
    fn unpacked(&self, state: &mut State, unpacked: Unpacked) -> Option<Command> {
        let Unpacked { part, session, messages, skipped, invalid } = unpacked;
        let known = state.parts.get(&part).filter(|_| state.ended.is_none())?;
        if known.session != session {
            let within = session.wrapping_sub(known.subscribed) <= known.session.wrapping_sub(known.subscribed);
            let lost = u32::try_from(messages.len()).unwrap_or(u32::MAX).saturating_add(skipped);
            let present = known.session;
            return if within { self.use_permits(state, part, present, lost) } else { None };
        }
        state.ready.extend(messages);
        if let Some((message_id, error)) = invalid {
            self.post.command(Command::Ack { part, ack: AckCommand::Invalid { message_id, error } });
        }
        self.use_permits(state, part, session, skipped)
    }

    fn use_permits(&self, state: &mut State, id: PartId, session: u32, permits: u32) -> Option<Command> {
        let part = state.parts.get_mut(&id)?;
        if part.session != session {
            return None;
        }
        part.used = part.used.saturating_add(permits);
        if part.used < self.threshold {
            return None;
        }
        let permits = std::mem::take(&mut part.used);
        Some(Command::Permits { part: id, session, permits })
    }
}

#[cfg(test)]
mod tests;
