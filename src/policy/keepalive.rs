//! When a link is asked for a sign of life, and when it is given up.
//!
//! A peer's own frames prove little: a broker that still pings but answers nothing is dead for our purposes. So
//! after our PING only a PONG, or an answer to something that was sent after the PING, ends the check. Other
//! frames but the peer's PINGs buy it time, up to one keep-alive interval in all.

use std::time::{Duration, Instant};

/// How long an answer may be outstanding before a PING goes out at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a PING may stay unanswered, and what each other frame adds.
const GRACE: Duration = Duration::from_secs(3);

/// A frame up to this size passes any link of use within the grace; what is larger buys its check time, because the
/// PING waits behind it: as long as the rest takes at [`SLOWEST`] bytes a second.
const QUICK_FRAME: usize = 1024 * 1024;
const SLOWEST: usize = 256 * 1024;

/// A look at a check that comes so much later than it should says more about us than about the peer.
const LATE: Duration = Duration::from_millis(500);

/// Liveness of one link.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    interval: Duration,
    patience: Duration,
    grace: Duration,
    /// When the link last proved that it lives.
    proved_at: Instant,
    /// Frames sent that are owed an answer, less the answers seen.
    unanswered: u64,
    /// The last answer, or the time at which the first of the unanswered went out.
    quiet_since: Instant,
    /// The largest frame handed over since the last PING.
    largest: usize,
    check: Option<Check>,
}

#[derive(Debug)]
struct Check {
    started: Instant,
    due: Instant,
    limit: Instant,
    /// It was looked at too late once, and given more time for that.
    late: bool,
}

/// What to do about a link now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing before this time.
    Wait(Instant),
    /// Send a PING; the check has begun.
    Ping,
    /// Close the link: it did not answer.
    Dead,
}

