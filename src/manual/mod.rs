//! The manual: what is promised, how it works, and what users must know.
//!
//! What is said of brokers holds for RocketMQ's proxies too, unless a section of its own says otherwise.
//!
//! - [`delivery`]: the answer guarantee, what an error says about a message, what is not promised.
//! - [`threads`]: which threads there are, what may block, rules for callbacks.
//! - [`recovery`]: how lost and half-open connections are found and replaced.
//! - [`tuning`]: what to turn for throughput, latency and memory.

pub mod delivery;
pub mod recovery;
pub mod threads;
pub mod tuning;
