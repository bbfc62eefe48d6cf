//! The codec against the generated code, against damaged bytes, and against frames of a real broker.

mod command;
mod common;
mod compress;
mod frame;
mod golden;
mod hostile;
mod payload;
