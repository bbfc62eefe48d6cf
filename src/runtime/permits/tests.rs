use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn limits(max_pending: usize, send_timeout: Duration) -> Limits {
    Limits { max_pending: Some(max_pending), send_timeout: Some(send_timeout) }
}

fn unlimited() -> Arc<Budget> {
    Arc::new(Budget::new(None))
}

/// Blocks until `count` calls stand in the line.
fn until_waiting<T: Send + 'static>(permits: &Permits<T>, count: usize) {
    while permits.stats().waiting != count {
        thread::yield_now();
    }
}

fn items<T: Send + 'static>(permits: &Permits<T>, lane: usize) -> Vec<T> {
    let mut into = Vec::new();
    permits.take(lane, &mut into);
    into.into_iter().map(|admitted| admitted.item).collect()
}

#[test]
fn waiters_are_admitted_in_the_order_of_their_calls() {
    let permits = Permits::new(limits(1, LONG), 1, unlimited(), |_| ());
    permits.admit(0, 0, 10, None, false).unwrap();
    thread::scope(|scope| {
        for item in 1..=4 {
            scope.spawn({
                let permits = &permits;
                move || permits.admit(0, item, 10, None, true).unwrap()
            });
            until_waiting(&permits, item);
        }
        let refused = permits.admit(0, 9, 10, None, false).unwrap_err();
        assert_eq!((refused.kind(), refused.into_parts().1), (ErrorKind::WouldBlock, Some(9)));
        for _ in 0..4 {
            permits.returned(0, 1, 10);
        }
    });
    assert_eq!(items(&permits, 0), [0, 1, 2, 3, 4]);
    permits.returned(0, 1, 10);
    assert_eq!(permits.stats(), PermitStats { pending: 0, charge: 0, waiting: 0, admitted: 5 });
}

#[test]
fn who_finds_no_room_in_time_gets_the_message_back() {
    let permits = Permits::new(limits(1, Duration::from_millis(30)), 1, unlimited(), |_| ());
    let called = Instant::now();
    let ticket = permits.admit(0, "a", 10, None, true).unwrap();
    assert!(ticket.called_at >= called && ticket.due == Some(ticket.called_at + Duration::from_millis(30)));
    let refused = permits.admit(0, "b", 10, None, true).unwrap_err();
    assert!(called.elapsed() >= Duration::from_millis(30));
    assert_eq!(refused.error().delivery(), crate::Delivery::NotSent);
    assert_eq!((refused.kind(), refused.into_parts().1), (ErrorKind::Timeout, Some("b")));
    assert_eq!(permits.stats(), PermitStats { pending: 1, charge: 10, waiting: 0, admitted: 1 });
    permits.returned(0, 1, 10);
    permits.admit(0, "c", 10, None, true).unwrap();
    assert_eq!(items(&permits, 0), ["a", "c"]);
}

#[test]
fn look_is_called_once_a_swap_and_with_the_lock_free() {
    let looks = Arc::new(AtomicUsize::new(0));
    let late: Arc<OnceLock<Arc<Permits<u8>>>> = Arc::default();
    let permits = Permits::new(limits(10, LONG), 3, unlimited(), {
        let (looks, late) = (Arc::clone(&looks), Arc::clone(&late));
        move |lane| {
            assert_eq!(lane, 2);
            looks.fetch_add(1, Ordering::Relaxed);
            assert!(late.get().is_some_and(|permits| permits.pending() > 0), "this would hang under the lock");
        }
    });
    assert!(late.set(Arc::clone(&permits)).is_ok());
    for item in 0..3 {
        permits.admit(2, item, 1, None, false).unwrap();
    }
    assert_eq!(looks.load(Ordering::Relaxed), 1);
    assert_eq!(items(&permits, 2), [0, 1, 2]);
    permits.admit(2, 3, 1, None, false).unwrap();
    assert_eq!(looks.load(Ordering::Relaxed), 2);
}

#[test]
fn close_answers_the_line_and_lets_the_rest_finish() {
    let budget = unlimited();
    let permits = Permits::new(limits(1, LONG), 1, Arc::clone(&budget), |_| ());
    permits.admit(0, 'a', 10, None, false).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| permits.admit(0, 'b', 10, None, true).unwrap_err());
        until_waiting(&permits, 1);
        permits.close();
        let refused = waiter.join().unwrap();
        assert_eq!((refused.kind(), refused.into_parts().1), (ErrorKind::Closed, Some('b')));
    });
    assert_eq!(permits.admit(0, 'c', 10, None, true).unwrap_err().kind(), ErrorKind::Closed);
    assert_ne!(permits.pending(), 0);
    assert_eq!(permits.wait_idle(Some(Instant::now())), Err(1));
    thread::scope(|scope| {
        let flush = scope.spawn(|| permits.wait_flushed(Flushed::Returned, None));
        let idle = scope.spawn(|| permits.wait_idle(None));
        permits.fixed(0, 1, Some((1, Error::new(ErrorKind::Closed, "closed before it was sent"))));
        permits.returned(0, 1, 10);
        assert_eq!(flush.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(idle.join().unwrap(), Ok(()));
    });
    assert_eq!(budget.used(), 0);
}

