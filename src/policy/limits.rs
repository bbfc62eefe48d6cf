//! Limits of options, checked all at once, and how a close divides its time.

use std::fmt::{Debug, Display};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

/// What is wrong with a builder's options, all of it.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    found: Vec<String>,
}

impl Violations {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&mut self, violation: String) {
        self.found.push(violation);
    }

    /// The value, or its error among the violations.
    pub(crate) fn take<T, E: Display>(&mut self, value: Result<T, E>) -> Option<T> {
        value.map_err(|error| self.add(error.to_string())).ok()
    }

    /// The option has to lie in a range, ends included.
    pub(crate) fn range<T: PartialOrd + Debug>(&mut self, option: &str, value: T, least: T, most: T) {
        if value < least || value > most {
            self.add(format!("{option}: {value:?} is not between {least:?} and {most:?}"));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// An error of kind `Config` that names everything, if there is anything.
    pub(crate) fn finish(self, what: &str) -> Result<(), Error> {
        self.finish_as(ErrorKind::Config, what)
    }

    /// An error that names everything, if there is anything.
    pub(crate) fn finish_as(self, kind: ErrorKind, what: &str) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        Err(Error::new(kind, format!("{what}: {}", self.found.join("; "))))
    }
}

/// When a limit of the user's is over that counts from `now`. What the clock cannot hold is cut to a lifetime.
pub(crate) fn deadline(now: Instant, limit: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);
    now + limit.min(LONGEST)
}

/// How long a close flushes: its limit less a tenth, at most 500 ms, so that the `Closed` answers still fall within.
/// They pass through four threads, each of which a busy machine may keep waiting for tens of milliseconds.
pub(crate) fn flush_time(limit: Duration) -> Duration {
    limit.saturating_sub(Duration::from_millis(500).min(limit / 10))
}

/// How long after the limit of a close callbacks may return before it is a timeout: those that were on the way then.
const CLOSE_GRACE: Duration = Duration::from_millis(100);
/// The same for as long as no callback runs at all: what is queued waits for the machine, not for code of users.
const CLOSE_LATEST: Duration = Duration::from_secs(1);
/// How often that is looked at.
const CLOSE_LOOK: Duration = Duration::from_millis(20);

/// Until when a close whose limit is `due` waits for callbacks that are left, while `running` of them are inside code
/// of users; `None` if it ends now.
pub(crate) fn close_waits(now: Instant, due: Instant, running: usize) -> Option<Instant> {
    let (grace, latest) = (due + CLOSE_GRACE, due + CLOSE_LATEST);
    if now < grace {
        Some(grace)
    } else if running == 0 && now < latest {
        Some(latest.min(now + CLOSE_LOOK))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_waits_longer_for_the_machine_than_for_callbacks() {
        let due = Instant::now();
        let at = |millis| due + Duration::from_millis(millis);
        assert_eq!(close_waits(due, due, 0), Some(at(100)));
        assert_eq!(close_waits(at(50), due, 2), Some(at(100)));
        assert_eq!(close_waits(at(100), due, 1), None);
        assert_eq!(close_waits(at(100), due, 0), Some(at(120)));
        assert_eq!(close_waits(at(995), due, 0), Some(at(1000)));
        assert_eq!(close_waits(at(1000), due, 0), None);
    }

    #[test]
    fn a_close_leaves_time_for_its_answers() {
        for (limit, flush) in [(0, 0), (100, 90), (1_000, 900), (5_000, 4_500), (30_000, 29_500)] {
            assert_eq!(flush_time(Duration::from_millis(limit)), Duration::from_millis(flush));
        }
    }

    #[test]
    fn no_limit_is_too_long_for_the_clock() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)), now + Duration::from_secs(5));
        assert!(deadline(now, flush_time(Duration::MAX)) > now + Duration::from_secs(86_400));
    }
}
