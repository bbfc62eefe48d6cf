//! Single interleavings, played frame by frame: what the world would need luck to hit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::error::ErrorKind;
use crate::pending::{Pending, completion};
use crate::policy::admission::{Admitted, Ticket};
use crate::policy::now::Now;
use crate::pulsar::engine::event::{
    AckCommand, Action, Answer, Command, ConsumerId, ConsumerSpec, DeadlineKey, LaneId, LinkId, Outgoing, PartId,
    ProducerId, ProducerOpened, ProducerSpec, Reply,
};
use crate::pulsar::engine::write_buffer::WriteBuffer;
use crate::pulsar::engine::{Engine, EngineOptions};
use crate::pulsar::service_url::HostPort;
use crate::pulsar::wire::command as wire;
use crate::pulsar::wire::command::{MessageIdData, SendReceipt};
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::frame::next_frame;
use crate::pulsar::wire::payload::Content;
use crate::pulsar::wire::pb;
use pb::base_command::Type;
use pb::command_lookup_topic_response::LookupType;

mod dialing;
mod targets;
mod unsubscribing;

const PART: PartId = PartId(7);
const CONSUMER: ConsumerId = ConsumerId(1);
const LANE: LaneId = LaneId(9);
const PRODUCER: ProducerId = ProducerId(2);
const MINUTE: Duration = Duration::from_secs(60);

struct Hand {
    engine: Engine,
    now: Instant,
    link: LinkId,
    watches: Vec<(DeadlineKey, Instant)>,
    finished: bool,
}

impl Hand {
    fn new() -> Self {
        let options = EngineOptions {
            service: vec![HostPort { host: "b".into(), port: 6650 }],
            tls: false,
            client_version: "hand".into(),
            auth_method: String::new(),
            auth_data: Vec::new(),
            connection_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(30),
            seed: 1,
        };
        let now = Instant::now();
        Self { engine: Engine::new(options), now, link: LinkId(0), watches: Vec::new(), finished: false }
    }

    fn moment(&self) -> Now {
        Now { instant: self.now, unix_ms: 0 }
    }

    /// Does what every test wants done, and forgets the rest.
    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Resolve { link, .. } => {
                    self.link = link;
                    let address = "127.0.0.1:6650".parse().unwrap();
                    self.engine.handle_resolved(self.moment(), link, Ok(vec![address]));
                }
                Action::Connect { link, .. } => {
                    self.engine.handle_connected(self.moment(), link);
                    let size = 5 * 1024 * 1024;
                    self.engine.handle_frame(self.moment(), link, frame(&wire::connected("hand", size)));
                }
                Action::Watch { key, at } => self.watches.push((key, at)),
                Action::Answer(Answer::Partitions(reply, result)) => reply.settle(result),
                Action::Answer(Answer::ProducerOpened(reply, result)) => reply.settle(result),
                Action::Answer(Answer::Done(reply, result)) => reply.settle(result),
                Action::Finished => self.finished = true,
                _ => {}
            }
        }
    }

    fn command(&mut self, command: Command) {
        self.engine.handle_command(self.moment(), command);
        self.act();
    }

    fn frame(&mut self, frame: wire::Command) {
        self.engine.handle_frame(self.moment(), self.link, frame);
        self.act();
    }

    fn answer(&mut self, command: &pb::BaseCommand) {
        self.frame(frame(command));
    }

    fn at(&mut self, now: Instant, key: DeadlineKey) {
        self.now = now;
        self.engine.handle_deadline(self.moment(), key);
        self.act();
    }

    /// What the engine hands to its link now.
    fn sent(&mut self) -> Vec<wire::Command> {
        let mut buffer = WriteBuffer::default();
        while self.engine.poll_transmit(self.moment(), self.link, 1 << 20, &mut buffer) {}
        self.act();
        let mut bytes = BytesMut::from(&buffer.take_all()[..]);
        let mut frames = Vec::new();
        while let Some(frame) = next_frame(&mut bytes, 64 << 20).unwrap() {
            frames.push(wire::decode(frame).unwrap());
        }
        assert!(bytes.is_empty());
        frames
    }

    fn sent_command(&mut self, kind: Type) -> Box<pb::BaseCommand> {
        let commands = self.sent().into_iter().filter_map(|frame| match frame {
            wire::Command::Other(command) if command.type_() == kind => Some(command),
            _ => None,
        });
        commands.last().unwrap_or_else(|| panic!("{kind:?} was due"))
    }

    fn look_up(&mut self) {
        let request = self.sent_command(Type::LOOKUP).lookupTopic.request_id();
        let url = Some("pulsar://b:6650");
        self.answer(&wire::lookup_response(request, LookupType::Connect, url, None, true, false));
    }

    fn subscribe(&mut self) {
        self.look_up();
        let request = self.sent_command(Type::SUBSCRIBE).subscribe.request_id();
        self.answer(&wire::success(request));
    }

    fn consumer() -> Self {
        let mut hand = Self::new();
        let spec = ConsumerSpec {
            subscription: "s".into(),
            sub_type: pb::command_subscribe::SubType::Exclusive,
            name: "c".into(),
            initial_position: pb::command_subscribe::InitialPosition::Earliest,
            properties: Vec::new(),
            queue_size: 1000,
            ack_group_delay: Duration::from_millis(100),
            ack_group_max: 1000,
            nack_delay: Duration::from_secs(1),
        };
        let (reply, mut answer) = completion();
        let due = hand.now + MINUTE;
        let parts = vec![(PART, "persistent://public/default/t".to_owned())];
        hand.command(Command::OpenConsumer { consumer: CONSUMER, spec: Arc::new(spec), parts, due, reply });
        hand.subscribe();
        answer.try_wait().expect("subscribed").unwrap();
        assert_eq!(permits(&hand.sent()), [1000]);
        hand
    }

    fn producer() -> Self {
        let mut hand = Self::new();
        let spec = ProducerSpec {
            name: None,
            access_mode: pb::ProducerAccessMode::Shared,
            properties: Vec::new(),
            initial_sequence_id: None,
            compression: Compression::None,
            batching: None,
        };
        let (reply, mut answer): (_, Pending<ProducerOpened>) = completion();
        let due = hand.now + MINUTE;
        let lanes = vec![(LANE, "persistent://public/default/t".to_owned())];
        hand.command(Command::OpenProducer { producer: PRODUCER, spec: Arc::new(spec), lanes, due, reply });
        hand.look_up();
        let request = hand.sent_command(Type::PRODUCER).producer.request_id();
        hand.answer(&wire::producer_success(request, "p", -1, None, true));
        answer.try_wait().expect("created").unwrap();
        hand
    }

    fn admit(&mut self, places: std::ops::RangeInclusive<u64>) {
        let mut messages: Vec<_> = places
            .map(|place| Admitted {
                ticket: Ticket {
                    lane: 0,
                    place,
                    sequence_id: place - 1,
                    called_at: self.now,
                    due: Some(self.now + MINUTE),
                    charge: 1,
                },
                item: Outgoing {
                    content: Content { payload: Bytes::from_static(b"x"), extras: None },
                    reply: Reply::Answered,
                    urgent: false,
                },
            })
            .collect();
        self.engine.handle_admitted(Now { instant: self.now, unix_ms: 0 }, LANE, &mut messages);
    }

    fn receipt(&mut self, sequence_id: u64) {
        let message_id = Some(MessageIdData::new(1, sequence_id));
        let receipt = SendReceipt { producer_id: LANE.0, sequence_id, highest_sequence_id: None, message_id };
        self.frame(wire::Command::SendReceipt(receipt));
    }
}

