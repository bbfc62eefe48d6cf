//! A client made by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::{A_WHILE, PATIENCE};
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::frame::next_frame;
use crate::pulsar::wire::payload::{BatchWriter, Content, Extras, SendHeader, encode_single_send};
use crate::pulsar::wire::pb::{self, ProducerAccessMode, ServerError, command_subscribe::SubType};
use crate::testkit::pulsar::Broker;

pub(super) struct Client {
    pub(super) stream: TcpStream,
    buffer: BytesMut,
    requests: u64,
    /// PINGs are answered and not given to the test.
    pub(super) answers_pings: bool,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Fin,
    Reset,
}

impl Client {
    /// Without a handshake.
    pub(super) fn dial(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: BytesMut::new(), requests: 0, answers_pings: true }
    }

    pub(super) fn connect(broker: &Broker) -> Self {
        let mut client = Self::dial(broker);
        client.send(&connect("tester", "token", b"secret", None));
        client.other(|answer| answer.connected.is_some());
        client
    }

    pub(super) fn request_id(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(super) fn encode(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        encode(&mut out);
        self.raw(&out);
    }

    pub(super) fn send(&mut self, command: &pb::BaseCommand) {
        self.encode(|out| encode(command, out));
    }

    /// The next frame; `None` when the connection has ended.
    fn read(&mut self, limit: Duration) -> Option<Command> {
        let end = Instant::now() + limit;
        loop {
            if let Some(frame) = next_frame(&mut self.buffer, 1 << 24).unwrap() {
                let command = decode(frame).unwrap();
                if command == Command::Ping && self.answers_pings {
                    self.encode(encode_pong);
                    continue;
                }
                return Some(command);
            }
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    assert!(Instant::now() < end, "nothing came");
                }
            }
        }
    }

    pub(super) fn next(&mut self) -> Command {
        self.read(PATIENCE).expect("the connection has ended")
    }

    /// The next command is of this kind.
    pub(super) fn other(&mut self, is_meant: impl Fn(&pb::BaseCommand) -> bool) -> pb::BaseCommand {
        match self.next() {
            Command::Other(other) if is_meant(&other) => *other,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn success(&mut self, request_id: u64) {
        let answer = self.other(|answer| answer.success.is_some());
        assert_eq!(answer.success.request_id(), request_id);
    }

    pub(super) fn error(&mut self, request_id: u64) -> ServerError {
        let answer = self.other(|answer| answer.error.is_some());
        assert_eq!(answer.error.request_id(), request_id);
        answer.error.error()
    }

    pub(super) fn nothing_comes(&mut self) {
        self.stream.set_read_timeout(Some(A_WHILE)).unwrap();
        assert!(self.buffer.is_empty());
        let mut chunk = [0; 100];
        let read = self.stream.read(&mut chunk);
        let error = read.map(|read| chunk[..read].to_vec()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }

    /// Reads on until the connection ends.
    pub(super) fn end(&mut self) -> End {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut chunk = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return End::Fin,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return End::Reset,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The connection works in both directions.
    pub(super) fn assert_alive(&mut self) {
        self.encode(encode_ping);
        assert_eq!(self.next(), Command::Pong);
    }

    pub(super) fn ask_for_producer<'a>(
        &mut self,
        topic: &'a str,
        id: u64,
        change: impl FnOnce(&mut ProducerOpen<'a>),
    ) -> u64 {
        let request_id = self.request_id();
        let mut open = ProducerOpen {
            topic,
            producer_id: id,
            request_id,
            name: None,
            user_provided_name: false,
            epoch: 0,
            access_mode: ProducerAccessMode::Shared,
            topic_epoch: None,
            properties: &[],
        };
        change(&mut open);
        let command = producer(&open);
        self.send(&command);
        request_id
    }

    pub(super) fn produces(&mut self, request_id: u64) -> pb::CommandProducerSuccess {
        let answer = self.other(|answer| answer.producer_success.is_some());
        assert_eq!(answer.producer_success.request_id(), request_id);
        answer.producer_success.unwrap()
    }

    pub(super) fn producer(&mut self, topic: &str, id: u64) -> String {
        let request_id = self.ask_for_producer(topic, id, |_| {});
        self.produces(request_id).producer_name().to_owned()
    }

    pub(super) fn publish(&mut self, id: u64, sequence_id: u64, body: &str) {
        let content = Content { payload: Bytes::copy_from_slice(body.as_bytes()), extras: None };
        self.encode(|out| {
            encode_single_send(&header(id, sequence_id), &content, Compression::None, out).unwrap();
        });
    }

    pub(super) fn publish_at(&mut self, id: u64, sequence_id: u64, deliver_at: i64) {
        let extras = Extras { deliver_at: Some(deliver_at), ..Extras::default() };
        let content = Content { payload: Bytes::from_static(b"later"), extras: Some(Box::new(extras)) };
        self.encode(|out| {
            encode_single_send(&header(id, sequence_id), &content, Compression::None, out).unwrap();
        });
    }

    /// One batch; the first message has `sequence_id`.
    pub(super) fn publish_batch(&mut self, id: u64, sequence_id: u64, bodies: &[&str]) {
        let mut batch = BatchWriter::default();
        for (number, body) in (sequence_id..).zip(bodies) {
            batch.push(number, &Content { payload: Bytes::copy_from_slice(body.as_bytes()), extras: None });
        }
        let highest = sequence_id + bodies.len() as u64 - 1;
        self.encode(|out| {
            batch.finish_into(&header(id, sequence_id), highest, Compression::Lz4, out).unwrap();
        });
    }

    pub(super) fn receipt(&mut self) -> SendReceipt {
        match self.next() {
            Command::SendReceipt(receipt) => receipt,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn receipts(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.receipt().sequence_id).collect()
    }

    pub(super) fn ask_to_subscribe<'a>(
        &mut self,
        topic: &'a str,
        id: u64,
        sub_type: SubType,
        change: impl FnOnce(&mut SubscribeOpen<'a>),
    ) -> u64 {
        let request_id = self.request_id();
        let mut open = SubscribeOpen::new(topic, "sub", sub_type, id, request_id);
        change(&mut open);
        let command = subscribe(&open);
        self.send(&command);
        request_id
    }

    /// From the earliest message.
    pub(super) fn subscribe(&mut self, topic: &str, id: u64, sub_type: SubType) {
        let earliest = pb::command_subscribe::InitialPosition::Earliest;
        let request_id = self.ask_to_subscribe(topic, id, sub_type, |open| open.initial_position = earliest);
        self.success(request_id);
    }

    pub(super) fn flow(&mut self, id: u64, permits: u32) {
        self.encode(|out| encode_flow(id, permits, out));
    }

    pub(super) fn message(&mut self) -> Message {
        match self.next() {
            Command::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn entries(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.message().message_id.entry).collect()
    }

    pub(super) fn ack(&mut self, id: u64, cumulative: bool, ids: &[MessageIdData]) {
        let request_id = Some(self.request_id());
        let ack = Ack { consumer_id: id, cumulative, message_ids: ids.to_vec(), validation_error: None, request_id };
        self.encode(|out| encode_ack(&ack, out));
        let answer = self.other(|answer| answer.ackResponse.is_some());
        assert_eq!(answer.ackResponse.request_id, request_id);
        assert_eq!(answer.ackResponse.error, None);
    }
}

pub(super) fn header(producer_id: u64, sequence_id: u64) -> SendHeader<'static> {
    SendHeader { producer_id, producer_name: "p", sequence_id, publish_time_ms: 1000 + sequence_id }
}
