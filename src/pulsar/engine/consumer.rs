//! Consumers: their parts subscribed together, fed with permits, unsubscribed and closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::ack::AckGroup;
use super::attachment::{Attachment, Owner, Phase};
use super::event::{Action, Answer, ConsumerId, ConsumerSpec, LinkId, PartId};
use super::operation::{Operation, operation_timeout};
use super::producer::client_closed;
use super::requests::Purpose;
use super::unsubscribe::Leaving;
use crate::error::{Error, ErrorKind};
use crate::pending::Completion;
use crate::pulsar::wire::command::{self as wire, MessageIdData};

pub(super) struct Consumer {
    pub parts: Vec<PartId>,
    pub state: ConsumerState,
}

pub(super) enum ConsumerState {
    /// `subscribe` waits for all parts.
    Opening {
        due: Instant,
        reply: Completion<()>,
    },
    Open,
    Unsubscribing(Leaving),
    Closing {
        due: Instant,
        replies: Vec<Completion<()>>,
    },
}

pub(super) struct Part {
    pub consumer: ConsumerId,
    pub spec: Arc<ConsumerSpec>,
    pub topic: String,
    pub attachment: Attachment,
    /// One more at each subscription and each time its queue is voided: what an older session delivered is void.
    pub session: u32,
    /// The session that the present subscription began with: permits of an older one are void.
    pub subscribed: u32,
    /// Redeliveries of everything that were asked for (`consumer_epoch`): the broker marks messages with it, and
    /// those from before the last one are void.
    pub epoch: u64,
    /// Permits that the broker was given in this session, less the entries that it sent; each takes at least one.
    pub credit: i64,
    pub acks: AckGroup,
    /// Entries to ask for again, by the time at which.
    pub redelivery: BTreeMap<(Instant, u64), MessageIdData>,
    pub next_redelivery: u64,
}

impl Engine {
    pub(super) fn open_consumer(
        &mut self,
        now: Instant,
        id: ConsumerId,
        spec: Arc<ConsumerSpec>,
        parts: Vec<(PartId, String)>,
        due: Instant,
        reply: Completion<()>,
    ) {
        if self.shutdown.is_some() {
            self.act(Action::Answer(Answer::Done(reply, Err(client_closed()))));
            return;
        }
        let ids: Vec<PartId> = parts.iter().map(|(part, _)| *part).collect();
        for (part, topic) in parts {
            let state = Part {
                consumer: id,
                spec: Arc::clone(&spec),
                topic,
                attachment: Attachment::new(),
                session: 0,
                subscribed: 0,
                epoch: 0,
                credit: 0,
                acks: AckGroup::default(),
                redelivery: BTreeMap::new(),
                next_redelivery: 0,
            };
            self.parts.insert(part, state);
        }
        self.consumers.insert(id, Consumer { parts: ids.clone(), state: ConsumerState::Opening { due, reply } });
        self.new_operation(Operation::Consumer(id), due);
        for part in ids {
            self.seek(now, Owner::Part(part));
        }
    }

    pub(super) fn send_subscribe(&mut self, now: Instant, link: LinkId, id: PartId, request: u64) {
        let Some(part) = self.parts.get(&id) else { return };
        let mut open =
            wire::SubscribeOpen::new(&part.topic, &part.spec.subscription, part.spec.sub_type, id.0, request);
        open.consumer_name = Some(&part.spec.name);
        open.initial_position = part.spec.initial_position;
        open.properties = &part.spec.properties;
        open.consumer_epoch = Some(part.epoch);
        let command = wire::subscribe(&open);
        self.send_request(now, link, &command);
    }

