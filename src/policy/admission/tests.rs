use std::cell::Cell;

use super::*;
use crate::policy::budget::{Allowance, Usage};

/// The client's memory without threads.
pub(super) struct Pool {
    allowance: Allowance,
    pub(super) usage: Cell<Usage>,
}

impl Pool {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self { allowance: Allowance::new(limit), usage: Cell::new(Usage { used: 0, contended: false }) }
    }

    pub(super) fn used(&self) -> u64 {
        self.usage.get().used
    }

    pub(super) fn contend(&self, contended: bool) {
        self.usage.set(Usage { contended, ..self.usage.get() });
    }
}

impl Memory for Pool {
    fn allowance(&self) -> Allowance {
        self.allowance
    }

    fn take(&self, charge: usize, claim: Claim) -> bool {
        let next = self.allowance.claim(self.usage.get(), charge, claim);
        self.usage.set(next.unwrap_or(self.usage.get()));
        next.is_some()
    }

    fn give_back(&self, charge: usize) -> bool {
        let usage = self.usage.get();
        self.usage.set(Usage { used: usage.used - charge as u64, ..usage });
        usage.contended
    }
}

fn call(lane: usize, item: u32) -> Call<u32> {
    Call { lane, item, charge: 10, sequence: None }
}

fn admitted(offer: Offer<u32>) -> (Ticket, bool) {
    match offer {
        Offer::Admitted { ticket, look } => (ticket, look),
        other => panic!("not admitted: {other:?}"),
    }
}

fn waiting(offer: Offer<u32>) -> (WaiterId, bool) {
    match offer {
        Offer::Waiting { id, ask, .. } => (id, ask),
        other => panic!("does not wait: {other:?}"),
    }
}

fn refused(offer: Offer<u32>) -> (ErrorKind, u32) {
    match offer {
        Offer::Refused(error, item) => (error.kind(), item),
        other => panic!("not refused: {other:?}"),
    }
}

fn limits(max_pending: usize) -> Limits {
    Limits { max_pending: Some(max_pending), send_timeout: Some(Duration::from_secs(30)) }
}

#[test]
fn places_ids_and_deadlines_are_given_at_admission() {
    let (pool, now) = (Pool::new(None), Instant::now());
    let mut admission = Admission::new(limits(10), 2);
    admission.open(1, 70);
    let (first, look) = admitted(admission.offer(now, call(0, 1), true, &pool));
    assert!(look);
    assert_eq!((first.place, first.sequence_id, first.due), (1, 0, Some(now + Duration::from_secs(30))));
    let (second, look) = admitted(admission.offer(now, call(0, 2), true, &pool));
    assert!(!look, "the loop was told already");
    assert_eq!((second.place, second.sequence_id), (2, 1));
    let explicit = Call { sequence: Some(100), ..call(1, 3) };
    let (other, look) = admitted(admission.offer(now, explicit, true, &pool));
    assert!(look);
    assert_eq!((other.place, other.sequence_id), (1, 100));
    assert_eq!(admitted(admission.offer(now, call(1, 4), true, &pool)).0.sequence_id, 101);

    let mut taken = Vec::new();
    admission.take(0, &mut taken);
    assert_eq!(taken.iter().map(|admitted| admitted.item).collect::<Vec<_>>(), [1, 2]);
    admission.take(1, &mut taken);
    assert_eq!(taken.iter().map(|admitted| admitted.item).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(admitted(admission.offer(now, call(0, 5), true, &pool)).1, "empty again, so it has to look again");
    assert_eq!(admission.last_places(), [3, 2]);
    assert_eq!((admission.pending(), admission.charge(), admission.total()), (5, 50, 5));
}

#[test]
fn the_line_is_served_in_order() {
    let (pool, now) = (Pool::new(None), Instant::now());
    let mut admission = Admission::new(limits(2), 1);
    admitted(admission.offer(now, call(0, 1), true, &pool));
    admitted(admission.offer(now, call(0, 2), true, &pool));
    let ids = [3, 4, 5].map(|item| waiting(admission.offer(now, call(0, item), true, &pool)).0);
    assert_eq!(refused(admission.offer(now, call(0, 9), false, &pool)), (ErrorKind::WouldBlock, 9));
    let mut taken = Vec::new();
    admission.take(0, &mut taken);
    let served = admission.release(1, 10, &pool);
    assert_eq!(served.decided.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[0]]);
    assert_eq!(served.look, [0]);
    let (item, served) = admission.withdraw(ids[1], &pool).unwrap();
    assert_eq!((item, served.decided.len()), (4, 0));
    assert!(admission.withdraw(ids[0], &pool).is_none(), "it is admitted");
    let served = admission.release(2, 20, &pool);
    assert_eq!(served.decided.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[2]]);
    assert!(served.look.is_empty(), "3 has not been taken yet");
}

