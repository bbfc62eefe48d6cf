//! One direction of a link: what is on its way, when it may arrive, and how fast.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes on their way without latency, at most: enough to keep a fast link busy.
const HELD_WITHOUT_LATENCY: usize = 256 << 10;
/// The same with latency: a second's worth at 16 MiB/s.
const HELD_WITH_LATENCY: usize = 16 << 20;
/// A throttled pipe lets through this fraction of a second's bytes at once.
const BURSTS_PER_SECOND: u64 = 50;
/// How often a throttled pipe looks for new allowance.
const THROTTLE_TICK: Duration = Duration::from_millis(5);

pub(super) struct Pipe {
    held: VecDeque<Held>,
    bytes: usize,
    end: End,
    allowance: u64,
    refilled: Instant,
}

struct Held {
    due: Instant,
    bytes: Vec<u8>,
    written: usize,
}

/// The sender's end of stream.
#[derive(Clone, Copy, PartialEq)]
enum End {
    NotYet,
    Due(Instant),
    Passed,
}

/// What a pipe can do now.
pub(super) enum Head<'a> {
    /// Write some of these bytes, and say how many with [`Pipe::written`].
    Bytes(&'a [u8]),
    /// Pass the end of stream on, and say so with [`Pipe::ended`].
    End,
    /// Nothing before this time, or before more is pushed.
    Wait(Option<Instant>),
}

impl Pipe {
    pub(super) fn new(now: Instant) -> Self {
        Self { held: VecDeque::new(), bytes: 0, end: End::NotYet, allowance: 0, refilled: now }
    }

    /// Whether there is room for more.
    pub(super) fn has_room(&self, latency: Duration) -> bool {
        let limit = if latency.is_zero() { HELD_WITHOUT_LATENCY } else { HELD_WITH_LATENCY };
        self.bytes < limit && self.end == End::NotYet
    }

    pub(super) fn push(&mut self, now: Instant, latency: Duration, bytes: &[u8]) {
        let due = self.due(now, latency);
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.held.push_back(Held { due, bytes: bytes.to_vec(), written: 0 });
    }

    pub(super) fn push_end(&mut self, now: Instant, latency: Duration) {
        if self.end == End::NotYet {
            self.end = End::Due(self.due(now, latency));
        }
    }

    /// Never before what was pushed earlier, also when the latency has become shorter.
    fn due(&self, now: Instant, latency: Duration) -> Instant {
        let due = now.checked_add(latency).unwrap_or(now);
        self.held.back().map_or(due, |last| due.max(last.due))
    }

    /// What to do now; of bytes at most `limit`.
    pub(super) fn head(&mut self, now: Instant, rate: Option<u64>, limit: u64) -> Head<'_> {
        let allowance = self.refill(now, rate);
        let Some(first) = self.held.front() else {
            return match self.end {
                End::Due(due) if due <= now => Head::End,
                End::Due(due) => Head::Wait(Some(due)),
                End::NotYet | End::Passed => Head::Wait(None),
            };
        };
        if first.due > now {
            return Head::Wait(Some(first.due));
        }
        if allowance == 0 {
            return Head::Wait(rate.and_then(|rate| now.checked_add(tick(rate)?)));
        }
        let rest = first.bytes.get(first.written..).unwrap_or_default();
        let most = usize::try_from(allowance.min(limit)).unwrap_or(usize::MAX);
        Head::Bytes(rest.get(..most).unwrap_or(rest))
    }

    pub(super) fn written(&mut self, count: usize) {
        self.bytes = self.bytes.saturating_sub(count);
        self.allowance = self.allowance.saturating_sub(count as u64);
        if let Some(first) = self.held.front_mut() {
            first.written = first.written.saturating_add(count);
            if first.written >= first.bytes.len() {
                self.held.pop_front();
            }
        }
    }

    pub(super) fn ended(&mut self) {
        self.end = End::Passed;
    }

    /// Whether the end of stream has been passed on.
    pub(super) fn is_over(&self) -> bool {
        self.end == End::Passed
    }

    /// How many bytes may go now.
    fn refill(&mut self, now: Instant, rate: Option<u64>) -> u64 {
        let Some(rate) = rate else {
            (self.allowance, self.refilled) = (0, now);
            return u64::MAX;
        };
        // At rate zero also what an earlier rate has left is gone.
        let burst = if rate == 0 { 0 } else { (rate / BURSTS_PER_SECOND).max(1) };
        self.allowance = self.allowance.min(burst);
        let elapsed = now.saturating_duration_since(self.refilled);
        let gain = elapsed.as_nanos().saturating_mul(rate.into()) / 1_000_000_000;
        let gain = u64::try_from(gain).unwrap_or(u64::MAX);
        if gain > burst {
            (self.allowance, self.refilled) = (burst, now);
        } else if gain > 0 {
            self.allowance = self.allowance.saturating_add(gain).min(burst);
            // Only the time that the gain stands for, so that rounding loses nothing.
            let spent = u128::from(gain).saturating_mul(1_000_000_000).checked_div(rate.into()).unwrap_or_default();
            self.refilled += Duration::from_nanos(u64::try_from(spent).unwrap_or_default());
        }
        self.allowance
    }
}

