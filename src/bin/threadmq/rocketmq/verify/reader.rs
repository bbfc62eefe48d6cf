//! Reads the topic to its end while messages are sent, and acknowledges everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use threadmq::ErrorKind;
use threadmq::rocketmq::{MessageView, SimpleConsumer};

use super::cluster::Place;
use crate::rocketmq::args::{INVISIBLE, MOST_AT_ONCE};
use crate::verify::read_back::number;
use crate::verify::watch::Watch;

/// Between polls that fail at once.
const PAUSE: Duration = Duration::from_millis(200);

pub struct Reader<'a> {
    pub consumer: &'a SimpleConsumer,
    pub watch: &'a Watch<Place>,
    /// The tag of this run's messages.
    pub name: &'a str,
    pub stop: &'a AtomicBool,
}

impl Reader<'_> {
    /// `polled` is told when a poll was answered: from then on a new group misses nothing.
    pub fn run(self, polled: &Sender<()>) {
        while !self.stop.load(Ordering::Acquire) {
            match self.consumer.receive(MOST_AT_ONCE, INVISIBLE) {
                Ok(messages) => {
                    // Nobody listens after the first time.
                    let _ = polled.send(());
                    for message in &messages {
                        self.note(message);
                    }
                    // What is not acknowledged comes again, and is counted as that.
                    let _ = self.consumer.ack_batch(&messages);
                }
                // A proxy that is away comes back, or patience ends.
                Err(error) if may_pass(error.kind()) => thread::sleep(PAUSE),
                // The close ends the last poll.
                Err(_) if self.stop.load(Ordering::Acquire) => return,
                Err(error) => {
                    self.watch.read().ended = Some(error.to_string());
                    return;
                }
            }
        }
    }

    fn note(&self, message: &MessageView) {
        let mut read = self.watch.read();
        if message.tag() != Some(self.name) {
            read.foreign += 1;
            return;
        }
        let number = number(message.body());
        let again = message.delivery_attempt() > 1;
        if again && number.is_some_and(|number| read.has(number)) {
            // It stands at another place now: in a queue for what is delivered again.
            read.last_arrival = Instant::now();
            read.redelivered += 1;
            return;
        }
        // A first delivery that was lost on its way says nothing of the order.
        let line = message.message_group().filter(|_| !again);
        let place = Place::of(message);
        read.read(Instant::now(), line, place, number);
    }
}

fn may_pass(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Closed | ErrorKind::Misuse | ErrorKind::NotFound | ErrorKind::Authorization)
}
