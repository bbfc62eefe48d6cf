//! THREAD `tmq-lookup` (started when first needed): names to addresses, by the system's resolver, which blocks.
//!
//! One thread: a name server that does not answer delays later names too. Whoever asks has a deadline of its own and
//! throws away an answer that comes late.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use super::thread::{panic_text, spawn};

/// Called once with the addresses, on the lookup thread, or within `resolve` itself. Must not block.
pub(crate) type Reply = Box<dyn FnOnce(io::Result<Vec<SocketAddr>>) + Send>;

type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Dropping it ends the thread. It is never waited for, because the system's resolver may hold it for minutes.
pub(crate) struct Resolver {
    jobs: Mutex<Option<Sender<Job>>>,
    closed: Arc<AtomicBool>,
    lookup: Arc<Lookup>,
}

struct Job {
    host: String,
    port: u16,
    reply: Reply,
}

impl Resolver {
    pub fn new() -> Self {
        Self::with_lookup(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
    }

    fn with_lookup(lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self { jobs: Mutex::new(None), closed: Arc::default(), lookup: Arc::new(lookup) }
    }

    /// Asks for the addresses of `host`. An IP address (IPv6 also in brackets) is answered within this call.
    /// Success has at least one address.
    pub fn resolve(&self, host: String, port: u16, reply: Reply) {
        if let Some(address) = literal(&host) {
            return reply(Ok(vec![SocketAddr::new(address, port)]));
        }
        match self.sender() {
            Ok(jobs) => {
                if let Err(refused) = jobs.send(Job { host, port, reply }) {
                    (refused.0.reply)(Err(closed()));
                }
            }
            Err(error) => reply(Err(error)),
        }
    }

    /// Ends the thread after the name it works on. What is queued is answered with an error.
    pub fn shutdown(&self) {
        self.closed.store(true, Ordering::Release);
        self.jobs.lock().take();
    }

    fn sender(&self) -> io::Result<Sender<Job>> {
        let mut jobs = self.jobs.lock();
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if let Some(sender) = &*jobs {
            return Ok(sender.clone());
        }
        let (sender, inbox) = unbounded();
        let (closed, lookup) = (Arc::clone(&self.closed), Arc::clone(&self.lookup));
        // Not joined: see above.
        drop(spawn("lookup", move || serve(&inbox, &closed, &*lookup))?);
        *jobs = Some(sender.clone());
        Ok(sender)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn serve(inbox: &Receiver<Job>, stop: &AtomicBool, lookup: &Lookup) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match inbox.recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => return,
            }
        }
        waiting.extend(inbox.try_iter());
        let Some(Job { host, port, reply }) = waiting.pop_front() else { continue };
        if stop.load(Ordering::Acquire) {
            answer(reply, Err(closed()));
            continue;
        }
        let found = lookup(&host, port).and_then(|addresses| match addresses.is_empty() {
            false => Ok(addresses),
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        });
        // After an outage all links ask for the same few names: one question answers them all.
        waiting.extend(inbox.try_iter());
        let (same, others) = waiting.into_iter().partition(|job: &Job| job.port == port && job.host == host);
        waiting = others;
        answer_all(same, reply, found);
    }
}

fn answer_all(same: VecDeque<Job>, first: Reply, found: io::Result<Vec<SocketAddr>>) {
    for job in same {
        let copy = match &found {
            Ok(addresses) => Ok(addresses.clone()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        answer(job.reply, copy);
    }
    answer(first, found);
}

fn answer(reply: Reply, found: io::Result<Vec<SocketAddr>>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| reply(found))) {
        log::error!("the receiver of a lookup panicked: {}", panic_text(&*payload));
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

fn closed() -> io::Error {
    io::Error::other("the client is closed")
}