/// When it is worth looking for allowance again; never at rate zero.
fn tick(rate: u64) -> Option<Duration> {
    let byte = Duration::from_nanos(1_000_000_000_u64.checked_div(rate)?);
    Some(byte.max(THROTTLE_TICK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn bytes(head: Head<'_>) -> Vec<u8> {
        match head {
            Head::Bytes(bytes) => bytes.to_vec(),
            Head::End => panic!("the end came early"),
            Head::Wait(_) => Vec::new(),
        }
    }

    #[test]
    fn delivers_in_order_after_the_latency() {
        let start = Instant::now();
        let mut pipe = Pipe::new(start);
        pipe.push(start, 10 * MS, b"ab");
        pipe.push(start + MS, Duration::ZERO, b"c");
        pipe.push_end(start + MS, Duration::ZERO);
        assert!(matches!(pipe.head(start + 9 * MS, None, 9), Head::Wait(Some(at)) if at == start + 10 * MS));
        let now = start + 10 * MS;
        assert_eq!(bytes(pipe.head(now, None, 9)), b"ab");
        assert_eq!(bytes(pipe.head(now, None, 1)), b"a");
        pipe.written(1);
        assert_eq!(bytes(pipe.head(now, None, 9)), b"b");
        pipe.written(1);
        assert_eq!(bytes(pipe.head(now, None, 9)), b"c");
        pipe.written(1);
        assert!(matches!(pipe.head(now, None, 9), Head::End));
        pipe.ended();
        assert!(pipe.is_over());
    }

    #[test]
    fn room_is_bounded() {
        let now = Instant::now();
        let mut pipe = Pipe::new(now);
        assert!(pipe.has_room(Duration::ZERO));
        pipe.push(now, Duration::ZERO, &vec![0; HELD_WITHOUT_LATENCY]);
        assert!(!pipe.has_room(Duration::ZERO) && pipe.has_room(MS));
        pipe.written(HELD_WITHOUT_LATENCY);
        pipe.push_end(now, Duration::ZERO);
        assert!(!pipe.has_room(Duration::ZERO), "nothing comes after the end");
    }

    #[test]
    fn throttled_pipes_keep_their_rate() {
        for (rate, step) in [(1_000, MS), (1_000_000, MS), (7, 30 * MS), (333, 5 * MS)] {
            let start = Instant::now();
            let mut pipe = Pipe::new(start);
            pipe.push(start, Duration::ZERO, &vec![0; 30_000_000]);
            let (mut now, mut sent) = (start, 0);
            while now < start + Duration::from_secs(20) {
                now += step;
                loop {
                    let count = bytes(pipe.head(now, Some(rate), u64::MAX)).len();
                    if count == 0 {
                        break;
                    }
                    pipe.written(count);
                    sent += count as u64;
                }
            }
            assert!(sent <= rate * 20 && sent >= rate * 20 - rate / 10 - 1, "{sent} bytes at {rate}/s");
        }
    }

    #[test]
    fn rate_zero_passes_nothing_and_never_wakes() {
        let start = Instant::now();
        let mut pipe = Pipe::new(start);
        pipe.push(start, Duration::ZERO, b"x");
        assert!(matches!(pipe.head(start + Duration::from_secs(99), Some(0), 9), Head::Wait(None)));
        assert_eq!(bytes(pipe.head(start + Duration::from_secs(99), None, 9)), b"x");
        // What an earlier rate has left does not pass either.
        let later = start + Duration::from_secs(100);
        assert_eq!(bytes(pipe.head(later, Some(1000), 9)), b"x");
        assert!(matches!(pipe.head(later, Some(0), 9), Head::Wait(None)));
    }
}
