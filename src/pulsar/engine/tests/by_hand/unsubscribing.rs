//! Unsubscribing partition by partition.

use super::*;
use crate::error::{Delivery, Error};

const PARTS: [PartId; 3] = [PartId(7), PartId(8), PartId(9)];

fn spec() -> ConsumerSpec {
    ConsumerSpec {
        subscription: "s".into(),
        sub_type: pb::command_subscribe::SubType::Exclusive,
        name: "c".into(),
        initial_position: pb::command_subscribe::InitialPosition::Earliest,
        properties: Vec::new(),
        queue_size: 1000,
        ack_group_delay: Duration::from_millis(100),
        ack_group_max: 1000,
        nack_delay: Duration::from_secs(1),
    }
}

impl Hand {
    fn commands(&mut self, kind: Type) -> Vec<pb::BaseCommand> {
        let commands = self.sent().into_iter().filter_map(|frame| match frame {
            wire::Command::Other(command) if command.type_() == kind => Some(*command),
            _ => None,
        });
        commands.collect()
    }

    /// Answers look-ups and subscribes until none is due; the parts that subscribed.
    fn subscribe_all(&mut self) -> Vec<u64> {
        for lookup in self.commands(Type::LOOKUP) {
            let (request, url) = (lookup.lookupTopic.request_id(), Some("pulsar://b:6650"));
            self.answer(&wire::lookup_response(request, LookupType::Connect, url, None, true, false));
        }
        let subscribes = self.commands(Type::SUBSCRIBE);
        for subscribe in &subscribes {
            self.answer(&wire::success(subscribe.subscribe.request_id()));
        }
        subscribes.iter().map(|subscribe| subscribe.subscribe.consumer_id()).collect()
    }

    fn consumer_of_three() -> Self {
        let mut hand = Self::new();
        let (reply, mut answer) = completion();
        let parts = PARTS.iter().enumerate();
        let parts = parts.map(|(at, part)| (*part, format!("persistent://public/default/t-partition-{at}"))).collect();
        let due = hand.now + MINUTE;
        hand.command(Command::OpenConsumer { consumer: CONSUMER, spec: Arc::new(spec()), parts, due, reply });
        assert_eq!(hand.subscribe_all(), PARTS.map(|part| part.0));
        answer.try_wait().expect("subscribed").unwrap();
        hand.sent();
        hand
    }

    /// Asks, and gives the requests of the parts that were asked.
    fn unsubscribe(&mut self, limit: Duration) -> (Vec<(u64, u64)>, Pending<()>) {
        let (reply, answer) = completion();
        let due = self.now + limit;
        self.command(Command::Unsubscribe { consumer: CONSUMER, due, reply });
        let asked = self.commands(Type::UNSUBSCRIBE);
        let ids = asked.iter().map(|asked| (asked.unsubscribe.consumer_id(), asked.unsubscribe.request_id()));
        (ids.collect(), answer)
    }

    /// Posts every watched key that is due by then.
    fn until(&mut self, end: Instant) {
        while let Some(at) = (0..self.watches.len()).find(|at| self.watches[*at].1 <= end) {
            let (key, due) = self.watches.swap_remove(at);
            let now = self.now.max(due);
            self.at(now, key);
        }
        self.now = end;
    }
}

fn told(answer: &mut Pending<()>) -> Error {
    answer.try_wait().expect("answered").unwrap_err()
}

