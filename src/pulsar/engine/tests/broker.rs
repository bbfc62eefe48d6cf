//! Frames at the model broker: handshake, look-ups, sends.

use super::cluster::{BrokerState, Cluster, Out, ReceiptFault, Stored, Timer};
use super::damage::{CHECKSUM, Damage};
use super::schedule::{Micros, SEC};
use crate::policy::rng::Rng;
use crate::pulsar::wire::command::{self as wire, Command, MessageIdData, Send, SendReceipt};
use crate::pulsar::wire::payload::{BatchReader, decompress, parse_entry};
use crate::pulsar::wire::pb::base_command::Type;
use crate::pulsar::wire::pb::command_lookup_topic_response::LookupType;
use crate::pulsar::wire::pb::{self, ServerError};

const NOT_ALLOWED: i32 = ServerError::NotAllowedError as i32;

impl Cluster {
    pub(super) fn frame(&mut self, now: Micros, rng: &mut Rng, conn: usize, frame: Command) {
        self.conns[conn].heard = true;
        self.conns[conn].awaiting_pong = false;
        self.liveness_known(now, conn, true);
        match frame {
            Command::Send(send) => self.send(now, rng, conn, &send),
            Command::Ping => {
                self.counts.pings += 1;
                self.reply(conn, Command::Pong);
            }
            Command::Pong => {}
            Command::Ack(ack) => self.ack(conn, &ack),
            Command::Flow { consumer_id, permits } => self.flow(conn, consumer_id, permits),
            Command::Other(command) => self.other(now, rng, conn, &command),
            other => self.violation = Some(format!("a client sent {other:?}")),
        }
    }

    fn other(&mut self, now: Micros, rng: &mut Rng, conn: usize, command: &pb::BaseCommand) {
        if command.type_() != Type::CONNECT && !self.conns[conn].greeted {
            self.violation = Some(format!("{:?} before CONNECT", command.type_()));
            return;
        }
        match command.type_() {
            Type::CONNECT => {
                self.counts.connects += 1;
                self.conns[conn].greeted = true;
                if let Some(behind) = &command.connect.proxy_to_broker_url {
                    let named = |broker: &BrokerState| broker.url().ends_with(behind.as_str());
                    match self.brokers.iter().position(named) {
                        Some(broker) if !self.brokers[broker].down => self.conns[conn].broker = broker,
                        Some(_) => {
                            self.drop_conn(now, conn);
                            return;
                        }
                        None => self.violation = Some(format!("a proxy is asked for {behind}")),
                    }
                }
                let size = self.brokers[self.conns[conn].broker].max_message_size;
                self.conns[conn].limit = size as usize;
                self.reply_with(conn, wire::connected("model", size));
                let at = now + self.keep_alive;
                self.out.push(Out::Timer { at, timer: Timer::KeepAlive { conn } });
            }
            Type::LOOKUP => self.lookup(conn, &command.lookupTopic),
            Type::PARTITIONED_METADATA => {
                let id = command.partitionMetadata.request_id();
                match self.lookup_code {
                    Some(code) => self.reply_with(conn, wire::partitioned_metadata_failed(id, code, "fault")),
                    None if self.lookup_silent => {}
                    None => self.reply_with(conn, wire::partitioned_metadata_response(id, 2)),
                }
            }
            Type::PRODUCER => self.producer(now, rng, conn, &command.producer),
            Type::CLOSE_PRODUCER => {
                self.counts.closes += 1;
                let id = command.close_producer.producer_id();
                let end = &mut self.conns[conn];
                end.broken.retain(|broken| *broken != id);
                end.opening.retain(|(producer, _)| *producer != id);
                if let Some(at) = end.producers.iter().position(|(producer, _)| *producer == id) {
                    let (_, topic) = end.producers.remove(at);
                    self.topics[topic].sessions.retain(|session| (session.conn, session.producer_id) != (conn, id));
                }
                self.reply_with(conn, wire::success(command.close_producer.request_id()));
            }
            Type::SUBSCRIBE => self.subscribe(now, conn, &command.subscribe),
            Type::CLOSE_CONSUMER => {
                let close = &command.close_consumer;
                self.close_consumer(now, conn, close.consumer_id());
                self.reply_with(conn, wire::success(close.request_id()));
            }
            Type::UNSUBSCRIBE => self.unsubscribe(now, conn, &command.unsubscribe),
            Type::REDELIVER_UNACKNOWLEDGED_MESSAGES => {
                self.redeliver(conn, &command.redeliverUnacknowledgedMessages);
            }
            other => self.violation = Some(format!("the model does not know {other:?}")),
        }
    }