fn frame(command: &pb::BaseCommand) -> wire::Command {
    let mut bytes = Vec::new();
    wire::encode(command, &mut bytes);
    wire::decode(next_frame(&mut BytesMut::from(&bytes[..]), 1 << 20).unwrap().unwrap()).unwrap()
}

fn permits(frames: &[wire::Command]) -> Vec<u32> {
    let flow = |frame: &wire::Command| match frame {
        wire::Command::Flow { permits, .. } => Some(*permits),
        _ => None,
    };
    frames.iter().filter_map(flow).collect()
}

/// A receiver tells its permits while the loop voids the queue for a redelivery: the subscription goes on, and the
/// broker still counts them as used.
#[test]
fn permits_of_a_session_voided_by_a_redelivery_go_back() {
    let mut hand = Hand::consumer();
    let session = 1;
    hand.command(Command::NegativeAck { part: PART, message_id: MessageIdData::new(1, 1) });
    hand.now += Duration::from_secs(2);
    hand.engine.handle_timeout(hand.moment());
    hand.act();
    hand.command(Command::Permits { part: PART, session, permits: 500 });
    assert_eq!(permits(&hand.sent()), [500]);
}

/// The broker had sent it when redelivery was asked for: delivered now, it would come before those that were dropped
/// from the queue and come again.
#[test]
fn messages_on_the_way_at_a_redelivery_are_void_and_their_permits_go_back() {
    let mut hand = Hand::consumer();
    hand.command(Command::NegativeAck { part: PART, message_id: MessageIdData::new(1, 1) });
    hand.now += Duration::from_secs(2);
    hand.engine.handle_timeout(hand.moment());
    hand.act();
    let asked = hand.sent_command(Type::REDELIVER_UNACKNOWLEDGED_MESSAGES);
    assert_eq!(asked.redeliverUnacknowledgedMessages.consumer_epoch, Some(1));
    let message = |consumer_epoch| {
        wire::Command::Message(wire::Message {
            consumer_id: PART.0,
            message_id: MessageIdData::new(1, 5),
            redelivery_count: 0,
            ack_set: Vec::new(),
            consumer_epoch,
            entry: Bytes::from_static(b"not looked at"),
        })
    };
    for (epoch, delivered) in [(Some(0), false), (Some(1), true), (None, true)] {
        hand.engine.handle_frame(hand.moment(), hand.link, message(epoch));
        let got = std::iter::from_fn(|| hand.engine.poll_action()).any(|action| matches!(action, Action::Deliver(_)));
        assert_eq!(got, delivered, "{epoch:?}");
        assert_eq!(permits(&hand.sent()), if delivered { vec![] } else { vec![1] }, "{epoch:?}");
    }
}

