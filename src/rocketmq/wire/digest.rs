//! Digests of bodies, over the bytes as they were sent.

use md5::{Digest as _, Md5};
use sha1::Sha1;

use super::hex;
use super::pb::{Digest, DigestType};

/// What a digest says about the body beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It fits.
    Intact,
    /// There is none.
    Unchecked,
    /// Of a kind that this build does not know, by its number. The body may well be intact.
    Unknown(i32),
    /// The body has been damaged.
    Corrupt {
        /// What the digest of the body is.
        actual: String,
    },
}

/// Checks a body against the digest that came with it.
pub(crate) fn check(digest: Option<&Digest>, body: &[u8]) -> Verdict {
    let Some(digest) = digest else { return Verdict::Unchecked };
    let kind = match digest.type_.enum_value() {
        Err(number) => return Verdict::Unknown(number),
        Ok(kind) => kind,
    };
    let Some(actual) = checksum(kind, body) else { return Verdict::Unchecked };
    // Some write a CRC32 with leading zeros and some without. The other kinds have a length of their own.
    let fits = if kind == DigestType::CRC32 {
        let significant = |text: &str| text.trim_start_matches('0').to_ascii_uppercase();
        !digest.checksum.is_empty() && significant(&digest.checksum) == significant(&actual)
    } else {
        digest.checksum.eq_ignore_ascii_case(&actual)
    };
    if fits { Verdict::Intact } else { Verdict::Corrupt { actual } }
}

/// The digest of a body in upper-case hexadecimal digits, a CRC32 with its leading zeros; none for no kind.
pub(crate) fn checksum(kind: DigestType, body: &[u8]) -> Option<String> {
    match kind {
        DigestType::DIGEST_TYPE_UNSPECIFIED => None,
        DigestType::CRC32 => Some(hex::upper(crc32fast::hash(body).to_be_bytes())),
        DigestType::MD5 => Some(hex::upper(Md5::digest(body))),
        DigestType::SHA1 => Some(hex::upper(Sha1::digest(body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protobuf::EnumOrUnknown;

    fn verdict(kind: DigestType, checksum: &str, body: &[u8]) -> Verdict {
        check(Some(&Digest { type_: kind.into(), checksum: checksum.into(), ..Digest::default() }), body)
    }

    const FOOBAR: [(DigestType, &str); 3] = [
        (DigestType::CRC32, "9EF61F95"),
        (DigestType::MD5, "3858F62230AC3C915F300C664312C63F"),
        (DigestType::SHA1, "8843D7F92416211DE9EBB963FF4CE28125932878"),
    ];

    #[test]
    fn digests_of_foobar() {
        for (kind, expected) in FOOBAR {
            assert_eq!(checksum(kind, b"foobar").unwrap(), expected);
            assert_eq!(verdict(kind, expected, b"foobar"), Verdict::Intact);
            assert_eq!(verdict(kind, &expected.to_lowercase(), b"foobar"), Verdict::Intact);
            assert_eq!(verdict(kind, &format!("0{expected}"), b"foobar") == Verdict::Intact, kind == DigestType::CRC32);
            for damaged in [&b"foobaz"[..], b"", b"fooba"] {
                assert!(matches!(verdict(kind, expected, damaged), Verdict::Corrupt { .. }));
            }
            for wrong in ["", "0", "+9EF61F95", &expected[1..]] {
                assert_eq!(verdict(kind, wrong, b"foobar"), Verdict::Corrupt { actual: expected.into() }, "{wrong}");
            }
        }
    }

    #[test]
    fn a_crc32_may_lack_its_leading_zeros() {
        let body = (0..10_000u32).map(|n| n.to_be_bytes()).find(|body| crc32fast::hash(body) < 0x0010_0000).unwrap();
        let padded = checksum(DigestType::CRC32, &body).unwrap();
        assert!(padded.len() == 8 && padded.starts_with("000"));
        for text in [padded.as_str(), padded.trim_start_matches('0')] {
            assert_eq!(verdict(DigestType::CRC32, text, &body), Verdict::Intact);
        }
        // The CRC32 of no bytes is 0, and Java writes one digit for it.
        for text in ["0", "00000000"] {
            assert_eq!(verdict(DigestType::CRC32, text, b""), Verdict::Intact);
        }
        assert!(matches!(verdict(DigestType::CRC32, "", b""), Verdict::Corrupt { .. }));
    }

    #[test]
    fn without_a_known_kind_there_is_no_check() {
        assert_eq!(check(None, b"x"), Verdict::Unchecked);
        assert_eq!(verdict(DigestType::DIGEST_TYPE_UNSPECIFIED, "x", b"x"), Verdict::Unchecked);
        let newer = Digest { type_: EnumOrUnknown::from_i32(9), checksum: "x".into(), ..Digest::default() };
        assert_eq!(check(Some(&newer), b"x"), Verdict::Unknown(9));
    }

    proptest! {
        #[test]
        fn any_digest_may_come(kind: i32, checksum: String, body: Vec<u8>) {
            let digest = Digest { type_: EnumOrUnknown::from_i32(kind % 5), checksum, ..Digest::default() };
            let _ = check(Some(&digest), &body);
        }
    }
}
