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

/// Takes a payload back to `uncompressed_size` bytes, which must be exact. `compression` is the number from the
/// metadata; 0 gives the payload back as it is. Needs memory for `uncompressed_size` at most, and nothing at all
/// if that is above `max`.
pub(crate) fn decompress(
    compression: i32,
    payload: &Bytes,
    uncompressed_size: u32,
    max: usize,
) -> Result<Bytes, DecompressError> {
    todo!("{compression} {payload:?} {uncompressed_size} {max}")
}