    fn lookup(&mut self, conn: usize, lookup: &pb::CommandLookupTopic) {
        self.counts.lookups += 1;
        let (id, me) = (lookup.request_id(), self.conns[conn].broker);
        if self.lookup_silent {
            return;
        }
        if let Some(code) = self.lookup_code {
            self.reply_with(conn, wire::lookup_failed(id, code, "fault"));
            return;
        }
        let Some(topic) = self.by_name.get(lookup.topic()) else {
            self.reply_with(conn, wire::lookup_failed(id, ServerError::TopicNotFound as i32, "no such topic"));
            return;
        };
        let owner = self.topics[*topic].owner;
        let next = (me + 1) % self.brokers.len();
        let (kind, to) = if self.redirects {
            (LookupType::Redirect, next)
        } else if owner != me && !lookup.authoritative() && self.brokers.len() > 2 {
            // Asks the leader, so to speak.
            (LookupType::Redirect, owner)
        } else {
            (LookupType::Connect, owner)
        };
        let url = self.brokers[to].url();
        self.reply_with(
            conn,
            wire::lookup_response(id, kind, Some(&url), None, true, self.proxied && kind == LookupType::Connect),
        );
    }

    pub(super) fn refuse(&mut self, conn: usize, request: u64, code: ServerError) {
        self.reply_with(conn, wire::error(request, code as i32, "the model says no"));
    }

    fn send(&mut self, now: Micros, rng: &mut Rng, conn: usize, send: &Send) {
        self.counts.sends += 1;
        let id = send.producer_id;
        let found = self.conns[conn].producers.iter().find(|(producer, _)| *producer == id);
        let Some((_, index)) = found.copied() else { return };
        if self.conns[conn].broken.contains(&id) {
            return;
        }
        let uids = match uids_of(send) {
            Ok(uids) => uids,
            Err(error) => {
                self.violation = Some(format!("a SEND that cannot be read: {error}"));
                return;
            }
        };
        let highest = send.highest_sequence_id.unwrap_or(send.sequence_id);
        if let Some(code) = self.refusal(id, index, &uids) {
            let named = if self.either_end && rng.chance(1, 2) { highest } else { send.sequence_id };
            match code {
                // The session goes on, and what follows is stored.
                CHECKSUM => {
                    self.conns[conn].touched = true;
                    self.damages.push(Damage { producer_id: id, named, uids, told: false, lost: false });
                }
                NOT_ALLOWED => {
                    self.refused.extend(&uids);
                    self.not_allowed.extend(uids);
                }
                // The topic failed: nothing is stored before the producer has come back.
                _ => {
                    self.refused.extend(uids);
                    self.conns[conn].broken.push(id);
                }
            }
            self.reply_with(conn, wire::send_error(id, named, code, "fault"));
            return;
        }
        if send.entry.len() - 10 > self.conns[conn].limit {
            self.violation = Some(format!("a SEND of {} bytes over the limit", send.entry.len()));
        }
        let name = self.topics[index].sessions.iter().find(|session| (session.conn, session.producer_id) == (conn, id));
        let Some(name) = name.map(|session| session.name.clone()) else { return };
        let topic = &mut self.topics[index];
        let last = topic.last_sequence.get(&name).copied();
        let known = self.dedup && last.is_some_and(|last| highest <= last);
        let message_id = if known {
            self.taken_for_duplicates(&uids);
            MessageIdData::new(u64::MAX, u64::MAX)
        } else {
            if self.dedup && last.is_some_and(|last| send.sequence_id <= last) {
                self.violation = Some(format!("ids {}..={highest} after {last:?}: not as frozen", send.sequence_id));
            }
            topic.last_sequence.insert(name, highest);
            topic.entries.push(Stored { entry: send.entry.clone(), messages: send.num_messages });
            for uid in uids {
                let times = self.stored.entry(uid).or_default();
                *times += 1;
                if *times == 1 {
                    self.order[index].push(uid);
                }
            }
            let entry = topic.entries.len() - 1;
            self.dispatch(index);
            Self::message_id(index, entry)
        };
        let named = if self.either_end && rng.chance(1, 2) { highest } else { send.sequence_id };
        let receipt = SendReceipt {
            producer_id: id,
            sequence_id: named,
            highest_sequence_id: send.highest_sequence_id,
            message_id: Some(message_id),
        };
        self.receipt(now, rng, conn, receipt);
    }

