//! Frames of a ready link, each to whom it concerns.

use std::time::Instant;

use super::Engine;
use super::attachment::{Owner, Phase};
use super::event::{Action, Delivery, LaneId, LinkId, PartId};
use super::requests::Purpose;
use crate::error::{Error, ErrorKind};
use crate::pulsar::wire::payload::parse_entry;
use crate::pulsar::wire::pb::base_command::Type;
use crate::pulsar::wire::{code, command as wire, pb};

impl Engine {
    pub(super) fn frame(&mut self, now: Instant, link: LinkId, frame: wire::Command) {
        let Some(connection) = self.links.get(&link) else { return };
        if !connection.is_ready() {
            self.handshake_frame(now, link, frame);
            return;
        }
        match frame {
            wire::Command::SendReceipt(receipt) => self.send_receipt(now, link, &receipt),
            wire::Command::Message(message) => self.message(now, link, message),
            wire::Command::Ping => self.pinged(link),
            wire::Command::Pong => self.ponged(now, link),
            wire::Command::Other(command) => self.other_frame(now, link, &command),
            wire::Command::Unknown(number) => {
                log::debug!("ignoring a command of unknown type {number}");
                self.heard(now, link);
            }
            wire::Command::Send(_) | wire::Command::Ack(_) | wire::Command::Flow { .. } => {
                let error = Error::new(ErrorKind::Protocol, "the peer sent a command that only clients send");
                self.fail_link(now, link, error, false);
            }
        }
    }

    fn other_frame(&mut self, now: Instant, link: LinkId, command: &pb::BaseCommand) {
        match command.type_() {
            Type::SUCCESS => self.success(now, link, command.success.request_id),
            Type::ERROR => self.refusal(now, link, &command.error),
            Type::PRODUCER_SUCCESS => self.producer_success(now, link, &command.producer_success),
            Type::LOOKUP_RESPONSE => {
                let answer = &command.lookupTopicResponse;
                if let Some(Purpose::Lookup(id)) = self.purpose_of(now, link, answer.request_id) {
                    self.topic_answer(now, id, answer);
                }
            }
            Type::PARTITIONED_METADATA_RESPONSE => {
                let answer = &command.partitionMetadataResponse;
                if let Some(Purpose::Lookup(id)) = self.purpose_of(now, link, answer.request_id) {
                    self.partitions_answer(now, id, answer);
                }
            }
            Type::SEND_ERROR => self.send_refused(now, link, &command.send_error),
            Type::CLOSE_PRODUCER => {
                self.heard(now, link);
                let close = &command.close_producer;
                let owner = Owner::Lane(LaneId(close.producer_id()));
                self.close_from_broker(
                    now,
                    link,
                    owner,
                    close.assignedBrokerServiceUrl(),
                    close.assignedBrokerServiceUrlTls(),
                );
            }
            Type::CLOSE_CONSUMER => {
                self.heard(now, link);
                let close = &command.close_consumer;
                let owner = Owner::Part(PartId(close.consumer_id()));
                self.close_from_broker(
                    now,
                    link,
                    owner,
                    close.assignedBrokerServiceUrl(),
                    close.assignedBrokerServiceUrlTls(),
                );
            }
            Type::AUTH_CHALLENGE => {
                let error = Error::new(ErrorKind::Unsupported, "the broker asks for new credentials");
                self.fail_link(now, link, error, false);
            }
            // ACTIVE_CONSUMER_CHANGE, REACHED_END_OF_TOPIC, TOPIC_MIGRATED and answers to what we never ask.
            other => {
                log::debug!("ignoring {other:?}");
                self.heard(now, link);
            }
        }
    }

    fn purpose_of(&mut self, now: Instant, link: LinkId, request: Option<u64>) -> Option<Purpose> {
        let request = self.answered(now, link, request)?;
        if let Some(target) = self.links.get(&link).map(|connection| connection.target) {
            if let Some(target) = self.targets.get_mut(target) {
                target.succeeded();
            }
        }
        Some(request.purpose)
    }

    fn success(&mut self, now: Instant, link: LinkId, request: Option<u64>) {
        match self.purpose_of(now, link, request) {
            Some(Purpose::Open(Owner::Part(part))) => self.subscribed(now, link, part),
            Some(Purpose::CloseLane(lane)) => self.lane_left(now, lane),
            Some(Purpose::ClosePart(part)) => self.part_left(now, part),
            Some(Purpose::Unsubscribe(consumer, part)) => self.unsubscribed(now, consumer, part),
            _ => {}
        }
    }

