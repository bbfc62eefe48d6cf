use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::common::codecs;
use crate::error::{Error, ErrorKind};
use crate::pulsar::wire::compress::{Compression, DecompressError, compress, decompress};

fn packed(codec: Compression, plain: &[u8]) -> Bytes {
    let mut out = Vec::new();
    compress(codec, plain, &mut out).unwrap();
    out.into()
}

fn real_codecs() -> impl Iterator<Item = Compression> {
    codecs().into_iter().filter(|codec| *codec != Compression::None)
}

proptest! {
    #[test]
    fn round_trip(
        plain in prop_oneof![vec(any::<u8>(), 0..2000), vec(0u8..3, 0..2000)],
        codec in prop::sample::select(codecs()),
        before in vec(any::<u8>(), 0..9),
    ) {
        let mut out = before.clone();
        compress(codec, &plain, &mut out).unwrap();
        prop_assert_eq!(&out[..before.len()], &before[..]);
        let payload = Bytes::from(out.split_off(before.len()));
        let back = decompress(codec.number(), &payload, plain.len() as u32, plain.len()).unwrap();
        prop_assert_eq!(back, plain);
    }

    #[test]
    fn a_wrong_size_is_noticed(plain in vec(0u8..3, 1..500), codec in prop::sample::select(codecs()), size in 0u32..600) {
        prop_assume!(codec != Compression::None && size as usize != plain.len());
        prop_assert!(decompress(codec.number(), &packed(codec, &plain), size, 1000).is_err());
    }

    #[test]
    fn damage_does_not_panic(
        plain in vec(0u8..9, 0..500),
        codec in prop::sample::select(codecs()),
        at: prop::sample::Index,
        flip in 1u8..,
        keep: prop::sample::Index,
    ) {
        let mut damaged = packed(codec, &plain).to_vec();
        prop_assume!(!damaged.is_empty());
        let at = at.index(damaged.len());
        damaged[at] ^= flip;
        damaged.truncate(keep.index(damaged.len()) + 1);
        if let Ok(back) = decompress(codec.number(), &damaged.into(), plain.len() as u32, 1000) {
            prop_assert!(codec == Compression::None || back.len() == plain.len());
        }
    }

    #[test]
    fn noise_does_not_panic(noise in vec(any::<u8>(), 0..200), codec in any::<i32>(), small in 0i32..5, size in 0u32..5000) {
        let noise = Bytes::from(noise);
        let _ = decompress(codec, &noise, size, 5000);
        let _ = decompress(small, &noise, size, 5000);
    }
}

#[test]
fn a_size_above_the_limit_costs_nothing() {
    for codec in real_codecs() {
        let payload = packed(codec, &[0; 1000]);
        let refused = Err(DecompressError::TooLarge { size: 1000, limit: 999 });
        assert_eq!(decompress(codec.number(), &payload, 1000, 999), refused);
        assert_eq!(
            decompress(codec.number(), &payload, u32::MAX, 5 << 20).unwrap_err(),
            DecompressError::TooLarge { size: u32::MAX as usize, limit: 5 << 20 }
        );
    }
}

/// A hundred megabytes of zeros in a small payload that claims a thousand bytes.
#[test]
fn a_bomb_finds_no_room() {
    let plain = vec![0; 100 << 20];
    for codec in real_codecs() {
        let payload = packed(codec, &plain);
        assert!(payload.len() < 8 << 20, "{codec:?}");
        assert!(decompress(codec.number(), &payload, 1000, 5 << 20).is_err(), "{codec:?}");
    }
}

#[test]
fn an_empty_body_may_be_left_uncompressed() {
    for codec in real_codecs() {
        assert_eq!(decompress(codec.number(), &Bytes::new(), 0, 10), Ok(Bytes::new()));
        assert_eq!(decompress(codec.number(), &packed(codec, &[]), 0, 10), Ok(Bytes::new()));
    }
}

#[test]
fn unknown_numbers_are_unsupported() {
    for number in [-1, 5, i32::MAX] {
        let error = decompress(number, &Bytes::from_static(b"x"), 1, 10).unwrap_err();
        assert_eq!(error, DecompressError::Unsupported(number));
        assert_eq!(Error::from(error).kind(), ErrorKind::Unsupported);
    }
}

/// The forms on the wire, from their specifications.
#[test]
fn wire_forms() {
    let plain = b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for codec in real_codecs() {
        let payload = packed(codec, plain);
        match codec {
            Compression::Zlib => assert_eq!(payload[0], 0x78),
            Compression::Zstd => assert_eq!(payload[..4], [0x28, 0xb5, 0x2f, 0xfd]),
            // A raw block starts with its length.
            Compression::Snappy => assert_eq!(payload[0], 40),
            // A raw block starts with a token: one literal, then a long match.
            Compression::Lz4 => assert_eq!(payload[..2], [0x1f, b'a']),
            Compression::None => unreachable!(),
        }
    }
}

/// Blocks made by other programs.
#[test]
fn known_blocks() {
    if cfg!(feature = "lz4") {
        let block = Bytes::from_static(&[0x1f, b'a', 1, 0, 16, 0x50, b'a', b'a', b'a', b'a', b'a']);
        assert_eq!(decompress(1, &block, 41, 100).unwrap(), vec![b'a'; 41]);
    }
    if cfg!(feature = "zlib") {
        let stream = Bytes::from_static(&[0x78, 0x9c, 0x4b, 0x4c, 0x84, 0x01, 0x00, 0x14, 0xe1, 0x03, 0xcb]);
        assert_eq!(decompress(2, &stream, 10, 100).unwrap(), "aaaaaaaaaa");
    }
    if cfg!(feature = "snappy") {
        let block = Bytes::from_static(&[3, 0x08, b'a', b'b', b'c']);
        assert_eq!(decompress(4, &block, 3, 100).unwrap(), "abc");
    }
}
