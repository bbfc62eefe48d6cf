//! Bytes on their way to a socket. Small frames are gathered by copy, large ones stand in line as they are.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Frames up to this size are copied together, so that many of them take one write.
const COPY_LIMIT: usize = 4096;
/// Slices offered to one vectored write.
pub(crate) const SLICES: usize = 32;

/// What a link's socket is to be given, in order.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl WriteBuffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends a frame, sharing it if it is large.
    pub(crate) fn frame(&mut self, frame: &Bytes) {
        if frame.len() <= COPY_LIMIT {
            self.copy(frame);
            return;
        }
        self.seal();
        self.chunks.push_back(frame.clone());
        self.len += frame.len();
    }

    /// The front of the line, for a vectored write.
    pub(crate) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut count = 0;
        let tail = Some(&self.tail[..]).filter(|tail| !tail.is_empty());
        for (slot, chunk) in into.iter_mut().zip(self.chunks.iter().map(|chunk| &chunk[..]).chain(tail)) {
            *slot = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    /// `written` bytes of the front went to the socket.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.len = self.len.saturating_sub(written);
        while written > 0 {
            let Some(front) = self.chunks.front_mut() else {
                let rest = written.min(self.tail.len());
                self.tail.advance(rest);
                return;
            };
            let step = written.min(front.len());
            front.advance(step);
            written -= step;
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// All of it as one vector; for tests and simulations.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        for chunk in self.chunks.drain(..) {
            all.extend_from_slice(&chunk);
        }
        all.extend_from_slice(&self.tail);
        self.tail.clear();
        self.len = 0;
        all
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_over_copies_shares_and_partial_writes() {
        let mut buffer = WriteBuffer::default();
        let large = Bytes::from(vec![2u8; COPY_LIMIT + 1]);
        buffer.copy(&[1; 10]);
        buffer.frame(&large);
        buffer.copy(&[3; 10]);
        let mut expected = vec![1u8; 10];
        expected.extend_from_slice(&large);
        expected.extend_from_slice(&[3; 10]);
        let mut seen = Vec::new();
        for step in [3usize, 7, 1, 4000, 97, 5, 100] {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = buffer.slices(&mut slices);
            let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let step = step.min(flat.len());
            seen.extend_from_slice(&flat[..step]);
            buffer.advance(step);
        }
        assert_eq!(seen, expected);
        assert!(buffer.is_empty());
    }
}
