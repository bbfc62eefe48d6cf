//! All interleavings of the file that ships. A waiter that nobody wakes is a deadlock, which loom reports.

use std::time::Duration;

use ::loom::model::Builder;
use ::loom::thread;

use super::*;

fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn permits(max_pending: usize, send_timeout: Option<Duration>, budget: &Arc<Budget>) -> Arc<Permits<char>> {
    Permits::new(Limits { max_pending: Some(max_pending), send_timeout }, 1, Arc::clone(budget), |_| ())
}

fn items(permits: &Permits<char>) -> Vec<char> {
    let mut into = Vec::new();
    permits.take(0, &mut into);
    into.into_iter().map(|admitted| admitted.item).collect()
}

/// At rest everything has come back.
fn at_rest(permits: &Permits<char>, budget: &Budget) {
    let stats = permits.stats();
    assert_eq!((stats.pending, stats.charge, stats.waiting, budget.used()), (0, 0, 0, 0));
}

#[test]
fn loom_two_senders_and_a_releaser() {
    model(6, || {
        let budget = Arc::new(Budget::new(None));
        let permits = permits(1, None, &budget);
        permits.admit(0, 'x', 1, None, false).unwrap();
        let senders = ['a', 'b'].map(|item| {
            let permits = Arc::clone(&permits);
            thread::spawn(move || {
                permits.admit(0, item, 1, None, true).unwrap();
                permits.returned(0, 1, 1);
            })
        });
        permits.returned(0, 1, 1);
        for sender in senders {
            sender.join().unwrap();
        }
        let mut items = items(&permits);
        items.sort_unstable();
        assert_eq!(items, ['a', 'b', 'x']);
        at_rest(&permits, &budget);
    });
}

#[test]
fn loom_withdraw_against_release() {
    model(6, || {
        let budget = Arc::new(Budget::new(None));
        let permits = permits(1, Some(Duration::ZERO), &budget);
        permits.admit(0, 'x', 1, None, false).unwrap();
        let sender = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.admit(0, 'a', 1, None, true)
        });
        permits.returned(0, 1, 1);
        match sender.join().unwrap() {
            Ok(ticket) => {
                assert_eq!(items(&permits), ['x', 'a']);
                permits.returned(0, 1, ticket.charge);
            }
            Err(refused) => {
                assert_eq!((refused.kind(), refused.into_parts().1), (ErrorKind::Timeout, Some('a')));
                assert_eq!(items(&permits), ['x']);
            }
        }
        at_rest(&permits, &budget);
    });
}

#[test]
fn loom_close_against_offer_and_release() {
    model(6, || {
        let budget = Arc::new(Budget::new(None));
        let permits = permits(1, None, &budget);
        permits.admit(0, 'x', 1, None, false).unwrap();
        let sender = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.admit(0, 'a', 1, None, true)
        });
        let releaser = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.returned(0, 1, 1)
        });
        permits.close();
        releaser.join().unwrap();
        match sender.join().unwrap() {
            Ok(ticket) => {
                assert_eq!(items(&permits), ['x', 'a']);
                permits.returned(0, 1, ticket.charge);
            }
            Err(refused) => {
                assert_eq!((refused.kind(), refused.into_parts().1), (ErrorKind::Closed, Some('a')));
                assert_eq!(items(&permits), ['x']);
            }
        }
        assert_eq!(permits.wait_idle(None), Ok(()));
        at_rest(&permits, &budget);
    });
}

/// The waiter's producer asks for memory while another producer gives some back.
#[test]
fn loom_memory_freed_while_asking() {
    model(6, || {
        let budget = Arc::new(Budget::new(Some(4)));
        let (hog, other) = (permits(9, None, &budget), permits(9, None, &budget));
        hog.admit(0, 'x', 3, None, false).unwrap();
        other.admit(0, 'y', 1, None, false).unwrap();
        let sender = thread::spawn({
            let other = Arc::clone(&other);
            move || other.admit(0, 'a', 1, None, true).unwrap()
        });
        hog.returned(0, 1, 3);
        sender.join().unwrap();
        assert_eq!(items(&other), ['y', 'a']);
        other.returned(0, 2, 2);
        at_rest(&hog, &budget);
        at_rest(&other, &budget);
    });
}

/// Two producers ask, a third gives back: one of the three serves the turns, and nobody is overlooked.
#[test]
fn loom_two_producers_ask_at_once() {
    model(3, || {
        let budget = Arc::new(Budget::new(Some(6)));
        let [hog, one, two] = [0; 3].map(|_| permits(9, None, &budget));
        hog.admit(0, 'x', 4, None, false).unwrap();
        one.admit(0, 'y', 1, None, false).unwrap();
        two.admit(0, 'y', 1, None, false).unwrap();
        let senders = [&one, &two].map(|permits| {
            let permits = Arc::clone(permits);
            thread::spawn(move || permits.admit(0, 'a', 2, None, true).unwrap())
        });
        hog.returned(0, 1, 4);
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(budget.used(), 6);
    });
}

#[test]
fn loom_flush_against_results_and_permits() {
    model(6, || {
        let budget = Arc::new(Budget::new(None));
        let permits = permits(9, None, &budget);
        permits.admit(0, 'x', 1, None, false).unwrap();
        let flush = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.wait_flushed(Flushed::Returned, None)
        });
        let idle = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.wait_idle(None)
        });
        permits.fixed(0, 1, Some((1, Error::new(ErrorKind::Broker, "no"))));
        permits.returned(0, 1, 1);
        assert_eq!(flush.join().unwrap().unwrap_err().kind(), ErrorKind::Broker);
        assert_eq!(idle.join().unwrap(), Ok(()));
    });
}

#[test]
fn loom_flush_gives_up_while_it_ends() {
    model(6, || {
        let budget = Arc::new(Budget::new(None));
        let permits = permits(9, None, &budget);
        permits.admit(0, 'x', 1, None, false).unwrap();
        let flush = thread::spawn({
            let permits = Arc::clone(&permits);
            move || permits.wait_flushed(Flushed::Fixed, Some(Instant::now()))
        });
        permits.fixed(0, 1, None);
        if let Err(error) = flush.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::Timeout);
        }
        assert!(permits.wait_flushed(Flushed::Fixed, None).is_ok());
    });
}
