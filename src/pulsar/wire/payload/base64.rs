//! Base64, as keys of bytes travel: the standard alphabet with padding.

const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encoded_len(len: usize) -> usize {
    len.div_ceil(3).saturating_mul(4)
}

/// Appends `encoded_len` characters.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) as usize & 0x3f;
            let letter = ALPHABET.get(digit).copied().unwrap_or(b'=');
            out.push(if place <= group.len() { letter } else { b'=' });
        }
    }
}

/// `None` if `text` is no base64. Padding may be left out.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = match text {
        [front @ .., b'=', b'='] | [front @ .., b'='] if text.len() % 4 == 0 => front,
        _ => text,
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for letter in group {
            bits = bits << 6 | u32::from(value(*letter)?);
        }
        let [_, a, b, c] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        match group.len() {
            4 => out.extend_from_slice(&[a, b, c]),
            3 => out.extend_from_slice(&[a, b]),
            2 => out.push(a),
            _ => return None,
        }
    }
    Some(out)
}

fn value(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, coded) in vectors {
            let mut out = Vec::new();
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, coded.as_bytes());
            assert_eq!(out.len(), encoded_len(plain.len()));
            assert_eq!(decode(coded.as_bytes()).unwrap(), plain.as_bytes());
            assert_eq!(decode(coded.trim_end_matches('=').as_bytes()).unwrap(), plain.as_bytes());
        }
    }

    #[test]
    fn refuses_what_is_no_base64() {
        for text in ["A", "AAAAA", "A===", "====", "=", "AA=A", "A\u{e4}A", "AA-_"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let mut out = Vec::new();
            encode(&bytes, &mut out);
            proptest::prop_assert_eq!(decode(&out).unwrap(), bytes);
        }
    }
}
