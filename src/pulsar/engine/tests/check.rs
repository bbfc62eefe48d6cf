//! What must hold all the time.

use super::broker::messages_of;
use super::world::World;
use crate::pulsar::engine::attachment::{Owner, Phase};
use crate::pulsar::engine::event::{DeadlineKey, LaneId, LinkId};
use crate::pulsar::engine::lookup::Asker;
use crate::pulsar::engine::targets::Waiter;
use crate::pulsar::wire::command::Send;

impl World {
    /// A SEND was handed to a link: in order, after everything before it, unchanged if it was there before.
    pub(super) fn send_handed(&mut self, link: LinkId, send: &Send, frame: &[u8]) {
        let Some((producer, lane)) = self.lane_at(LaneId(send.producer_id)) else {
            self.fail(format!("a SEND of an unknown lane {}", send.producer_id));
            return;
        };
        let messages = match messages_of(send) {
            Ok(messages) => messages,
            Err(error) => {
                self.fail(format!("a SEND that cannot be read: {error}"));
                return;
            }
        };
        self.note("send", link.0, messages.first().map_or(0, |(uid, _)| *uid));
        for (index, (uid, sequence_id)) in messages.iter().enumerate() {
            let op = &mut self.ops[*uid as usize];
            let known = (op.producer, op.lane, op.sequence_id) == (producer, lane, *sequence_id) && op.place > 0;
            let first_late = !op.handed && op.due.is_some_and(|due| due <= self.now);
            let told = op.fate.is_some() && !op.handed;
            op.handed = true;
            op.in_batch = (messages.len() > 1).then_some((index, messages.len()));
            if !known {
                self.fail(format!("message {uid} was sent as another one, or before it was admitted"));
            } else if told {
                self.fail(format!("message {uid} leaves after its answer"));
            } else if first_late {
                self.fail(format!("message {uid} leaves for the first time after it was due"));
            }
        }
        self.check_order(producer, lane, link, &messages);
        self.check_frame(producer, lane, send.sequence_id, messages.len(), frame);
    }

    /// On one session the messages without a result go in the order of their places, from the oldest on.
    fn check_order(&mut self, producer: usize, lane: usize, link: LinkId, messages: &[(u64, u64)]) {
        let session = self.engine.lanes.get(&self.producers[producer].lanes[lane].id);
        let opened = session.map_or(0, |lane| lane.attachment.epoch);
        // Those that are too large have their result and wait for their turn to be told.
        let fixed: Vec<u64> = session
            .into_iter()
            .flat_map(|lane| lane.flights.iter().filter(|flight| flight.outcome.is_some()))
            .flat_map(|flight| flight.members.iter().map(|member| member.place))
            .collect();
        let places: Vec<u64> = messages.iter().map(|(uid, _)| self.ops[*uid as usize].place).collect();
        let (Some(first), Some(last)) = (places.first().copied(), places.last().copied()) else { return };
        let shell = &mut self.producers[producer].lanes[lane];
        if shell.handed_on != Some((link, opened)) {
            shell.handed_on = Some((link, opened));
            shell.handed_through = 0;
        }
        let behind = shell.handed_through.max(shell.settled);
        let contiguous = places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let next = (behind + 1..first).all(|place| fixed.contains(&place)) && first > shell.handed_through;
        shell.handed_through = last;
        let settled = shell.settled;
        if !contiguous || !next {
            self.fail(format!(
                "lane {producer}/{lane} sends places {places:?} after {behind} ({settled} have results): out of order"
            ));
        }
    }

