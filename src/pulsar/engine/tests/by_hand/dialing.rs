//! Dials to a name with several addresses, and what the handshake may say.

use std::net::SocketAddr;

use super::*;
use crate::error::Error;
use crate::pulsar::engine::Engine;

struct Dial {
    hand: Hand,
    /// What was dialled, in order, and under which id.
    dialled: Vec<(LinkId, SocketAddr)>,
    closed: Vec<LinkId>,
    limits: Vec<u32>,
    resolves: usize,
}

fn address(at: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, at], 6650))
}

impl Dial {
    /// A producer wants the service host, and the resolver has answered.
    fn new(addresses: u8) -> Self {
        let mut dial =
            Self { hand: Hand::new(), dialled: Vec::new(), closed: Vec::new(), limits: Vec::new(), resolves: 0 };
        let spec = ProducerSpec {
            name: None,
            access_mode: pb::ProducerAccessMode::Shared,
            properties: Vec::new(),
            initial_sequence_id: None,
            compression: Compression::None,
            batching: None,
        };
        let (reply, _) = completion();
        let due = dial.hand.now + MINUTE;
        let lanes = vec![(LANE, "persistent://public/default/t".to_owned())];
        let open = Command::OpenProducer { producer: PRODUCER, spec: Arc::new(spec), lanes, due, reply };
        dial.step(|engine, now| engine.handle_command(now, open));
        let link = dial.hand.link;
        let answer = (1..=addresses).map(address).collect();
        dial.step(|engine, now| engine.handle_resolved(now, link, Ok(answer)));
        dial
    }

    fn step(&mut self, what: impl FnOnce(&mut Engine, Now)) {
        let now = self.hand.moment();
        what(&mut self.hand.engine, now);
        while let Some(action) = self.hand.engine.poll_action() {
            match action {
                Action::Resolve { link, .. } => {
                    self.hand.link = link;
                    self.resolves += 1;
                }
                Action::Connect { link, address } => self.dialled.push((link, address)),
                Action::CloseLink { link, .. } => self.closed.push(link),
                Action::Watch { key, at } => self.hand.watches.push((key, at)),
                Action::LaneLimit { max_message_size, .. } => self.limits.push(max_message_size),
                _ => {}
            }
        }
    }

    fn connected(&mut self, at: usize) {
        let link = self.dialled[at].0;
        self.step(|engine, now| engine.handle_connected(now, link));
    }

    fn failed(&mut self, at: usize) {
        let link = self.dialled[at].0;
        let error = Error::new(ErrorKind::Transport, "refused");
        self.step(|engine, now| engine.handle_connect_failed(now, link, error));
    }

    fn frame(&mut self, link: LinkId, command: &pb::BaseCommand) {
        let frame = frame(command);
        self.step(|engine, now| engine.handle_frame(now, link, frame));
    }

    /// Posts the links' keys that are due in this time.
    fn pass(&mut self, time: Duration) {
        let end = self.hand.now + time;
        let due = |(key, at): &(DeadlineKey, Instant)| matches!(key, DeadlineKey::Link(_)) && *at <= end;
        while let Some(at) = self.hand.watches.iter().position(due) {
            let (key, at) = self.hand.watches.remove(at);
            self.hand.now = self.hand.now.max(at);
            self.step(|engine, now| engine.handle_deadline(now, key));
        }
        self.hand.now = end;
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.dialled.iter().map(|(_, address)| *address).collect()
    }
}

#[test]
fn the_next_address_is_tried_while_the_first_still_tries_and_the_first_success_wins() {
    let mut dial = Dial::new(3);
    assert_eq!(dial.addresses(), [address(1)]);
    dial.pass(Duration::from_millis(249));
    assert_eq!(dial.dialled.len(), 1);
    dial.pass(Duration::from_millis(1));
    assert_eq!(dial.addresses(), [address(1), address(2)]);
    dial.pass(Duration::from_millis(250));
    assert_eq!(dial.addresses(), [address(1), address(2), address(3)]);
    assert!(dial.closed.is_empty(), "all are tried at once");
    dial.connected(1);
    let winner = dial.dialled[1].0;
    let mut closed = dial.closed.clone();
    closed.sort_unstable();
    assert_eq!(closed, [dial.dialled[0].0, dial.dialled[2].0]);
    // What the others say now is nobody's.
    dial.connected(0);
    dial.failed(2);
    dial.failed(0);
    dial.pass(Duration::from_secs(1));
    assert_eq!((dial.dialled.len(), dial.closed.len(), dial.resolves), (3, 2, 1));
    dial.hand.link = winner;
    assert_eq!(dial.hand.sent_command(Type::CONNECT).type_(), Type::CONNECT);
    dial.frame(winner, &wire::connected("b", 5 << 20));
    dial.hand.look_up();
    dial.hand.sent_command(Type::PRODUCER);
}