    /// The code that a SEND of these messages is refused with, if it is.
    fn refusal(&mut self, producer_id: u64, topic: usize, uids: &[u64]) -> Option<i32> {
        // What makes a message inadmissible is in it, so it is refused whenever it comes, and before the broker looks
        // whether it knows its id.
        if uids.iter().any(|uid| self.not_allowed.contains(uid)) {
            return Some(NOT_ALLOWED);
        }
        let code = self.send_errors.get_mut(&producer_id).and_then(std::collections::VecDeque::pop_front);
        code.or(self.topics[topic].terminated.then_some(ServerError::TopicTerminatedError as i32))
    }

    fn receipt(&mut self, now: Micros, rng: &mut Rng, conn: usize, receipt: SendReceipt) {
        let delay = Self::storing(rng);
        let faults = self.receipt_faults.get_mut(&receipt.producer_id);
        let fault = faults.and_then(std::collections::VecDeque::pop_front);
        self.conns[conn].touched |= fault.is_some();
        let frame = Command::SendReceipt(receipt);
        match fault {
            Some(ReceiptFault::Lose) => {}
            Some(ReceiptFault::Duplicate) => {
                self.out.push(Out::Frame { conn, delay, frame: frame.clone() });
                self.out.push(Out::Late { conn, delay: delay + rng.below(2 * SEC), frame });
            }
            Some(ReceiptFault::Late(late)) => self.out.push(Out::Late { conn, delay: delay + late, frame }),
            Some(ReceiptFault::Swap) => {
                let earlier = self.conns[conn].held.replace(frame);
                if let Some(earlier) = earlier {
                    self.out.push(Out::Frame { conn, delay, frame: earlier });
                }
                self.out.push(Out::Timer { at: now + SEC, timer: Timer::Held { conn } });
            }
            None => {
                self.out.push(Out::Frame { conn, delay, frame });
                if let Some(held) = self.conns[conn].held.take() {
                    self.out.push(Out::Frame { conn, delay: 0, frame: held });
                }
            }
        }
    }
}

/// The messages in a SEND: their bodies begin with their uid. Checks that entry and command agree.
pub(super) fn uids_of(send: &Send) -> Result<Vec<u64>, String> {
    Ok(messages_of(send)?.into_iter().map(|(uid, _)| uid).collect())
}

/// The uid and the sequence id of each message of a SEND.
pub(super) fn messages_of(send: &Send) -> Result<Vec<(u64, u64)>, String> {
    let entry = parse_entry(send.entry.clone()).map_err(|error| error.to_string())?;
    let metadata = entry.metadata;
    let payload = decompress(metadata.compression, &entry.payload, metadata.uncompressed_size, 8 << 20)
        .map_err(|error| format!("{error:?}"))?;
    if metadata.sequence_id != send.sequence_id || metadata.highest_sequence_id != send.highest_sequence_id {
        return Err(format!("metadata says {}, the command {}", metadata.sequence_id, send.sequence_id));
    }
    let uid = |payload: &[u8]| -> Result<u64, String> {
        let bytes = payload.first_chunk::<8>().ok_or("a body without its uid")?;
        Ok(u64::from_le_bytes(*bytes))
    };
    let Some(count) = metadata.num_messages_in_batch else {
        return Ok(vec![(uid(&payload)?, send.sequence_id)]);
    };
    let mut messages = Vec::with_capacity(count.max(0) as usize);
    for item in BatchReader::new(payload, count) {
        let item = item.map_err(|error| error.to_string())?;
        messages.push((uid(&item.payload)?, item.metadata.sequence_id.unwrap_or(u64::MAX)));
    }
    let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return Err("empty batch".into()) };
    if first.1 != send.sequence_id || Some(last.1) != send.highest_sequence_id || count != send.num_messages {
        return Err(format!(
            "a batch of {first:?} to {last:?} says {} to {:?}",
            send.sequence_id, send.highest_sequence_id
        ));
    }
    Ok(messages)
}
