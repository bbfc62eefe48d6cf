//! Compression of payloads.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};

/// How a producer compresses what it sends. Consumers read every form that the build knows.
///
/// A batch is compressed as a whole. Each codec is a cargo feature of its own name, all on by default; a codec
/// that is not compiled in gives an error of kind [`Unsupported`](ErrorKind::Unsupported).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// As it is. Costs nothing; the default.
    #[default]
    None,
    /// LZ4: the cheapest codec, a fair ratio.
    Lz4,
    /// Zlib: slow, a good ratio, known to every client.
    Zlib,
    /// Zstandard: the best ratio for its cost.
    Zstd,
    /// Snappy: about as cheap as LZ4.
    Snappy,
}

impl Compression {
    /// Whether this build has the codec.
    pub(crate) fn is_available(self) -> bool {
        match self {
            Self::None => true,
            Self::Lz4 => cfg!(feature = "lz4"),
            Self::Zlib => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
            Self::Snappy => cfg!(feature = "snappy"),
        }
    }

    /// The number in the protocol's `CompressionType`.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zlib => 2,
            Self::Zstd => 3,
            Self::Snappy => 4,
        }
    }

    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Lz4,
            2 => Self::Zlib,
            3 => Self::Zstd,
            4 => Self::Snappy,
            _ => return None,
        })
    }
}

/// Why a payload could not be compressed and framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Without a codec nothing can fail in one.
#[cfg_attr(not(any(feature = "lz4", feature = "zlib", feature = "zstd", feature = "snappy")), allow(dead_code))]
pub(crate) enum CompressError {
    /// The codec is not compiled in.
    Unsupported(Compression),
    /// The codec failed.
    Failed(Compression),
    /// More than a frame can hold, whatever the broker's limit.
    TooLarge,
}

/// Why a payload could not be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Without a codec nothing can fail in one.
#[cfg_attr(not(any(feature = "lz4", feature = "zlib", feature = "zstd", feature = "snappy")), allow(dead_code))]
pub(crate) enum DecompressError {
    /// The codec is not compiled in, or the number is not known.
    Unsupported(i32),
    /// The stated size is above the limit.
    TooLarge { size: usize, limit: usize },
    /// The result does not have the stated size.
    SizeMismatch,
    /// The data is damaged.
    Corrupt,
}

impl fmt::Display for CompressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(codec) => write!(f, "compression {codec:?} is not compiled in"),
            Self::Failed(codec) => write!(f, "compression {codec:?} failed"),
            Self::TooLarge => f.write_str("the message is too large for a frame"),
        }
    }
}

impl std::error::Error for CompressError {}

impl From<CompressError> for Error {
    fn from(error: CompressError) -> Self {
        let kind = match error {
            CompressError::Unsupported(_) => ErrorKind::Unsupported,
            CompressError::Failed(_) => ErrorKind::Internal,
            CompressError::TooLarge => ErrorKind::TooLarge,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

impl fmt::Display for DecompressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(number) => write!(f, "compression type {number} is not known to this build"),
            Self::TooLarge { size, limit } => write!(f, "{size} bytes uncompressed where at most {limit} are allowed"),
            Self::SizeMismatch => f.write_str("the uncompressed data does not have the stated size"),
            Self::Corrupt => f.write_str("the compressed data is damaged"),
        }
    }
}

impl std::error::Error for DecompressError {}