    pub(super) fn subscribed(&mut self, now: Instant, link: LinkId, id: PartId) {
        let awaited = self.parts.get(&id).is_some_and(
            |part| matches!(part.attachment.phase, Phase::Opening { link: opening, .. } if opening == link),
        );
        if !awaited {
            self.send_close_consumer(now, link, id, Purpose::Courtesy);
            return;
        }
        self.opened(now, Owner::Part(id), link);
        let Some(part) = self.parts.get_mut(&id) else { return };
        part.session = part.session.wrapping_add(1);
        part.subscribed = part.session;
        part.credit = 0;
        let (session, permits, consumer) = (part.session, part.spec.queue_size, part.consumer);
        self.act(Action::ResetPart { part: id, session, refund: false });
        self.send_flow(id, permits);
        // What was acknowledged and not written before the link was lost still holds.
        self.flush_acks(id);
        self.redeliver_due(now, id);
        self.consumer_progress(consumer);
    }

    fn consumer_progress(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        let ConsumerState::Opening { .. } = consumer.state else { return };
        let parts = &self.parts;
        if !consumer.parts.iter().all(|part| parts.get(part).is_some_and(|part| part.attachment.is_open())) {
            return;
        }
        if let ConsumerState::Opening { reply, .. } = std::mem::replace(&mut consumer.state, ConsumerState::Open) {
            self.act(Action::Answer(Answer::Done(reply, Ok(()))));
        }
    }