    fn check_frame(&mut self, producer: usize, lane: usize, sequence_id: u64, count: usize, frame: &[u8]) {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in frame {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        let now = (hash, count as u64);
        let before = *self.producers[producer].lanes[lane].frames.entry(sequence_id).or_insert(now);
        if before != now {
            self.fail(format!("lane {producer}/{lane}: frame {sequence_id} is resent changed"));
        }
    }

    /// After every phase of the loop.
    pub(super) fn check_step(&mut self) {
        for producer in 0..self.producers.len() {
            let shell = &self.producers[producer];
            if shell.admission.waiting() > 0 && shell.admission.pending() == 0 {
                self.fail(format!("calls of producer {producer} wait, and nothing is pending"));
                return;
            }
            let max = self.plan.producers[producer].max_pending;
            if max.is_some_and(|max| shell.admission.pending() > max) {
                self.fail(format!("producer {producer} has {} messages pending", shell.admission.pending()));
            }
        }
    }

    /// The loop sleeps: whatever is owed, something will wake it.
    pub(super) fn check_rest(&mut self) {
        if let Some(text) = self.asleep() {
            self.fail(format!("the loop sleeps and nothing will wake it: {text}"));
        }
    }

    fn asleep(&self) -> Option<String> {
        let engine = &self.engine;
        for (id, lane) in &engine.lanes {
            if let Some(due) = lane.oldest_due() {
                if !self.armed_by(DeadlineKey::Lane(*id), due) {
                    return Some(format!("{id:?} is due and not watched"));
                }
            }
            let owner = Owner::Lane(*id);
            if let Some(text) = self.stuck(owner, lane.attachment.phase) {
                return Some(format!("{id:?}: {text}"));
            }
        }
        for (id, part) in &engine.parts {
            if let Some(text) = self.stuck(Owner::Part(*id), part.attachment.phase) {
                return Some(format!("{id:?}: {text}"));
            }
        }
        for (id, link) in &engine.links {
            if !self.armed_by(DeadlineKey::Link(*id), link.next_due()) {
                return Some(format!("{id:?} wants a look and is not watched"));
            }
        }
        for (id, target) in self.targets() {
            if !target.waiters.is_empty() && target.link.is_none() {
                let at = target.not_before.unwrap_or(self.instant(self.now));
                if !self.armed_by(DeadlineKey::Target(id), at) {
                    return Some(format!("target {id} is waited for and not watched"));
                }
            }
        }
        for (id, request) in &engine.requests {
            if !self.armed_by(DeadlineKey::Request(*id), request.due) {
                return Some(format!("request {id} is not watched"));
            }
        }
        None
    }

    fn targets(&self) -> impl Iterator<Item = (u32, &crate::pulsar::engine::targets::Target)> {
        (0..64u32).map_while(|id| {
            self.engine.targets.get(crate::pulsar::engine::targets::TargetId(id)).map(|target| (id, target))
        })
    }

    fn stuck(&self, owner: Owner, phase: Phase) -> Option<String> {
        let engine = &self.engine;
        match phase {
            Phase::Resting { until } => {
                let key = match owner {
                    Owner::Lane(lane) => DeadlineKey::AttachLane(lane),
                    Owner::Part(part) => DeadlineKey::AttachPart(part),
                };
                (!self.armed_by(key, until)).then(|| "rests and is not watched".into())
            }
            Phase::Locating => {
                let mine = engine.lookups.iter().filter(|(_, lookup)| lookup.asker == Asker::Owner(owner));
                let mine: Vec<u64> = mine.map(|(id, _)| *id).collect();
                if mine.len() != 1 {
                    return Some(format!("looks its broker up with {} look-ups", mine.len()));
                }
                let asked = engine.requests.values().any(|request| {
                    matches!(request.purpose, crate::pulsar::engine::requests::Purpose::Lookup(id) if mine.contains(&id))
                });
                let waits = self.targets().any(|(_, target)| target.waiters.contains(&Waiter::Lookup(mine[0])));
                (!asked && !waits).then(|| "its look-up waits for nothing".into())
            }
            Phase::Linking { target } => {
                let waits =
                    engine.targets.get(target).is_some_and(|target| target.waiters.contains(&Waiter::Owner(owner)));
                (!waits).then(|| "waits for a link that does not know it".into())
            }
            Phase::Opening { link, request } => {
                let asked = engine.requests.get(&request).is_some_and(|request| request.link == link);
                (!asked).then(|| "waits for an answer that nobody owes".into())
            }
            Phase::Open { link } => {
                (!engine.links.contains_key(&link)).then(|| "is open on a link that is gone".into())
            }
            Phase::Ended => None,
        }
    }

    /// All is closed: everything has its answer, and everything was given back.
    pub(super) fn check_end(&mut self) {
        if !self.finished {
            self.fail("the client did not finish");
        }
        if let Some(uid) = self.ops.iter().position(|op| op.fate.is_none()) {
            let op = &self.ops[uid];
            let text = format!("message {uid} of lane {}/{} (place {}) has no answer", op.producer, op.lane, op.place);
            self.fail(text);
        }
        if let Some(uid) = self.ops.iter().position(|op| op.place > 0 && !op.called_back) {
            self.fail(format!("message {uid} has a result that nobody was told"));
        }
        for producer in 0..self.producers.len() {
            let admission = &self.producers[producer].admission;
            let (pending, charge, waiting) = (admission.pending(), admission.charge(), admission.waiting());
            if (pending, charge, waiting) != (0, 0, 0) {
                self.fail(format!("producer {producer} at rest: {pending} permits, {charge} bytes, {waiting} waiters"));
            }
        }
        let used = self.budget.usage().used as usize - self.net.pressed;
        if used != 0 || self.budget.usage().contended {
            self.fail(format!(
                "the client's memory at rest: {used} bytes, contended {}",
                self.budget.usage().contended
            ));
        }
        for topic in 0..self.cluster.order.len() {
            let places: Vec<(usize, usize, u64)> = self.cluster.order[topic]
                .iter()
                .filter(|uid| !self.cluster.is_damaged(**uid))
                .map(|uid| {
                    (self.ops[*uid as usize].producer, self.ops[*uid as usize].lane, self.ops[*uid as usize].place)
                })
                .collect();
            if let Some(pair) = places.windows(2).find(|pair| pair[0].2 >= pair[1].2) {
                self.fail(format!("topic {topic} stored {pair:?} out of order"));
            }
        }
    }
}
