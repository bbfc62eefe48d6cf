use super::*;
use crate::error::ErrorKind;

fn failure(text: &str) -> Error {
    Error::new(ErrorKind::Broker, text)
}

fn texts(ended: Ended<char>) -> Vec<(char, Option<String>)> {
    ended.into_iter().map(|(owner, error)| (owner, error.map(|error| error.to_string()))).collect()
}

fn waiting(watched: Watched) -> WatchId {
    match watched {
        Watched::Waiting(id) => id,
        Watched::Already(failure) => panic!("ended at once with {failure:?}"),
    }
}

fn already(watched: Watched) -> Option<String> {
    match watched {
        Watched::Already(failure) => failure.map(|error| error.to_string()),
        Watched::Waiting(id) => panic!("still waits: {id:?}"),
    }
}

#[test]
fn a_watch_ends_when_every_lane_is_there() {
    let mut progress = Progress::new();
    waiting(progress.watch(Flushed::Fixed, vec![2, 0, 3], || 'a'));
    assert!(progress.fixed(0, 1, None).is_empty());
    assert!(progress.fixed(2, 5, None).is_empty());
    assert!(progress.returned(0, 2).is_empty(), "this one waits for results only");
    assert_eq!(texts(progress.fixed(0, 2, None)), [('a', None)]);
    assert!(progress.fixed(0, 3, None).is_empty(), "it ends once");
    assert_eq!(already(progress.watch(Flushed::Fixed, vec![3, 0, 5], || 'b')), None);
}

#[test]
fn returned_waits_for_results_and_for_permits() {
    let mut progress = Progress::new();
    waiting(progress.watch(Flushed::Returned, vec![2], || 'a'));
    waiting(progress.watch(Flushed::Fixed, vec![2], || 'b'));
    assert!(progress.returned(0, 1).is_empty());
    assert_eq!(texts(progress.fixed(0, 2, None)), [('b', None)]);
    assert_eq!(texts(progress.returned(0, 1)), [('a', None)]);

    waiting(progress.watch(Flushed::Returned, vec![3], || 'c'));
    assert!(progress.returned(0, 1).is_empty(), "the result may still be on its way");
    assert_eq!(texts(progress.fixed(0, 3, Some((3, failure("late"))))), [('c', Some("late".into()))]);
}

#[test]
fn the_first_failure_up_to_the_target_is_told() {
    let mut progress = Progress::new();
    waiting(progress.watch(Flushed::Fixed, vec![4, 4], || 'a'));
    waiting(progress.watch(Flushed::Fixed, vec![6, 0], || 'b'));
    progress.fixed(1, 4, None);
    progress.fixed(0, 2, Some((2, failure("first"))));
    assert_eq!(texts(progress.fixed(0, 4, Some((3, failure("second"))))), [('a', Some("first".into()))]);
    assert_eq!(texts(progress.fixed(0, 7, Some((7, failure("beyond"))))), [('b', Some("first".into()))]);
    assert_eq!(already(progress.watch(Flushed::Fixed, vec![7, 4], || 'c')), Some("beyond".into()));
    assert_eq!(already(progress.watch(Flushed::Fixed, vec![7, 4], || 'd')), None, "a failure is told once");
}

#[test]
fn a_failure_from_before_the_call_is_told_by_the_next_flush_that_covers_it() {
    let mut progress = Progress::new();
    progress.fixed(0, 1, Some((1, failure("early"))));
    let given_up = waiting(progress.watch(Flushed::Fixed, vec![2], || 'a'));
    assert!(progress.unwatch(given_up));
    assert!(!progress.unwatch(given_up));
    waiting(progress.watch(Flushed::Fixed, vec![2], || 'b'));
    assert_eq!(texts(progress.fixed(0, 2, None)), [('b', Some("early".into()))], "who gave up has told nothing");
    assert_eq!(already(progress.watch(Flushed::Fixed, vec![2], || 'c')), None);
}

#[test]
fn a_failure_outside_the_target_does_not_count() {
    let mut progress = Progress::new();
    waiting(progress.watch(Flushed::Fixed, vec![1], || 'a'));
    assert_eq!(texts(progress.fixed(0, 3, Some((2, failure("later"))))), [('a', None)]);
    assert_eq!(already(progress.watch(Flushed::Fixed, vec![3], || 'b')), Some("later".into()));
}
