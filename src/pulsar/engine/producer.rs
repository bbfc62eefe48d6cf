//! Producers: their lanes opened together, fed, and closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::attachment::{Attachment, Owner};
use super::event::{
    Action, Answer, DeadlineKey, LaneId, LaneOpened, LinkId, Member, Outcome, Outgoing, ProducerId, ProducerOpened,
    ProducerSpec, Settle,
};
use super::lane::{Lane, Matched};
use super::operation::Operation;
use super::requests::Purpose;
use crate::error::{Delivery, Error, ErrorKind};
use crate::pending::Completion;
use crate::policy::admission::Admitted;
use crate::pulsar::wire::command::{self as wire, SendReceipt};
use crate::pulsar::wire::{code, pb};

pub(super) struct Producer {
    pub lanes: Vec<LaneId>,
    pub state: ProducerState,
}

pub(super) enum ProducerState {
    /// `create` waits for all lanes.
    Opening {
        due: Instant,
        opened: BTreeMap<LaneId, LaneOpened>,
        reply: Completion<ProducerOpened>,
    },
    Open,
    /// Results are awaited until `flush_until`; then the broker is told, until `due`.
    Closing {
        flush_until: Instant,
        due: Instant,
        replies: Vec<Completion<()>>,
    },
}

impl Engine {
    pub(super) fn open_producer(
        &mut self,
        now: Instant,
        id: ProducerId,
        spec: Arc<ProducerSpec>,
        lanes: Vec<(LaneId, String)>,
        due: Instant,
        reply: Completion<ProducerOpened>,
    ) {
        if self.shutdown.is_some() {
            self.act(Action::Answer(Answer::ProducerOpened(reply, Err(client_closed()))));
            return;
        }
        for (lane, topic) in &lanes {
            let state = Lane {
                id: *lane,
                producer: id,
                topic: topic.clone(),
                attachment: Attachment::new(),
                name: spec.name.clone(),
                topic_epoch: None,
                queue: std::collections::VecDeque::new(),
                queue_bytes: 0,
                lone: 0,
                flights: std::collections::VecDeque::new(),
                handed: 0,
                flush_through: 0,
                armed: None,
                scheduled: false,
                limit: crate::pulsar::wire::frame::DEFAULT_MAX_MESSAGE_SIZE,
                failed: None,
                spec: Arc::clone(&spec),
            };
            self.lanes.insert(*lane, state);
        }
        let ids: Vec<LaneId> = lanes.into_iter().map(|(lane, _)| lane).collect();
        let state = ProducerState::Opening { due, opened: BTreeMap::new(), reply };
        self.producers.insert(id, Producer { lanes: ids.clone(), state });
        self.new_operation(Operation::Producer(id), due);
        for lane in ids {
            self.seek(now, Owner::Lane(lane));
        }
    }

