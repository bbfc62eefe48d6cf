//! Arguments that the RocketMQ commands share, and the messages that they ask for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use threadmq::rocketmq::{Body, Message, MessageType};

use crate::args::{duration, send_limit, size};

/// How long a poll waits: as short as the server allows.
pub const AWAIT: Duration = Duration::from_secs(5);
/// How long a message that was received is kept from others: as short as the server allows.
pub const INVISIBLE: Duration = Duration::from_secs(10);
/// The most that the server gives to a poll.
pub const MOST_AT_ONCE: usize = 32;

/// Where the cluster is, and who asks.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// gRPC endpoints of the proxies: [https://]host:port[;host:port...]
    #[arg(long, value_name = "ENDPOINT", default_value = "127.0.0.1:8081")]
    pub endpoint: String,
    /// Access key, if the server wants calls to be signed
    #[arg(long, value_name = "KEY", requires = "secret_key")]
    pub access_key: Option<String>,
    /// Secret key that goes with it
    #[arg(long, value_name = "SECRET", requires = "access_key")]
    pub secret_key: Option<String>,
    /// PEM file with the certificates to trust; switches TLS on [default with https://: those of the system]
    #[arg(long, value_name = "FILE")]
    pub tls_roots: Option<PathBuf>,
    /// Take any certificate, so that anybody in between can read and change everything; switches TLS on
    #[arg(long, conflicts_with = "tls_roots")]
    pub tls_insecure: bool,
}

/// How messages are sent.
#[derive(Debug, Clone, Args)]
pub struct SendArgs {
    /// Kind of the messages; the topic must be of the same kind
    #[arg(long = "type", value_name = "TYPE", default_value = "normal")]
    pub kind: Kind,
    /// Message groups that `--type fifo` deals its messages to in turn, 1 to 10000
    #[arg(long, value_name = "GROUPS", default_value = "4", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub message_groups: u64,
    /// How long `--type delay` keeps messages from being delivered, such as 1s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub delay: Duration,
    /// Body size of generated messages, in bytes; also 4k or 1M (of 1024)
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = size)]
    pub size: usize,
    /// Most messages that may be unanswered, 1 to 65536; sending waits for room [default: 1024]
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub inflight: Option<u64>,
    /// Time from the call to the answer over all attempts, such as 200ms or 5s, from 1ms to 1d
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = send_limit)]
    pub send_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Normal,
    Fifo,
    Delay,
}

impl Kind {
    pub fn message_type(self) -> MessageType {
        match self {
            Self::Normal => MessageType::Normal,
            Self::Fifo => MessageType::Fifo,
            Self::Delay => MessageType::Delay,
        }
    }
}

impl SendArgs {
    /// The message with this number.
    pub fn message(&self, topic: &str, number: u64, body: impl Into<Body>) -> Message {
        let message = Message::new(topic, body);
        match self.kind {
            Kind::Normal => message,
            Kind::Fifo => message.message_group(format!("group-{}", number % self.message_groups.max(1))),
            Kind::Delay => message.deliver_after(self.delay),
        }
    }
}
