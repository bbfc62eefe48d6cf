//! As many sends, receives and acknowledgements as there may be: what is done for each must not grow with their
//! number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::hands::{Hands, SECOND, SESSION, address, route};
use super::network::{bytes, status};
use crate::error::{Delivery, ErrorKind};
use crate::pending::{Reply, completion};
use crate::policy::admission::{Admitted, Ticket};
use crate::rocketmq::engine::event::{
    Action, CallEnd, Command, Fault, Outgoing, Prepared, ProducerSpec, Role, RpcEvent,
};
use crate::rocketmq::wire::method::Method;
use crate::rocketmq::wire::pb;

/// The most that can be in flight.
const MANY: u64 = 65_536;
const MS: Duration = Duration::from_millis(1);
/// Of real time. Tenths of a second where the work follows the number, a quarter of a minute where it follows its
/// square.
const LIMIT: Duration = Duration::from_secs(5);

fn opened(addresses: &[u32]) -> Hands {
    let in_flight = usize::try_from(MANY).unwrap();
    let spec = ProducerSpec { topics: vec!["topic".into()], max_attempts: 3, in_flight, stop_failed_groups: false };
    let mut hands = Hands::new();
    let mut opening = hands.open(Role::Producer(spec), 60 * SECOND);
    hands.answer(Method::QueryRoute, &route(addresses));
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
        let mut hands = opened(&[1, 2]);
        admit(&mut hands, group, 250 * MS);
        let due = hands.now + 250 * MS;
        assert_eq!(no_connection(&mut hands, due - MS), 0);
        let started = Instant::now();
        assert_eq!(no_connection(&mut hands, due), MANY);
        assert!(started.elapsed() < LIMIT, "{group:?}: {:?}", started.elapsed());
    }
}

fn stored() -> CallEnd {
    let entries = vec![pb::SendResultEntry { status: status(20000), ..Default::default() }];
    CallEnd::Response(bytes(&pb::SendMessageResponse { status: status(20000), entries, ..Default::default() }))
}

#[test]
fn a_crowd_that_waits_for_room_goes_on_with_each_end() {
    let mut hands = opened(&[1, 2]);
    // All goes to the other, which takes its share.
    let away = hands.engine.addresses.number(&address(2));
    hands.engine.isolated.insert(away);
    admit(&mut hands, None, 600 * SECOND);
    let end = stored();
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

#[test]
fn a_crowd_whose_endpoint_leaves_the_route_goes_on_with_each_end() {
    let mut hands = opened(&[1]);
    hands.wait(29 * SECOND);
    hands.beat();
    admit(&mut hands, None, 600 * SECOND);
    // Its time is up after this second, and the route is asked for.
    hands.now += SECOND;
    hands.engine.handle_timeout(hands.now);
    let (mut sends, mut routes) = (Vec::new(), Vec::new());
    while let Some(action) = hands.engine.poll_action() {
        match action {
            Action::Call { call, method: Method::SendMessage, .. } => sends.push(call),
            Action::Call { call, method: Method::QueryRoute, .. } => routes.push(call),
            _ => {}
        }
    }
    assert_eq!((sends.len() as u64, routes.len()), (MANY, 1));
    let started = Instant::now();
    hands.engine.handle_rpc(hands.now, RpcEvent::Ended { call: routes[0], ready: true, end: route(&[2]) });
    let (mut answered, mut closed, mut opened) = (0, 0, 0);
    for call in sends {
        hands.engine.handle_rpc(hands.now, RpcEvent::Ended { call, ready: true, end: stored() });
        while let Some(action) = hands.engine.poll_action() {
            match action {
                Action::Settle(_) => answered += 1,
                Action::Connect { .. } => opened += 1,
                Action::CloseChannel { .. } => closed += 1,
                _ => {}
            }
        }
        // The last call at the old endpoint has to be over.
        assert!(closed == 0 || answered == MANY);
    }
    assert_eq!((answered, closed, opened), (MANY, 1, 1));
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

fn opened_consumer() -> Hands {
    let mut hands = Hands::new();
    let mut opening = hands.consumer(&["topic"]);
    hands.answer(Method::QueryRoute, &route(&[1]));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

#[test]
fn so_many_receives_wait_and_no_more() {
    let mut hands = opened_consumer();
    let started = Instant::now();
    let mut waiting: Vec<_> = (0..20_000).map(|_| hands.receive(1, 10 * SECOND)).collect();
    for (index, receive) in waiting.iter_mut().enumerate() {
        let refused = receive.try_wait().map(|result| result.unwrap_err().kind());
        assert_eq!(refused, (index >= 1_024).then_some(ErrorKind::WouldBlock), "{index}");
    }
    // One place is free again.
    let poll = hands.asked(Method::ReceiveMessage)[0].id;
    hands.message(poll, "topic", "h1");
    hands.end(poll, CallEnd::StreamOver);
    assert!(waiting[0].try_wait().unwrap().is_ok());
    assert!(hands.receive(1, 10 * SECOND).try_wait().is_none());
    assert!(hands.receive(1, 10 * SECOND).try_wait().is_some());
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn a_batch_over_many_topics_goes_on_with_each_end() {
    // At an endpoint of the route, and at one that is in none.
    for at in [1, 7] {
        let mut hands = opened_consumer();
        let prepared = Prepared { endpoints: address(at), request: Bytes::new() };
        let calls = vec![prepared; usize::try_from(MANY).unwrap()];
        let (reply, mut pending) = completion();
        let due = hands.now + 3 * SECOND;
        let started = Instant::now();
        let command = Command::Prepared { session: SESSION, method: Method::AckMessage, calls, due, reply };
        hands.engine.handle_command(hands.now, command);
        let mut under_way = VecDeque::new();
        loop {
            while let Some(action) = hands.engine.poll_action() {
                match action {
                    Action::Call { call, method: Method::AckMessage, .. } => under_way.push_back(call),
                    Action::Answered(reply, result) => reply.settle(result),
                    _ => {}
                }
            }
            let Some(call) = under_way.pop_front() else { break };
            let end = CallEnd::Response(Bytes::new());
            hands.engine.handle_rpc(hands.now, RpcEvent::Ended { call, ready: true, end });
        }
        assert_eq!(pending.try_wait().unwrap().unwrap().len() as u64, MANY);
        assert!(started.elapsed() < LIMIT, "{at}: {:?}", started.elapsed());
    }
}
