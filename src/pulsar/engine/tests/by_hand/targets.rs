//! The table of places that brokers name.

use super::*;

fn spec() -> Arc<ProducerSpec> {
    Arc::new(ProducerSpec {
        name: None,
        access_mode: pb::ProducerAccessMode::Shared,
        properties: Vec::new(),
        initial_sequence_id: None,
        compression: Compression::None,
        batching: None,
    })
}

impl Hand {
    fn create(&mut self, producer: ProducerId, lane: LaneId) -> Pending<ProducerOpened> {
        let (reply, answer) = completion();
        let due = self.now + MINUTE;
        let lanes = vec![(lane, "persistent://public/default/t".to_owned())];
        self.command(Command::OpenProducer { producer, spec: spec(), lanes, due, reply });
        answer
    }

    fn point_to(&mut self, kind: LookupType, host: &str) {
        let request = self.sent_command(Type::LOOKUP).lookupTopic.request_id();
        let url = format!("pulsar://{host}:6650");
        self.answer(&wire::lookup_response(request, kind, Some(&url), None, true, false));
    }
}

#[test]
fn redirects_to_ever_new_hosts_leave_nothing_behind() {
    let mut hand = Hand::new();
    let mut answer = hand.create(PRODUCER, LANE);
    let service = hand.link;
    hand.point_to(LookupType::Connect, "kept");
    let request = hand.sent_command(Type::PRODUCER).producer.request_id();
    hand.answer(&wire::producer_success(request, "p", -1, None, true));
    answer.try_wait().expect("created").unwrap();
    let kept = hand.link;

    let mut host = 0;
    for round in 0..100 {
        let producer = ProducerId(100 + round);
        hand.link = service;
        let mut answer = hand.create(producer, LaneId(100 + round));
        for _ in 0..21 {
            host += 1;
            hand.point_to(LookupType::Redirect, &format!("host-{host}"));
        }
        let (flush_until, due) = (hand.now, hand.now + MINUTE);
        hand.command(Command::CloseProducer { producer, flush_until, due, reply: None });
        assert_eq!(answer.try_wait().expect("given up").unwrap_err().kind(), ErrorKind::Closed);
        hand.now += Duration::from_secs(1);
    }
    let engine = &hand.engine;
    for (what, count) in
        [("targets", engine.targets.len()), ("links", engine.links.len()), ("addresses", engine.last_addresses.len())]
    {
        assert!(count <= 100, "{count} {what} after {host} hosts");
    }

    // The producer has kept its link, and a look-up goes where it went before.
    assert_eq!(engine.lanes.get(&LANE).and_then(|lane| lane.attachment.link()), Some(kept));
    hand.link = service;
    let _waiting = hand.create(ProducerId(1), LaneId(1));
    hand.point_to(LookupType::Connect, "kept");
    hand.link = kept;
    hand.sent_command(Type::PRODUCER);
    // A place that was forgotten is found again.
    hand.link = service;
    let _waiting = hand.create(ProducerId(3), LaneId(3));
    hand.point_to(LookupType::Connect, "host-1");
    hand.sent_command(Type::PRODUCER);
}
