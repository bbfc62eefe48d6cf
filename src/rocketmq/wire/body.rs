//! Bodies that come compressed. "GZIP" on the wire stands for any codec: the first bytes tell which.

use std::fmt;
use std::io::{self, Read};

use bytes::Bytes;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use lz4_flex::frame::FrameDecoder;
use protobuf::Enum;

use super::pb::Encoding;
use crate::error::{Error, ErrorKind};

/// The largest window that a zstd frame may ask for: 8 MiB, which every decoder has to allow. What a frame holds
/// beyond that is never farther back than its whole size, so a higher limit on that raises this one.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Why a body could not be unpacked.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// An encoding that this build does not know, by its number.
    UnknownEncoding(i32),
    /// It is said to be compressed, but begins like no codec known.
    UnknownCodec,
    /// More bytes than are allowed.
    TooLarge { limit: usize },
    /// The data is damaged.
    Corrupt { codec: &'static str, cause: io::Error },
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownEncoding(number) => write!(f, "body encoding {number} is not known to this build"),
            Self::UnknownCodec => f.write_str("the body is compressed in a way that is not known to this build"),
            Self::TooLarge { limit } => write!(f, "the body is larger than {limit} bytes when unpacked"),
            Self::Corrupt { codec, .. } => write!(f, "the body's {codec} data is damaged"),
        }
    }
}

impl std::error::Error for BodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Corrupt { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        let kind = match error {
            BodyError::UnknownEncoding(_) | BodyError::UnknownCodec => ErrorKind::Unsupported,
            BodyError::TooLarge { .. } => ErrorKind::TooLarge,
            BodyError::Corrupt { .. } => ErrorKind::Protocol,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

/// A body as its producer gave it. `encoding` is the number in the message; `limit` holds for what is unpacked,
/// and memory use stays within about twice that and a codec's window.
pub(crate) fn unpack(encoding: i32, body: &Bytes, limit: usize) -> Result<Bytes, BodyError> {
    match Encoding::from_i32(encoding) {
        Some(Encoding::IDENTITY | Encoding::ENCODING_UNSPECIFIED) => Ok(body.clone()),
        Some(Encoding::GZIP) => decompress(body, limit),
        None => Err(BodyError::UnknownEncoding(encoding)),
    }
}

fn decompress(body: &[u8], limit: usize) -> Result<Bytes, BodyError> {
    match *body {
        [0x1F, 0x8B, ..] => read("gzip", MultiGzDecoder::new(body), limit),
        [0x04, 0x22, 0x4D, 0x18, ..] => read("lz4", FrameDecoder::new(Whole(body)), limit),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(body).and_then(|mut decoder| {
                decoder.window_log_max(limit.checked_ilog2().map_or(0, |log| log + 1).clamp(ZSTD_WINDOW_LOG, 27))?;
                Ok(decoder)
            });
            read("zstd", decoder.map_err(|cause| BodyError::Corrupt { codec: "zstd", cause })?, limit)
        }
        // A zlib header: the method, and a check over both bytes.
        [method, flags, ..] if method & 0x0F == 8 && u16::from_be_bytes([method, flags]) % 31 == 0 => {
            read("zlib", ZlibDecoder::new(body), limit)
        }
        _ => Err(BodyError::UnknownCodec),
    }
}

/// Bytes that must not run out: the lz4 decoder takes their end for the end of the frame, wherever it comes.
struct Whole<'a>(&'a [u8]);

impl Read for Whole<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 if !into.is_empty() => Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is cut short")),
            read => Ok(read),
        }
    }
}

