//! Messages of the protocol to types and back; pure.

pub(crate) mod body;
pub(crate) mod certificate;
pub(crate) mod code;
pub(crate) mod digest;
pub(crate) mod endpoints;
pub(crate) mod frame;
pub(crate) mod headers;
mod hex;
pub(crate) mod ids;
pub(crate) mod message_id;
pub(crate) mod method;
pub(crate) mod names;
pub(crate) mod pb;
pub(crate) mod queue;
