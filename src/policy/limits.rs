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

/// How long a close flushes: its limit less the smaller of 100 ms and a tenth, so that `Closed` answers still fall
/// within.
pub(crate) fn flush_time(limit: Duration) -> Duration {
    limit.saturating_sub(Duration::from_millis(100).min(limit / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_too_long_for_the_clock() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)), now + Duration::from_secs(5));
        assert!(deadline(now, flush_time(Duration::MAX)) > now + Duration::from_secs(86_400));
    }
}