    /// The session is over: what it delivered and nobody took is void, and the broker delivers it anew.
    pub(super) fn part_session_over(&mut self, id: PartId) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        part.session = part.session.wrapping_add(1);
        part.subscribed = part.session;
        let session = part.session;
        self.act(Action::ResetPart { part: id, session, refund: false });
    }

    /// The application took messages: their permits go back, unless their subscription is over. A session that was
    /// voided within it does not void them: the broker still counts them.
    pub(super) fn permits_used(&mut self, id: PartId, session: u32, permits: u32) {
        let within = |part: &Part| session.wrapping_sub(part.subscribed) <= part.session.wrapping_sub(part.subscribed);
        if self.parts.get(&id).is_some_and(within) || mutant!(OldPermitsCount) {
            self.send_flow(id, permits);
        }
    }

    fn send_flow(&mut self, id: PartId, permits: u32) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let Some(link) = part.attachment.link() else { return };
        part.credit = part.credit.saturating_add(i64::from(permits));
        if let Some(connection) = self.links.get_mut(&link) {
            wire::encode_flow(id.0, permits, &mut connection.control);
            self.mark_dirty(link);
        }
    }

    /// A part can never be attached again.
    pub(super) fn part_failed(&mut self, _now: Instant, id: PartId, error: &Error) {
        self.end_attachment(Owner::Part(id));
        let Some(part) = self.parts.get(&id) else { return };
        let context = format!("subscription on {} failed", part.topic);
        self.act(Action::PartEnded { part: id, error: error.in_context(&context) });
    }

    /// `subscribe` failed: nothing of the consumer stays.
    pub(super) fn abort_consumer(&mut self, now: Instant, id: ConsumerId, error: &Error) {
        let Some(consumer) = self.consumers.remove(&id) else { return };
        for part in &consumer.parts {
            self.leave_part(now, *part, Purpose::Courtesy);
            self.parts.remove(part);
            self.act(Action::PartEnded { part: *part, error: error.clone() });
        }
        if let ConsumerState::Opening { reply, .. } = consumer.state {
            self.act(Action::Answer(Answer::Done(reply, Err(error.clone()))));
        }
        self.check_shutdown();
    }

    pub(super) fn consumer_due(&mut self, now: Instant, id: ConsumerId) {
        let Some(consumer) = self.consumers.get(&id) else { return };
        let due = match &consumer.state {
            ConsumerState::Open => return,
            ConsumerState::Opening { due, .. } | ConsumerState::Closing { due, .. } => *due,
            ConsumerState::Unsubscribing(leaving) => leaving.due,
        };
        if now < due {
            self.new_operation(Operation::Consumer(id), due);
            return;
        }
        match &consumer.state {
            ConsumerState::Opening { .. } => {
                let stuck = consumer.parts.iter().find_map(|part| {
                    let part = self.parts.get(part)?;
                    (!part.attachment.is_open()).then(|| (part.topic.clone(), part.attachment.last_error.clone()))
                });
                let (topic, last) = stuck.unwrap_or_default();
                let error = operation_timeout(&format!("subscription on {topic}"), last.as_ref());
                self.abort_consumer(now, id, &error);
            }
            ConsumerState::Unsubscribing(_) => self.unsubscribe_due(now, id),
            ConsumerState::Closing { .. } => self.consumer_gone(id, &consumer_closed()),
            ConsumerState::Open => {}
        }
    }

    // Closing.

    pub(super) fn close_consumer(&mut self, now: Instant, id: ConsumerId, due: Instant, reply: Option<Completion<()>>) {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            if let Some(reply) = reply {
                self.act(Action::Answer(Answer::Done(reply, Ok(()))));
            }
            return;
        };
        if let ConsumerState::Closing { due: earlier, replies } = &mut consumer.state {
            *earlier = due.min(*earlier);
            replies.extend(reply);
            self.new_operation(Operation::Consumer(id), due);
            return;
        }
        let parts = consumer.parts.clone();
        let closing = ConsumerState::Closing { due, replies: reply.into_iter().collect() };
        match std::mem::replace(&mut consumer.state, closing) {
            ConsumerState::Opening { reply, .. } => {
                self.act(Action::Answer(Answer::Done(reply, Err(consumer_closed()))))
            }
            ConsumerState::Unsubscribing(leaving) => {
                for reply in leaving.into_replies() {
                    self.act(Action::Answer(Answer::Done(reply, Err(consumer_closed()))));
                }
            }
            ConsumerState::Open | ConsumerState::Closing { .. } => {}
        }
        self.new_operation(Operation::Consumer(id), due);
        for part in parts {
            self.flush_acks(part);
            if !self.leave_part(now, part, Purpose::ClosePart(part)) {
                self.part_left(now, part);
            }
        }
    }

    /// Tells the broker, if it has one, that the part closes. Whether an answer is awaited.
    pub(super) fn leave_part(&mut self, now: Instant, id: PartId, purpose: Purpose) -> bool {
        let Some(part) = self.parts.get(&id) else { return false };
        let phase = part.attachment.phase;
        self.end_attachment(Owner::Part(id));
        match phase {
            Phase::Open { link } => {
                self.send_close_consumer(now, link, id, purpose);
                true
            }
            Phase::Opening { link, request } => {
                self.requests.remove(&request);
                self.give_up_open(now, Owner::Part(id), link, request);
                false
            }
            _ => false,
        }
    }

    pub(super) fn part_left(&mut self, _now: Instant, id: PartId) {
        let Some(part) = self.parts.remove(&id) else { return };
        self.act(Action::PartEnded { part: id, error: consumer_closed() });
        let alive = self
            .consumers
            .get(&part.consumer)
            .is_some_and(|consumer| consumer.parts.iter().any(|part| self.parts.contains_key(part)));
        if !alive {
            self.consumer_gone(part.consumer, &consumer_closed());
        }
    }

    pub(super) fn consumer_gone(&mut self, id: ConsumerId, error: &Error) {
        let Some(consumer) = self.consumers.remove(&id) else { return };
        for part in consumer.parts {
            if self.parts.remove(&part).is_some() {
                self.act(Action::PartEnded { part, error: error.clone() });
            }
        }
        match consumer.state {
            ConsumerState::Closing { replies, .. } => {
                for reply in replies {
                    self.act(Action::Answer(Answer::Done(reply, Ok(()))));
                }
            }
            ConsumerState::Opening { reply, .. } => {
                self.act(Action::Answer(Answer::Done(reply, Err(error.clone()))));
            }
            ConsumerState::Unsubscribing(leaving) => {
                for reply in leaving.into_replies() {
                    self.act(Action::Answer(Answer::Done(reply, Err(error.clone()))));
                }
            }
            ConsumerState::Open => {}
        }
        self.check_shutdown();
    }
}

pub(super) fn consumer_closed() -> Error {
    Error::new(ErrorKind::Closed, "the consumer is closed")
}
