use bytes::{BufMut, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;

use super::common::sized;
use crate::error::{Error, ErrorKind};
use crate::pulsar::wire::frame::{WireError, next_frame};

fn first(bytes: &[u8], max: usize) -> Result<Option<bytes::Bytes>, WireError> {
    next_frame(&mut BytesMut::from(bytes), max)
}

#[test]
fn waits_for_more() {
    assert_eq!(first(&[], 100), Ok(None));
    assert_eq!(first(&[0, 0, 0], 100), Ok(None));
    assert_eq!(first(&[0, 0, 0, 5], 100), Ok(None));
    assert_eq!(first(&[0, 0, 0, 5, 1, 2, 3, 4], 100), Ok(None));
}

#[test]
fn judges_the_size_before_the_bytes_are_there() {
    assert_eq!(first(&[0, 0, 0, 101], 100), Err(WireError::Oversized { size: 101, limit: 100 }));
    assert_eq!(first(&[0, 0, 0, 100], 100), Ok(None));
    for size in 0..4 {
        assert_eq!(first(&[0, 0, 0, size], 100), Err(WireError::BadLength));
    }
}

#[test]
fn sizes_from_two_to_the_31_are_refused_whatever_the_limit() {
    let limit = i32::MAX as usize;
    assert_eq!(first(&[0x80, 0, 0, 0], usize::MAX), Err(WireError::Oversized { size: 1 << 31, limit }));
    assert_eq!(first(&[0xff; 4], usize::MAX), Err(WireError::Oversized { size: u32::MAX as usize, limit }));
    assert_eq!(first(&[0x7f, 0xff, 0xff, 0xff], usize::MAX), Ok(None));
}

#[test]
fn says_what_a_wrong_port_looks_like() {
    assert_eq!(first(b"HTTP/1.1 400 Bad Request\r\n", 5 << 20), Err(WireError::LooksLikeHttp));
    // An alert and a handshake record, as a TLS server answers plaintext.
    assert_eq!(first(&[0x15, 3, 3, 0, 2, 2, 70], 5 << 20), Err(WireError::LooksLikeTls));
    assert_eq!(first(&[0x16, 3, 1, 2, 0, 1], 5 << 20), Err(WireError::LooksLikeTls));
    let error = Error::from(WireError::LooksLikeHttp);
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("HTTP"));
}

proptest! {
    /// However the stream is cut, the same frames come out.
    #[test]
    fn frames_do_not_depend_on_how_the_bytes_arrive(
        frames in vec(vec(any::<u8>(), 4..50), 0..6),
        cuts in vec(1usize..40, 1..20),
    ) {
        let stream: Vec<u8> = frames.iter().flat_map(|frame| sized(frame)).collect();
        let mut rest = &stream[..];
        let mut buffer = BytesMut::new();
        let mut found = Vec::new();
        for cut in cuts.iter().cycle() {
            while let Some(frame) = next_frame(&mut buffer, 50).unwrap() {
                found.push(frame.to_vec());
            }
            if rest.is_empty() {
                break;
            }
            let (piece, later) = rest.split_at(rest.len().min(*cut));
            buffer.put_slice(piece);
            rest = later;
        }
        prop_assert_eq!(found, frames);
        prop_assert!(buffer.is_empty());
    }
}