#[test]
fn permits_of_a_subscription_that_is_over_are_void() {
    let mut hand = Hand::consumer();
    let lost = crate::Error::new(ErrorKind::Transport, "cut");
    hand.engine.handle_link_lost(hand.moment(), hand.link, lost);
    hand.act();
    let dial = hand.watches.iter().rev().find(|(key, _)| matches!(key, DeadlineKey::Target(_))).copied().unwrap();
    hand.at(dial.1, dial.0);
    hand.subscribe();
    hand.command(Command::Permits { part: PART, session: 1, permits: 500 });
    assert_eq!(permits(&hand.sent()), [1000]);
}

/// Acknowledged during an outage: one frame for all could be larger than a broker accepts.
#[test]
fn acknowledgements_gathered_while_detached_go_in_bounded_frames() {
    let mut hand = Hand::consumer();
    let lost = crate::Error::new(ErrorKind::Transport, "cut");
    hand.engine.handle_link_lost(hand.moment(), hand.link, lost);
    hand.act();
    for entry in 0..2500 {
        let ack = AckCommand::Individual(MessageIdData::new(1, entry));
        hand.command(Command::Ack { part: PART, ack });
    }
    let dial = hand.watches.iter().rev().find(|(key, _)| matches!(key, DeadlineKey::Target(_))).copied().unwrap();
    hand.at(dial.1, dial.0);
    hand.subscribe();
    let count = |frame: wire::Command| match frame {
        wire::Command::Ack(ack) => Some(ack.message_ids.len()),
        _ => None,
    };
    assert_eq!(hand.sent().into_iter().filter_map(count).collect::<Vec<_>>(), [1000, 1000, 500]);
}

/// Three sends, one receipt, and that one three times: two are still owed, and the link must be asked in 2 s.
#[test]
fn receipts_that_come_twice_do_not_hide_a_silent_link() {
    let mut hand = Hand::producer();
    hand.admit(1..=3);
    assert_eq!(hand.sent().len(), 3);
    for _ in 0..3 {
        hand.receipt(0);
    }
    hand.at(hand.now + Duration::from_secs(2), DeadlineKey::Link(hand.link));
    assert_eq!(hand.sent(), [wire::Command::Ping]);
    // One that lives is asked again as long as they are owed, and left alone when they are not.
    hand.frame(wire::Command::Pong);
    hand.at(hand.now + Duration::from_secs(2), DeadlineKey::Link(hand.link));
    assert_eq!(hand.sent(), [wire::Command::Ping]);
    hand.receipt(1);
    hand.receipt(2);
    hand.frame(wire::Command::Pong);
    hand.at(hand.now + Duration::from_secs(20), DeadlineKey::Link(hand.link));
    assert_eq!(hand.sent(), []);
}

/// A peer that asks for PONGs without end and reads none of them.
#[test]
fn pongs_that_nobody_reads_are_bounded() {
    let mut hand = Hand::producer();
    let mut full = WriteBuffer::default();
    full.copy(&[0; 1024]);
    for _ in 0..200_000 {
        hand.frame(wire::Command::Ping);
        hand.engine.poll_transmit(hand.moment(), hand.link, 1024, &mut full);
    }
    assert_eq!(full.len(), 1024);
    let waiting = hand.sent().len();
    assert!((1..50_000).contains(&waiting), "{waiting} answers wait");
}

#[test]
fn a_count_of_partitions_that_cannot_be_is_refused() {
    let mut hand = Hand::new();
    let (reply, mut answer) = completion();
    let due = hand.now + MINUTE;
    hand.command(Command::Partitions { topic: "persistent://public/default/t".into(), due, reply });
    let request = hand.sent_command(Type::PARTITIONED_METADATA).partitionMetadata.request_id();
    hand.answer(&wire::partitioned_metadata_response(request, u32::MAX));
    assert_eq!(answer.try_wait().expect("answered").unwrap_err().kind(), ErrorKind::Protocol);
}

/// The first close would wait for half a minute; the second has one second, and both end when that is over.
#[test]
fn several_closes_wait_for_one_end_and_the_earliest_limit_counts() {
    let mut hand = Hand::producer();
    hand.admit(1..=1);
    hand.sent();
    let start = hand.now;
    let shutdown = |limit: u64| {
        let (reply, answer) = completion();
        let due = start + Duration::from_secs(limit);
        (Command::Shutdown { flush_until: due, due, reply }, answer)
    };
    let (first, mut first_answer) = shutdown(30);
    hand.command(first);
    let (second, mut second_answer) = shutdown(1);
    hand.command(second);
    assert!(first_answer.try_wait().is_none() && second_answer.try_wait().is_none(), "a message is pending");
    let end = start + Duration::from_secs(1);
    for (key, at) in std::mem::take(&mut hand.watches) {
        if matches!(key, DeadlineKey::Operation(_)) && at <= end {
            hand.at(end, key);
        }
    }
    assert!(hand.finished);
    first_answer.try_wait().expect("answered").unwrap();
    second_answer.try_wait().expect("answered").unwrap();
}
