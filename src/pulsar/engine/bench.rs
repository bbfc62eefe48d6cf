//! Opens one producer of an engine to `benches/engine.rs`: a broker that answers at once, without a socket.
#![allow(missing_docs)] // not public: see `__bench`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use super::event::{
    Action, Answer, Batching, Command, LaneId, LinkId, Outgoing, ProducerId, ProducerOpened, ProducerSpec, Reply,
};
use super::write_buffer::WriteBuffer;
use super::{CONNECTION_TIMEOUT, Engine, EngineOptions, KEEP_ALIVE, OPERATION_TIMEOUT};
use crate::pending::completion;
use crate::policy::admission::{Admitted, Ticket};
use crate::policy::now::Now;
use crate::pulsar::service_url::HostPort;
use crate::pulsar::wire::command::{self as wire, MessageIdData, SendReceipt};
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::payload::Content;
use crate::pulsar::wire::pb;
use pb::base_command::Type;
use pb::command_lookup_topic_response::LookupType;

const LANE: LaneId = LaneId(1);
const BUDGET: usize = 128 * 1024;

/// An engine with one open producer.
pub struct EngineSteps {
    engine: Engine,
    now: Now,
    link: LinkId,
    buffer: WriteBuffer,
    place: u64,
    settled: usize,
    /// Bounds of sequence ids of what was sent and not acknowledged.
    sent: Vec<u64>,
    messages: Vec<Admitted<Outgoing>>,
}

impl EngineSteps {
    /// `None` if the engine does not open the producer, which is a defect. It is always `now`.
    pub fn open(now: Instant, batch: Option<usize>) -> Option<Self> {
        let options = EngineOptions {
            service: vec![HostPort { host: "b".into(), port: 6650 }],
            tls: false,
            client_version: "bench".into(),
            auth_method: String::new(),
            auth_data: Vec::new(),
            connection_timeout: CONNECTION_TIMEOUT,
            operation_timeout: OPERATION_TIMEOUT,
            keep_alive: KEEP_ALIVE,
            seed: 1,
        };
        let mut steps = Self {
            engine: Engine::new(options),
            now: Now { instant: now, unix_ms: 1_700_000_000_000 },
            link: LinkId(0),
            buffer: WriteBuffer::default(),
            place: 0,
            settled: 0,
            sent: Vec::new(),
            messages: Vec::new(),
        };
        let batching =
            batch.map(|max_messages| Batching { max_messages, max_bytes: BUDGET, max_delay: Duration::from_millis(1) });
        let spec = ProducerSpec {
            name: None,
            access_mode: pb::ProducerAccessMode::Shared,
            properties: Vec::new(),
            initial_sequence_id: None,
            compression: Compression::None,
            batching,
        };
        let (reply, mut answer) = completion::<ProducerOpened>();
        let due = steps.now.instant + OPERATION_TIMEOUT;
        let lanes = vec![(LANE, "persistent://public/default/t".to_owned())];
        let command = Command::OpenProducer { producer: ProducerId(1), spec: Arc::new(spec), lanes, due, reply };
        steps.engine.handle_command(steps.now, command);
        steps.act();
        // Connection, look-up, producer: three requests at most.
        for _ in 0..3 {
            steps.write();
        }
        answer.try_wait()?.ok()?;
        Some(steps)
    }

    /// Admits so many messages, writes what is to be written and acknowledges it. Gives how many were settled.
    pub fn round(&mut self, messages: usize, body: &Bytes) -> usize {
        self.settled = 0;
        for _ in 0..messages {
            self.place += 1;
            let ticket = Ticket {
                lane: 0,
                place: self.place,
                sequence_id: self.place,
                called_at: self.now.instant,
                due: self.now.instant.checked_add(OPERATION_TIMEOUT),
                charge: 0,
            };
            let content = Content { payload: body.clone(), extras: None };
            self.messages.push(Admitted { ticket, item: Outgoing { content, reply: Reply::Answered, urgent: false } });
        }
        self.engine.handle_admitted(self.now, LANE, &mut self.messages);
        self.act();
        loop {
            self.write();
            if self.sent.is_empty() {
                return self.settled;
            }
            for sequence_id in std::mem::take(&mut self.sent) {
                let message_id = Some(MessageIdData::new(1, sequence_id));
                let receipt = SendReceipt { producer_id: LANE.0, sequence_id, highest_sequence_id: None, message_id };
                self.engine.handle_frame(self.now, self.link, wire::Command::SendReceipt(receipt));
                self.act();
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Resolve { link, .. } => {
                    self.link = link;
                    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 6650));
                    self.engine.handle_resolved(self.now, link, Ok(vec![address]));
                }
                Action::Connect { link, .. } => {
                    self.engine.handle_connected(self.now, link);
                    self.answer(&wire::connected("bench", 5 * 1024 * 1024));
                }
                Action::Settle(settle) => self.settled += settle.members.len(),
                Action::Answer(Answer::ProducerOpened(reply, result)) => reply.settle(result),
                _ => {}
            }
        }
    }

    /// Takes what the engine has for its link, up to one buffer's worth, and reads it as a broker does.
    fn write(&mut self) {
        self.engine.poll_transmit(self.now, self.link, BUDGET, &mut self.buffer);
        self.act();
        let mut slices = [std::io::IoSlice::new(&[]); super::write_buffer::SLICES];
        let count = self.buffer.slices(&mut slices);
        let bytes: Vec<u8> = slices.iter().take(count).flat_map(|slice| slice.iter().copied()).collect();
        self.buffer.advance(bytes.len());
        let mut rest = Bytes::from(bytes);
        while rest.len() >= 4 {
            let size = usize::try_from(rest.get_u32()).unwrap_or(0).min(rest.len());
            match wire::decode(rest.split_to(size)) {
                Ok(wire::Command::Send(send)) => self.sent.push(send.sequence_id),
                Ok(wire::Command::Other(command)) => self.serve(&command),
                _ => {}
            }
        }
    }

    fn serve(&mut self, command: &pb::BaseCommand) {
        match command.type_() {
            Type::LOOKUP => {
                let request = command.lookupTopic.request_id();
                let url = Some("pulsar://b:6650");
                self.answer(&wire::lookup_response(request, LookupType::Connect, url, None, true, false));
            }
            Type::PRODUCER => {
                let request = command.producer.request_id();
                self.answer(&wire::producer_success(request, "p", -1, None, true));
            }
            _ => {}
        }
    }

    fn answer(&mut self, command: &pb::BaseCommand) {
        let mut bytes = Vec::new();
        wire::encode(command, &mut bytes);
        let mut bytes = Bytes::from(bytes);
        bytes.advance(4);
        if let Ok(command) = wire::decode(bytes) {
            self.engine.handle_frame(self.now, self.link, command);
            self.act();
        }
    }
}
