//! Who calls: ids of this process, and what goes along with each call of a session.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use grpcio::{Error as GrpcError, Metadata, MetadataBuilder};

use super::wire::headers::{Headers, Signature};
use super::wire::ids;
use super::wire::message_id::{MessageIds, random_node};
use crate::error::Error;
use crate::policy::rng::Rng;
use crate::runtime::clock;

/// What all clients of the process share: message ids rise over all of them.
pub(super) struct Process {
    pub message_ids: MessageIds,
    pub host: String,
    sessions: AtomicU64,
}

pub(super) fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| Process {
        message_ids: MessageIds::new(random_node(clock::entropy_seed()), std::process::id()),
        host: host_name(),
        sessions: AtomicU64::new(0),
    })
}

impl Process {
    /// A new id for a producer or consumer.
    pub(super) fn client_id(&self) -> String {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let index = self.sessions.fetch_add(1, Ordering::Relaxed);
        ids::client_id(&self.host, std::process::id(), index, u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

/// A session's headers. The driver's.
pub(super) struct Identity {
    headers: Headers,
    rng: Rng,
}

impl Identity {
    /// # Errors
    ///
    /// `Config` for what headers cannot hold.
    pub(super) fn new(client_id: &str, namespace: &str) -> Result<Self, Error> {
        let headers = Headers::new(client_id, Headers::CLIENT_VERSION, namespace)?;
        Ok(Self { headers, rng: Rng::new(clock::entropy_seed()) })
    }

    /// The headers of one call, with the signature of this second.
    pub(super) fn metadata(&mut self, signature: Option<&Signature>) -> Result<Metadata, GrpcError> {
        let request_id = ids::uuid(self.rng.next_u64(), self.rng.next_u64());
        let mut builder = MetadataBuilder::with_capacity(Headers::MOST);
        let mut added = Ok(());
        self.headers.each(&request_id, signature, |name, value| {
            added = std::mem::replace(&mut added, Ok(())).and_then(|()| builder.add_str(name, value).map(drop));
        });
        added.map(|()| builder.build())
    }
}