    pub(super) fn send_producer(&mut self, now: Instant, link: LinkId, id: LaneId, request: u64) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let command = wire::producer(&wire::ProducerOpen {
            topic: &lane.topic,
            producer_id: id.0,
            request_id: request,
            name: lane.name.as_deref(),
            user_provided_name: lane.spec.name.is_some(),
            epoch: lane.attachment.epoch,
            access_mode: lane.spec.access_mode,
            topic_epoch: lane.topic_epoch,
            properties: &lane.spec.properties,
        });
        self.send_request(now, link, &command);
    }

    pub(super) fn lane_opened(&mut self, now: Instant, link: LinkId, id: LaneId, success: &pb::CommandProducerSuccess) {
        let limit = self.links.get(&link).map_or(0, |connection| connection.max_message_size);
        self.opened(now, Owner::Lane(id), link);
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.name = Some(success.producer_name().to_owned()).filter(|name| !name.is_empty()).or(lane.name.take());
        lane.topic_epoch = success.topic_epoch.or(lane.topic_epoch);
        lane.unhand();
        let mut settled = Vec::new();
        lane.limited(limit as usize, &mut settled);
        let next = lane.spec.initial_sequence_id.unwrap_or_else(|| {
            let last = success.last_sequence_id.unwrap_or(-1);
            u64::try_from(last.saturating_add(1)).unwrap_or(0)
        });
        let opened = LaneOpened { name: lane.name.clone().unwrap_or_default(), next_sequence_id: next };
        let producer = lane.producer;
        self.act(Action::LaneLimit { lane: id, max_message_size: limit });
        self.settle(now, id, settled);
        self.schedule_lane(now, id);
        self.producer_progress(producer, id, opened);
    }

    /// During `create`: one more lane is open.
    fn producer_progress(&mut self, id: ProducerId, lane: LaneId, opened: LaneOpened) {
        let Some(producer) = self.producers.get_mut(&id) else { return };
        let ProducerState::Opening { opened: all, .. } = &mut producer.state else { return };
        all.insert(lane, opened);
        if all.len() < producer.lanes.len() {
            return;
        }
        let state = std::mem::replace(&mut producer.state, ProducerState::Open);
        if let ProducerState::Opening { mut opened, reply, .. } = state {
            let lanes = producer.lanes.iter().filter_map(|lane| opened.remove(lane)).collect();
            self.act(Action::Answer(Answer::ProducerOpened(reply, Ok(ProducerOpened { lanes }))));
        }
    }

    pub(super) fn admitted(&mut self, now: Instant, id: LaneId, messages: &mut Vec<Admitted<Outgoing>>) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            self.turn_away(id, messages);
            return;
        };
        let was_idle = lane.is_idle();
        lane.push(messages);
        if let Some(error) = lane.failed.clone() {
            let mut settled = Vec::new();
            lane.fail_all(&error, &mut settled);
            self.settle(now, id, settled);
            return;
        }
        let detached = !lane.attachment.is_open();
        self.arm_lane(id);
        if detached && was_idle {
            // Until now no send waited, so pauses may be longer than they are under sends.
            self.shorten_rest(now, Owner::Lane(id));
            self.hurry(now, false);
        }
        self.schedule_lane(now, id);
    }

    /// Messages that were admitted while their lane ended: the lane's end and their hand-over crossed.
    fn turn_away(&mut self, lane: LaneId, messages: &mut Vec<Admitted<Outgoing>>) {
        let members = messages.drain(..).map(Member::of).collect();
        let outcome = Outcome::Failed(Error::new(ErrorKind::Closed, "the producer is closed"));
        self.act(Action::Settle(Settle { lane, members, outcome }));
    }

    /// The lanes of a producer; none if it is gone.
    pub(crate) fn lanes_of(&self, id: ProducerId) -> Vec<LaneId> {
        self.producers.get(&id).map_or_else(Vec::new, |producer| producer.lanes.clone())
    }

    pub(super) fn flush_producer(&mut self, now: Instant, id: ProducerId) {
        let Some(producer) = self.producers.get(&id) else { return };
        for lane in producer.lanes.clone() {
            if let Some(state) = self.lanes.get_mut(&lane) {
                state.flush();
            }
            self.schedule_lane(now, lane);
        }
    }

    pub(super) fn send_receipt(&mut self, now: Instant, link: LinkId, receipt: &SendReceipt) {
        let id = LaneId(receipt.producer_id);
        let mut settled = Vec::new();
        let matched = self.lanes.get_mut(&id).map_or(Matched::Stale, |lane| lane.receipt(receipt, &mut settled));
        match matched {
            Matched::Front(handed_at) => self.heard_answer(now, link, Some(handed_at)),
            // It came twice, or nobody waits for it any more: it must not count for one that is still owed.
            Matched::Stale => self.heard(now, link),
            Matched::Ahead => {
                self.heard_answer(now, link, None);
                let ours = self.lanes.get(&id).is_some_and(|lane| lane.attachment.link() == Some(link));
                if ours {
                    let error = Error::new(ErrorKind::Protocol, "the broker skipped a receipt");
                    self.fail_link(now, link, error, false);
                }
                return;
            }
        }
        self.settle(now, id, settled);
    }

    pub(super) fn send_refused(&mut self, now: Instant, link: LinkId, refusal: &pb::CommandSendError) {
        self.heard_answer(now, link, None);
        let id = LaneId(refusal.producer_id());
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let code = refusal.error.map_or(0, |code| code.value());
        let error = code::server_error(code, &format!("send to {}", lane.topic), refusal.message());
        let mut settled = Vec::new();
        match code {
            code if code == pb::ServerError::TopicTerminatedError as i32 => self.lane_failed(now, id, &error),
            code if code == pb::ServerError::NotAllowedError as i32 => {
                lane.refused(refusal.sequence_id(), &error, &mut settled);
                self.settle(now, id, settled);
            }
            // The frame was right when it was made, so it was damaged on the way: it goes once more, on a new link.
            code if code == pb::ServerError::ChecksumError as i32 => {
                lane.refused_once(refusal.sequence_id());
                self.fail_link(now, link, error, false);
            }
            // Something is wrong with this producer alone: it is opened anew and resends.
            _ => {
                lane.refused_once(refusal.sequence_id());
                if lane.attachment.link() == Some(link) {
                    self.send_close_producer(now, link, id, Purpose::Courtesy);
                    self.sent_away(now, Owner::Lane(id), "", &error);
                }
            }
        }
    }

    /// A lane can never be attached again: everything in it fails, and so does what comes after.
    pub(super) fn lane_failed(&mut self, now: Instant, id: LaneId, error: &Error) {
        self.end_attachment(Owner::Lane(id));
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let error = error.in_context(&format!("producer on {} failed", lane.topic));
        lane.failed = Some(error.clone());
        let mut settled = Vec::new();
        lane.fail_all(&error, &mut settled);
        self.settle(now, id, settled);
        self.act(Action::LaneFailed { lane: id, error });
    }

    /// What waits fails, the producer lives on.
    pub(super) fn fail_pending(&mut self, now: Instant, id: LaneId, error: &Error) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let mut settled = Vec::new();
        lane.fail_all(error, &mut settled);
        self.settle(now, id, settled);
    }

    /// `create` failed: nothing of the producer stays.
    pub(super) fn abort_producer(&mut self, now: Instant, id: ProducerId, error: &Error) {
        let Some(producer) = self.producers.remove(&id) else { return };
        for lane in &producer.lanes {
            self.leave_lane(now, *lane, Purpose::Courtesy);
            self.lanes.remove(lane);
            self.act(Action::LaneClosed { lane: *lane });
        }
        if let ProducerState::Opening { reply, .. } = producer.state {
            self.act(Action::Answer(Answer::ProducerOpened(reply, Err(error.clone()))));
        }
        self.check_shutdown();
    }

    /// Results leave the engine; the counts that hang on them follow.
    pub(super) fn settle(&mut self, now: Instant, id: LaneId, settled: Vec<Settle>) {
        if settled.is_empty() {
            return;
        }
        for one in settled {
            if let Some(first) = one.members.first() {
                let age = now.saturating_duration_since(first.called_at);
                self.stats.longest_answer = self.stats.longest_answer.max(age);
                if let Some(due) = first.due {
                    let overdue = now.saturating_duration_since(due);
                    self.stats.longest_overdue = self.stats.longest_overdue.max(overdue);
                }
                self.act(Action::Settle(one));
            }
        }
        self.lane_quiet(now, id);
    }

    /// The sweeper says that a lane's oldest message may be due.
    pub(super) fn lane_due(&mut self, now: Instant, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id).filter(|_| !mutant!(NeverArmsAgain)) {
            lane.armed = None;
        }
        self.expire_lane(now, id);
        self.arm_lane(id);
    }

    pub(super) fn expire_lane(&mut self, now: Instant, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.oldest_due().is_some_and(|due| due <= now) {
            let mut settled = Vec::new();
            lane.expire(now, &mut settled);
            self.settle(now, id, settled);
        }
    }

    /// Armed when unarmed; the head may move on, then the sweeper's call re-checks.
    fn arm_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if let (None, Some(due)) = (lane.armed, lane.oldest_due()) {
            lane.armed = Some(due);
            self.watch(DeadlineKey::Lane(id), due);
        }
    }

    /// Whether any send waits for anything.
    pub(super) fn sends_wait(&self) -> bool {
        self.lanes.values().any(|lane| !lane.is_idle())
    }

    pub(super) fn owner_sends_wait(&self, owner: Owner) -> bool {
        match owner {
            Owner::Lane(lane) => self.lanes.get(&lane).is_some_and(|lane| !lane.is_idle()),
            Owner::Part(_) => false,
        }
    }
}

pub(super) fn client_closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed").with_delivery(Delivery::NotSent)
}
