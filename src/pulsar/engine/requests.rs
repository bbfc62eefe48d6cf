//! Requests that a broker owes an answer: by id, each ending exactly once in an answer, a loss or a deadline.

use std::time::Instant;

use super::Engine;
use super::attachment::Owner;
use super::event::{Action, ConsumerId, DeadlineKey, LaneId, LinkId, PartId};
use crate::error::{Delivery, Error, ErrorKind};
use crate::pulsar::wire::command as wire;
use crate::pulsar::wire::pb;

#[derive(Debug)]
pub(super) struct Request {
    pub link: LinkId,
    pub purpose: Purpose,
    pub sent_at: Instant,
    pub due: Instant,
}

/// What a request is for, and so who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Lookup(u64),
    Open(Owner),
    /// CLOSE_PRODUCER of a lane whose results are all fixed.
    CloseLane(LaneId),
    ClosePart(PartId),
    Unsubscribe(ConsumerId, PartId),
    /// An answer that changes nothing.
    Courtesy,
}

impl Engine {
    /// Registers a request on a link; the caller sends the frame with its id.
    pub(super) fn new_request(&mut self, now: Instant, link: LinkId, purpose: Purpose) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        let due = now + self.options.operation_timeout;
        self.requests.insert(id, Request { link, purpose, sent_at: now, due });
        self.watch(DeadlineKey::Request(id), due);
        id
    }

    /// Queues a request's frame on its link.
    pub(super) fn send_request(&mut self, now: Instant, link: LinkId, command: &pb::BaseCommand) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        wire::encode(command, &mut connection.control);
        if let Some(keepalive) = connection.keepalive() {
            keepalive.sent(now, 0);
        }
        self.arm_link(link);
        self.mark_dirty(link);
    }

    /// Takes a request off the table because its answer came on `link`.
    pub(super) fn answered(&mut self, now: Instant, link: LinkId, id: Option<u64>) -> Option<Request> {
        let id = id?;
        let known = self.requests.get(&id).is_some_and(|request| request.link == link);
        let request = if known { self.requests.remove(&id) } else { None };
        if request.is_some() {
            self.act(Action::Unwatch { key: DeadlineKey::Request(id) });
        }
        let connection = self.links.get_mut(&link)?;
        if let Some(keepalive) = connection.keepalive() {
            match &request {
                Some(request) => keepalive.answered(now, Some(request.sent_at)),
                None => keepalive.heard(now),
            }
        }
        self.arm_link(link);
        request
    }

    /// A request ended without an answer.
    pub(super) fn request_failed(&mut self, now: Instant, id: u64, error: &Error) {
        let Some(request) = self.requests.remove(&id) else { return };
        match request.purpose {
            Purpose::Lookup(lookup) => self.lookup_failed(now, lookup, error),
            Purpose::Open(owner) => self.open_lost(now, owner, error),
            Purpose::CloseLane(lane) => self.lane_left(now, lane),
            Purpose::ClosePart(part) => self.part_left(now, part),
            Purpose::Unsubscribe(consumer, part) => {
                self.unsubscribe_failed(consumer, part, &error.with_delivery(Delivery::Unknown));
            }
            Purpose::Courtesy => {}
        }
    }

    /// The sweeper says that a request may be overdue.
    pub(super) fn request_due(&mut self, now: Instant, id: u64) {
        let Some(request) = self.requests.get(&id) else { return };
        if now < request.due {
            let due = request.due;
            self.watch(DeadlineKey::Request(id), due);
            return;
        }
        match request.purpose {
            Purpose::Open(owner) => {
                let link = request.link;
                self.give_up_open(now, owner, link, id);
            }
            Purpose::Unsubscribe(_, part) => self.unsubscribe_unanswered(now, part),
            _ => {}
        }
        let error = Error::new(ErrorKind::Timeout, "the broker did not answer the request in time");
        self.request_failed(now, id, &error);
    }

    /// An open request will not be waited for: its late success would be an orphan at the broker, so it is closed
    /// now, and once more should the success still come.
    pub(super) fn give_up_open(&mut self, now: Instant, owner: Owner, link: LinkId, request: u64) {
        match owner {
            Owner::Lane(lane) => {
                if let Some(connection) = self.links.get_mut(&link) {
                    connection.orphans.insert(request, lane);
                }
                self.send_close_producer(now, link, lane, Purpose::Courtesy);
            }
            Owner::Part(part) => self.send_close_consumer(now, link, part, Purpose::Courtesy),
        }
    }

    pub(super) fn send_close_producer(&mut self, now: Instant, link: LinkId, lane: LaneId, purpose: Purpose) {
        let id = self.new_request(now, link, purpose);
        self.send_request(now, link, &wire::close_producer(lane.0, id));
    }

    pub(super) fn send_close_consumer(&mut self, now: Instant, link: LinkId, part: PartId, purpose: Purpose) {
        let id = self.new_request(now, link, purpose);
        self.send_request(now, link, &wire::close_consumer(part.0, id));
    }
}
