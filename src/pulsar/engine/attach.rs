//! The steps of an attachment: rest, look up, link, open, and again when it is lost.

use std::time::{Duration, Instant};

use super::Engine;
use super::attachment::{Assigned, Attachment, LONGEST_PAUSE, LONGEST_PAUSE_UNDER_SENDS, Owner, Phase};
use super::event::{DeadlineKey, LinkId};
use super::lookup::Asker;
use super::requests::Purpose;
use super::retry::{self, Attempt, Verdict};
use super::targets::{Place, TargetId, Waiter};
use crate::error::{Error, Recovery};
use crate::pulsar::service_url::parse_broker_url;

/// How long before the oldest message's deadline the last try of an outage is made.
const LAST_CHANCE: Duration = Duration::from_millis(100);

impl Engine {
    pub(super) fn attachment(&mut self, owner: Owner) -> Option<&mut Attachment> {
        match owner {
            Owner::Lane(lane) => self.lanes.get_mut(&lane).map(|lane| &mut lane.attachment),
            Owner::Part(part) => self.parts.get_mut(&part).map(|part| &mut part.attachment),
        }
    }

    fn topic_of(&self, owner: Owner) -> Option<String> {
        match owner {
            Owner::Lane(lane) => self.lanes.get(&lane).map(|lane| lane.topic.clone()),
            Owner::Part(part) => self.parts.get(&part).map(|part| part.topic.clone()),
        }
    }

    /// Goes for the broker: the one that a close command named, once, else by look-up.
    pub(super) fn seek(&mut self, now: Instant, owner: Owner) {
        let Some(attachment) = self.attachment(owner) else { return };
        if let Some(Assigned(target)) = attachment.assigned.take() {
            self.located(now, owner, target);
            return;
        }
        attachment.phase = Phase::Locating;
        let Some(topic) = self.topic_of(owner) else { return };
        self.start_lookup(now, Asker::Owner(owner), topic);
    }

    /// Pauses before the next try.
    pub(super) fn rest(&mut self, now: Instant, owner: Owner) {
        let cap = if self.owner_sends_wait(owner) { LONGEST_PAUSE_UNDER_SENDS } else { LONGEST_PAUSE };
        let mut rng = std::mem::replace(&mut self.rng, crate::policy::rng::Rng::new(0));
        if let Some(attachment) = self.attachment(owner) {
            let until = now + attachment.backoff.next_capped(&mut rng, cap);
            attachment.phase = Phase::Resting { until };
            self.watch(attach_key(owner), until);
        }
        self.rng = rng;
    }

    /// A send came: the present pause is no longer than a pause under sends.
    pub(super) fn shorten_rest(&mut self, now: Instant, owner: Owner) {
        let limit = now + LONGEST_PAUSE_UNDER_SENDS;
        let Some(attachment) = self.attachment(owner) else { return };
        if matches!(attachment.phase, Phase::Resting { until } if until > limit) {
            attachment.phase = Phase::Resting { until: limit };
            self.watch(attach_key(owner), limit);
        }
    }

    /// The pause of an owner may be over.
    pub(super) fn attach_due(&mut self, now: Instant, owner: Owner) {
        let Some(attachment) = self.attachment(owner) else { return };
        match attachment.phase {
            Phase::Resting { until } if now >= until => self.seek(now, owner),
            Phase::Resting { until } => self.watch(attach_key(owner), until),
            _ => {}
        }
    }

    /// The look-up named the broker.
    pub(super) fn located(&mut self, now: Instant, owner: Owner, target: TargetId) {
        let Some(attachment) = self.attachment(owner) else { return };
        if attachment.phase == Phase::Ended {
            return;
        }
        attachment.phase = Phase::Linking { target };
        if let Some(link) = self.want(now, target, Waiter::Owner(owner)) {
            self.linked(now, owner, link);
        }
    }

    /// The broker's link is ready: PRODUCER or SUBSCRIBE goes out.
    pub(super) fn linked(&mut self, now: Instant, owner: Owner, link: LinkId) {
        let Some(attachment) = self.attachment(owner) else { return };
        let Phase::Linking { .. } = attachment.phase else { return };
        if attachment.opened_once {
            attachment.epoch += 1;
        }
        let request = self.new_request(now, link, Purpose::Open(owner));
        if let Some(attachment) = self.attachment(owner) {
            // In the tables before the frame goes out: commands of the broker may follow its answer at once.
            attachment.phase = Phase::Opening { link, request };
        }
        match owner {
            Owner::Lane(lane) => self.send_producer(now, link, lane, request),
            Owner::Part(part) => self.send_subscribe(now, link, part, request),
        }
    }

    /// The link to the located broker could not be made. The topic may have moved, so it is looked up again; the
    /// pause between dials is the target's.
    pub(super) fn link_failed(&mut self, now: Instant, owner: Owner, error: &Error) {
        let Some(attachment) = self.attachment(owner) else { return };
        let Phase::Linking { .. } = attachment.phase else { return };
        attachment.last_error = Some(error.clone());
        if !attachment.opened_once && error.recovery() == Recovery::Never {
            self.creation_failed(now, owner, error);
            return;
        }
        self.seek(now, owner);
    }

    /// The look-up ended in an error.
    pub(super) fn locate_failed(&mut self, now: Instant, owner: Owner, error: &Error) {
        let Some(attachment) = self.attachment(owner) else { return };
        if attachment.phase != Phase::Locating {
            return;
        }
        self.judge(now, owner, error, Attempt::Lookup);
    }

    /// The request to open was lost with its link or not answered in time.
    pub(super) fn open_lost(&mut self, now: Instant, owner: Owner, error: &Error) {
        let Some(attachment) = self.attachment(owner) else { return };
        let Phase::Opening { .. } = attachment.phase else { return };
        attachment.last_error = Some(error.clone());
        // The session may exist at the broker: a ghost of ours from now on.
        attachment.lost_at = Some(now);
        self.rest(now, owner);
    }

