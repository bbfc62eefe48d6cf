//! THREAD `tmq-io-0`: drives the engine with sockets, inboxes and the clock. It blocks in `mio::Poll` and nowhere
//! else.
//!
//! A turn: control, deadlines, reads, user, writes. What is left over makes the next poll return at once.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};

use super::engine::event::{Action, Answer, Command, DeadlineKey, LaneId, LinkId, Outgoing, PartId, Settle, Watcher};
use super::engine::{Engine, EngineOptions};
use super::lane::Lane;
use super::link::{Link, READ_CHUNK, ReadTurn};
use super::receive_queue::ReceiveQueue;
use super::stats::StatsCell;
use super::wire::command::decode;
use crate::error::{Error, ErrorKind};
use crate::policy::admission::Admitted;
use crate::policy::now::Now;
use crate::runtime::clock;
use crate::runtime::deadlines::{DeadlineSink, Watch};
use crate::runtime::inbox::Inboxes;
use crate::threads::Threads;

/// The waker's token; links use their own numbers, which start at 1.
const WAKER: Token = Token(0);
/// Encoded bytes that a link's buffer holds at most, and one frame more: what is not encoded can be taken back.
const WRITE_BUDGET: usize = 128 * 1024;
/// Lanes looked at in one turn, so that senders do not starve links.
const USER_TURN: usize = 1024;
const USER_TURN_TIME: Duration = Duration::from_millis(1);

/// What is posted to the loop and drained first and whole.
///
/// Not bounded by a count of its own: a command belongs to a handle's call or answers a delivery, deadlines and
/// look-ups are bounded by what is watched.
pub(super) enum Control {
    Command(Command),
    /// A command of a new producer, with what the loop is to know of its lanes.
    OpenProducer(Vec<Arc<Lane>>, Command),
    OpenConsumer(Vec<PartId>, Arc<ReceiveQueue>, Command),
    Deadline(u64),
    Resolved(LinkId, Result<Vec<std::net::SocketAddr>, Error>),
}

impl Control {
    /// Answers what nobody will carry out any more, because the loop is at its end.
    fn refuse(self) {
        match self {
            Self::Command(command) | Self::OpenProducer(_, command) | Self::OpenConsumer(_, _, command) => {
                command.refuse();
            }
            Self::Deadline(_) | Self::Resolved(..) => {}
        }
    }
}

/// "Look at this lane": posted once for as long as its messages are not taken.
pub(super) struct Look(pub LaneId);

/// How other threads reach the loop.
#[derive(Clone)]
pub(super) struct Post {
    inboxes: Arc<Inboxes<Control, Look>>,
}

impl Post {
    /// Posts a command. After the loop's end it is answered with `Closed`.
    pub(super) fn command(&self, command: Command) {
        self.control(Control::Command(command));
    }

    pub(super) fn control(&self, control: Control) {
        if let Err(control) = self.inboxes.post_control(control) {
            control.refuse();
        }
    }

    pub(super) fn look(&self, lane: LaneId) {
        if self.inboxes.post_user(Look(lane)).is_err() {
            log::trace!("a message came after the end of the event loop");
        }
    }
}

impl DeadlineSink for Post {
    fn due(&self, key: u64) {
        self.control(Control::Deadline(key));
    }
}

pub(super) struct EventLoop {
    poll: Poll,
    inboxes: Arc<Inboxes<Control, Look>>,
    engine: Engine,
    links: BTreeMap<LinkId, Link>,
    lanes: BTreeMap<LaneId, Arc<Lane>>,
    parts: BTreeMap<PartId, Arc<ReceiveQueue>>,
    supervisor: Watch,
    sweeper: Watch,
    threads: Threads,
    post: Post,
    stats: Arc<StatsCell>,
    /// Looks that were drained and not worked off.
    looks: std::collections::VecDeque<Look>,
    /// What sockets are read into; made once, because clearing it for each read costs more than a small read.
    chunk: Vec<u8>,
    /// Empty between uses: its room goes to the lanes that fill it.
    admitted: Vec<Admitted<Outgoing>>,
    /// Results that are to be told, all of one lane.
    settled: Vec<Settle>,
    /// Lanes that go when the present actions are carried out.
    closed: Vec<LaneId>,
    longest_turn: Duration,
    finished: bool,
}

