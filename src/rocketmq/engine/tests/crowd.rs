//! As many sends as a producer may have: what is done for each must not grow with their number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::hands::{Hands, SECOND, SESSION, address, route};
use super::network::{bytes, status};
use crate::error::{Delivery, ErrorKind};
use crate::pending::Reply;
use crate::policy::admission::{Admitted, Ticket};
use crate::rocketmq::engine::event::{Action, CallEnd, Fault, Outgoing, ProducerSpec, Role, RpcEvent};
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

/// The most that can be in flight.
const MANY: u64 = 65_536;
const MS: Duration = Duration::from_millis(1);
/// Of real time. Tenths of a second where the work follows the number, a quarter of a minute where it follows its
/// square.
const LIMIT: Duration = Duration::from_secs(5);

fn opened() -> Hands {
    let in_flight = usize::try_from(MANY).unwrap();
    let spec = ProducerSpec { topics: vec!["topic".into()], max_attempts: 3, in_flight, stop_failed_groups: false };
    let mut hands = Hands::new();
    let mut opening = hands.open(Role::Producer(spec), 60 * SECOND);
    hands.answer(Method::QueryRoute, &route(&[1, 2]));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

fn admit(hands: &mut Hands, group: Option<&str>, timeout: Duration) {
    let (called_at, due) = (hands.now, Some(hands.now + timeout));
    let message = |place| {
        let ticket = Ticket { lane: 0, place, sequence_id: 0, called_at, due, charge: 1 };
        let item = Outgoing {
            topic: "topic".into(),
            kind: if group.is_some() { pb::MessageType::FIFO } else { pb::MessageType::NORMAL },
            group: group.map(Into::into),
            resumes: false,
            request: Bytes::new(),
            reply: Reply::Answered,
            body_size: 1,
        };
        Admitted { ticket, item }
    };
    hands.engine.handle_admitted(hands.now, SESSION, &mut (1..=MANY).map(message).collect());
}

/// No send finds a connection until `until`. How many were answered, all of them as not sent and too late.
fn no_connection(hands: &mut Hands, until: Instant) -> u64 {
    let mut answered = 0;
    loop {
        while let Some(action) = hands.engine.poll_action() {
            match action {
                Action::Call { call, method: Method::SendMessage, .. } => {
                    let end = CallEnd::NotStarted(Fault::NoConnection);
                    hands.engine.handle_rpc(hands.now, RpcEvent::Ended { call, ready: false, end });
                }
                Action::Settle(settled) => {
                    let error = settled.result.unwrap_err();
                    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::NotSent));
                    answered += 1;
                }
                _ => {}
            }
        }
        if hands.now >= until {
            return answered;
        }
        hands.now = hands.engine.poll_timeout().map_or(until, |due| due.clamp(hands.now, until));
        hands.engine.handle_timeout(hands.now);
    }
}

#[test]
fn a_crowd_without_a_connection_is_answered_in_time() {
    for group in [None, Some("group")] {
        let mut hands = opened();
        admit(&mut hands, group, 250 * MS);
        let due = hands.now + 250 * MS;
        assert_eq!(no_connection(&mut hands, due - MS), 0);
        let started = Instant::now();
        assert_eq!(no_connection(&mut hands, due), MANY);
        assert!(started.elapsed() < LIMIT, "{group:?}: {:?}", started.elapsed());
    }
}

#[test]
fn a_crowd_that_waits_for_room_goes_on_with_each_end() {
    let mut hands = opened();
    // All goes to the other, which takes its share.
    let away = hands.engine.addresses.number(&address(2));
    hands.engine.isolated.insert(away);
    admit(&mut hands, None, 600 * SECOND);
    let answer = pb::SendMessageResponse {
        status: status(20000),
        entries: vec![pb::SendResultEntry { status: status(20000), ..Default::default() }],
        ..Default::default()
    };
    let end = CallEnd::Response(bytes(&answer));
    let (mut under_way, mut most, mut answered) = (VecDeque::new(), 0, 0);
    let started = Instant::now();
    loop {
        while let Some(action) = hands.engine.poll_action() {
            match action {
                Action::Call { call, method: Method::SendMessage, .. } => under_way.push_back(call),
                Action::Settle(settled) => {
                    assert!(settled.result.is_ok());
                    answered += 1;
                }
                _ => {}
            }
        }
        most = most.max(under_way.len() as u64);
        let Some(call) = under_way.pop_front() else { break };
        hands.engine.handle_rpc(hands.now, RpcEvent::Ended { call, ready: true, end: end.clone() });
    }
    assert_eq!((most, answered), (MANY / 2, MANY));
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}
