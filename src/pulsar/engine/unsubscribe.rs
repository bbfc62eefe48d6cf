//! Unsubscribing: every partition is asked, and the call ends when all have an answer or its time is over.

use std::time::Instant;

use super::Engine;
use super::attachment::{Owner, Phase};
use super::consumer::{ConsumerState, consumer_closed};
use super::event::{Action, Answer, ConsumerId, DeadlineKey, PartId};
use super::operation::{Operation, operation_timeout};
use super::requests::Purpose;
use crate::error::{Delivery, Error, ErrorKind};
use crate::pending::Completion;
use crate::pulsar::wire::command as wire;

/// A call to unsubscribe that is under way.
pub(super) struct Leaving {
    pub due: Instant,
    /// Partitions that owe an answer.
    left: Vec<PartId>,
    failed: usize,
    /// Of the failed partition that comes first in the topic.
    first: Option<(PartId, Error)>,
    /// The worst of all that failed.
    delivery: Delivery,
    replies: Vec<Completion<()>>,
}

impl Leaving {
    /// The call ends because the consumer does.
    pub(super) fn into_replies(self) -> Vec<Completion<()>> {
        self.replies
    }

    fn fail(&mut self, part: PartId, error: &Error) {
        self.failed += 1;
        self.delivery = self.delivery.max(error.delivery());
        if self.first.as_ref().is_none_or(|(first, _)| part < *first) {
            self.first = Some((part, error.clone()));
        }
    }
}

impl Engine {
    pub(super) fn unsubscribe(&mut self, now: Instant, id: ConsumerId, due: Instant, reply: Completion<()>) {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            self.act(Action::Answer(Answer::Done(reply, Err(consumer_closed()))));
            return;
        };
        match &mut consumer.state {
            ConsumerState::Open => {}
            // Both wait for one end; the earlier limit counts.
            ConsumerState::Unsubscribing(leaving) => {
                leaving.due = due.min(leaving.due);
                leaving.replies.push(reply);
                self.new_operation(Operation::Consumer(id), due);
                return;
            }
            ConsumerState::Opening { .. } | ConsumerState::Closing { .. } => {
                self.act(Action::Answer(Answer::Done(reply, Err(consumer_closed()))));
                return;
            }
        }
        let parts = &self.parts;
        // Those that an earlier call has unsubscribed are gone, and one that failed for good has no subscription.
        let phases = consumer.parts.iter().filter_map(|part| Some((*part, parts.get(part)?.attachment.phase)));
        let asked: Vec<(PartId, Phase)> = phases.filter(|(_, phase)| *phase != Phase::Ended).collect();
        consumer.state = ConsumerState::Unsubscribing(Leaving {
            due,
            left: asked.iter().map(|(part, _)| *part).collect(),
            failed: 0,
            first: None,
            delivery: Delivery::NotSent,
            replies: vec![reply],
        });
        self.new_operation(Operation::Consumer(id), due);
        for (part, phase) in asked {
            if let Phase::Open { link } = phase {
                let request = self.new_request(now, link, Purpose::Unsubscribe(id, part));
                self.send_request(now, link, &wire::unsubscribe(part.0, request, false));
            } else {
                let error = Error::new(ErrorKind::Transport, "unsubscribe: the consumer is not connected now");
                self.unsubscribe_failed(id, part, &error);
            }
        }
        self.unsubscribe_progress(id);
    }

    /// The broker has removed a partition's subscription; also when the call that asked for it is over.
    pub(super) fn unsubscribed(&mut self, now: Instant, id: ConsumerId, part: PartId) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        match &mut consumer.state {
            ConsumerState::Unsubscribing(leaving) => leaving.left.retain(|other| *other != part),
            ConsumerState::Open => {}
            // A close is on its way and ends the partition.
            ConsumerState::Opening { .. } | ConsumerState::Closing { .. } => return,
        }
        self.leave_part(now, part, Purpose::Courtesy);
        if self.parts.remove(&part).is_some() {
            self.act(Action::PartEnded { part, error: consumer_closed() });
        }
        self.unsubscribe_progress(id);
    }

    /// A partition stays subscribed, for all that is known; the others go on.
    pub(super) fn unsubscribe_failed(&mut self, id: ConsumerId, part: PartId, error: &Error) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        let ConsumerState::Unsubscribing(leaving) = &mut consumer.state else { return };
        let before = leaving.left.len();
        leaving.left.retain(|other| *other != part);
        if leaving.left.len() < before {
            leaving.fail(part, error);
        }
        self.unsubscribe_progress(id);
    }

    /// The time of the call is over: who has not answered has failed.
    pub(super) fn unsubscribe_due(&mut self, now: Instant, id: ConsumerId) {
        let mine = |purpose: Purpose| match purpose {
            Purpose::Unsubscribe(consumer, part) if consumer == id => Some(part),
            _ => None,
        };
        let owed = self.requests.iter().filter_map(|(request, state)| Some((*request, mine(state.purpose)?)));
        for (request, part) in owed.collect::<Vec<_>>() {
            self.requests.remove(&request);
            self.act(Action::Unwatch { key: DeadlineKey::Request(request) });
            self.unsubscribe_unanswered(now, part);
            self.unsubscribe_failed(id, part, &operation_timeout("unsubscribe", None));
        }
    }

    /// Nobody knows whether the broker did it: the partition is subscribed anew, so that it stays usable either way.
    pub(super) fn unsubscribe_unanswered(&mut self, now: Instant, part: PartId) {
        let Some(link) = self.parts.get(&part).and_then(|part| part.attachment.link()) else { return };
        self.send_close_consumer(now, link, part, Purpose::Courtesy);
        let error = Error::new(ErrorKind::Timeout, "the broker did not answer an unsubscribe");
        self.sent_away(now, Owner::Part(part), "", &error);
    }

    /// Answers the call if nothing is owed any more; after a failure the consumer goes on with what is left.
    fn unsubscribe_progress(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        if !matches!(&consumer.state, ConsumerState::Unsubscribing(leaving) if leaving.left.is_empty()) {
            return;
        }
        let of = consumer.parts.len();
        let state = std::mem::replace(&mut consumer.state, ConsumerState::Open);
        let ConsumerState::Unsubscribing(leaving) = state else { return };
        let result = match &leaving.first {
            None => Ok(()),
            Some((_, error)) if of == 1 => Err(error.clone()),
            Some((part, error)) => {
                let topic = self.parts.get(part).map_or("", |part| part.topic.as_str());
                let failed = leaving.failed;
                let context = format!("unsubscribe failed on {failed} of {of} partitions, first on {topic}");
                Err(error.in_context(&context).with_delivery(leaving.delivery))
            }
        };
        for reply in leaving.replies {
            self.act(Action::Answer(Answer::Done(reply, result.clone())));
        }
        if result.is_ok() {
            self.consumer_gone(id, &consumer_closed());
        }
    }
}
