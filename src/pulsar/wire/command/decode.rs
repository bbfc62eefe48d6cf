//! Reads commands.

use bytes::Bytes;

use super::Command;
use crate::pulsar::wire::frame::WireError;

/// Reads one frame as `next_frame` gives it. The entry of SEND and MESSAGE shares the frame's memory.
pub(crate) fn decode(frame: Bytes) -> Result<Command, WireError> {
    todo!("{frame:?}")
}