/// Reads to the end, but one byte over the limit at most: a bomb finds no room.
fn read(codec: &'static str, decoder: impl Read, limit: usize) -> Result<Bytes, BodyError> {
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut plain = Vec::new();
    decoder.take(most).read_to_end(&mut plain).map_err(|cause| BodyError::Corrupt { codec, cause })?;
    if plain.len() > limit { Err(BodyError::TooLarge { limit }) } else { Ok(plain.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use proptest::prelude::*;

    const GZIP: i32 = 2;
    const LIMIT: usize = 4 << 20;

    /// The same bytes by each codec.
    fn packed(plain: &[u8]) -> [(&'static str, Vec<u8>); 4] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(plain).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(plain).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(plain).unwrap();
        [
            ("gzip", gzip.finish().unwrap()),
            ("zlib", zlib.finish().unwrap()),
            ("lz4", lz4.finish().unwrap()),
            ("zstd", zstd::stream::encode_all(plain, 0).unwrap()),
        ]
    }

    fn unpacked(bytes: impl Into<Bytes>, limit: usize) -> Result<Bytes, BodyError> {
        unpack(GZIP, &bytes.into(), limit)
    }

    #[test]
    fn every_codec_there_and_back() {
        let noise: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for plain in [&b""[..], b"x", b"foobar", &[7; 100_000], &noise] {
            for (codec, bytes) in packed(plain) {
                assert_eq!(unpacked(bytes, LIMIT).unwrap(), plain, "{codec}");
            }
        }
    }

    #[test]
    fn a_frame_of_a_large_window_and_two_gzip_members() {
        let plain = vec![7; 3 << 20];
        let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        zstd.window_log(23).unwrap();
        zstd.write_all(&plain).unwrap();
        assert_eq!(unpacked(zstd.finish().unwrap(), LIMIT).unwrap(), plain);
        let [(_, member), ..] = packed(b"foobar");
        assert_eq!(&unpacked([member.clone(), member].concat(), LIMIT).unwrap()[..], b"foobarfoobar");
    }

    #[test]
    fn plain_bodies_are_given_as_they_are() {
        let body = Bytes::from_static(b"\x1F\x8B and more");
        for encoding in [0, 1] {
            assert_eq!(unpack(encoding, &body, 1).unwrap(), body);
        }
        assert!(matches!(unpack(3, &body, LIMIT), Err(BodyError::UnknownEncoding(3))));
        assert!(matches!(unpack(-1, &body, LIMIT), Err(BodyError::UnknownEncoding(-1))));
    }

    #[test]
    fn unknown_codecs_are_told_from_damage() {
        for bytes in [&b""[..], b"x", b"\x1F", b"foobar", b"\x78\x00", b"\x04\x22\x4D\x19", b"\x28\xB5\x2F"] {
            assert!(
                matches!(unpacked(Bytes::copy_from_slice(bytes), LIMIT), Err(BodyError::UnknownCodec)),
                "{bytes:?}"
            );
        }
        let error = Error::from(unpacked(Bytes::from_static(b"foobar"), LIMIT).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_body_cut_short_is_damaged() {
        for (codec, bytes) in packed(&b"foobar, and enough of it to matter; ".repeat(20)) {
            for length in 4..bytes.len() {
                let result = unpacked(bytes[..length].to_vec(), LIMIT);
                assert!(matches!(result, Err(BodyError::Corrupt { .. })), "{codec} {length} {result:?}");
            }
        }
    }

    #[test]
    fn the_limit_is_exact_and_a_bomb_finds_no_room() {
        for (codec, bytes) in packed(&[0; 10_000]) {
            assert!(unpacked(bytes.clone(), 10_000).is_ok(), "{codec}");
            assert!(matches!(unpacked(bytes, 9_999), Err(BodyError::TooLarge { limit: 9_999 })), "{codec}");
        }
        for (codec, bytes) in packed(&vec![0; 64 << 20]) {
            assert!(matches!(unpacked(bytes, 1_000), Err(BodyError::TooLarge { .. })), "{codec}");
        }
        let (_, empty) = packed(b"")[0].clone();
        assert!(unpacked(empty, 0).unwrap().is_empty());
    }

    #[test]
    fn a_window_out_of_proportion_is_refused() {
        let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        zstd.window_log(27).unwrap();
        zstd.write_all(b"foobar").unwrap();
        let result = unpacked(zstd.finish().unwrap(), LIMIT);
        assert!(matches!(result, Err(BodyError::Corrupt { codec: "zstd", .. })), "{result:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_may_come(which in 0..5, tail: Vec<u8>, encoding in 0..4) {
            let magic: &[u8] =
                [&[0x1F, 0x8B, 8, 0][..], &[0x04, 0x22, 0x4D, 0x18], &[0x28, 0xB5, 0x2F, 0xFD], &[0x78, 0x9C], &[]][which as usize];
            let body = Bytes::from([magic, &tail].concat());
            if let Ok(plain) = unpack(encoding, &body, 1_000) {
                prop_assert!(plain.len() <= 1_000.max(body.len()));
            }
        }

        #[test]
        fn damage_gives_an_error_or_bytes_within_the_limit(plain: Vec<u8>, at: usize, with: u8) {
            for (_, mut bytes) in packed(&plain) {
                let at = at % bytes.len();
                bytes[at] ^= with;
                if let Ok(plain) = unpacked(bytes, 1_000) {
                    prop_assert!(plain.len() <= 1_000);
                }
            }
        }
    }
}
