//! Message ids, which the client gives. Version 1 is 17 bytes, written as 34 hexadecimal digits:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, `01` |
//! | 6 | node: a network card's address, or random |
//! | 2 | low half of the process id |
//! | 4 | seconds since 2021-01-01 UTC |
//! | 4 | sequence |

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::hex;

/// 2021-01-01T00:00:00Z in Unix time.
const EPOCH: u64 = 1_609_459_200;
#[cfg(test)]
const V1_DIGITS: usize = 34;

/// Gives ids that no other process gives. One is enough for a process: its sequence is what keeps them apart.
#[derive(Debug)]
pub(crate) struct MessageIds {
    /// Version, node and process.
    prefix: [u8; 9],
    sequence: AtomicU32,
}

impl MessageIds {
    /// `node` tells machines apart, `pid` the processes of one. Containers often share both: prefer
    /// [`random_node`] to a network card's address.
    pub(crate) fn new(node: [u8; 6], pid: u32) -> Self {
        let ([a, b, c, d, e, f], [_, _, high, low]) = (node, pid.to_be_bytes());
        Self { prefix: [1, a, b, c, d, e, f, high, low], sequence: AtomicU32::new(0) }
    }

    /// A new id. A clock that steps back does no harm: the sequence goes on.
    pub(crate) fn next(&self, unix_seconds: u64) -> MessageId {
        // The field is as narrow as this and comes round in 2157.
        let seconds = unix_seconds.saturating_sub(EPOCH) as u32;
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let mut text = hex::upper(self.prefix);
        text.push_str(&hex::upper(seconds.to_be_bytes()));
        text.push_str(&hex::upper(sequence.to_be_bytes()));
        MessageId { text: text.into() }
    }
}

/// A node from random bits. The bit that only group addresses have keeps it apart from every network card's.
pub(crate) fn random_node(bits: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
    [a | 1, b, c, d, e, f]
}

/// The id of a message, kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MessageId {
    text: Box<str>,
}

/// What a version 1 id is made of.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub node: [u8; 6],
    /// The low half of the process id.
    pub pid: u16,
    /// When it was given, in Unix time.
    pub unix_seconds: u64,
    pub sequence: u32,
}

impl MessageId {
    /// Any text is an id: what is not of version 1 is of version 0, which has no form.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The parts of a version 1 id; none of a version 0 id.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> Option<Parts> {
        let digits = self.text.strip_prefix("01")?;
        if self.text.len() != V1_DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        // All are digits, so that every cut lies between two.
        let number = |from: usize, to: usize| u64::from_str_radix(digits.get(from..to)?, 16).ok();
        let [_, _, node @ ..] = number(0, 12)?.to_be_bytes();
        Some(Parts {
            node,
            pid: u16::try_from(number(12, 16)?).ok()?,
            unix_seconds: number(16, 24)? + EPOCH,
            sequence: u32::try_from(number(24, 32)?).ok()?,
        })
    }
}

impl FromStr for MessageId {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::new(text))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_test_vector() {
        let vector = "0156F7E71C361B21BC024CCDBE00000000";
        let node = [0x56, 0xF7, 0xE7, 0x1C, 0x36, 0x1B];
        let unix_seconds = EPOCH + 0x024C_CDBE;
        let parts = MessageId::new(vector).parts().unwrap();
        assert_eq!(parts, Parts { node, pid: 0x21BC, unix_seconds, sequence: 0 });
        // 0x21BC is the low half of this process id.
        let ids = MessageIds::new(node, 0x0007_21BC);
        assert_eq!(ids.next(unix_seconds).as_str(), vector);
        assert_eq!(ids.next(unix_seconds).as_str(), "0156F7E71C361B21BC024CCDBE00000001");
    }

    #[test]
    fn other_texts_are_version_0_and_kept() {
        let long = "0".repeat(34);
        for text in [
            "",
            "7F00000100002A9F0000000000000000",
            "0256F7E71C361B21BC024CCDBE00000000",
            "0156F7E71C361B21BC024CCDBE0000000",
            "0156F7E71C361B21BC024CCDBE000000000",
            "0156F7E71C361B21BC024CCDBE0000000G",
            "01+6F7E71C361B21BC024CCDBE00000000",
            "01ééééééééééééééé0",
            &long,
        ] {
            let id: MessageId = text.parse().unwrap();
            assert_eq!(id.parts(), None, "{text}");
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn no_two_are_the_same() {
        let ids = MessageIds::new([0; 6], 1);
        let threads: Vec<Vec<MessageId>> = std::thread::scope(|scope| {
            let running: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..5_000).map(|n| ids.next(EPOCH + n % 3)).collect())).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let all: HashSet<_> = threads.iter().flatten().collect();
        assert_eq!(all.len(), 20_000);
        let other = MessageIds::new([0; 6], 2);
        assert!(!all.contains(&other.next(EPOCH)), "another process");
    }

    #[test]
    fn the_sequence_goes_on_from_its_end_and_time_before_the_epoch_is_0() {
        let ids = MessageIds::new([0; 6], 1);
        ids.sequence.store(u32::MAX, Ordering::Relaxed);
        assert!(ids.next(0).as_str().ends_with("00000000FFFFFFFF"));
        assert!(ids.next(u64::MAX).as_str().ends_with("00000000"));
    }

    #[test]
    fn a_random_node_is_no_network_card_s() {
        for bits in [0, 1 << 40, u64::MAX, 0x0200_FE00_1122_3344] {
            assert_eq!(random_node(bits)[0] & 1, 1);
        }
        assert_ne!(random_node(1), random_node(2));
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(node: [u8; 6], pid: u32, second: u32) {
            let unix_seconds = EPOCH + u64::from(second);
            let id = MessageIds::new(node, pid).next(unix_seconds);
            prop_assert_eq!(id.as_str().len(), V1_DIGITS);
            prop_assert_eq!(id.parts(), Some(Parts { node, pid: pid as u16, unix_seconds, sequence: 0 }));
        }

        #[test]
        fn any_text_is_an_id(text in "01[0-9A-F]{30,33}|\\PC*") {
            let id = MessageId::new(&text);
            prop_assert_eq!(id.as_str(), text.as_str());
            let _ = id.parts();
        }
    }
}
