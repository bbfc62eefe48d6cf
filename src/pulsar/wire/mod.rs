//! Bytes to types and back; pure.

pub(crate) mod pb;
