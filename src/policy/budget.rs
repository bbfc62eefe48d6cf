//! How the client's memory is shared among its producers.
//!
//! Memory is counted from admission until the permit comes back. One producer takes at most half of the limit,
//! and one with nothing pending is always admitted one message, so that a dead topic does not starve the rest.
//! Producers whose next message found no memory stand in [`Turns`]; while anyone stands there, only they are served.

use std::collections::VecDeque;

/// What a message costs besides its body and its properties, in bytes.
pub(crate) const MESSAGE_OVERHEAD: usize = 256;

/// The client's memory limit unless the user states another, in bytes.
pub(crate) const DEFAULT_MEMORY_LIMIT: usize = 64 * 1024 * 1024;

/// The charge of a message, in bytes.
pub(crate) fn message_charge(body: usize, properties: usize) -> usize {
    body.saturating_add(properties).saturating_add(MESSAGE_OVERHEAD)
}

/// The rules that follow from the limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    limit: Option<usize>,
}

impl Allowance {
    /// `None` means no limit.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit }
    }

    /// True if a message of this charge is never admitted, whatever else is pending.
    pub(crate) fn never_holds(self, charge: usize) -> bool {
        self.limit.is_some_and(|limit| charge > limit)
    }

    /// True if a producer that holds `own` bytes may hold `charge` more.
    pub(crate) fn within_share(self, own: usize, charge: usize) -> bool {
        self.limit.is_none_or(|limit| own.saturating_add(charge) <= limit / 2)
    }

    /// The use after this claim, or `None` if it has to wait.
    pub(crate) fn claim(self, usage: Usage, charge: usize, claim: Claim) -> Option<Usage> {
        let used = usage.used.saturating_add(charge as u64);
        let granted = match claim {
            Claim::First => true,
            Claim::Newcomer if usage.contended => false,
            Claim::Newcomer | Claim::Turn => self.limit.is_none_or(|limit| used <= limit as u64),
        };
        granted.then_some(Usage { used, ..usage })
    }
}

/// On what ground memory is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The producer has nothing pending: always granted, and may overshoot the limit.
    First,
    /// Granted if there is room and nobody waits for memory.
    Newcomer,
    /// The producer stands first in [`Turns`]: granted if there is room.
    Turn,
}

/// The bytes in use and whether any producer waits for some. Both fit in one word, so that whoever gives memory
/// back learns in the same step whether somebody waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub used: u64,
    pub contended: bool,
}

impl Usage {
    pub(crate) const CONTENDED: u64 = 1;

    /// What to add to the word for `charge` bytes more.
    pub(crate) fn step(charge: usize) -> u64 {
        (charge as u64) << 1
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self { used: word >> 1, contended: word & Self::CONTENDED != 0 }
    }

    pub(crate) fn word(self) -> u64 {
        (self.used << 1) | u64::from(self.contended)
    }
}

/// The client's memory, as one producer's admission sees it.
pub(crate) trait Memory {
    fn allowance(&self) -> Allowance;
    /// Takes the bytes, or takes nothing and answers false.
    fn take(&self, charge: usize, claim: Claim) -> bool;
    /// Gives bytes back; true if a producer waits for memory, so that the turns have to be served.
    fn give_back(&self, charge: usize) -> bool;
}

/// How a producer's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing waits for memory here any more.
    Done,
    /// One message was admitted and the next one wants memory too.
    More,
    /// The next message does not fit yet.
    Short,
}

/// The producers that wait for memory. One caller at a time serves them; whoever comes meanwhile leaves word, and
/// the one who serves looks again, so that freed memory is never overlooked and no lock is held while serving.
#[derive(Debug)]
pub(crate) struct Turns<P> {
    queue: VecDeque<P>,
    serving: bool,
    again: bool,
}

impl<P> Turns<P> {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::new(), serving: false, again: false }
    }

    /// The one whose turn comes next.
    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<&P> {
        self.queue.front()
    }

    /// A producer asks for memory. It asks once until its turn ends with [`Turn::Done`].
    pub(crate) fn ask(&mut self, producer: P) {
        self.queue.push_back(producer);
    }

    /// True if the caller is to serve; false if somebody does and will look again.
    pub(crate) fn begin(&mut self) -> bool {
        self.again = true;
        !std::mem::replace(&mut self.serving, true)
    }

    /// The producer whose turn it is; `None` ends the serving, and nobody waits.
    pub(crate) fn next(&mut self) -> Option<P> {
        self.again = false;
        let next = self.queue.pop_front();
        self.serving = next.is_some();
        next
    }

    /// Puts a producer back after its turn. False ends the serving.
    pub(crate) fn ended(&mut self, producer: P, turn: Turn) -> bool {
        match turn {
            Turn::Done => {}
            Turn::More => self.queue.push_back(producer),
            Turn::Short => {
                self.queue.push_front(producer);
                self.serving = self.again;
            }
        }
        self.serving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_both_parts() {
        for usage in [Usage { used: 0, contended: true }, Usage { used: 1 << 40, contended: false }] {
            assert_eq!(Usage::from_word(usage.word()), usage);
        }
        let more = Usage::from_word(Usage { used: 7, contended: true }.word() + Usage::step(300));
        assert_eq!(more, Usage { used: 307, contended: true });
    }

    #[test]
    fn claims_follow_the_rules() {
        let rules = Allowance::new(Some(100));
        let idle = Usage { used: 90, contended: false };
        let contended = Usage { used: 90, contended: true };
        assert_eq!(rules.claim(idle, 10, Claim::Newcomer), Some(Usage { used: 100, contended: false }));
        assert_eq!(rules.claim(idle, 11, Claim::Newcomer), None);
        assert_eq!(rules.claim(contended, 10, Claim::Newcomer), None);
        assert_eq!(rules.claim(contended, 10, Claim::Turn), Some(Usage { used: 100, contended: true }));
        assert_eq!(rules.claim(contended, 11, Claim::Turn), None);
        assert_eq!(rules.claim(contended, 100, Claim::First), Some(Usage { used: 190, contended: true }));
        assert!(rules.within_share(40, 10) && !rules.within_share(40, 11));
        assert!(rules.never_holds(101) && !rules.never_holds(100));
        let free = Allowance::new(None);
        assert!(!free.never_holds(usize::MAX) && free.within_share(usize::MAX, usize::MAX));
    }

    #[test]
    fn turns_go_round_and_stop_at_the_one_that_is_short() {
        let mut turns = Turns::new();
        turns.ask('a');
        turns.ask('b');
        assert!(turns.begin());
        assert_eq!(turns.next(), Some('a'));
        assert!(turns.ended('a', Turn::More));
        assert_eq!(turns.next(), Some('b'));
        assert!(!turns.ended('b', Turn::Short));
        assert!(turns.begin());
        assert_eq!(turns.next(), Some('b'));
        assert!(turns.ended('b', Turn::Done));
        assert_eq!(turns.next(), Some('a'));
        assert!(turns.ended('a', Turn::Done));
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn memory_freed_during_a_turn_is_looked_at_again() {
        let mut turns = Turns::new();
        turns.ask('a');
        assert!(turns.begin());
        assert_eq!(turns.next(), Some('a'));
        assert!(!turns.begin(), "somebody serves already");
        assert!(turns.ended('a', Turn::Short), "the word that was left makes it look again");
        assert_eq!(turns.next(), Some('a'));
        assert!(!turns.ended('a', Turn::Short));
    }
}
