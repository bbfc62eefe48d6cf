//! Cuts the byte stream into frames, and what can be wrong with the bytes of a peer.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Recovery};

/// What a broker accepts for metadata and payload of one entry unless its CONNECTED says otherwise.
pub(crate) const DEFAULT_MAX_MESSAGE_SIZE: usize = 5 * 1024 * 1024;

/// What a frame may hold on top of the largest message: the command and the lengths.
pub(crate) const FRAME_PADDING: usize = 10 * 1024;

/// Width of every length word in a frame.
pub(super) const WORD: usize = 4;

/// Bytes that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireError {
    /// A frame or entry states a size above the limit.
    Oversized { size: usize, limit: usize },
    /// The bytes end before what they announce.
    Truncated,
    /// A length word contradicts the frame it is in.
    BadLength,
    /// The bytes are no protobuf message of the type that belongs here.
    BadProtobuf,
    /// A field that the protocol requires is absent.
    MissingField(&'static str),
    /// The CRC32C of an entry does not match its bytes.
    ChecksumMismatch,
    /// An HTTP server answered.
    LooksLikeHttp,
    /// A TLS server answered a plaintext connection.
    LooksLikeTls,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oversized { size, limit } => write!(f, "{size} bytes announced where at most {limit} are allowed"),
            Self::Truncated => f.write_str("the data ends before what it announces"),
            Self::BadLength => f.write_str("a length contradicts the frame around it"),
            Self::BadProtobuf => f.write_str("the data is not a valid protobuf message"),
            Self::MissingField(name) => write!(f, "required field {name} is missing"),
            Self::ChecksumMismatch => f.write_str("the checksum does not match the data"),
            Self::LooksLikeHttp => {
                f.write_str("the peer speaks HTTP: is this the port of the broker's web service (usually 8080)?")
            }
            Self::LooksLikeTls => {
                f.write_str("the peer speaks TLS: is this the broker's TLS port (usually 6651, pulsar+ssl://)?")
            }
        }
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        let shared = Self::new(ErrorKind::Protocol, error.to_string()).with_source(error);
        match error {
            // Another service listens there: no retry makes it a broker.
            WireError::LooksLikeHttp | WireError::LooksLikeTls => shared.with_recovery(Recovery::Never),
            _ => shared,
        }
    }
}

/// Takes one whole frame, without its size word, off the front of `buffer`; `None` when more bytes are needed.
///
/// The announced size is judged before its bytes are waited for. After an error the stream has no frame
/// boundary any more: close the connection.
pub(crate) fn next_frame(buffer: &mut BytesMut, max_frame: usize) -> Result<Option<Bytes>, WireError> {
    let Some(word) = buffer.first_chunk::<WORD>() else {
        return Ok(None);
    };
    let announced = u32::from_be_bytes(*word);
    let size = usize::try_from(announced).unwrap_or(usize::MAX);
    let limit = max_frame.min(i32::MAX as usize);
    if size > limit {
        return Err(match word {
            b"HTTP" => WireError::LooksLikeHttp,
            [0x15 | 0x16, 0x03, ..] => WireError::LooksLikeTls,
            _ => WireError::Oversized { size, limit },
        });
    }
    if size < WORD {
        return Err(WireError::BadLength);
    }
    if buffer.len() - WORD < size {
        return Ok(None);
    }
    buffer.advance(WORD);
    Ok(Some(buffer.split_to(size).freeze()))
}
