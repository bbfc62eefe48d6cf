//! What callbacks were told, shared by suites: each answer as often as it came.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use threadmq::pulsar::{Producer, SendReceipt};
use threadmq::{Error, ErrorKind};

/// Longer than anything takes on a loaded machine; never waited out when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long it is watched that nothing more comes.
pub const MOMENT: Duration = Duration::from_secs(1);

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The number that the send was given.
    pub number: usize,
    pub result: Result<SendReceipt, Error>,
    /// From the call to the callback.
    pub after: Duration,
}

impl Answer {
    pub fn kind(&self) -> Option<ErrorKind> {
        self.result.as_ref().err().map(Error::kind)
    }
}

/// Collects answers.
#[derive(Clone, Default)]
pub struct Answers {
    shared: Arc<(Mutex<Vec<Answer>>, Condvar)>,
}

impl Answers {
    /// A callback that notes its answer under this number.
    pub fn callback(&self, number: usize) -> impl FnOnce(Result<SendReceipt, Error>) + Send + 'static {
        let (answers, called) = (self.clone(), Instant::now());
        move |result| {
            let (all, grown) = &*answers.shared;
            all.lock().unwrap().push(Answer { number, result, after: called.elapsed() });
            grown.notify_all();
        }
    }

    /// Sends the numbers of the range as text, each with a callback.
    pub fn send(&self, producer: &Producer, range: std::ops::Range<usize>) {
        for number in range {
            producer.send_with(number.to_string(), self.callback(number)).unwrap();
        }
    }

    /// All answers so far, in the order of the callbacks.
    pub fn now(&self) -> Vec<Answer> {
        self.shared.0.lock().unwrap().clone()
    }

    /// Waits until there are so many.
    pub fn wait(&self, count: usize) -> Vec<Answer> {
        let (all, grown) = &*self.shared;
        let few = |all: &mut Vec<Answer>| all.len() < count;
        let (all, _) = grown.wait_timeout_while(all.lock().unwrap(), PATIENCE, few).unwrap();
        assert!(all.len() >= count, "{} of {count} answers", all.len());
        all.clone()
    }

    /// The same, and that no more come: once means once.
    pub fn exactly(&self, count: usize) -> Vec<Answer> {
        let all = self.wait(count);
        std::thread::sleep(MOMENT);
        assert_eq!(self.now().len(), count, "answers after the last");
        let mut numbers: Vec<_> = all.iter().map(|answer| answer.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "a callback ran twice");
        all
    }
}

/// Looks again and again until it holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Closes with this limit. Its last tenth of a second is for the answers: a loaded machine may take longer, and then
/// close says so, and another one finds all done.
pub fn close_by(limit: Duration, close: impl Fn(Duration) -> Result<(), Error>) {
    if let Err(error) = close(limit) {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        close(PATIENCE).unwrap();
    }
}