#[test]
fn flush_waits_for_what_was_admitted_before_it() {
    let permits = Permits::new(limits(10, LONG), 2, unlimited(), |_| ());
    assert!(permits.wait_flushed(Flushed::Returned, None).is_ok(), "nothing to wait for");
    for lane in [0, 1, 1] {
        permits.admit(lane, (), 10, None, false).unwrap();
    }
    let late = permits.wait_flushed(Flushed::Fixed, Some(Instant::now() + Duration::from_millis(5)));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
    thread::scope(|scope| {
        let results = [Flushed::Fixed, Flushed::Returned].map(|what| {
            let permits = &permits;
            scope.spawn(move || permits.wait_flushed(what, Some(Instant::now() + LONG)))
        });
        permits.fixed(0, 1, None);
        permits.fixed(1, 2, None);
        permits.returned(0, 1, 10);
        permits.returned(1, 2, 20);
        for result in results {
            assert!(result.join().unwrap().is_ok());
        }
    });
}

#[test]
fn freed_memory_goes_to_the_producers_that_wait_in_turn() {
    let budget = Arc::new(Budget::new(Some(100)));
    let open = || Permits::new(Limits { max_pending: None, send_timeout: Some(LONG) }, 1, Arc::clone(&budget), |_| ());
    let (hog, first, second) = (open(), open(), open());
    hog.admit(0, 0, 80, None, false).unwrap();
    first.admit(0, 0, 10, None, false).unwrap();
    second.admit(0, 0, 10, None, false).unwrap();
    thread::scope(|scope| {
        let spawn = |permits: &Arc<Permits<i32>>, item| {
            let (permits, waiting) = (Arc::clone(permits), permits.stats().waiting);
            let watched = Arc::clone(&permits);
            scope.spawn(move || permits.admit(0, item, 20, None, true).unwrap());
            until_waiting(&watched, waiting + 1);
        };
        spawn(&first, 1);
        spawn(&first, 2);
        spawn(&second, 1);
        assert_eq!(hog.admit(0, 1, 1, None, false).unwrap_err().kind(), ErrorKind::WouldBlock);
        hog.returned(0, 1, 80);
    });
    assert_eq!(items(&first, 0), [0, 1, 2]);
    assert_eq!(items(&second, 0), [0, 1]);
    assert_eq!(budget.used(), 80);
    drop((first, second));
    assert_eq!(budget.used(), 0, "what a dropped producer held comes back");
}

#[test]
fn under_stress_every_call_ends_and_everything_comes_back() {
    const SENDERS: usize = 4;
    const CALLS: usize = 3_000;
    let budget = Arc::new(Budget::new(Some(4_000)));
    let limits = Limits { max_pending: Some(8), send_timeout: Some(Duration::from_millis(1)) };
    let producers = [0, 1, 2].map(|_| Permits::new(limits, 2, Arc::clone(&budget), |_| ()));
    let (admitted, given_back) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let taken = AtomicUsize::new(0);
    let senders = AtomicUsize::new(SENDERS);
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (producers, senders, admitted, given_back) = (&producers, &senders, &admitted, &given_back);
            scope.spawn(move || {
                for call in 0..CALLS {
                    let producer = &producers[(sender + call) % producers.len()];
                    let charge = 100 + (call * 37) % 900;
                    match producer.admit(call % 2, call, charge, None, call % 7 != 0) {
                        Ok(_) => admitted.fetch_add(1, Ordering::Relaxed),
                        Err(refused) => {
                            assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::WouldBlock));
                            assert_eq!(refused.into_parts().1, Some(call));
                            given_back.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
                senders.fetch_sub(1, Ordering::Release);
            });
        }
        for producer in &producers {
            let (taken, senders) = (&taken, &senders);
            scope.spawn(move || {
                let mut batch = Vec::new();
                let mut places = [0, 0];
                while senders.load(Ordering::Acquire) > 0 || producer.pending() > 0 {
                    for (lane, place) in places.iter_mut().enumerate() {
                        producer.take(lane, &mut batch);
                        for admitted in batch.drain(..) {
                            *place += 1;
                            assert_eq!(admitted.ticket.place, *place);
                            taken.fetch_add(1, Ordering::Relaxed);
                            producer.fixed(lane, *place, None);
                            producer.returned(lane, 1, admitted.ticket.charge);
                        }
                    }
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed) + given_back.load(Ordering::Relaxed), SENDERS * CALLS);
    assert_eq!(taken.load(Ordering::Relaxed), admitted.load(Ordering::Relaxed));
    assert_eq!(budget.used(), 0);
    for producer in &producers {
        assert_eq!((producer.stats().pending, producer.stats().waiting), (0, 0));
        assert!(producer.wait_flushed(Flushed::Returned, Some(Instant::now())).is_ok());
    }
}
