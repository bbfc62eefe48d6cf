//! Bytes to types and back; pure.

pub(crate) mod code;
pub(crate) mod command;
pub(crate) mod compress;
mod field;
pub(crate) mod frame;
pub(crate) mod payload;
pub(crate) mod pb;

#[cfg(test)]
mod tests;