impl From<DecompressError> for Error {
    fn from(error: DecompressError) -> Self {
        let kind = match error {
            DecompressError::Unsupported(_) => ErrorKind::Unsupported,
            DecompressError::TooLarge { .. } => ErrorKind::TooLarge,
            DecompressError::SizeMismatch | DecompressError::Corrupt => ErrorKind::Protocol,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

/// Appends `input`, compressed, to `out`. After an error `out` may hold a part of it.
pub(super) fn compress(compression: Compression, input: &[u8], out: &mut Vec<u8>) -> Result<(), CompressError> {
    match compression {
        Compression::None => {
            out.extend_from_slice(input);
            Ok(())
        }
        #[cfg(feature = "lz4")]
        Compression::Lz4 => {
            let most = lz4_flex::block::get_maximum_output_size(input.len());
            append(out, most, |room| lz4_flex::block::compress_into(input, room).ok())
                .ok_or(CompressError::Failed(compression))
        }
        #[cfg(feature = "zlib")]
        Compression::Zlib => {
            use std::io::Write;
            let mut encoder = flate2::write::ZlibEncoder::new(out, flate2::Compression::default());
            let written = encoder.write_all(input).and_then(|()| encoder.finish());
            written.map(|_| ()).map_err(|_| CompressError::Failed(compression))
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => {
            let most = zstd::zstd_safe::compress_bound(input.len());
            let level = zstd::DEFAULT_COMPRESSION_LEVEL;
            append(out, most, |room| zstd::bulk::compress_to_buffer(input, room, level).ok())
                .ok_or(CompressError::Failed(compression))
        }
        #[cfg(feature = "snappy")]
        Compression::Snappy => {
            // Zero for an input above what the format can hold.
            let most = snap::raw::max_compress_len(input.len());
            append(out, most, |room| snap::raw::Encoder::new().compress(input, room).ok())
                .ok_or(CompressError::Failed(compression))
        }
        #[allow(unreachable_patterns)] // every codec may be compiled in
        missing => Err(CompressError::Unsupported(missing)),
    }
}

/// Lets `write` fill up to `most` bytes at the end of `out` and keeps as many as it says.
#[cfg(any(feature = "lz4", feature = "zstd", feature = "snappy"))]
fn append(out: &mut Vec<u8>, most: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<()> {
    let start = out.len();
    out.resize(start.checked_add(most)?, 0);
    let written = write(out.get_mut(start..)?)?;
    out.truncate(start.checked_add(written)?);
    Some(())
}

/// Takes a payload back to `uncompressed_size` bytes, which must be exact. `compression` is the number from the
/// metadata; 0 gives the payload back as it is. Needs memory for `uncompressed_size` at most, and nothing at all
/// if that is above `max`.
pub(crate) fn decompress(
    compression: i32,
    payload: &Bytes,
    uncompressed_size: u32,
    max: usize,
) -> Result<Bytes, DecompressError> {
    let unsupported = DecompressError::Unsupported(compression);
    let codec = Compression::from_number(compression).ok_or(unsupported)?;
    if codec == Compression::None {
        return Ok(payload.clone());
    }
    let size = usize::try_from(uncompressed_size).unwrap_or(usize::MAX);
    if size > max {
        return Err(DecompressError::TooLarge { size, limit: max });
    }
    // Some clients leave an empty body as it is, whatever the metadata says.
    if size == 0 && payload.is_empty() {
        return Ok(Bytes::new());
    }
    // Each codec writes into a slice of the stated size and nowhere else: a bomb finds no room. Untouched memory
    // of a fresh zeroed vector costs nothing on the usual systems.
    match codec {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => exactly(size, |room| lz4_flex::block::decompress_into(payload, room).ok()),
        #[cfg(feature = "zlib")]
        Compression::Zlib => exactly(size, |room| unzip(payload, room)),
        #[cfg(feature = "zstd")]
        Compression::Zstd => {
            exactly(size, |room| zstd::bulk::Decompressor::default().decompress_to_buffer(payload, room).ok())
        }
        #[cfg(feature = "snappy")]
        Compression::Snappy => {
            // The block states its own size first.
            if snap::raw::decompress_len(payload).map_err(|_| DecompressError::Corrupt)? != size {
                return Err(DecompressError::SizeMismatch);
            }
            exactly(size, |room| snap::raw::Decoder::new().decompress(payload, room).ok())
        }
        #[allow(unreachable_patterns)] // every codec may be compiled in
        _ => Err(unsupported),
    }
}

#[cfg(any(feature = "lz4", feature = "zlib", feature = "zstd", feature = "snappy"))]
fn exactly(size: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Result<Bytes, DecompressError> {
    let mut room = vec![0; size];
    let written = write(&mut room).ok_or(DecompressError::Corrupt)?;
    if written != size {
        return Err(DecompressError::SizeMismatch);
    }
    Ok(room.into())
}

/// Fills `room` from a zlib stream, which must end there.
#[cfg(feature = "zlib")]
fn unzip(payload: &[u8], room: &mut [u8]) -> Option<usize> {
    let mut inflate = flate2::Decompress::new(true);
    let status = inflate.decompress(payload, room, flate2::FlushDecompress::Finish).ok()?;
    match status {
        flate2::Status::StreamEnd => usize::try_from(inflate.total_out()).ok(),
        flate2::Status::Ok | flate2::Status::BufError => None,
    }
}
