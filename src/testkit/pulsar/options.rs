//! How a broker is set up.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
    pub(super) max_message_size: usize,
    pub(super) backlog_limit: usize,
    pub(super) log_limit: usize,
    pub(super) deduplication: bool,
    pub(super) broker_entry_metadata: bool,
    pub(super) verify_checksums: bool,
    pub(super) discard: bool,
    pub(super) liveness_check: Option<Duration>,
    pub(super) receive_buffer: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            max_message_size: crate::pulsar::wire::frame::DEFAULT_MAX_MESSAGE_SIZE,
            backlog_limit: 256 * 1024 * 1024,
            log_limit: 250_000,
            deduplication: false,
            broker_entry_metadata: false,
            verify_checksums: true,
            discard: false,
            liveness_check: Some(Duration::from_millis(100)),
            receive_buffer: None,
        }
    }
}
