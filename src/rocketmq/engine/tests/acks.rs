//! Prepared calls, decided by hand.

use std::time::Duration;

use protobuf::Message as _;

use super::hands::{Asked, Hands, SECOND, address, late, route};
use super::network::{bytes, status};
use crate::error::{Delivery, Error, ErrorKind};
use crate::rocketmq::engine::event::{CallEnd, Fault, RpcEvent};
use crate::rocketmq::handle::Handle;
use crate::rocketmq::wire::endpoints::Endpoints;
use crate::rocketmq::wire::method::Method::{AckMessage, Heartbeat, QueryRoute, ReceiveMessage};
use crate::rocketmq::wire::pb;

const MS: Duration = Duration::from_millis(1);

fn opened(addresses: &[u32]) -> Hands {
    let mut hands = Hands::new();
    let mut opening = hands.consumer(&["topic"]);
    hands.answer(QueryRoute, &route(addresses));
    hands.settle_streams();
    assert!(opening.try_wait().unwrap().is_ok());
    hands
}

fn handles<'a>(names: &'a [String], endpoints: &'a [Endpoints]) -> Vec<Handle<'a>> {
    let handle = |(name, endpoints): (&'a String, &'a Endpoints)| Handle {
        topic: "topic",
        message_id: name,
        receipt_handle: name,
        endpoints,
    };
    names.iter().zip(endpoints).map(handle).collect()
}

/// Acknowledges one message from each of these endpoints.
fn ack(hands: &mut Hands, at: &[u32], limit: Duration) -> impl FnMut() -> Option<Vec<Result<(), Error>>> + use<> {
    let endpoints: Vec<Endpoints> = at.iter().map(|at| address(*at)).collect();
    let names: Vec<String> = at.iter().map(|at| format!("from {at}")).collect();
    let (places, mut answers) = hands.ack(&handles(&names, &endpoints), limit);
    move || Some(places.results(&handles(&names, &endpoints), answers.try_wait()?.unwrap()))
}

/// The handle that a call acknowledges.
fn of(call: &Asked) -> String {
    pb::AckMessageRequest::parse_from_bytes(&call.body).unwrap().entries.remove(0).receipt_handle
}

fn good() -> CallEnd {
    CallEnd::Response(bytes(&pb::AckMessageResponse { status: status(20000), ..Default::default() }))
}

#[test]
fn each_call_goes_to_its_broker_once_and_again_only_if_it_was_not_made() {
    let mut hands = opened(&[1, 2]);
    let mut acked = ack(&mut hands, &[1, 2], 3 * SECOND);
    let calls = hands.asked(AckMessage);
    assert_eq!(calls.len(), 2);
    for call in &calls {
        let at = if of(call) == "from 1" { 1 } else { 2 };
        assert_eq!(hands.channels[&call.entry], address(at));
    }
    hands.end(calls[0].id, good());
    hands.event(RpcEvent::Ended { call: calls[1].id, ready: false, end: CallEnd::NotStarted(Fault::NoConnection) });
    hands.calls.retain(|call| call.id != calls[1].id);
    hands.wait(100 * MS);
    assert!(hands.asked(AckMessage).is_empty());
    hands.wait(100 * MS);
    let again = hands.asked(AckMessage);
    assert_eq!(again.iter().map(of).collect::<Vec<_>>(), [of(&calls[1])], "that one, and no other");
    // The consumer closes, the call is never answered: the close ends with the acknowledgement's time.
    let mut closing = hands.close(60 * SECOND);
    hands.wait(2_799 * MS);
    assert!(acked().is_none() && closing.try_wait().is_none());
    hands.wait(MS);
    let results = acked().unwrap();
    let error = results[1].as_ref().unwrap_err();
    assert!(results[0].is_ok());
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown), "{error}");
    assert!(hands.asked(AckMessage).is_empty(), "nobody waits for it: it is cancelled");
    assert!(closing.try_wait().unwrap().is_ok());
}

#[test]
fn it_is_said_whether_it_may_have_been_carried_out() {
    let delivery = |end: &dyn Fn(&mut Hands)| {
        let mut hands = opened(&[1]);
        let mut acked = ack(&mut hands, &[1], 3 * SECOND);
        end(&mut hands);
        let error = acked().unwrap().remove(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Closed), "{error:?}");
        error.delivery()
    };
    let not_started = |hands: &mut Hands| hands.answer(AckMessage, &CallEnd::NotStarted(Fault::NoConnection));
    assert_eq!(delivery(&|hands| hands.wait(3 * SECOND)), Delivery::Unknown, "it was never answered");
    assert_eq!(delivery(&|hands| hands.answer(AckMessage, &late())), Delivery::Unknown, "gRPC says so");
    let closed = |hands: &mut Hands| {
        let _ = hands.close(SECOND);
        hands.wait(SECOND);
    };
    assert_eq!(delivery(&closed), Delivery::Unknown, "a close cuts it off");
    let never_made = |hands: &mut Hands| {
        for _ in 0..40 {
            if !hands.asked(AckMessage).is_empty() {
                not_started(hands);
            }
            hands.wait(100 * MS);
        }
    };
    assert_eq!(delivery(&never_made), Delivery::NotSent, "there was no connection at any time");
    let cut_off_before = |hands: &mut Hands| {
        hands.answer(AckMessage, &CallEnd::Cancelled);
        never_made(hands);
    };
    assert_eq!(delivery(&cut_off_before), Delivery::Unknown, "the first call was made");
}

#[test]
fn one_that_is_never_answered_is_a_hint() {
    let mut hands = opened(&[1]);
    hands.wait(1_100 * MS);
    hands.beat();
    assert!(hands.asked(Heartbeat).is_empty());
    let mut acked = ack(&mut hands, &[1], 3 * SECOND);
    hands.wait(3_100 * MS);
    assert!(acked().unwrap()[0].is_err());
    assert!(!hands.asked(Heartbeat).is_empty(), "the next heartbeat comes forward");
}

#[test]
fn more_messages_than_asked_for_end_the_poll() {
    let mut hands = opened(&[1]);
    let mut receive = hands.receive(2, 10 * SECOND);
    let poll = hands.asked(ReceiveMessage)[0].id;
    for handle in ["h1", "h2"] {
        hands.message(poll, "topic", handle);
        assert!(receive.try_wait().is_none());
    }
    hands.message(poll, "topic", "h3");
    assert_eq!(receive.try_wait().unwrap().unwrap().len(), 2);
    assert!(hands.asked(ReceiveMessage).is_empty(), "its call is cancelled");
}
