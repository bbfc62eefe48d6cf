//! What the loop does with the engine's actions, and its reads and writes.

use bytes::BytesMut;

use super::network::Item;
use super::schedule::Micros;
use super::shell::Control;
use super::world::{Event, World};
use crate::error::{Error, ErrorKind};
use crate::pulsar::engine::event::{Action, Answer, LaneId, LinkId};
use crate::pulsar::engine::write_buffer::WriteBuffer;
use crate::pulsar::wire::command::{Command, decode};
use crate::pulsar::wire::frame::next_frame;

impl World {
    /// Carries out what the engine wants.
    pub(super) fn drain(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            self.act(action);
        }
        while let Some(link) = self.engine.poll_dirty() {
            if let Some(conn) = self.by_link.get(&link) {
                self.conns[*conn].more = true;
                self.want_write(*conn);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Resolve { link, host } => self.resolve(link, &host),
            Action::Connect { link, address } => self.dial(link, address),
            Action::CloseLink { link, reset } => self.close_link(link, reset),
            Action::Watch { key, at } => self.watch(key, Some(at)),
            Action::Unwatch { key } => self.watch(key, None),
            Action::Settle(settle) => self.settled(settle),
            Action::Answer(answer) => self.answered(answer),
            Action::LaneFailed { lane, error } => self.lane_failed(lane, error),
            Action::LaneLimit { lane, max_message_size } => {
                self.note("limit", lane.0, u64::from(max_message_size));
                self.net.smallest_limit = self.net.smallest_limit.min(max_message_size);
            }
            Action::LaneClosed { lane } => self.lane_closed(lane),
            Action::Deliver(delivery) => self.deliver(delivery),
            Action::ResetPart { part, session, refund } => self.reset_part(part, session, refund),
            Action::PartEnded { part, error } => self.part_ended(part, &error),
            Action::Recovered => self.recovered += 1,
            Action::Finished => {
                self.note("finished", 0, 0);
                if std::mem::replace(&mut self.finished, true) {
                    self.fail("finished twice");
                }
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        self.note("answer", 0, 0);
        match answer {
            Answer::Partitions(reply, result) => reply.settle(result),
            Answer::ProducerOpened(reply, result) => reply.settle(result),
            Answer::Done(reply, result) => reply.settle(result),
        }
        self.look_at_answers();
    }

    fn lane_failed(&mut self, id: LaneId, error: Error) {
        let Some((producer, lane)) = self.lane_at(id) else { return };
        self.note("lane failed", id.0, error.code().unwrap_or(-1) as u64);
        let legitimate = error.code().is_some_and(super::shell::ends_a_lane)
            || error.kind() == ErrorKind::Closed
            || self.net.internal;
        if !legitimate {
            self.fail(format!("lane {id:?} failed for no good reason: {error:?}"));
        }
        let shell = &mut self.producers[producer].lanes[lane];
        shell.terminal = shell.terminal.or(error.code());
        shell.failed = Some(error);
    }

    fn lane_closed(&mut self, id: LaneId) {
        let Some((producer, lane)) = self.lane_at(id) else { return };
        self.note("lane closed", id.0, 0);
        let served = self.producers[producer].admission.close();
        self.carry_out(producer, served);
        // What was admitted last is turned away; nothing comes after it.
        self.take_lane(producer, lane);
        let shell = &mut self.producers[producer].lanes[lane];
        if std::mem::replace(&mut shell.closed, true) {
            self.fail(format!("lane {id:?} closed twice"));
        } else if !shell.awaiting.is_empty() && !self.producers[producer].close_called {
            self.fail(format!("lane {id:?} closed with messages that have no result"));
        }
    }

    // Reads.

    pub(super) fn loop_reads(&mut self) {
        while let Some(event) = self.sockets.pop_front() {
            self.handle_control(event);
        }
        let mut readable = std::mem::take(&mut self.the_loop.readable);
        while !readable.is_empty() {
            let conn = readable.swap_remove(self.rng.below(readable.len() as u64) as usize);
            self.read(conn);
        }
    }

    fn read(&mut self, conn: usize) {
        let link = self.conns[conn].link;
        // What was read together is handled together, also if the link ends in the middle.
        while let Some(item) = self.conns[conn].arrived.pop_front() {
            let now = self.clock();
            match item {
                Item::Frame(frame, _) => {
                    self.trace.note(self.now, "frame", link.0, super::coverage::frame_kind(&frame));
                    self.conns[conn].greeted = true;
                    self.hear_of_damage(link, &frame);
                    self.engine.handle_frame(now, link, *frame);
                }
                Item::End | Item::Reset => {
                    self.note("lost", link.0, 0);
                    let error = Error::new(ErrorKind::Transport, "connection lost");
                    self.engine.handle_link_lost(now, link, error);
                }
            }
            self.drain();
        }
    }

    // Writes.

    pub(super) fn want_write(&mut self, conn: usize) {
        if !self.the_loop.writable.contains(&conn) {
            self.the_loop.writable.push(conn);
        }
    }

    pub(super) fn loop_writes(&mut self) {
        let conns = std::mem::take(&mut self.the_loop.writable);
        for conn in conns {
            self.write(conn);
        }
    }

    fn write(&mut self, conn: usize) {
        let mut buffer = WriteBuffer::default();
        for _ in 0..64 {
            let state = &self.conns[conn];
            if !state.client_open {
                return;
            }
            let (link, out_bytes) = (state.link, state.out_bytes);
            let budget = self.plan.budget;
            if state.more && out_bytes < budget {
                let now = self.clock();
                let more = self.engine.poll_transmit(now, link, budget - out_bytes, &mut buffer);
                if let Some(state) = self.conns.get_mut(conn) {
                    state.more = more;
                }
                let bytes = buffer.take_all();
                // Results first: what is too large got one and makes room for what follows it.
                self.drain();
                self.handed_over(conn, &bytes);
            }
            self.fill_socket(conn);
            let state = &self.conns[conn];
            if !state.client_open || !state.out.is_empty() {
                // The socket is full: the next read of the peer wakes us.
                return;
            }
            if !state.more {
                return;
            }
        }
        self.want_write(conn);
    }

    fn fill_socket(&mut self, conn: usize) {
        let now = self.now;
        let state = &mut self.conns[conn];
        let mut first: Option<Micros> = None;
        while state.to_broker.bytes < state.capacity {
            let Some((frame, size)) = state.out.pop_front() else { break };
            state.out_bytes -= size;
            let at = state.to_broker.push(now, 0, Item::Frame(frame, size));
            first = first.or(at);
        }
        if let Some(at) = first {
            self.at(at, Event::ToBroker(conn));
        }
    }

    /// Bytes that the engine handed over: from here on their messages may be stored.
    fn handed_over(&mut self, conn: usize, bytes: &[u8]) {
        let mut bytes = BytesMut::from(bytes);
        loop {
            match next_frame(&mut bytes, usize::MAX) {
                Ok(Some(frame)) => {
                    let size = frame.len() + 4;
                    match decode(frame.clone()) {
                        Ok(command) => {
                            if let Command::Send(send) = &command {
                                self.send_handed(self.conns[conn].link, send, &frame);
                            }
                            self.conns[conn].out.push_back((Box::new(command), size));
                            self.conns[conn].out_bytes += size;
                        }
                        Err(error) => self.fail(format!("a frame that cannot be read: {error}")),
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.fail(format!("bytes that are no frame: {error}"));
                    break;
                }
            }
        }
        if !bytes.is_empty() {
            self.fail("half a frame was handed over");
        }
    }

    pub(super) fn socket_event(&mut self, event: Control) {
        self.sockets.push_back(event);
        self.wake_loop();
    }

    pub(super) fn conn_of(&self, link: LinkId) -> Option<usize> {
        self.by_link.get(&link).copied()
    }
}