#[test]
fn an_address_that_fails_gives_way_at_once_and_the_last_ends_the_dial() {
    let mut dial = Dial::new(3);
    dial.failed(0);
    assert_eq!(dial.addresses(), [address(1), address(2)]);
    dial.pass(Duration::from_millis(250));
    assert_eq!(dial.addresses(), [address(1), address(2), address(3)]);
    dial.failed(2);
    assert_eq!(dial.hand.engine.links.len(), 1, "the second still tries");
    dial.failed(1);
    assert!(dial.hand.engine.links.is_empty() && dial.hand.engine.attempts.is_empty());
    let dial_id = dial.dialled[0].0;
    assert!(dial.closed.contains(&dial_id));
}

#[test]
fn all_addresses_together_have_the_time_of_one_dial() {
    let mut dial = Dial::new(100);
    dial.pass(Duration::from_millis(9_990));
    assert_eq!(dial.dialled.len(), 40, "four a second");
    assert!(dial.closed.is_empty());
    dial.pass(Duration::from_millis(10));
    assert!(dial.hand.engine.links.is_empty() && dial.hand.engine.attempts.is_empty());
    let mut closed = dial.closed.clone();
    closed.sort_unstable();
    closed.dedup();
    let dialled: Vec<_> = dial.dialled.iter().map(|(link, _)| *link).collect();
    assert_eq!(closed, dialled);
}

/// The handshake is a part of the dial: its time is not counted anew for each address.
#[test]
fn a_shutdown_in_the_middle_of_a_dial_closes_all_its_sockets() {
    let mut dial = Dial::new(2);
    dial.pass(Duration::from_millis(300));
    let (reply, mut answer) = completion();
    let due = dial.hand.now + MINUTE;
    let shutdown = Command::Shutdown { flush_until: due, due, reply };
    dial.step(|engine, now| engine.handle_command(now, shutdown));
    let _ = answer.try_wait();
    let mut closed = dial.closed.clone();
    closed.sort_unstable();
    assert_eq!(closed, dial.dialled.iter().map(|(link, _)| *link).collect::<Vec<_>>());
    assert!(dial.hand.engine.links.is_empty() && dial.hand.engine.attempts.is_empty());
}

/// 0 and below mean nothing, as in other clients, and no broker makes us take frames without bound.
#[test]
fn the_brokers_limit_is_believed_within_reason() {
    const DEFAULT: usize = 5 << 20;
    const MOST: usize = 256 << 20;
    const PADDING: usize = 10 << 10;
    for (stated, taken) in [
        (0, DEFAULT),
        (-1, DEFAULT),
        (i32::MIN, DEFAULT),
        (1, 1),
        (100 << 20, 100 << 20),
        (MOST as i32, MOST),
        (MOST as i32 + 1, MOST),
        (i32::MAX, MOST),
    ] {
        let mut dial = Dial::new(1);
        dial.connected(0);
        let link = dial.dialled[0].0;
        dial.hand.sent();
        dial.frame(link, &wire::connected("b", stated));
        assert_eq!(dial.hand.engine.frame_limit(link), taken + PADDING, "{stated}");
        let lookup = dial.hand.sent_command(Type::LOOKUP).lookupTopic.request_id();
        let url = Some("pulsar://b:6650");
        dial.frame(link, &wire::lookup_response(lookup, LookupType::Connect, url, None, true, false));
        let request = dial.hand.sent_command(Type::PRODUCER).producer.request_id();
        dial.frame(link, &wire::producer_success(request, "p", -1, None, true));
        assert_eq!(dial.limits, [taken as u32], "{stated}");
    }
}
