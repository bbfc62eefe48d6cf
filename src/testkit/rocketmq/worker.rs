//! THREAD `tmq-proxy-work`: carries out what calls ask for, and what is due.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use futures_channel::{mpsc, oneshot};
use parking_lot::Mutex;

use super::polls::Poll;
use super::script::{Effect, End};
use super::state::{State, refusal};
use crate::rocketmq::wire::method::Method;
use crate::runtime::thread::spawn;

pub(super) enum Answer {
    Body(Bytes),
    Grpc(i32, String),
}

/// Part of a stream of answers.
pub(super) enum Frame {
    Body(Bytes),
    /// The end, with a status of gRPC's own.
    Failed(i32, String),
}

pub(super) enum Job {
    Call { endpoint: usize, method: Method, client: String, body: Bytes, reply: oneshot::Sender<Answer> },
    Stream { endpoint: usize, method: Method, client: String, body: Bytes, frames: mpsc::UnboundedSender<Frame> },
    Opened { endpoint: usize, client: String, stream: u64, frames: mpsc::UnboundedSender<Frame> },
    Command { stream: u64, body: Bytes },
    Ended { stream: u64 },
    Stop,
}

/// What leaves, or happens, at a time.
enum Late {
    Answer(oneshot::Sender<Answer>, Answer),
    Frame(mpsc::UnboundedSender<Frame>, Frame),
    Poll { endpoint: usize, client: String, body: Bytes, frames: mpsc::UnboundedSender<Frame> },
}

pub(super) fn next_stream() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn start(state: Arc<Mutex<State>>) -> io::Result<(Sender<Job>, JoinHandle<()>)> {
    let (jobs, inbox) = unbounded();
    let worker = Worker {
        state,
        inbox,
        late: BTreeMap::new(),
        polls: Vec::new(),
        silent: Vec::new(),
        endless: Vec::new(),
        number: 0,
    };
    let thread = spawn("proxy-work", move || worker.run())?;
    Ok((jobs, thread))
}

