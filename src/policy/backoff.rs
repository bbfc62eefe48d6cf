//! How long to wait before the next try: doubling, capped, and different for every client.

use std::time::Duration;

use super::rng::Rng;

/// The random part is at least this wide where the cap allows it. A fifth of 100 ms would put the first
/// tries of all clients of a lost broker into the same 20 ms.
const SPREAD: Duration = Duration::from_millis(200);

/// Doubling delays between `initial` and `max`, with a random part.
///
/// The random part takes up to 20 % off the doubled delay. Where that is narrower than `SPREAD` (short delays),
/// the range is widened upwards, to at most 2.8 times the delay, so that clients that lost the same server in the
/// same instant do not come back in the same instant.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    current: Duration,
}

impl Backoff {
    /// `max` below `initial` is read as `initial`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max: max.max(initial), current: initial }
    }

    /// The next delay: never below 80 % of `initial`, never above `max`.
    pub fn next(&mut self, rng: &mut Rng) -> Duration {
        self.next_capped(rng, self.max)
    }

    /// The same with a lower cap for this one delay. The doubling behind it goes on up to `max`.
    pub fn next_capped(&mut self, rng: &mut Rng, cap: Duration) -> Duration {
        let cap = cap.clamp(self.initial, self.max);
        let base = self.current.min(cap);
        self.current = self.current.saturating_mul(2).min(self.max);

        let least = base / 5 * 4;
        let width = (base / 5).max(SPREAD.min((base / 5).saturating_mul(10)));
        let most = least.saturating_add(width).min(cap);
        least.saturating_add(portion(most.saturating_sub(least), rng))
    }

    /// After a success: starts again at `initial`.
    pub fn reset(&mut self) {
        self.current = self.initial;
    }
}

/// A random part of `whole`.
fn portion(whole: Duration, rng: &mut Rng) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(rng.below(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(10);

    #[test]
    fn doubles_up_to_the_cap_with_up_to_a_fifth_off() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut backoff = Backoff::new(Duration::from_secs(1), MAX);
            for base in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
                let delay = backoff.next(&mut rng).as_millis();
                assert!((base * 8 / 10..=base).contains(&delay), "seed {seed}: {delay} for {base}");
            }
        }
    }

    #[test]
    fn short_delays_spread_upwards_and_stay_above_four_fifths_of_the_initial() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let delay = Backoff::new(INITIAL, MAX).next(&mut rng).as_millis();
            assert!((80..280).contains(&delay), "seed {seed}: {delay}");
            let tight = Backoff::new(INITIAL, INITIAL).next(&mut rng).as_millis();
            assert!((80..=100).contains(&tight), "seed {seed}: {tight}");
            let tiny = Backoff::new(Duration::from_millis(1), MAX).next(&mut rng).as_micros();
            assert!((800..2_800).contains(&tiny), "seed {seed}: {tiny}");
        }
    }

    #[test]
    fn a_temporary_cap_holds_for_its_call_only() {
        let mut rng = Rng::new(1);
        let mut backoff = Backoff::new(INITIAL, MAX);
        for _ in 0..10 {
            assert!(backoff.next_capped(&mut rng, Duration::from_secs(2)) <= Duration::from_secs(2));
        }
        assert!(backoff.next(&mut rng) >= Duration::from_secs(8));
        let floored = backoff.next_capped(&mut rng, Duration::ZERO);
        assert!(floored >= INITIAL * 8 / 10 && floored <= INITIAL, "{floored:?}");
    }

    #[test]
    fn reset_starts_again() {
        let mut rng = Rng::new(1);
        let mut backoff = Backoff::new(Duration::from_secs(1), MAX);
        for _ in 0..5 {
            backoff.next(&mut rng);
        }
        backoff.reset();
        assert!(backoff.next(&mut rng) <= Duration::from_secs(1));
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let mut rng = Rng::new(1);
        let mut backoff = Backoff::new(Duration::MAX, Duration::ZERO);
        backoff.next(&mut rng);
        backoff.next(&mut rng);
        assert_eq!(Backoff::new(Duration::ZERO, Duration::ZERO).next(&mut rng), Duration::ZERO);
    }

    /// Fifty clients lose one server in the same instant: in no round do more than 30 % of them
    /// come back within the same 20 ms.
    #[test]
    fn fifty_clients_of_a_lost_server_spread_out() {
        for seed in 0..100 {
            let mut clients: Vec<_> =
                (0..50).map(|n| (Rng::new(seed * 1_000 + n), Backoff::new(INITIAL, MAX), 0u128)).collect();
            for round in 0..5 {
                let mut buckets = std::collections::HashMap::new();
                for (rng, backoff, at) in &mut clients {
                    *at += backoff.next(rng).as_millis();
                    *buckets.entry(*at / 20).or_insert(0) += 1;
                }
                let fullest = buckets.values().max().copied().unwrap_or(0);
                assert!(fullest <= 15, "seed {seed}, round {round}: {fullest} of 50 in one bucket");
            }
        }
    }
}
