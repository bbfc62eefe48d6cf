//! Bytes to types and back; pure.

#[cfg(all(feature = "bench", feature = "testkit"))]
pub(crate) mod bench;
pub(crate) mod code;
pub(crate) mod command;
pub(crate) mod compress;
mod field;
pub(crate) mod frame;
pub(crate) mod payload;
pub(crate) mod pb;

#[cfg(test)]
mod tests;
