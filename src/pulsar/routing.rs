//! Which partition of a topic a message goes to.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// A round-robin producer that batches stays on a partition for this many batching delays, so that batches fill.
const DELAYS_PER_TURN: u128 = 10;

/// How a key becomes a number. All producers of a topic must use the same, or one key ends up on two partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HashingScheme {
    /// Java's `String.hashCode`, as the Java client uses it by default.
    #[default]
    JavaString,
    /// Murmur3 x86 32 with seed 0 over the UTF-8 bytes; the Java, Go and C++ clients offer the same.
    Murmur3,
}

impl HashingScheme {
    /// The hash of a key, with the top bit cleared.
    pub fn hash(self, key: &str) -> u32 {
        match self {
            Self::JavaString => java_string_hash(key),
            Self::Murmur3 => murmur3_32(key.as_bytes()) & 0x7fff_ffff,
        }
    }
}

/// How a producer spreads messages without a key over the partitions of its topic.
///
/// A message with a key always goes to the partition that the key's hash names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RoutingMode {
    /// All partitions in turn, from a random one: with batching a new one every ten batching delays, without it
    /// every message.
    #[default]
    RoundRobin,
    /// One partition for as long as the producer lives: the one given, or one picked at random.
    Single {
        /// Index of the partition, below the number of partitions; `None` picks one at random.
        partition: Option<u32>,
    },
}

/// Routes the messages of one producer. Usable from many threads at once without a lock.
#[derive(Debug)]
pub(crate) struct Router {
    rule: Rule,
    hashing: HashingScheme,
    /// Partition counts only grow, and a stale one is harmless.
    partitions: AtomicU32,
}

#[derive(Debug)]
enum Rule {
    ByTime { turn_ms: u64, start: u32 },
    ByMessage { next: AtomicU32 },
    Fixed { partition: u32 },
}

impl Router {
    /// `batching` is the batching delay, `None` without batching; `start` a random number.
    ///
    /// Fails with kind `Config` if the mode names a partition that does not exist.
    pub(crate) fn new(
        mode: RoutingMode,
        partitions: u32,
        hashing: HashingScheme,
        batching: Option<Duration>,
        start: u32,
    ) -> Result<Self, Error> {
        let partitions = partitions.max(1);
        let rule = match (mode, batching) {
            (RoutingMode::RoundRobin, Some(delay)) => {
                let turn_ms = delay.as_micros().saturating_mul(DELAYS_PER_TURN) / 1000;
                Rule::ByTime { turn_ms: u64::try_from(turn_ms).unwrap_or(u64::MAX).max(1), start }
            }
            (RoutingMode::RoundRobin, None) => Rule::ByMessage { next: AtomicU32::new(start) },
            (RoutingMode::Single { partition: None }, _) => Rule::Fixed { partition: modulo(start.into(), partitions) },
            (RoutingMode::Single { partition: Some(partition) }, _) if partition < partitions => {
                Rule::Fixed { partition }
            }
            (RoutingMode::Single { partition: Some(partition) }, _) => {
                let text = format!("routing to partition {partition}, but the topic has {partitions}");
                return Err(Error::new(ErrorKind::Config, text));
            }
        };
        Ok(Self { rule, hashing, partitions: AtomicU32::new(partitions) })
    }

    /// The partition for a message with this key: the text that goes out as its partition key, base64 if it was
    /// bytes. `now_ms` is wall-clock time, so that producers of several processes take turns alike.
    pub(crate) fn route(&self, now_ms: u64, key: Option<&str>) -> usize {
        let partitions = self.partitions.load(Ordering::Relaxed);
        let index = match (key, &self.rule) {
            (_, _) if partitions <= 1 => 0,
            (Some(key), _) => modulo(self.hashing.hash(key).into(), partitions),
            (None, Rule::ByTime { turn_ms, start }) => {
                let turn = now_ms.checked_div(*turn_ms).unwrap_or_default();
                modulo(turn.wrapping_add(u64::from(*start)), partitions)
            }
            (None, Rule::ByMessage { next }) => modulo(next.fetch_add(1, Ordering::Relaxed).into(), partitions),
            (None, Rule::Fixed { partition }) => *partition,
        };
        index as usize
    }
}

fn modulo(number: u64, partitions: u32) -> u32 {
    number.checked_rem(partitions.into()).and_then(|index| u32::try_from(index).ok()).unwrap_or_default()
}

/// Java's `String.hashCode` with the top bit cleared: over UTF-16 units, not bytes.
pub(crate) fn java_string_hash(key: &str) -> u32 {
    key.encode_utf16().fold(0_u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into())) & 0x7fff_ffff
}

