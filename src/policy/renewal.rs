//! When credentials that somebody supplies are asked for: before the first use, before they expire, and after a
//! server refused them.

use std::time::{Duration, Instant};

/// Between the end of one question and the next.
const PAUSE: Duration = Duration::from_secs(3);
/// How long before they expire credentials are asked for again: a tenth of their life, within these.
const LEAST_LEAD: Duration = Duration::from_secs(1);
const MOST_LEAD: Duration = Duration::from_secs(300);

/// At most one question is under way, and none comes sooner than `PAUSE` after the last answer.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    under_way: bool,
    not_before: Option<Instant>,
    /// When those in use should be replaced.
    renew_at: Option<Instant>,
}

impl Renewal {
    /// Whether to ask now. If so, the question counts as under way.
    pub(crate) fn ask(&mut self, now: Instant) -> bool {
        if self.under_way || self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        self.under_way = true;
        true
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// New ones came; they are good for `life`, or for ever.
    pub(crate) fn answered(&mut self, now: Instant, life: Option<Duration>) {
        self.ended(now);
        self.renew_at = life.and_then(|life| {
            let lead = (life / 10).clamp(LEAST_LEAD, MOST_LEAD);
            now.checked_add(life.saturating_sub(lead))
        });
    }

    /// None came. Those in use stay, and are still to be replaced at their time.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.ended(now);
    }

    fn ended(&mut self, now: Instant) {
        self.under_way = false;
        self.not_before = Some(now + PAUSE);
    }

    /// When to ask because those in use expire.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.under_way {
            return None;
        }
        self.renew_at.map(|at| self.not_before.map_or(at, |not_before| at.max(not_before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_question_at_a_time_and_a_pause_after_each() {
        let now = Instant::now();
        let mut renewal = Renewal::default();
        assert!(renewal.ask(now) && renewal.is_under_way());
        assert!(!renewal.ask(now + SECOND * 1000), "the first is not answered");
        renewal.failed(now + SECOND);
        assert!(!renewal.ask(now + SECOND * 3));
        assert!(renewal.ask(now + SECOND * 4));
        renewal.answered(now + SECOND * 5, None);
        assert!(!renewal.ask(now + SECOND * 7) && renewal.poll_timeout().is_none(), "they are good for ever");
        assert!(renewal.ask(now + SECOND * 8));
    }

    #[test]
    fn they_are_replaced_before_they_expire() {
        let now = Instant::now();
        for (life, after) in [(36_000, 35_700), (1_000, 900), (20, 18), (5, 4), (4, 3), (2, 3), (0, 3)] {
            let mut renewal = Renewal::default();
            assert!(renewal.ask(now));
            assert_eq!(renewal.poll_timeout(), None);
            renewal.answered(now, Some(SECOND * life));
            assert_eq!(renewal.poll_timeout(), Some(now + SECOND * after), "{life}");
        }
        let mut renewal = Renewal::default();
        renewal.answered(now, Some(Duration::MAX));
        assert_eq!(renewal.poll_timeout(), None, "beyond what the clock can hold");
    }

    #[test]
    fn a_failed_renewal_is_tried_again_after_the_pause() {
        let now = Instant::now();
        let mut renewal = Renewal::default();
        assert!(renewal.ask(now));
        renewal.answered(now, Some(SECOND * 100));
        let at = now + SECOND * 90;
        assert!(renewal.ask(at));
        assert_eq!(renewal.poll_timeout(), None);
        renewal.failed(at);
        assert_eq!(renewal.poll_timeout(), Some(at + PAUSE));
        assert!(renewal.ask(at + PAUSE));
        renewal.answered(at + PAUSE, None);
        assert_eq!(renewal.poll_timeout(), None);
    }
}
