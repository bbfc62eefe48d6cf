//! THREAD `tmq-proxy-work`: carries out what calls ask for, and what is due.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use futures_channel::{mpsc, oneshot};
use parking_lot::Mutex;

use super::script::Effect;
use super::state::{Poll, State};
use crate::rocketmq::wire::method::Method;
use crate::runtime::thread::spawn;

pub(super) enum Answer {
    Body(Bytes),
    Grpc(i32, String),
}

pub(super) enum Job {
    Call { endpoint: usize, method: Method, client: String, body: Bytes, reply: oneshot::Sender<Answer> },
    Stream { endpoint: usize, method: Method, client: String, body: Bytes, frames: mpsc::UnboundedSender<Bytes> },
    Opened { endpoint: usize, client: String, stream: u64, frames: mpsc::UnboundedSender<Bytes> },
    Command { stream: u64, body: Bytes },
    Ended { stream: u64 },
    Stop,
}

pub(super) fn next_stream() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn start(state: Arc<Mutex<State>>) -> io::Result<(Sender<Job>, JoinHandle<()>)> {
    let (jobs, inbox) = unbounded();
    let worker = Worker { state, inbox, late: BTreeMap::new(), polls: Vec::new(), silent: Vec::new(), number: 0 };
    let thread = spawn("proxy-work", move || worker.run())?;
    Ok((jobs, thread))
}

struct Worker {
    state: Arc<Mutex<State>>,
    inbox: Receiver<Job>,
    /// Answers that are to leave at a time.
    late: BTreeMap<(Instant, u64), (oneshot::Sender<Answer>, Answer)>,
    /// Polls that wait for messages.
    polls: Vec<Poll>,
    /// Calls that are never answered: kept, so that they do not end.
    silent: Vec<oneshot::Sender<Answer>>,
    number: u64,
}

impl Worker {
    fn run(mut self) {
        loop {
            let job = match self.next_due() {
                Some(at) => self.inbox.recv_deadline(at),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let now = Instant::now();
            match job {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(job) => self.carry_out(now, job),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.due(now);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let late = self.late.keys().next().map(|(at, _)| *at);
        let polls = self.polls.iter().map(|poll| poll.until).min();
        let visible = if self.polls.is_empty() { None } else { self.state.lock().next_visible() };
        [late, polls, visible].into_iter().flatten().min()
    }

    fn due(&mut self, now: Instant) {
        while let Some(entry) = self.late.first_entry().filter(|entry| entry.key().0 <= now) {
            let (reply, answer) = entry.remove();
            let _ = reply.send(answer);
        }
        let mut state = self.state.lock();
        self.polls.retain_mut(|poll| !state.serve(now, poll));
    }

    fn carry_out(&mut self, now: Instant, job: Job) {
        match job {
            Job::Call { endpoint, method, client, body, reply } => {
                let mut state = self.state.lock();
                match state.arrived(endpoint, method) {
                    None => {
                        let _ = reply.send(Answer::Body(state.call(now, endpoint, method, &client, &body)));
                    }
                    Some(Effect::Late(delay)) => {
                        let answer = Answer::Body(state.call(now, endpoint, method, &client, &body));
                        self.number += 1;
                        self.late.insert((now + delay, self.number), (reply, answer));
                    }
                    Some(Effect::Silent) => {
                        state.call(now, endpoint, method, &client, &body);
                        self.silent.push(reply);
                    }
                    Some(Effect::Lost) => self.silent.push(reply),
                    Some(Effect::Status(code, text)) => {
                        let _ = reply.send(Answer::Body(State::refusal(method, code, &text)));
                    }
                    Some(Effect::Grpc(code, text)) => {
                        let _ = reply.send(Answer::Grpc(code, text));
                    }
                    Some(Effect::Bytes(bytes)) => {
                        let _ = reply.send(Answer::Body(Bytes::from(bytes)));
                    }
                }
            }
            Job::Stream { endpoint, method, client, body, frames } => {
                let mut state = self.state.lock();
                match state.arrived(endpoint, method) {
                    Some(Effect::Status(code, text)) => {
                        let _ = frames.unbounded_send(State::refusal(method, code, &text));
                    }
                    Some(Effect::Bytes(bytes)) => {
                        let _ = frames.unbounded_send(Bytes::from(bytes));
                    }
                    Some(Effect::Lost | Effect::Silent) => self.polls.push(Poll::deaf(now, frames)),
                    _ => {
                        if let Some(mut poll) = state.poll(now, endpoint, &client, &body, frames) {
                            if !state.serve(now, &mut poll) {
                                self.polls.push(poll);
                            }
                        }
                    }
                }
            }
            Job::Opened { endpoint, client, stream, frames } => {
                let mut state = self.state.lock();
                match state.arrived(endpoint, Method::Telemetry) {
                    Some(Effect::Grpc(..)) => {}
                    effect => state.open_stream(endpoint, client, stream, frames, effect.is_some()),
                }
            }
            Job::Command { stream, body } => self.state.lock().telemetry(stream, &body),
            Job::Ended { stream } => self.state.lock().stream_ended(stream),
            Job::Stop => {}
        }
    }
}
