//! Messages of the protocol to types and back; pure.

pub(crate) mod method;
pub(crate) mod pb;