#[test]
fn explicit_ids_have_to_rise_when_called_and_when_admitted() {
    let (pool, now) = (Pool::new(None), Instant::now());
    let mut admission = Admission::new(limits(1), 1);
    let with_id = |item, id| Call { sequence: Some(id), ..call(0, item) };
    admitted(admission.offer(now, with_id(1, 5), true, &pool));
    assert_eq!(refused(admission.offer(now, with_id(2, 5), true, &pool)), (ErrorKind::Misuse, 2));
    assert_eq!(refused(admission.offer(now, with_id(2, u64::MAX), true, &pool)), (ErrorKind::Misuse, 2));
    waiting(admission.offer(now, with_id(3, 9), true, &pool));
    waiting(admission.offer(now, with_id(4, 8), true, &pool));
    waiting(admission.offer(now, call(0, 5), true, &pool));
    match &admission.release(1, 10, &pool).decided[..] {
        [(_, Decision::Admitted(ticket)), (_, Decision::Refused(error, 4))] => {
            assert_eq!((ticket.place, ticket.sequence_id), (2, 9));
            assert_eq!(error.kind(), ErrorKind::Misuse);
        }
        other => panic!("{other:?}"),
    }
    match &admission.release(1, 10, &pool).decided[..] {
        [(_, Decision::Admitted(ticket))] => assert_eq!((ticket.place, ticket.sequence_id), (3, 10)),
        other => panic!("{other:?}"),
    }
    admission.release(1, 10, &pool);
    admitted(admission.offer(now, with_id(6, MAX_SEQUENCE_ID), true, &pool));
    assert_eq!(refused(admission.offer(now, call(0, 7), true, &pool)), (ErrorKind::Misuse, 7), "none is left");
}

#[test]
fn a_closed_producer_keeps_what_it_admitted_and_refuses_the_rest() {
    let (pool, now) = (Pool::new(None), Instant::now());
    let mut admission = Admission::new(limits(1), 1);
    admitted(admission.offer(now, call(0, 1), true, &pool));
    let (id, _) = waiting(admission.offer(now, call(0, 2), true, &pool));
    match &admission.close().decided[..] {
        [(closed, Decision::Refused(error, 2))] => assert_eq!((*closed, error.kind()), (id, ErrorKind::Closed)),
        other => panic!("{other:?}"),
    }
    assert_eq!(refused(admission.offer(now, call(0, 3), true, &pool)), (ErrorKind::Closed, 3));
    assert!(admission.withdraw(id, &pool).is_none());
    assert!(admission.release(1, 10, &pool).decided.is_empty());
    assert_eq!((admission.pending(), admission.charge(), pool.used()), (0, 0, 0));
}

#[test]
fn one_producer_takes_at_most_half_of_the_memory() {
    let (pool, now) = (Pool::new(Some(100)), Instant::now());
    let sized = |item, charge| Call { charge, ..call(0, item) };
    let mut admission = Admission::new(Limits { max_pending: None, send_timeout: None }, 1);
    assert_eq!(refused(admission.offer(now, sized(1, 101), true, &pool)), (ErrorKind::TooLarge, 1));
    admitted(admission.offer(now, sized(1, 30), true, &pool));
    admitted(admission.offer(now, sized(2, 20), true, &pool));
    assert_eq!(refused(admission.offer(now, sized(3, 1), false, &pool)), (ErrorKind::WouldBlock, 3));
    assert!(!waiting(admission.offer(now, sized(3, 60), true, &pool)).1, "it waits for its own, not for others");
    assert!(admission.release(1, 30, &pool).decided.is_empty());
    assert_eq!(admission.release(1, 20, &pool).decided.len(), 1, "nothing is pending, so it may take more than half");
    assert_eq!(pool.used(), 60);
}

#[test]
fn a_producer_with_nothing_pending_is_always_admitted_one_message() {
    let (pool, now) = (Pool::new(Some(100)), Instant::now());
    let sized = |item, charge| Call { charge, ..call(0, item) };
    let mut hog = Admission::new(Limits { max_pending: None, send_timeout: None }, 1);
    admitted(hog.offer(now, sized(1, 100), true, &pool));
    let mut other = Admission::new(Limits { max_pending: None, send_timeout: None }, 1);
    admitted(other.offer(now, sized(1, 40), true, &pool));
    assert_eq!(pool.used(), 140);
    let (_, ask) = waiting(other.offer(now, sized(2, 5), true, &pool));
    assert!(ask, "only the client's memory is missing");
    assert!(!waiting(other.offer(now, sized(3, 5), true, &pool)).1, "it asks once");
    pool.contend(true);
    assert!(hog.release(1, 100, &pool).serve_turns);
    let (turn, served) = other.turn(&pool);
    assert_eq!((turn, served.decided.len()), (Turn::More, 1));
    let (turn, served) = other.turn(&pool);
    assert_eq!((turn, served.decided.len()), (Turn::Done, 1));
    assert_eq!(pool.used(), 50);
}
