//! What the loops of `produce`, `perf` and `verify` need of a system, so that each of them is written once.

use std::time::{Duration, Instant};

use threadmq::Error;

use crate::interrupt;

/// What a broker says of a message that it stored.
pub trait Receipt {
    /// The message's id, as its system writes it.
    fn id(&self) -> String;
    /// How many times the message was handed to a connection.
    fn attempts(&self) -> u32;
}

/// A producer on one topic. It makes its messages itself, as the command line wants them: of a number and a body.
pub trait Producer: Sync {
    type Receipt: Receipt;
    /// `perf` times one send with a callback in so many.
    const SAMPLE: u64;

    /// Sends and waits for the receipt.
    fn send(&self, number: u64, body: Vec<u8>) -> Result<(), Error>;

    /// Sends and has `callback` called with the result, once if this gives `Ok` and never otherwise.
    fn send_with(
        &self,
        number: u64,
        body: Vec<u8>,
        callback: impl FnOnce(Result<Self::Receipt, Error>) + Send + 'static,
    ) -> Result<(), Error>;

    /// `None`: sends wait as long as it takes.
    fn send_timeout(&self) -> Option<Duration>;

    fn pending(&self) -> usize;

    fn flush_within(&self, limit: Duration) -> Result<(), Error>;

    fn close(&self) -> Result<(), Error>;

    /// Waits until everything is answered; after Ctrl-C not for ever where no send timeout sees to that.
    fn drain(&self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut until = None;
        while self.pending() > 0 {
            if interrupt::stopped() && self.send_timeout().is_none() {
                let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() >= until {
                    return;
                }
            }
            // Failures are the callbacks' to tell.
            let _ = self.flush_within(Duration::from_millis(500));
        }
    }
}
