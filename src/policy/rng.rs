//! A small seeded generator: the same seed gives the same numbers on every machine. Not for secrets.

/// SplitMix64: 64 bits of state, full period, passes the usual statistical tests.
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Multiply and shift: the bias is at most n / 2^64.
        let wide = u128::from(self.next_u64()) * u128::from(n);
        (wide >> 64) as u64
    }

    /// True `numerator` times in `denominator`; never if `denominator` is 0.
    #[cfg(test)]
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator && denominator > 0
    }

    /// A number in `0.0..1.0`.
    #[cfg(test)]
    pub fn unit(&mut self) -> f64 {
        // 53 bits: each value is exact in an f64 and below 1.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_reference_numbers() {
        // The published SplitMix64 sequence of seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[rng.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn chance_follows_its_ratio() {
        let mut rng = Rng::new(2);
        let hits = (0..10_000).filter(|_| rng.chance(1, 4)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
        assert!(!rng.chance(0, 4));
        assert!(rng.chance(4, 4));
        assert!(!rng.chance(1, 0));
    }

    #[test]
    fn unit_stays_below_one() {
        let mut rng = Rng::new(3);
        let sum: f64 = (0..10_000)
            .map(|_| {
                let value = rng.unit();
                assert!((0.0..1.0).contains(&value));
                value
            })
            .sum();
        assert!((4_800.0..5_200.0).contains(&sum), "{sum}");
    }
}
