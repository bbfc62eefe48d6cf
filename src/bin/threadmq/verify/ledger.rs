//! What became of each numbered send: called, returned, answered. Time comes in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use threadmq::{Delivery, Error, ErrorKind};

/// One send.
#[derive(Debug, Clone)]
pub struct Send {
    pub called: Instant,
    /// When the call of `send_with` returned, and whether the send was accepted.
    pub returned: Option<(Instant, bool)>,
    /// When the first callback started, and with what.
    pub answered: Option<(Instant, Fate)>,
    pub answers: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Stored, after so many attempts.
    Stored {
        attempts: u32,
    },
    TimedOut,
    Failed,
}

/// An answer as the callback gets it.
pub type Answer<'a> = Result<u32, &'a Error>;

/// All sends of a run, by number.
#[derive(Debug, Default)]
pub struct Ledger {
    pub sends: Vec<Send>,
    pub accepted: u64,
    pub refused: u64,
    pub answered: u64,
    pub stored: u64,
    pub timed_out: u64,
    pub failed: u64,
    pub last_stored_at: Option<Instant>,
    pub first_failed_at: Option<Instant>,
    /// How often each kind of error came, and the first text of it.
    pub errors: BTreeMap<String, (u64, String)>,
}

impl Ledger {
    /// The number of the send that is about to be made.
    pub fn call(&mut self, now: Instant) -> u64 {
        self.sends.push(Send { called: now, returned: None, answered: None, answers: 0 });
        self.sends.len() as u64 - 1
    }

    pub fn returned(&mut self, number: u64, now: Instant, refused: Option<&Error>) {
        if let Some(send) = self.send(number) {
            send.returned = Some((now, refused.is_none()));
        }
        match refused {
            None => self.accepted += 1,
            Some(error) => {
                self.refused += 1;
                self.note(error, "refused");
            }
        }
    }

    pub fn answer(&mut self, number: u64, now: Instant, answer: Answer<'_>) {
        let Some(send) = self.send(number) else { return };
        send.answers += 1;
        if send.answered.is_some() {
            return;
        }
        let fate = match answer {
            Ok(attempts) => Fate::Stored { attempts },
            Err(error) if error.kind() == ErrorKind::Timeout => Fate::TimedOut,
            Err(_) => Fate::Failed,
        };
        send.answered = Some((now, fate));
        self.answered += 1;
        match fate {
            Fate::Stored { .. } => {
                self.stored += 1;
                self.last_stored_at = Some(now);
            }
            Fate::TimedOut => self.timed_out += 1,
            Fate::Failed => self.failed += 1,
        }
        if let Err(error) = answer {
            self.first_failed_at.get_or_insert(now);
            self.note(error, "answered");
        }
    }

    fn send(&mut self, number: u64) -> Option<&mut Send> {
        self.sends.get_mut(usize::try_from(number).ok()?)
    }

    fn note(&mut self, error: &Error, how: &str) {
        let delivery = match error.delivery() {
            Delivery::NotSent => "not sent",
            Delivery::Refused => "refused by the broker",
            Delivery::Unknown => "may be stored",
        };
        let kind = format!("{how} with {:?}, {delivery}", error.kind());
        self.errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
    }

    /// Accepted and not answered.
    pub fn unanswered(&self) -> u64 {
        let open = |send: &&Send| matches!(send.returned, Some((_, true))) && send.answers == 0;
        self.sends.iter().filter(open).count() as u64
    }

    /// Answered more than once, or refused and called back.
    pub fn answered_twice(&self) -> u64 {
        let twice = |send: &&Send| send.answers > u32::from(!matches!(send.returned, Some((_, false))));
        self.sends.iter().filter(twice).count() as u64
    }

