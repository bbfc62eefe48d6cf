//! When the next message is to be sent, and whether there is a next one.

use std::time::{Duration, Instant};

use crate::interrupt;

/// Numbers of messages, each given out when it is due; ends after a count, at a time, or by Ctrl-C.
///
/// It keeps to the schedule: what was held up is caught up with, without a pause.
pub struct Pacer {
    begin: Instant,
    rate: Option<f64>,
    count: Option<u64>,
    until: Option<Instant>,
    next: u64,
}

/// A sleep is late by about so much: nearer messages go at once.
const SLEEP_ERROR: Duration = Duration::from_micros(500);

impl Pacer {
    /// `rate` in messages a second; without one they are due at once.
    pub fn new(rate: Option<f64>, count: Option<u64>, span: Option<Duration>) -> Self {
        let begin = Instant::now();
        Self { begin, rate, count, until: span.and_then(|span| begin.checked_add(span)), next: 0 }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    fn due(&self, rate: f64) -> Instant {
        let after = Duration::try_from_secs_f64(self.next as f64 / rate).unwrap_or(Duration::MAX);
        self.begin.checked_add(after).unwrap_or(self.begin)
    }
}

impl Iterator for Pacer {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.count.is_some_and(|count| self.next >= count) || interrupt::stopped() {
            return None;
        }
        match self.rate {
            Some(rate) => {
                let (now, due) = (Instant::now(), self.due(rate));
                if self.is_over(now) || self.is_over(due) {
                    return None;
                }
                if due.saturating_duration_since(now) > SLEEP_ERROR && !interrupt::sleep_until(Some(due)) {
                    return None;
                }
            }
            // The clock costs about as much as a send.
            None => {
                if self.next % 256 == 0 && self.is_over(Instant::now()) {
                    return None;
                }
            }
        }
        let number = self.next;
        self.next += 1;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_after_the_count() {
        assert_eq!(Pacer::new(None, Some(3), None).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn keeps_the_rate_and_ends_at_the_time() {
        let started = Instant::now();
        assert_eq!(Pacer::new(Some(100.0), None, Some(Duration::from_millis(200))).count(), 20);
        assert!(started.elapsed() >= Duration::from_millis(185));
    }
}