impl KeepAlive {
    /// A link that has just proved itself by its handshake.
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            patience: PATIENCE.min(interval),
            grace: GRACE.min(interval),
            proved_at: now,
            unanswered: 0,
            quiet_since: now,
            largest: 0,
            check: None,
        }
    }

    /// A frame of so many bytes that is owed an answer was handed to the link.
    pub(crate) fn sent(&mut self, now: Instant, bytes: usize) {
        self.largest = self.largest.max(bytes);
        if self.unanswered == 0 {
            self.quiet_since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// An answer came, to a frame handed over at `sent_at` if that is known.
    pub(crate) fn answered(&mut self, now: Instant, sent_at: Option<Instant>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.quiet_since = now;
        match (&self.check, sent_at) {
            (Some(check), Some(sent_at)) if sent_at > check.started => self.proved(now),
            _ => self.heard(now),
        }
    }

    /// A PONG came, while `unanswered` frames are still owed an answer. Answers that were lost or came twice have
    /// made the count wrong until here.
    pub(crate) fn pong(&mut self, now: Instant, unanswered: u64) {
        self.unanswered = unanswered;
        self.proved(now);
    }

    /// A PING was sent and not answered yet.
    pub(crate) fn is_checking(&self) -> bool {
        self.check.is_some()
    }

    /// A frame came that answers nothing, or nothing that was waited for; other than the peer's own PING.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Some(check) = &mut self.check {
            check.due = check.due.max(now + self.grace).min(check.limit);
        }
    }

    /// What to do at `now`. Starts the check when it says [`Verdict::Ping`].
    pub(crate) fn verdict(&mut self, now: Instant) -> Verdict {
        if let Some(check) = &mut self.check {
            if now >= check.due + LATE && !check.late {
                // We were not there to read the answer: the process stood still, or its thread did.
                check.late = true;
                check.due = now + LATE;
            }
            return if now >= check.due { Verdict::Dead } else { Verdict::Wait(check.due) };
        }
        let due = self.next_ping();
        if now < due {
            return Verdict::Wait(due);
        }
        let slow = std::mem::take(&mut self.largest).saturating_sub(QUICK_FRAME) / SLOWEST;
        let patience = (self.grace + Duration::from_secs(slow as u64)).min(self.interval.max(self.grace));
        let limit = now + self.interval.max(self.grace);
        self.check = Some(Check { started: now, due: now + patience, limit, late: false });
        Verdict::Ping
    }

    /// When [`verdict`](Self::verdict) has something to say next.
    pub(crate) fn next_due(&self) -> Instant {
        self.check.as_ref().map_or_else(|| self.next_ping(), |check| check.due)
    }

    fn next_ping(&self) -> Instant {
        let idle = self.proved_at + self.interval;
        if self.unanswered == 0 { idle } else { idle.min(self.quiet_since + self.patience) }
    }

    fn proved(&mut self, now: Instant) {
        self.check = None;
        self.proved_at = now;
        self.quiet_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn an_idle_half_open_link_is_dead_within_33_seconds() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        assert_eq!(link.verdict(t0), Verdict::Wait(t0 + secs(30)));
        assert_eq!(link.verdict(t0 + secs(30)), Verdict::Ping);
        assert_eq!(link.verdict(t0 + secs(32)), Verdict::Wait(t0 + secs(33)));
        assert_eq!(link.verdict(t0 + secs(33)), Verdict::Dead);
    }

    #[test]
    fn a_link_that_answers_nothing_is_dead_within_6_seconds_of_a_send() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0 + secs(7), 100);
        link.sent(t0 + secs(8), 100);
        assert_eq!(link.next_due(), t0 + secs(9));
        assert_eq!(link.verdict(t0 + secs(9)), Verdict::Ping);
        assert_eq!(link.verdict(t0 + secs(12)), Verdict::Dead);
    }

    #[test]
    fn an_answer_to_something_sent_before_the_ping_only_buys_time() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 100);
        link.sent(t0, 100);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Ping);
        link.answered(t0 + secs(4), Some(t0));
        assert_eq!(link.verdict(t0 + secs(6)), Verdict::Wait(t0 + secs(7)));
        assert_eq!(link.verdict(t0 + secs(7)), Verdict::Dead);
    }

    #[test]
    fn an_answer_to_something_sent_after_the_ping_ends_the_check() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 100);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Ping);
        link.sent(t0 + secs(3), 100);
        link.answered(t0 + secs(4), Some(t0 + secs(3)));
        // One is still unanswered, so the next check comes two seconds after the last answer.
        assert_eq!(link.verdict(t0 + secs(4)), Verdict::Wait(t0 + secs(6)));
    }

    #[test]
    fn other_frames_extend_a_check_by_one_interval_at_most() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        assert_eq!(link.verdict(t0 + secs(30)), Verdict::Ping);
        for second in 30..90 {
            link.heard(t0 + secs(second));
        }
        assert_eq!(link.verdict(t0 + secs(59)), Verdict::Wait(t0 + secs(60)));
        assert_eq!(link.verdict(t0 + secs(60)), Verdict::Dead);
    }

    #[test]
    fn a_pong_proves_life_and_a_slow_broker_is_asked_again() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 100);
        for round in 0..20 {
            let now = t0 + secs(2 * (round + 1));
            assert_eq!(link.verdict(now), Verdict::Ping);
            link.pong(now, 1);
        }
    }

    #[test]
    fn answers_that_come_twice_do_not_hide_what_is_unanswered() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        for _ in 0..3 {
            link.sent(t0, 100);
        }
        link.answered(t0, Some(t0));
        link.heard(t0);
        link.heard(t0);
        assert_eq!(link.next_due(), t0 + secs(2));
    }

    #[test]
    fn answers_that_never_come_are_forgotten_with_the_next_pong() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 100);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Ping);
        link.pong(t0 + secs(2), 0);
        assert_eq!(link.next_due(), t0 + secs(32));
    }

    #[test]
    fn a_client_that_stood_still_reads_before_it_judges() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 100);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Ping);
        let awake = t0 + secs(60);
        assert_eq!(link.verdict(awake), Verdict::Wait(awake + LATE));
        assert_eq!(link.verdict(awake + LATE), Verdict::Dead);
        link.pong(awake + LATE, 0);
        assert_eq!(link.next_due(), awake + LATE + INTERVAL);
    }

    #[test]
    fn a_short_interval_shortens_patience_and_grace() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(secs(1), t0);
        assert_eq!(link.verdict(t0 + secs(1)), Verdict::Ping);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Dead);
    }

    #[test]
    fn a_large_frame_buys_its_check_the_time_that_it_takes_on_a_slow_link() {
        let t0 = Instant::now();
        let mut link = KeepAlive::new(INTERVAL, t0);
        link.sent(t0, 5 * 1024 * 1024);
        assert_eq!(link.verdict(t0 + secs(2)), Verdict::Ping);
        assert_eq!(link.verdict(t0 + secs(5)), Verdict::Wait(t0 + secs(21)), "4 MiB at 256 KiB/s and the grace");
        link.pong(t0 + secs(12), 1);
        assert_eq!(link.verdict(t0 + secs(14)), Verdict::Ping);
        assert_eq!(link.verdict(t0 + secs(17)), Verdict::Dead, "nothing large was behind that one");
    }
}