    /// Numbers of the sends that were told stored.
    pub fn acknowledged(&self) -> impl Iterator<Item = u64> + '_ {
        let stored = |send: &Send| matches!(send.answered, Some((_, Fate::Stored { .. })));
        (0..).zip(&self.sends).filter(move |(_, send)| stored(send)).map(|(number, _)| number)
    }

    /// By our own clock: by how much each answer came after `limit`, not counting `lag`, by which callbacks may
    /// have started after their results were fixed. A refused send is answered when its call returns.
    pub fn overdue(&self, limit: Duration, lag: Duration) -> impl Iterator<Item = Duration> + '_ {
        self.sends.iter().filter_map(move |send| {
            let (at, lag) = match (send.answered, send.returned) {
                (Some((at, _)), _) => (at, lag),
                (None, Some((at, false))) => (at, Duration::ZERO),
                _ => return None,
            };
            at.duration_since(send.called).checked_sub(limit + lag).filter(|over| !over.is_zero())
        })
    }

    /// The longest time from the call of a send that did not succeed on its first attempt to the first success of
    /// an attempt that was started after it: that of the send itself or of a later one. If none came any more, the
    /// time up to the last answer counts.
    pub fn recovery(&self) -> Option<Duration> {
        let end = self.sends.iter().filter_map(|send| send.answered).map(|(at, _)| at).max();
        // From the last send to the first: the earliest success of this send and of those after it.
        let mut earliest = None;
        let mut successes: Vec<Option<Instant>> = Vec::with_capacity(self.sends.len());
        for send in self.sends.iter().rev() {
            if let Some((at, Fate::Stored { .. })) = send.answered {
                earliest = Some(earliest.map_or(at, |known: Instant| known.min(at)));
            }
            successes.push(earliest);
        }
        let troubled = |send: &Send| match send.answered {
            Some((_, Fate::Stored { attempts })) => attempts > 1,
            Some(_) => true,
            None => matches!(send.returned, Some((_, false))),
        };
        let recovery = |(send, next): (&Send, &Option<Instant>)| {
            next.or(end).map_or(Duration::ZERO, |at| at.saturating_duration_since(send.called))
        };
        self.sends.iter().zip(successes.iter().rev()).filter(|(send, _)| troubled(send)).map(recovery).max()
    }

    pub fn longest_call(&self) -> Duration {
        let call = |send: &Send| send.returned.map(|(at, _)| at.saturating_duration_since(send.called));
        self.sends.iter().filter_map(call).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use threadmq::pulsar::Client;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Errors come from the library alone; this one is of kind `Config`.
    fn failure() -> Error {
        Client::builder("nonsense").build().err().unwrap()
    }

    fn at(begin: Instant, millis: u64) -> Instant {
        begin + Duration::from_millis(millis)
    }

    #[test]
    fn counts_answers_and_finds_the_missing_and_the_double() {
        let begin = Instant::now();
        let (mut ledger, error) = (Ledger::default(), failure());
        for number in 0..4 {
            assert_eq!(ledger.call(begin), number);
        }
        for number in 0..3 {
            ledger.returned(number, begin, None);
        }
        ledger.returned(3, begin, Some(&error));
        ledger.answer(0, begin, Ok(1));
        ledger.answer(1, begin, Err(&error));
        assert_eq!((ledger.accepted, ledger.refused, ledger.answered), (3, 1, 2));
        assert_eq!((ledger.stored, ledger.failed, ledger.timed_out), (1, 1, 0));
        assert_eq!((ledger.unanswered(), ledger.answered_twice()), (1, 0));
        assert_eq!(ledger.acknowledged().collect::<Vec<_>>(), [0]);

        ledger.answer(0, begin, Ok(1));
        // Refused, and yet called back.
        ledger.answer(3, begin, Ok(1));
        assert_eq!((ledger.unanswered(), ledger.answered_twice()), (1, 2));
        // An answer for what was never sent is not one of ours.
        ledger.answer(99, begin, Ok(1));
    }

    #[test]
    fn an_answer_before_the_call_returns_is_no_second_one() {
        let begin = Instant::now();
        let mut ledger = Ledger::default();
        ledger.call(begin);
        ledger.answer(0, begin, Ok(1));
        assert_eq!(ledger.answered_twice(), 0);
        ledger.returned(0, begin, None);
        assert_eq!((ledger.answered_twice(), ledger.unanswered()), (0, 0));
    }

    #[test]
    fn lateness_leaves_out_the_lag_of_callbacks() {
        let begin = Instant::now();
        let mut ledger = Ledger::default();
        ledger.call(begin);
        ledger.returned(0, begin, None);
        ledger.answer(0, at(begin, 1300), Ok(1));
        ledger.call(begin);
        ledger.returned(1, at(begin, 1250), Some(&failure()));
        let overdue = |lag| ledger.overdue(LIMIT, Duration::from_millis(lag)).collect::<Vec<_>>();
        assert_eq!(overdue(0), [Duration::from_millis(300), Duration::from_millis(250)]);
        assert_eq!(overdue(300), [Duration::from_millis(250)], "a refusal has no callback that could lag");
        assert_eq!(ledger.longest_call(), Duration::from_millis(1250));
    }

    #[test]
    fn recovery_is_from_the_first_troubled_call_to_the_next_success() {
        let begin = Instant::now();
        let (mut ledger, error) = (Ledger::default(), failure());
        assert_eq!(ledger.recovery(), None);
        // Well; failed at 100; sent at 200 and stored at 5000 by its second attempt; well again.
        for (called, answered, answer) in
            [(0, 10, Ok(1)), (100, 1100, Err(&error)), (200, 5000, Ok(2)), (6000, 6010, Ok(1))]
        {
            let number = ledger.call(at(begin, called));
            ledger.returned(number, at(begin, called), None);
            ledger.answer(number, at(begin, answered), answer);
        }
        assert_eq!(ledger.recovery(), Some(Duration::from_millis(4900)));
        // An answer to an earlier send, on its way when this one was called, is no recovery.
        let mut under_way = Ledger::default();
        for (called, answered, answer) in [(0, 200, Ok(1)), (100, 1100, Err(&error)), (150, 3000, Ok(1))] {
            let number = under_way.call(at(begin, called));
            under_way.returned(number, at(begin, called), None);
            under_way.answer(number, at(begin, answered), answer);
        }
        assert_eq!(under_way.recovery(), Some(Duration::from_millis(2900)));
        // Never well again: up to the last answer.
        let number = ledger.call(at(begin, 7000));
        ledger.returned(number, at(begin, 7000), None);
        ledger.answer(number, at(begin, 17_000), Err(&error));
        assert_eq!(ledger.recovery(), Some(Duration::from_millis(10_000)));
    }
}
