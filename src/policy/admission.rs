//! Who may send next: permits in count and bytes, first come, first served, one line a producer.
//!
//! A message is *admitted* when it holds its permit and was handed over to its lane. Until then it waits in the
//! line, which belongs to the producer and not to a lane. Time, place and sequence id are given here in one step,
//! so that the order of a lane is the order of its deadlines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::budget::{Claim, Memory, Turn};
use crate::error::{Error, ErrorKind};

/// The highest sequence id that brokers keep: theirs are signed.
const MAX_SEQUENCE_ID: u64 = i64::MAX as u64;

/// The empty vectors of a producer's lanes keep room for so many messages altogether.
const SPARE_ROOM: usize = 4096;

/// The limits of one producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Messages pending at a time, over all lanes. `None` means no limit; zero counts as one.
    pub max_pending: Option<usize>,
    /// How long a message may take, from the call to its answer. `None` means for ever.
    pub send_timeout: Option<Duration>,
}

/// One call to send, before it is admitted.
#[derive(Debug)]
pub(crate) struct Call<T> {
    pub lane: usize,
    pub item: T,
    /// In bytes; see [`message_charge`](super::budget::message_charge).
    pub charge: usize,
    /// The sequence id that the user gave, which has to rise within the lane.
    pub sequence: Option<u64>,
}

/// The permit of an admitted message. Its charge has to come back through [`Admission::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub lane: usize,
    /// The running number within the lane, from 1 up without gaps.
    pub place: u64,
    pub sequence_id: u64,
    pub called_at: Instant,
    /// When the result has to be fixed.
    pub due: Option<Instant>,
    pub charge: usize,
}

/// An admitted message that the loop has not taken yet.
#[derive(Debug)]
pub(crate) struct Admitted<T> {
    pub ticket: Ticket,
    pub item: T,
}

/// Names a waiter in the line. Rises with every waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// What comes of a call.
#[derive(Debug)]
pub(crate) enum Offer<T> {
    /// `look` is true if the lane's vector went from empty to non-empty, so that the loop is told once.
    Admitted {
        ticket: Ticket,
        look: bool,
    },
    /// It stands in the line until it is decided or withdrawn. If `ask` is true, this producer now has to be put
    /// among those that wait for the client's memory.
    Waiting {
        id: WaiterId,
        due: Option<Instant>,
        ask: bool,
    },
    Refused(Error, T),
}

/// How a waiter left the line.
#[derive(Debug)]
pub(crate) enum Decision<T> {
    Admitted(Ticket),
    Refused(Error, T),
}

/// What follows from a change, to be carried out after the lock is free.
#[derive(Debug)]
pub(crate) struct Served<T> {
    /// In the order of the line; always the ones that stood first.
    pub decided: Vec<(WaiterId, Decision<T>)>,
    /// Lanes whose vector went from empty to non-empty.
    pub look: Vec<usize>,
    /// This producer has to be put among those that wait for the client's memory.
    pub ask: bool,
    /// Producers may be waiting for memory that this change has made free.
    pub serve_turns: bool,
}

impl<T> Served<T> {
    fn nothing() -> Self {
        Self { decided: Vec::new(), look: Vec::new(), ask: false, serve_turns: false }
    }
}

struct Waiter<T> {
    id: WaiterId,
    called_at: Instant,
    due: Option<Instant>,
    call: Call<T>,
}

struct Lane<T> {
    next_sequence_id: u64,
    last_place: u64,
    admitted: Vec<Admitted<T>>,
}

impl<T> Lane<T> {
    fn new() -> Self {
        Self { next_sequence_id: 0, last_place: 0, admitted: Vec::new() }
    }

    /// The id that a message would get now.
    fn sequence_id(&self, explicit: Option<u64>) -> Result<u64, Error> {
        let id = explicit.unwrap_or(self.next_sequence_id);
        if id < self.next_sequence_id {
            let next = self.next_sequence_id;
            return Err(Error::new(ErrorKind::Misuse, format!("sequence id {id} does not rise, {next} is the next")));
        }
        if id > MAX_SEQUENCE_ID {
            return Err(Error::new(ErrorKind::Misuse, format!("sequence id {id} is above {MAX_SEQUENCE_ID}")));
        }
        Ok(id)
    }
}

/// Whether a message can be admitted now. If `Yes`, its memory is taken.
#[derive(PartialEq, Eq)]
enum Room {
    Yes,
    /// The producer's own permits or its share of the memory are used up.
    OwnLimit,
    /// The client's memory is used up, or others wait for it.
    NoMemory,
}

