//! Reading the clocks, and the one source of randomness that is not seeded.

use std::hash::{BuildHasher, RandomState};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::policy::now::Now;

/// Both clocks now. A wall clock before 1970 reads as 0.
pub(crate) fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX) }
}

/// A seed that differs from call to call and from process to process. Not for secrets.
pub(crate) fn entropy_seed() -> u64 {
    // Each RandomState carries keys that the system's generator seeded.
    RandomState::new().hash_one(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ() {
        let seeds: std::collections::HashSet<u64> = (0..100).map(|_| entropy_seed()).collect();
        assert_eq!(seeds.len(), 100);
    }

    #[test]
    fn the_wall_clock_is_in_milliseconds() {
        // Between 2020 and 2200.
        assert!((1_577_836_800_000..7_258_118_400_000).contains(&now().unix_ms));
    }
}
