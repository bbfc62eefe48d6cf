//! What `verify` is made of for every system: numbered sends, their answers, and what was read back.

pub mod canary;
pub mod checks;
pub mod events;
pub mod faults;
pub mod findings;
pub mod ledger;
pub mod plan;
pub mod read_back;
pub mod watch;