/// The admission of one producer.
pub(crate) struct Admission<T> {
    limits: Limits,
    lanes: Vec<Lane<T>>,
    line: VecDeque<Waiter<T>>,
    next_waiter: u64,
    pending: usize,
    charge: usize,
    total: u64,
    /// Stands among the producers that wait for memory, or is about to.
    asking: bool,
    closed: bool,
}

impl<T> Admission<T> {
    pub(crate) fn new(limits: Limits, lanes: usize) -> Self {
        Self {
            limits,
            lanes: (0..lanes).map(|_| Lane::new()).collect(),
            line: VecDeque::new(),
            next_waiter: 0,
            pending: 0,
            charge: 0,
            total: 0,
            asking: false,
            closed: false,
        }
    }

    /// The lane's sequence ids go on from here; never backwards. A lane that does not exist yet comes into being,
    /// with all before it.
    #[allow(clippy::indexing_slicing)] // grown just above
    pub(crate) fn open(&mut self, lane: usize, next_sequence_id: u64) {
        if lane >= self.lanes.len() {
            self.lanes.resize_with(lane + 1, Lane::new);
        }
        let lane = &mut self.lanes[lane];
        lane.next_sequence_id = lane.next_sequence_id.max(next_sequence_id);
    }

    /// Admits a message, puts it in the line (only if `may_wait`), or gives it back.
    pub(crate) fn offer(&mut self, now: Instant, call: Call<T>, may_wait: bool, memory: &impl Memory) -> Offer<T> {
        let due = self.limits.send_timeout.and_then(|timeout| now.checked_add(timeout));
        let sequence_id = match self.check(&call, memory) {
            Ok(sequence_id) => sequence_id,
            Err(error) => return Offer::Refused(error, call.item),
        };
        let room = match self.line.is_empty() || mutant!(JumpsTheLine) {
            true => self.room(call.charge, Claim::Newcomer, memory),
            false => Room::OwnLimit, // whatever the head waits for, it comes first
        };
        if room == Room::Yes {
            let (ticket, look) = self.admit(call, sequence_id, now, due);
            return Offer::Admitted { ticket, look };
        }
        if !may_wait {
            return Offer::Refused(Error::new(ErrorKind::WouldBlock, "no room for another pending message"), call.item);
        }
        let ask = room == Room::NoMemory && !std::mem::replace(&mut self.asking, true);
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.line.push_back(Waiter { id, called_at: now, due, call });
        Offer::Waiting { id, due, ask }
    }

    /// Takes a waiter's message back. `None` if it has left the line already: it was decided, and its owner is
    /// being told.
    pub(crate) fn withdraw(&mut self, id: WaiterId, memory: &impl Memory) -> Option<(T, Served<T>)> {
        let at = self.line.binary_search_by_key(&id, |waiter| waiter.id).ok()?;
        let waiter = self.line.remove(at)?;
        let served = match at {
            0 => self.serve(memory),
            _ => Served::nothing(),
        };
        Some((waiter.call.item, served))
    }

    /// Permits come back: `count` messages of `charge` bytes altogether. Serves the line.
    pub(crate) fn release(&mut self, count: usize, charge: usize, memory: &impl Memory) -> Served<T> {
        debug_assert!(count <= self.pending && charge <= self.charge, "more comes back than was taken");
        let charge = charge.min(self.charge);
        let count = if mutant!(LosesAPermit) && count > 1 { count - 1 } else { count };
        self.pending = self.pending.saturating_sub(count);
        self.charge -= charge;
        let contended = memory.give_back(charge);
        if mutant!(LineIsNotServed) {
            return Served::nothing();
        }
        let mut served = self.serve(memory);
        served.serve_turns |= contended;
        served
    }

    /// This producer's turn to get memory: admits at most the head of the line.
    pub(crate) fn turn(&mut self, memory: &impl Memory) -> (Turn, Served<T>) {
        let mut served = Served::nothing();
        let turn = match self.serve_head(Claim::Turn, memory, &mut served) {
            Some(Room::NoMemory) => Turn::Short,
            Some(Room::Yes) if self.head_wants_memory(memory) => Turn::More,
            _ => Turn::Done,
        };
        self.asking = turn != Turn::Done;
        (turn, served)
    }

    /// Moves what was admitted to a lane into `into`. Swaps the vectors if `into` is empty, so that a busy lane's
    /// next messages find room.
    pub(crate) fn take(&mut self, lane: usize, into: &mut Vec<Admitted<T>>) {
        let spare = SPARE_ROOM / self.lanes.len().max(1);
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        if !into.is_empty() {
            into.append(&mut lane.admitted);
            return;
        }
        std::mem::swap(&mut lane.admitted, into);
        if lane.admitted.capacity() > spare {
            lane.admitted = Vec::new();
        }
    }