    fn refusal(&mut self, now: Instant, link: LinkId, refusal: &pb::CommandError) {
        let Some(request) = self.answered(now, link, refusal.request_id) else { return };
        let code = refusal.error.map_or(0, |code| code.value());
        let refused = |operation: &str| code::server_error(code, operation, refusal.message());
        match request.purpose {
            Purpose::Lookup(id) => self.lookup_failed(now, id, &refused("look-up")),
            Purpose::Open(Owner::Lane(lane)) => {
                let topic = self.lanes.get(&lane).map_or("", |lane| &lane.topic);
                let error = refused(&format!("producer on {topic}"));
                self.open_refused(now, Owner::Lane(lane), &error);
            }
            Purpose::Open(Owner::Part(part)) => {
                let topic = self.parts.get(&part).map_or("", |part| &part.topic);
                let error = refused(&format!("subscription on {topic}"));
                self.open_refused(now, Owner::Part(part), &error);
            }
            Purpose::CloseLane(lane) => self.lane_left(now, lane),
            Purpose::ClosePart(part) => self.part_left(now, part),
            Purpose::Unsubscribe(consumer, part) => {
                self.unsubscribe_failed(consumer, part, &refused("unsubscribe"));
            }
            Purpose::Courtesy => {}
        }
    }

    fn producer_success(&mut self, now: Instant, link: LinkId, success: &pb::CommandProducerSuccess) {
        let Some(id) = success.request_id else { return };
        if success.producer_ready == Some(false) {
            // The same request is answered again when the access is granted.
            self.heard(now, link);
            return;
        }
        match self.purpose_of(now, link, Some(id)) {
            Some(Purpose::Open(Owner::Lane(lane))) => {
                let waited = self
                    .lanes
                    .get(&lane)
                    .is_some_and(|lane| lane.attachment.phase == Phase::Opening { link, request: id });
                if waited {
                    self.lane_opened(now, link, lane, success);
                } else {
                    self.send_close_producer(now, link, lane, Purpose::Courtesy);
                }
            }
            _ => {
                let orphan = self.links.get_mut(&link).and_then(|connection| connection.orphans.remove(&id));
                if let Some(lane) = orphan {
                    let reborn = self.lanes.get(&lane).is_some_and(|lane| lane.attachment.any_link() == Some(link));
                    // A younger attempt of the same lane on this link owns the broker's producer now.
                    if !reborn {
                        self.send_close_producer(now, link, lane, Purpose::Courtesy);
                    }
                }
            }
        }
    }

    /// The broker closed a session of ours on a healthy link.
    fn close_from_broker(&mut self, now: Instant, link: LinkId, owner: Owner, plain: &str, tls: &str) {
        let url = if self.options.tls { tls } else { plain };
        let Some(attachment) = self.attachment(owner) else { return };
        let error = Error::new(ErrorKind::Unavailable, "the broker closed the session");
        match attachment.phase {
            Phase::Open { link: open } if open == link || mutant!(AnyLinkMayClose) => {
                self.sent_away(now, owner, url, &error)
            }
            Phase::Opening { link: opening, request } if opening == link => {
                self.requests.remove(&request);
                if let (Owner::Lane(lane), Some(connection)) = (owner, self.links.get_mut(&link)) {
                    // Should the success still come, it is an orphan.
                    connection.orphans.insert(request, lane);
                }
                self.sent_away(now, owner, url, &error);
            }
            _ => {}
        }
    }

    fn message(&mut self, now: Instant, link: LinkId, message: wire::Message) {
        self.heard(now, link);
        let part = PartId(message.consumer_id);
        let Some(state) = self.parts.get_mut(&part) else { return };
        // A session that is over has had its queue dropped; the broker delivers the rest anew.
        if state.attachment.link() != Some(link) {
            return;
        }
        // What comes is kept until somebody receives it, so a peer that sends unasked would fill the memory. As much
        // again as the queue holds may be left of a session that ended.
        state.credit = state.credit.saturating_sub(1);
        if state.credit < -i64::from(state.spec.queue_size) {
            let error = Error::new(ErrorKind::Protocol, "the broker sent more messages than it was asked for");
            self.fail_link(now, link, error, true);
            return;
        }
        let session = state.session;
        if message.consumer_epoch.is_some_and(|epoch| epoch < state.epoch) {
            // It was on the way when redelivery was asked for, and comes again behind those before it.
            let count = parse_entry(message.entry).ok().and_then(|entry| entry.metadata.num_messages_in_batch);
            let permits = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1).max(1);
            self.permits_used(part, session, permits);
            return;
        }
        let limit = self.links.get(&link).map_or(0, |connection| connection.max_message_size);
        let max_message_size = limit as usize;
        self.act(Action::Deliver(Delivery {
            part,
            session,
            message_id: message.message_id,
            redelivery_count: message.redelivery_count,
            ack_set: message.ack_set,
            entry: message.entry,
            max_message_size,
        }));
    }
}
