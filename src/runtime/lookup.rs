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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{self, channel};
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    type Answer = io::Result<Vec<SocketAddr>>;

    fn ask(resolver: &Resolver, host: &str) -> mpsc::Receiver<Answer> {
        let (tx, rx) = channel();
        resolver.resolve(host.to_owned(), 6650, Box::new(move |found| drop(tx.send(found))));
        rx
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 6650))
    }

    #[test]
    fn literals_are_answered_within_the_call_and_without_a_thread() {
        let resolver = Resolver::with_lookup(|_, _| panic!("must not be asked"));
        for (host, shown) in [("127.0.0.1", "127.0.0.1:6650"), ("::1", "[::1]:6650"), ("[::1]", "[::1]:6650")] {
            let found = ask(&resolver, host).try_recv().expect("at once").unwrap();
            assert_eq!(found, [shown.parse().unwrap()]);
        }
        assert!(resolver.jobs.lock().is_none());
    }

    #[test]
    fn the_system_knows_localhost() {
        let resolver = Resolver::new();
        let found = ask(&resolver, "localhost").recv_timeout(LONG).unwrap().unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn names_are_looked_up_in_order_and_errors_are_told() {
        let resolver = Resolver::with_lookup(|host, _| match host {
            "a" => Ok(vec![address(1)]),
            "empty" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such name")),
        });
        let answers = ["a", "empty", "b"].map(|host| ask(&resolver, host));
        let [a, empty, b] = answers.map(|answer| answer.recv_timeout(LONG).unwrap());
        assert_eq!(a.unwrap(), [address(1)]);
        assert_eq!(empty.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(b.unwrap_err().to_string(), "no such name");
    }

    #[test]
    fn one_question_answers_all_who_wait_for_the_name() {
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let resolver = Resolver::with_lookup(move |host, _| {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = released.lock().recv_timeout(LONG);
            if host == "a" { Ok(vec![address(1)]) } else { Err(io::Error::other("no such name")) }
        });
        let answers: Vec<_> = ["a", "b", "a", "b", "a"].iter().map(|host| ask(&resolver, host)).collect();
        release.send(()).unwrap();
        release.send(()).unwrap();
        drop(release);
        let found: Vec<_> = answers.iter().map(|answer| answer.recv_timeout(LONG).unwrap().is_ok()).collect();
        assert_eq!(found, [true, false, true, false, true]);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn dropping_it_waits_for_nothing_and_answers_what_is_queued() {
        let (began, begun) = channel();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let resolver = Resolver::with_lookup(move |_, _| {
            began.send(()).unwrap();
            let _ = released.lock().recv_timeout(LONG);
            Ok(vec![address(1)])
        });
        let stuck = ask(&resolver, "a");
        begun.recv_timeout(LONG).unwrap();
        let queued = ask(&resolver, "b");
        drop(resolver);
        assert!(stuck.try_recv().is_err(), "the lookup is still stuck");
        drop(release);
        assert!(stuck.recv_timeout(LONG).unwrap().is_ok());
        assert!(queued.recv_timeout(LONG).unwrap().is_err());
    }

    #[test]
    fn after_the_end_questions_are_refused() {
        let resolver = Resolver::new();
        resolver.shutdown();
        assert!(ask(&resolver, "localhost").try_recv().expect("at once").is_err());
    }

    #[test]
    fn a_panicking_receiver_does_not_end_the_thread() {
        let resolver = Resolver::with_lookup(|_, _| Ok(vec![address(1)]));
        resolver.resolve("a".to_owned(), 1, Box::new(|found| assert!(found.is_err(), "planted")));
        assert!(ask(&resolver, "b").recv_timeout(LONG).unwrap().is_ok());
    }
}