#[test]
fn all_answers_are_waited_for_and_the_failures_are_counted() {
    let mut hand = Hand::consumer_of_three();
    let (asked, mut answer) = hand.unsubscribe(MINUTE);
    assert_eq!(asked.iter().map(|(part, _)| PartId(*part)).collect::<Vec<_>>(), PARTS);
    let busy = pb::ServerError::ConsumerBusy as i32;
    hand.answer(&wire::error(asked[2].1, pb::ServerError::MetadataError as i32, "later"));
    assert!(answer.try_wait().is_none(), "others have not answered");
    hand.answer(&wire::error(asked[1].1, busy, "others are there"));
    hand.answer(&wire::success(asked[0].1));
    let error = told(&mut answer);
    assert_eq!((error.code(), error.delivery()), (Some(busy), Delivery::Refused));
    assert!(error.to_string().contains("2 of 3 partitions, first on persistent://public/default/t-partition-1"));
    // The rest goes on, and once more, and then the consumer is gone.
    let (asked, mut answer) = hand.unsubscribe(MINUTE);
    assert_eq!(asked.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [8, 9]);
    let (again, mut second) = hand.unsubscribe(MINUTE);
    assert_eq!(again, [], "both wait for one end");
    for (_, request) in asked {
        hand.answer(&wire::success(request));
    }
    answer.try_wait().expect("answered").unwrap();
    second.try_wait().expect("answered").unwrap();
    assert!(hand.engine.parts.is_empty() && hand.engine.consumers.is_empty());
    let (_, mut answer) = hand.unsubscribe(MINUTE);
    assert_eq!(told(&mut answer).kind(), ErrorKind::Closed);
}

/// The link lives, and one partition's answer is lost: the broker may have removed the subscription.
#[test]
fn a_partition_without_an_answer_is_subscribed_anew() {
    let mut hand = Hand::consumer_of_three();
    let limit = Duration::from_millis(1500);
    let (asked, mut answer) = hand.unsubscribe(limit);
    hand.answer(&wire::success(asked[0].1));
    hand.answer(&wire::success(asked[1].1));
    hand.sent();
    let end = hand.now + limit;
    hand.until(end);
    let error = told(&mut answer);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, Delivery::Unknown));
    assert!(error.to_string().contains("1 of 3 partitions, first on persistent://public/default/t-partition-2"));
    assert_eq!(hand.commands(Type::CLOSE_CONSUMER)[0].close_consumer.consumer_id(), 9);
    assert!(!hand.engine.requests.values().any(|request| request.due > hand.now + MINUTE));
    // An answer that comes now is nobody's.
    hand.answer(&wire::success(asked[2].1));
    hand.until(end + Duration::from_secs(1));
    assert_eq!(hand.subscribe_all(), [9]);
    let (asked, mut answer) = hand.unsubscribe(limit);
    assert_eq!(asked.len(), 1);
    hand.answer(&wire::success(asked[0].1));
    answer.try_wait().expect("answered").unwrap();
    assert!(hand.engine.parts.is_empty() && hand.engine.consumers.is_empty());
}

#[test]
fn a_lost_link_fails_what_is_owed_and_a_close_ends_the_call() {
    let mut hand = Hand::consumer_of_three();
    let (asked, mut answer) = hand.unsubscribe(MINUTE);
    hand.answer(&wire::success(asked[0].1));
    hand.engine.handle_link_lost(hand.moment(), hand.link, Error::new(ErrorKind::Transport, "cut"));
    hand.act();
    let error = told(&mut answer);
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Transport, Delivery::Unknown));
    assert!(error.to_string().contains("2 of 3 partitions"), "{error}");
    hand.until(hand.now + Duration::from_secs(1));
    assert_eq!(hand.subscribe_all(), [8, 9]);
    let (_, mut answer) = hand.unsubscribe(MINUTE);
    let (reply, mut closed) = completion();
    let due = hand.now + MINUTE;
    hand.command(Command::CloseConsumer { consumer: CONSUMER, due, reply: Some(reply) });
    assert_eq!(told(&mut answer).kind(), ErrorKind::Closed);
    for close in hand.commands(Type::CLOSE_CONSUMER) {
        hand.answer(&wire::success(close.close_consumer.request_id()));
    }
    closed.try_wait().expect("closed").unwrap();
    assert!(hand.engine.parts.is_empty() && hand.engine.consumers.is_empty());
}
