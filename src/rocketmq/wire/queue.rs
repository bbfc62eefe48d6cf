//! Which queue the messages of a group go to.

use siphasher::sip::SipHasher24;

/// The place among `queues` of the queue that keeps a message group in order; none if there are none.
///
/// SipHash-2-4 of the group's UTF-8 bytes with the keys and the signed remainder of the Java and Go clients, so
/// that producers of all three agree.
pub(crate) fn of_group(message_group: &str, queues: usize) -> Option<usize> {
    let hash = SipHasher24::new_with_keys(0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908).hash(message_group.as_bytes());
    // The hash counts as signed there: the bits stay, the remainder is taken upwards from the multiple below.
    let queues = i64::try_from(queues).ok()?;
    usize::try_from((hash as i64).checked_rem_euclid(queues)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The published SipHash-2-4 results for these keys and the inputs 00, 00 01, and so on.
    const PUBLISHED: [(usize, u64); 5] = [
        (0, 0x726F_DB47_DD0E_0E31),
        (1, 0x74F8_39C5_93DC_67FD),
        (2, 0x0D6C_8009_D9A9_4F5A),
        (8, 0x93F5_F579_9A93_2462),
        (15, 0xA129_CA61_49BE_45E5),
    ];

    #[test]
    fn follows_the_published_hashes() {
        for (length, hash) in PUBLISHED {
            let group: String = (0..length as u8).map(char::from).collect();
            for queues in [1_usize, 2, 3, 8, 1_000, 1 << 40] {
                let expected = i128::from(hash as i64).rem_euclid(queues as i128);
                assert_eq!(of_group(&group, queues), Some(expected as usize));
            }
        }
    }

    #[test]
    fn negative_hashes_count_upwards() {
        // 0x93F5... is negative as an i64; an unsigned remainder would be 2.
        let group: String = (0..8_u8).map(char::from).collect();
        assert_eq!(0x93F5_F579_9A93_2462_u64 % 3, 2);
        assert_eq!(of_group(&group, 3), Some(1));
    }

    #[test]
    fn without_queues_there_is_no_place() {
        assert_eq!(of_group("g", 0), None);
    }

    proptest! {
        #[test]
        fn is_a_place(group: String, queues in 1_usize..) {
            if let Some(place) = of_group(&group, queues) {
                prop_assert!(place < queues);
                prop_assert_eq!(of_group(&group, queues), Some(place));
            } else {
                prop_assert!(i64::try_from(queues).is_err());
            }
        }
    }
}
