//! Texts that identify a client, a request or an attempt.

use std::fmt::Write;

/// A random UUID (version 4) in the usual form, from 128 random bits: for request and attempt ids.
pub(crate) fn uuid(high: u64, low: u64) -> String {
    let high = high & 0xFFFF_FFFF_FFFF_0FFF | 0x4000;
    let low = low & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// Names one client instance: `host@pid@index@nanos`, the last part to the base 36.
///
/// Servers keep settings and channels by this, so that no two clients may share it: `index` counts the clients
/// of the process, `nanos` is when it started. What headers cannot hold of the host's name becomes `_`.
pub(crate) fn client_id(host: &str, pid: u32, index: u64, nanos: u64) -> String {
    let host: String = host.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).take(64).collect();
    let mut id = format!("{host}@{pid}@{index}@");
    base_36(&mut id, nanos);
    id
}

fn base_36(into: &mut String, number: u64) {
    if number >= 36 {
        base_36(into, number / 36);
    }
    // The remainder is a digit of that base.
    let digit = char::from_digit((number % 36) as u32, 36).unwrap_or('0');
    let _ = into.write_char(digit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_version_and_variant() {
        assert_eq!(uuid(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid(0x0123_4567_89AB_CDEF, 0x0123_4567_89AB_CDEF), "01234567-89ab-4def-8123-456789abcdef");
    }

    #[test]
    fn client_ids_are_ascii() {
        assert_eq!(client_id("büro 1", 7, 2, 36 * 36 + 35), "b_ro_1@7@2@10z");
        assert_eq!(client_id("h", 1, 0, 0), "h@1@0@0");
        assert_eq!(client_id("h", u32::MAX, u64::MAX, u64::MAX), "h@4294967295@18446744073709551615@3w5e11264sgsf");
        assert!(client_id(&"h".repeat(500), 1, 0, 0).len() < 80);
    }
}