impl EventLoop {
    pub(super) fn new(options: EngineOptions, threads: Threads, stats: Arc<StatsCell>) -> io::Result<(Self, Post)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let inboxes = Inboxes::new(move || {
            if let Err(error) = waker.wake() {
                log::error!("the event loop cannot be woken: {error}");
            }
        });
        let post = Post { inboxes: Arc::clone(&inboxes) };
        let sink: Arc<Post> = Arc::new(post.clone());
        let event_loop = Self {
            poll,
            inboxes,
            engine: Engine::new(options),
            links: BTreeMap::new(),
            lanes: BTreeMap::new(),
            parts: BTreeMap::new(),
            supervisor: threads.supervisor().sink(Arc::clone(&sink) as Arc<dyn DeadlineSink>),
            sweeper: threads.sweeper().sink(sink),
            threads,
            post: post.clone(),
            stats,
            looks: std::collections::VecDeque::new(),
            chunk: vec![0; READ_CHUNK],
            admitted: Vec::new(),
            settled: Vec::new(),
            closed: Vec::new(),
            longest_turn: Duration::ZERO,
            finished: false,
        };
        Ok((event_loop, post))
    }

    /// Runs until the client is closed. A panic in it is a defect of ours: everything owed is answered even then.
    pub(super) fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.turns()));
        let defect = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("the event loop cannot poll: {error}")),
            Err(panic) => Some(crate::runtime::thread::panic_text(&*panic)),
        };
        if let Some(text) = defect {
            log::error!("the event loop ended by a defect: {text}");
            self.inboxes.close();
            for lane in self.lanes.values() {
                lane.permits.close();
            }
            let rescued = catch_unwind(AssertUnwindSafe(|| {
                self.take_all();
                self.engine.abandon(Instant::now());
                self.act();
                self.tell();
            }));
            if rescued.is_err() {
                log::error!("the event loop could not answer what it owed");
                self.end_receivers();
            }
        }
        self.inboxes.close();
        // Posted after the last turn's drain and before the close: their callers wait for an answer.
        let mut left = Vec::new();
        self.inboxes.drain_control(&mut left);
        left.into_iter().for_each(Control::refuse);
    }

    /// What the engine can no longer say: nothing more comes to any consumer.
    fn end_receivers(&mut self) {
        for (part, queue) in std::mem::take(&mut self.parts) {
            queue.end(part, Error::new(ErrorKind::Internal, "the event loop of the client ended by a defect"));
        }
    }

    fn turns(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut control = Vec::new();
        let mut looks = Vec::new();
        let mut busy = false;
        while !self.finished {
            let timeout = if busy || !self.inboxes.park() {
                Some(Duration::ZERO)
            } else {
                self.engine.poll_timeout().map(|at| at.saturating_duration_since(Instant::now()))
            };
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.inboxes.unpark();
            let now = clock::now();
            self.note_events(now, &events);

            self.inboxes.drain_control(&mut control);
            for item in control.drain(..) {
                self.control(now, item);
            }
            if self.engine.poll_timeout().is_some_and(|at| at <= now.instant) {
                self.engine.handle_timeout(now);
                self.act();
            }
            self.tell();
            busy = self.read(now);
            self.tell();
            self.inboxes.drain_user(&mut looks);
            self.looks.extend(looks.drain(..));
            busy |= self.user();
            busy |= self.write();
            self.tell();

            let turn = now.instant.elapsed();
            self.longest_turn = self.longest_turn.max(turn);
            self.stats.publish(self.engine.stats(), self.longest_turn);
        }
        Ok(())
    }

    fn note_events(&mut self, now: Now, events: &Events) {
        for event in events {
            if event.token() == WAKER {
                continue;
            }
            let id = LinkId(event.token().0 as u64);
            let Some(link) = self.links.get_mut(&id) else { continue };
            link.ended |= event.is_read_closed() || event.is_error();
            if !link.is_connected() {
                match link.finish_connect() {
                    Ok(false) => {}
                    Ok(true) => {
                        self.engine.handle_connected(now, id);
                        self.act();
                    }
                    Err(error) => {
                        self.drop_link(id, false);
                        self.engine.handle_connect_failed(now, id, error);
                        self.act();
                    }
                }
                continue;
            }
            link.readable |= event.is_readable() || link.ended;
            link.writable |= event.is_writable();
        }
    }

    fn control(&mut self, now: Now, item: Control) {
        match item {
            Control::Command(command) => {
                // Flush and close speak of what was admitted before them.
                match &command {
                    Command::Flush { producer } | Command::CloseProducer { producer, .. } => {
                        for lane in self.engine.lanes_of(*producer) {
                            self.take(lane);
                        }
                    }
                    Command::Shutdown { .. } => self.take_all(),
                    _ => {}
                }
                self.engine.handle_command(now, command);
            }
            Control::OpenProducer(lanes, command) => {
                self.lanes.extend(lanes.into_iter().map(|lane| (lane.id, lane)));
                self.engine.handle_command(now, command);
            }
            Control::OpenConsumer(parts, queue, command) => {
                self.parts.extend(parts.into_iter().map(|part| (part, Arc::clone(&queue))));
                self.engine.handle_command(now, command);
            }
            Control::Deadline(key) => {
                if let Some(key) = DeadlineKey::unpack(key) {
                    self.engine.handle_deadline(now, key);
                }
            }
            Control::Resolved(link, answer) => self.engine.handle_resolved(now, link, answer),
        }
        self.act();
    }

    /// Reads every link that has something, each up to its turn. Whether any has more.
    fn read(&mut self, now: Now) -> bool {
        let mut busy = false;
        let readable: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| link.readable && link.is_connected()).map(|(id, _)| *id).collect();
        for id in readable {
            let Some(link) = self.links.get_mut(&id) else { continue };
            let turn = link.read(&mut self.chunk);
            busy |= matches!(turn, ReadTurn::More);
            let mut lost = match turn {
                ReadTurn::Lost(error) => Some(error),
                _ => None,
            };
            loop {
                let limit = self.engine.frame_limit(id);
                let Some(link) = self.links.get_mut(&id) else { break };
                match link.next_frame(limit).and_then(|frame| frame.map(decode).transpose().map_err(Error::from)) {
                    Ok(Some(command)) => {
                        self.engine.handle_frame(now, id, command);
                        self.act();
                    }
                    Ok(None) => break,
                    Err(error) => {
                        lost = Some(error);
                        break;
                    }
                }
            }
            if let Some(error) = lost {
                self.engine.handle_link_lost(now, id, error);
                self.act();
            }
        }
        busy
    }

    /// Takes what senders admitted, in a capped turn. Whether more is left.
    fn user(&mut self) -> bool {
        let started = Instant::now();
        for _ in 0..USER_TURN {
            let Some(Look(lane)) = self.looks.pop_front() else { return false };
            self.take(lane);
            if started.elapsed() > USER_TURN_TIME {
                break;
            }
        }
        !self.looks.is_empty()
    }

    fn take(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id) else { return };
        lane.take(&mut self.admitted);
        if !self.admitted.is_empty() {
            // Not the turn's start: a message may have been admitted after it.
            self.engine.handle_admitted(clock::now(), id, &mut self.admitted);
            self.act();
        }
    }

    fn take_all(&mut self) {
        for lane in self.lanes.keys().copied().collect::<Vec<_>>() {
            self.take(lane);
        }
    }

    /// Lets the engine fill the buffers of links that take bytes. Whether more is left that could be written now.
    fn write(&mut self) -> bool {
        let now = clock::now();
        let mut more = Vec::new();
        while let Some(id) = self.engine.poll_dirty() {
            more.push(id);
        }
        for (id, link) in &self.links {
            if link.writable && !link.write.is_empty() && !more.contains(id) {
                more.push(*id);
            }
        }
        let mut busy = false;
        for id in more {
            let Some(link) = self.links.get_mut(&id) else { continue };
            let mut left = true;
            // A bounded number of rounds: a fast socket must not keep the loop from its other duties.
            for _ in 0..4 {
                left = self.engine.poll_transmit(now, id, WRITE_BUDGET, &mut link.write);
                if let Err(error) = link.flush() {
                    self.engine.handle_link_lost(now, id, error);
                    left = false;
                    break;
                }
                if !left || !link.writable {
                    break;
                }
            }
            let blocked = self.links.get(&id).is_some_and(|link| !link.writable);
            if left {
                self.engine.want_transmit(id);
                busy |= !blocked;
            }
            self.act();
        }
        busy
    }

    /// Carries out what the engine asked for.
    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Resolve { link, host } => self.resolve(link, host.host, host.port),
                Action::Connect { link, address } => self.connect(link, address),
                Action::CloseLink { link, reset } => self.drop_link(link, reset),
                Action::Watch { key, at } => match key.watcher() {
                    Watcher::Supervisor => self.supervisor.arm(key.pack(), at),
                    Watcher::Sweeper => self.sweeper.arm(key.pack(), at),
                },
                Action::Unwatch { key } => match key.watcher() {
                    Watcher::Supervisor => self.supervisor.cancel(key.pack()),
                    Watcher::Sweeper => self.sweeper.cancel(key.pack()),
                },
                Action::Settle(settle) => self.settle(settle),
                Action::Answer(answer) => self.answer(answer),
                Action::LaneFailed { lane, error } => {
                    if let Some(lane) = self.lanes.get(&lane) {
                        lane.failed.get_or_init(|| error);
                    }
                }
                Action::LaneLimit { lane, max_message_size } => {
                    if let Some(lane) = self.lanes.get(&lane) {
                        lane.max_message_size.store(max_message_size, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                Action::LaneClosed { lane } => self.lane_closed(lane),
                Action::Deliver(delivery) => {
                    if let Some(queue) = self.parts.get(&delivery.part) {
                        queue.deliver(delivery);
                    }
                }
                Action::ResetPart { part, session, refund } => {
                    if let Some(queue) = self.parts.get(&part) {
                        queue.reset(part, session, refund);
                    }
                }
                Action::PartEnded { part, error } => {
                    if let Some(queue) = self.parts.remove(&part) {
                        queue.end(part, error);
                    }
                }
                Action::Recovered => {}
                Action::Finished => self.finished = true,
            }
        }
        if !self.closed.is_empty() {
            self.tell();
            for lane in self.closed.drain(..) {
                self.lanes.remove(&lane);
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Partitions(reply, result) => reply.settle(result),
            Answer::ProducerOpened(reply, result) => reply.settle(result),
            Answer::Done(reply, result) => {
                // The end of a close comes after the results that it waited for.
                self.tell();
                reply.settle(result);
            }
        }
    }

    /// Keeps a result for [`tell`](Self::tell), behind those of its lane.
    fn settle(&mut self, settle: Settle) {
        if self.settled.first().is_some_and(|first| first.lane != settle.lane) {
            self.tell();
        }
        self.settled.push(settle);
    }

    /// Answers what was settled, all of a lane at once: a receipt a message would otherwise cost several locks and a
    /// wake each. Called after each part of a turn.
    fn tell(&mut self) {
        let Some(first) = self.settled.first() else { return };
        let lane = self.lanes.get(&first.lane);
        let settled = std::mem::take(&mut self.settled);
        if let Some(lane) = lane {
            lane.settle(settled);
        }
    }

    /// A lane's producer is closed, so nothing is admitted any more; what was admitted last is turned away. The lane
    /// itself goes when that is settled.
    fn lane_closed(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id) else { return };
        lane.permits.close();
        lane.take(&mut self.admitted);
        if !self.admitted.is_empty() {
            self.engine.handle_admitted(clock::now(), id, &mut self.admitted);
        }
        self.closed.push(id);
    }

    fn resolve(&self, link: LinkId, host: String, port: u16) {
        let post = self.post.clone();
        let name = host.clone();
        self.threads.resolver().resolve(
            host,
            port,
            Box::new(move |answer| {
                let answer = answer.map_err(|error| {
                    Error::new(ErrorKind::Transport, format!("look-up of host {name}")).with_source(error)
                });
                post.control(Control::Resolved(link, answer));
            }),
        );
    }

    fn connect(&mut self, id: LinkId, address: std::net::SocketAddr) {
        self.drop_link(id, false);
        let token = Token(usize::try_from(id.0).unwrap_or(usize::MAX));
        match Link::connect(self.poll.registry(), token, address) {
            Ok(link) => {
                self.links.insert(id, link);
            }
            Err(error) => {
                let error = Error::new(ErrorKind::Transport, format!("connect to {address}")).with_source(error);
                self.engine.handle_connect_failed(clock::now(), id, error);
            }
        }
    }

    fn drop_link(&mut self, id: LinkId, reset: bool) {
        if let Some(link) = self.links.remove(&id) {
            link.close(self.poll.registry(), reset);
        }
    }
}

#[cfg(test)]
mod tests;