    /// Everything in the line is refused, and so is every later offer. What was admitted stays.
    pub(crate) fn close(&mut self) -> Served<T> {
        self.closed = true;
        let refuse = |waiter: Waiter<T>| (waiter.id, Decision::Refused(closed(), waiter.call.item));
        let decided = self.line.drain(..).map(refuse).collect();
        Served { decided, serve_turns: self.asking, ..Served::nothing() }
    }

    /// The last place given in each lane; 0 where there was none.
    pub(crate) fn last_places(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.last_place).collect()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// The bytes that pending messages are charged with.
    pub(crate) fn charge(&self) -> usize {
        self.charge
    }

    /// Messages admitted so far.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.line.len()
    }

    fn check(&self, call: &Call<T>, memory: &impl Memory) -> Result<u64, Error> {
        if self.closed {
            return Err(closed());
        }
        if memory.allowance().never_holds(call.charge) {
            let text = format!("message of {} bytes is larger than the client's memory limit", call.charge);
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        self.sequence_id(call)
    }

    fn sequence_id(&self, call: &Call<T>) -> Result<u64, Error> {
        match self.lanes.get(call.lane) {
            Some(lane) => lane.sequence_id(call.sequence),
            None => Err(Error::new(ErrorKind::Internal, format!("there is no lane {}", call.lane))),
        }
    }

    /// A message above the producer's share waits until nothing else of the producer is pending.
    fn within_own_limits(&self, charge: usize, memory: &impl Memory) -> bool {
        self.limits.max_pending.is_none_or(|max| self.pending < max)
            && memory.allowance().within_share(self.charge, charge)
    }

    fn room(&self, charge: usize, claim: Claim, memory: &impl Memory) -> Room {
        let claim = if self.pending == 0 { Claim::First } else { claim };
        if claim != Claim::First && !self.within_own_limits(charge, memory) {
            return Room::OwnLimit;
        }
        if memory.take(charge, claim) { Room::Yes } else { Room::NoMemory }
    }

    fn head_wants_memory(&self, memory: &impl Memory) -> bool {
        self.line.front().is_some_and(|head| self.within_own_limits(head.call.charge, memory))
    }

    fn serve(&mut self, memory: &impl Memory) -> Served<T> {
        let mut served = Served::nothing();
        // If the head had asked for memory and another stands there now, its turn has to be looked at again.
        served.serve_turns = self.asking;
        while let Some(room) = self.serve_head(Claim::Newcomer, memory, &mut served) {
            if room == Room::NoMemory {
                served.ask = !std::mem::replace(&mut self.asking, true);
            }
            if room != Room::Yes {
                break;
            }
        }
        served
    }

    /// Admits the head of the line if there is room. Heads whose own sequence id no longer rises are refused on the
    /// way. `None` if the line is empty.
    fn serve_head(&mut self, claim: Claim, memory: &impl Memory, served: &mut Served<T>) -> Option<Room> {
        loop {
            let head = self.line.front()?;
            let sequence_id = self.sequence_id(&head.call);
            if sequence_id.is_ok() {
                let room = self.room(head.call.charge, claim, memory);
                if room != Room::Yes {
                    return Some(room);
                }
            }
            let Waiter { id, called_at, due, call } = self.line.pop_front()?;
            let lane = call.lane;
            match sequence_id {
                Ok(sequence_id) => {
                    let (ticket, look) = self.admit(call, sequence_id, called_at, due);
                    served.decided.push((id, Decision::Admitted(ticket)));
                    if look {
                        served.look.push(lane);
                    }
                    return Some(Room::Yes);
                }
                Err(error) => served.decided.push((id, Decision::Refused(error, call.item))),
            }
        }
    }

    /// Only after the lane was found, the sequence id checked and the memory taken.
    #[allow(clippy::indexing_slicing)] // `sequence_id` found the lane
    fn admit(&mut self, call: Call<T>, sequence_id: u64, called_at: Instant, due: Option<Instant>) -> (Ticket, bool) {
        let lane = &mut self.lanes[call.lane];
        lane.next_sequence_id = sequence_id + 1;
        lane.last_place += 1;
        self.pending += 1;
        self.charge += call.charge;
        self.total += 1;
        let look = lane.admitted.is_empty();
        let place = lane.last_place;
        let ticket = Ticket { lane: call.lane, place, sequence_id, called_at, due, charge: call.charge };
        lane.admitted.push(Admitted { ticket, item: call.item });
        (ticket, look)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the producer is closed")
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