    /// The broker refused to open.
    pub(super) fn open_refused(&mut self, now: Instant, owner: Owner, error: &Error) {
        let Some(attachment) = self.attachment(owner) else { return };
        let attempt = match (owner, attachment.opened_once) {
            (Owner::Lane(_), false) => Attempt::FirstCreate,
            (Owner::Lane(_), true) => Attempt::Reconnect,
            (Owner::Part(_), false) => Attempt::FirstSubscribe,
            (Owner::Part(_), true) => Attempt::Resubscribe,
        };
        self.judge(now, owner, error, attempt);
    }

    /// Decides what an error means for an owner that tried to attach.
    fn judge(&mut self, now: Instant, owner: Owner, error: &Error, attempt: Attempt) {
        let Some(attachment) = self.attachment(owner) else { return };
        attachment.last_error = Some(error.clone());
        let first = !attachment.opened_once;
        let verdict = match error.code() {
            Some(code) => match attachment.lost_at {
                Some(lost) => retry::verdict_after_loss(code, attempt, now.saturating_duration_since(lost)),
                None => retry::verdict(code, attempt),
            },
            None if first && error.recovery() == Recovery::Never => Verdict::Fail,
            None => Verdict::Retry,
        };
        if let (Owner::Lane(lane), true) = (owner, error.code().is_some_and(retry::fails_pending)) {
            // The backlog quota is used up and the topic's policy is that senders are told.
            self.fail_pending(now, lane, error);
        }
        match verdict {
            // A server that is not ready is no reason to give up a healthy link: other topics use it.
            Verdict::Retry | Verdict::RetryAfterClosingLink => self.rest(now, owner),
            Verdict::Fail if first => self.creation_failed(now, owner, error),
            // Once attached, a failed look-up is only one more failed try.
            Verdict::Fail => self.rest(now, owner),
            Verdict::Stop if first => self.creation_failed(now, owner, error),
            Verdict::Stop => match owner {
                Owner::Lane(lane) => self.lane_failed(now, lane, error),
                Owner::Part(part) => self.part_failed(now, part, error),
            },
        }
    }

    /// An open owner lost its link, or the broker closed its session on a healthy one.
    pub(super) fn detached(&mut self, now: Instant, owner: Owner, error: &Error) {
        self.session_over(now, owner, error);
        self.seek(now, owner);
    }

    /// The broker closed the session (unload): it may have named the broker to go to. That one is used once, at once
    /// and without a look-up, unless the broker did the same a short while ago.
    pub(super) fn sent_away(&mut self, now: Instant, owner: Owner, url: &str, error: &Error) {
        self.session_over(now, owner, error);
        let Some(attachment) = self.attachment(owner) else { return };
        let again = attachment.sent_away_lately(now);
        attachment.sent_away_at = Some(now);
        let assigned = if again { None } else { parse_broker_url(url).ok() };
        let assigned = assigned.map(|(broker, _)| self.target_at(now, Place::Direct(broker)));
        let Some(attachment) = self.attachment(owner) else { return };
        attachment.assigned = assigned.map(Assigned);
        if attachment.assigned.is_some() { self.seek(now, owner) } else { self.rest(now, owner) }
    }

    fn session_over(&mut self, now: Instant, owner: Owner, error: &Error) {
        let Some(attachment) = self.attachment(owner) else { return };
        if attachment.is_open() {
            attachment.settled(now);
        }
        attachment.lost_at = Some(now);
        attachment.last_error = Some(error.clone());
        match owner {
            Owner::Lane(lane) => {
                if let Some(lane_state) = self.lanes.get_mut(&lane) {
                    lane_state.unhand();
                    if let Some(due) = lane_state.oldest_due() {
                        let at = due.checked_sub(LAST_CHANCE).filter(|at| *at > now);
                        if let Some(at) = at {
                            self.watch(DeadlineKey::LastChance(lane), at);
                        }
                    }
                }
            }
            Owner::Part(part) => self.part_session_over(part),
        }
    }

    /// Shortly before the oldest message of an outage is due: no pause is worth more than its last chance.
    pub(super) fn last_chance(&mut self, now: Instant, lane: super::event::LaneId) {
        let Some(state) = self.lanes.get(&lane) else { return };
        match state.attachment.phase {
            Phase::Resting { .. } => {
                self.seek(now, Owner::Lane(lane));
                // The broker asked first may be resting itself.
                self.hurry(now, true);
            }
            Phase::Locating | Phase::Linking { .. } => self.hurry(now, true),
            _ => {}
        }
    }

    /// Attached: what was lost comes to life again.
    pub(super) fn opened(&mut self, now: Instant, owner: Owner, link: LinkId) {
        let target = self.links.get(&link).map(|connection| connection.target);
        if let Some(target) = target.and_then(|target| self.targets.get_mut(target)) {
            target.succeeded();
        }
        let Some(attachment) = self.attachment(owner) else { return };
        attachment.phase = Phase::Open { link };
        attachment.settled(now);
        attachment.opened_once = true;
        attachment.lost_at = None;
        attachment.last_error = None;
    }

    /// The owner wants to be nowhere any more.
    pub(super) fn end_attachment(&mut self, owner: Owner) {
        self.forget_lookups(Asker::Owner(owner));
        if let Some(attachment) = self.attachment(owner) {
            attachment.phase = Phase::Ended;
        }
    }
}

fn attach_key(owner: Owner) -> DeadlineKey {
    match owner {
        Owner::Lane(lane) => DeadlineKey::AttachLane(lane),
        Owner::Part(part) => DeadlineKey::AttachPart(part),
    }
}
