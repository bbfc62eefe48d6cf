//! Bytes as upper-case hexadecimal digits, which is how this protocol writes ids, digests and signatures.

use std::fmt::Write;

pub(crate) fn upper(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02X}");
    }
    text
}