struct Worker {
    state: Arc<Mutex<State>>,
    inbox: Receiver<Job>,
    late: BTreeMap<(Instant, u64), Late>,
    /// Polls that wait for messages.
    polls: Vec<Poll>,
    /// Calls that are never answered: kept, so that they do not end. So are streams.
    silent: Vec<oneshot::Sender<Answer>>,
    endless: Vec<mpsc::UnboundedSender<Frame>>,
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
        let polls = if self.polls.is_empty() {
            None
        } else {
            let state = self.state.lock();
            self.polls.iter().map(|poll| state.next_due(poll)).min()
        };
        [late, polls].into_iter().flatten().min()
    }

    fn due(&mut self, now: Instant) {
        while let Some(entry) = self.late.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Late::Answer(reply, answer) => drop(reply.send(answer)),
                Late::Frame(frames, frame) => drop(frames.unbounded_send(frame)),
                Late::Poll { endpoint, client, body, frames } => {
                    self.poll(now, endpoint, &client, &body, frames, None);
                }
            }
        }
        let mut state = self.state.lock();
        let endless = &mut self.endless;
        self.polls.retain(|poll| {
            let (over, kept) = state.serve(now, poll);
            endless.extend(kept);
            !over
        });
    }

    fn later(&mut self, at: Instant, what: Late) {
        self.number += 1;
        self.late.insert((at, self.number), what);
    }

    fn carry_out(&mut self, now: Instant, job: Job) {
        match job {
            Job::Call { endpoint, method, client, body, reply } => {
                self.call(now, endpoint, method, &client, &body, reply);
            }
            Job::Stream { endpoint, method, client, body, frames } => {
                let effect = self.state.lock().arrived(now, endpoint, method);
                match effect {
                    None => self.poll(now, endpoint, &client, &body, frames, None),
                    Some(Effect::Cut(after, end)) => {
                        self.poll(now, endpoint, &client, &body, frames, Some((after, end)))
                    }
                    Some(Effect::Late(delay)) => {
                        self.later(now + delay, Late::Poll { endpoint, client, body, frames });
                    }
                    Some(Effect::Lost | Effect::Silent) => self.endless.push(frames),
                    Some(Effect::Status(code, text)) => {
                        let _ = frames.unbounded_send(Frame::Body(refusal(code, &text)));
                    }
                    Some(Effect::Bytes(bytes)) => drop(frames.unbounded_send(Frame::Body(Bytes::from(bytes)))),
                    Some(Effect::Grpc(code, text)) => drop(frames.unbounded_send(Frame::Failed(code, text))),
                    Some(Effect::Frames(bodies, end)) => {
                        for body in bodies {
                            let _ = frames.unbounded_send(Frame::Body(Bytes::from(body)));
                        }
                        self.endless.extend(end.put(frames));
                    }
                }
            }
            Job::Opened { endpoint, client, stream, frames } => {
                let mut state = self.state.lock();
                let effect = state.arrived(now, endpoint, Method::Telemetry);
                state.open_stream(endpoint, client, stream, frames, effect);
            }
            Job::Command { stream, body } => {
                let later = self.state.lock().telemetry(stream, &body);
                if let Some((delay, frames, frame)) = later {
                    self.later(now + delay, Late::Frame(frames, frame));
                }
            }
            Job::Ended { stream } => self.state.lock().streams.ended(stream),
            Job::Stop => {}
        }
        // Those whose clients are gone.
        if self.silent.len() + self.endless.len() > 1024 {
            self.silent.retain(|reply| !reply.is_canceled());
            self.endless.retain(|frames| !frames.is_closed());
        }
    }

    fn call(
        &mut self,
        now: Instant,
        endpoint: usize,
        method: Method,
        client: &str,
        body: &[u8],
        reply: oneshot::Sender<Answer>,
    ) {
        let mut state = self.state.lock();
        let effect = state.arrived(now, endpoint, method);
        let mut well = || Answer::Body(state.call(now, endpoint, method, client, body));
        let ended = |end: &End| match end {
            End::Well => Some(Answer::Grpc(0, String::new())),
            End::Grpc(code, text) => Some(Answer::Grpc(*code, text.clone())),
            End::Never => None,
        };
        let (answer, delay) = match effect {
            None => (Some(well()), Duration::ZERO),
            Some(Effect::Late(delay)) => (Some(well()), delay),
            Some(Effect::Silent) => {
                well();
                (None, Duration::ZERO)
            }
            Some(Effect::Lost) => (None, Duration::ZERO),
            Some(Effect::Status(code, text)) => (Some(Answer::Body(refusal(code, &text))), Duration::ZERO),
            Some(Effect::Grpc(code, text)) => (Some(Answer::Grpc(code, text)), Duration::ZERO),
            Some(Effect::Bytes(bytes)) => (Some(Answer::Body(Bytes::from(bytes))), Duration::ZERO),
            Some(Effect::Frames(bodies, end)) => {
                let first = bodies.into_iter().next().map(|body| Answer::Body(Bytes::from(body)));
                (first.or_else(|| ended(&end)), Duration::ZERO)
            }
            Some(Effect::Cut(after, end)) => {
                let answer = well();
                (if after > 0 { Some(answer) } else { ended(&end) }, Duration::ZERO)
            }
        };
        drop(state);
        match answer {
            None => self.silent.push(reply),
            Some(answer) if delay.is_zero() => drop(reply.send(answer)),
            Some(answer) => self.later(now + delay, Late::Answer(reply, answer)),
        }
    }

    fn poll(
        &mut self,
        now: Instant,
        endpoint: usize,
        client: &str,
        body: &[u8],
        frames: mpsc::UnboundedSender<Frame>,
        cut: Option<(usize, End)>,
    ) {
        match self.state.lock().poll(now, endpoint, client, body, frames.clone(), cut) {
            // Served with the others at the end of the turn.
            Ok(poll) => self.polls.push(poll),
            Err(refusal) => drop(frames.unbounded_send(Frame::Body(refusal))),
        }
    }
}