/// Murmur3 x86 32 with seed 0, all 32 bits.
pub(crate) fn murmur3_32(bytes: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |word: u32| word.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);

    let mut chunks = bytes.chunks_exact(4);
    let mut hash = 0_u32;
    for chunk in &mut chunks {
        hash = (hash ^ mix(little_endian(chunk))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= mix(little_endian(chunks.remainder()));
    hash ^= bytes.len() as u32; // the algorithm takes the length modulo 2³²
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Up to four bytes, the first one lowest.
fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(mode: RoutingMode, partitions: u32, batching: Option<Duration>, start: u32) -> Router {
        Router::new(mode, partitions, HashingScheme::JavaString, batching, start).unwrap()
    }

    #[test]
    fn java_hash_has_its_vectors() {
        assert_eq!(java_string_hash("hello"), 0x05e9_18d2);
        assert_eq!(java_string_hash("test"), 0x0036_4492);
        assert_eq!(java_string_hash(""), 0);
        // Worked by hand: one unit each for é (0xe9) and ü (0xfc), a surrogate pair for 😀.
        assert_eq!(java_string_hash("éü"), 0xe9 * 31 + 0xfc);
        assert_eq!(java_string_hash("😀"), 0xd83d * 31 + 0xde00);
        // The known string whose Java hash is Integer.MIN_VALUE: only the top bit is set.
        assert_eq!(java_string_hash("polygenelubricants"), 0);
    }

    #[test]
    fn murmur_has_its_vectors() {
        for (key, hash) in
            [("hello", 0x248b_fa47), ("test", 0x3a6b_d213), ("k1", 2_110_152_746), ("k2", 1_479_966_664), ("", 0)]
        {
            assert_eq!(HashingScheme::Murmur3.hash(key), hash, "{key}");
        }
        // Published vectors of the algorithm, for tails of every length.
        assert_eq!(murmur3_32(&[0xff, 0xff, 0xff, 0xff]), 0x7629_3b50);
        assert_eq!(murmur3_32(&[0x21, 0x43, 0x65, 0x87]), 0xf55b_516b);
        assert_eq!(murmur3_32(&[0x21, 0x43, 0x65]), 0x7e4a_8634);
        assert_eq!(murmur3_32(&[0x21, 0x43]), 0xa0f7_b07a);
        assert_eq!(murmur3_32(&[0x21]), 0x7266_1cf4);
        assert_eq!(murmur3_32(&[0, 0, 0, 0]), 0x2362_f9de);
    }

    #[test]
    fn a_key_overrides_every_mode() {
        let expected = (java_string_hash("hello") % 7) as usize;
        for (mode, batching) in [
            (RoutingMode::RoundRobin, None),
            (RoutingMode::RoundRobin, Some(Duration::from_millis(1))),
            (RoutingMode::Single { partition: Some(0) }, None),
        ] {
            let router = router(mode, 7, batching, 3);
            assert_eq!((router.route(5, Some("hello")), router.route(999, Some("hello"))), (expected, expected));
        }
        let murmur = Router::new(RoutingMode::RoundRobin, 7, HashingScheme::Murmur3, None, 3).unwrap();
        assert_eq!(murmur.route(0, Some("hello")), 0x248b_fa47 % 7);
    }

    #[test]
    fn round_robin_moves_on_every_message_without_batching() {
        let router = router(RoutingMode::RoundRobin, 3, None, 4);
        let got: Vec<_> = (0..6).map(|_| router.route(0, None)).collect();
        assert_eq!(got, [1, 2, 0, 1, 2, 0]);
        // A keyed message takes no turn.
        router.route(0, Some("k"));
        assert_eq!(router.route(0, None), 1);
    }

    #[test]
    fn round_robin_stays_for_ten_delays_with_batching() {
        let router = router(RoutingMode::RoundRobin, 4, Some(Duration::from_millis(10)), 1);
        assert_eq!((router.route(0, None), router.route(99, None)), (1, 1));
        assert_eq!((router.route(100, None), router.route(199, None)), (2, 2));
        assert_eq!(router.route(300, None), 0);
    }

    #[test]
    fn extreme_delays_and_times_are_harmless() {
        for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let router = router(RoutingMode::RoundRobin, 3, Some(delay), u32::MAX);
            assert!(router.route(0, None) < 3 && router.route(u64::MAX, None) < 3);
        }
        // A turn lasts a millisecond at least.
        let router = router(RoutingMode::RoundRobin, 3, Some(Duration::ZERO), 0);
        assert_eq!((router.route(0, None), router.route(1, None)), (0, 1));
        let wrapping = self::router(RoutingMode::RoundRobin, 3, None, u32::MAX);
        assert!(wrapping.route(0, None) < 3 && wrapping.route(0, None) < 3);
    }

    #[test]
    fn single_keeps_its_partition() {
        let random = router(RoutingMode::Single { partition: None }, 4, None, 6);
        let given = router(RoutingMode::Single { partition: Some(3) }, 4, None, 6);
        assert_eq!((random.route(0, None), given.route(0, None)), (2, 3));
        assert_eq!(random.route(9, None), 2);
        let wrong = Router::new(RoutingMode::Single { partition: Some(4) }, 4, HashingScheme::JavaString, None, 0);
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Config);
    }

    #[test]
    fn threads_share_a_router_fairly() {
        let router = router(RoutingMode::RoundRobin, 4, None, 0);
        let mut counts = [0; 4];
        std::thread::scope(|scope| {
            let work = || (0..1000).map(|_| router.route(0, None)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).for_each(|p| counts[p] += 1);
        });
        assert_eq!(counts, [1000; 4]);
    }
}
