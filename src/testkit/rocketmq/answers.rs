//! Calls with one answer: routes, sends, acknowledgements, changes of the invisible duration.

use std::time::Instant;

use bytes::Bytes;
use protobuf::Message as _;

use super::state::{OK, State, encode, refusal, span, status};
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;
use pb::Code;

impl State {
    pub(super) fn call(&mut self, now: Instant, endpoint: usize, method: Method, client: &str, body: &[u8]) -> Bytes {
        let answer = match method {
            Method::QueryRoute => pb::QueryRouteRequest::parse_from_bytes(body).map(|request| self.route(&request)),
            Method::SendMessage => {
                pb::SendMessageRequest::parse_from_bytes(body).map(|request| self.send(now, endpoint, request))
            }
            Method::AckMessage => pb::AckMessageRequest::parse_from_bytes(body).map(|request| self.ack(now, &request)),
            Method::ChangeInvisibleDuration => {
                pb::ChangeInvisibleDurationRequest::parse_from_bytes(body).map(|request| self.change(now, &request))
            }
            Method::Heartbeat if !self.clients.contains(client) => {
                let code = Code::UNRECOGNIZED_CLIENT_TYPE as i32;
                Ok(refusal(code, "no settings of this client are known"))
            }
            Method::NotifyClientTermination => {
                self.clients.remove(client);
                Ok(refusal(OK, "OK"))
            }
            Method::Heartbeat => Ok(refusal(OK, "OK")),
            _ => Ok(refusal(Code::NOT_IMPLEMENTED as i32, "not a part of the embedded proxy")),
        };
        answer.unwrap_or_else(|_| refusal(Code::BAD_REQUEST as i32, "unreadable"))
    }

    fn route(&self, request: &pb::QueryRouteRequest) -> Bytes {
        let name = &request.topic.name;
        let Some(topic) = self.topics.get(name) else {
            return refusal(Code::TOPIC_NOT_FOUND as i32, &format!("topic {name} does not exist"));
        };
        let queue = |number: usize| {
            let endpoint = topic.endpoint_of(number);
            let addr = self.advertised(endpoint);
            let address =
                pb::Address { host: addr.ip().to_string(), port: i32::from(addr.port()), ..Default::default() };
            let endpoints = pb::Endpoints {
                scheme: pb::AddressScheme::IPv4.into(),
                addresses: vec![address],
                ..Default::default()
            };
            let broker = pb::Broker {
                name: format!("broker-{endpoint}"),
                id: 0,
                endpoints: protobuf::MessageField::some(endpoints),
                ..Default::default()
            };
            pb::MessageQueue {
                topic: request.topic.clone(),
                id: i32::try_from(number).unwrap_or(i32::MAX),
                permission: pb::Permission::READ_WRITE.into(),
                broker: protobuf::MessageField::some(broker),
                accept_message_types: vec![topic.accepts.wire().into()],
                ..Default::default()
            }
        };
        encode(&pb::QueryRouteResponse {
            status: status(OK, "OK"),
            message_queues: (0..topic.queues).map(queue).collect(),
            ..Default::default()
        })
    }

    fn send(&mut self, now: Instant, endpoint: usize, request: pb::SendMessageRequest) -> Bytes {
        let Some(message) = request.messages.into_iter().next() else {
            return refusal(Code::MESSAGE_CORRUPTED as i32, "no message");
        };
        if message.body.len() > self.max_body_size {
            return refusal(Code::MESSAGE_BODY_TOO_LARGE as i32, "the body is too large");
        }
        let name = message.topic.name.clone();
        let Some(topic) = self.topics.get_mut(&name) else {
            return refusal(Code::TOPIC_NOT_FOUND as i32, &format!("topic {name} does not exist"));
        };
        let kind = message.system_properties.message_type.enum_value_or_default();
        if kind != topic.accepts.wire() {
            let text = format!("the topic takes {:?}, not {kind:?}", topic.accepts);
            return refusal(Code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE as i32, &text);
        }
        let message_id = message.system_properties.message_id.clone();
        let offset = topic.store(now, message, endpoint);
        let entry = pb::SendResultEntry { status: status(OK, "OK"), message_id, offset, ..Default::default() };
        encode(&pb::SendMessageResponse { status: status(OK, "OK"), entries: vec![entry], ..Default::default() })
    }

    fn ack(&mut self, now: Instant, request: &pb::AckMessageRequest) -> Bytes {
        let mut topic = self.topics.get_mut(&request.topic.name);
        let mut entries = Vec::new();
        for entry in &request.entries {
            let group = &request.group.name;
            let found = topic.as_mut().is_some_and(|topic| topic.acknowledge(now, group, &entry.receipt_handle));
            let (code, text) = if found { (OK, "OK") } else { (Code::INVALID_RECEIPT_HANDLE as i32, BAD_HANDLE) };
            entries.push(pb::AckMessageResultEntry {
                message_id: entry.message_id.clone(),
                receipt_handle: entry.receipt_handle.clone(),
                status: status(code, text),
                ..Default::default()
            });
        }
        let mut codes: Vec<i32> = entries.iter().map(|entry| entry.status.code.value()).collect();
        codes.dedup();
        let code = match codes.as_slice() {
            [one] => *one,
            _ => Code::MULTIPLE_RESULTS as i32,
        };
        encode(&pb::AckMessageResponse { status: status(code, ""), entries, ..Default::default() })
    }

    fn change(&mut self, now: Instant, request: &pb::ChangeInvisibleDurationRequest) -> Bytes {
        let to = request.invisible_duration.as_ref().map(span).unwrap_or_default();
        let topic = self.topics.get_mut(&request.topic.name);
        match topic.and_then(|topic| topic.change(now, &request.group.name, &request.receipt_handle, to)) {
            Some(receipt_handle) => {
                let status = status(OK, "OK");
                encode(&pb::ChangeInvisibleDurationResponse { status, receipt_handle, ..Default::default() })
            }
            None => refusal(Code::INVALID_RECEIPT_HANDLE as i32, BAD_HANDLE),
        }
    }
}

const BAD_HANDLE: &str = "the receipt handle is over or unknown";
