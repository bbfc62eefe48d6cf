//! What callbacks were told: each answer as often as it came.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use threadmq::Error;
use threadmq::rocketmq::{Message, Producer, SendReceipt};

use super::stage::PATIENCE;

pub struct Answer {
    pub number: usize,
    pub result: Result<SendReceipt, Error>,
    /// From the call to the callback.
    pub after: Duration,
    pub thread: ThreadId,
}

pub struct Answers {
    tell: Sender<Answer>,
    told: Receiver<Answer>,
    sent: usize,
}

impl Answers {
    pub fn new() -> Self {
        let (tell, told) = channel();
        Self { tell, told, sent: 0 }
    }

    /// Sends a message with a callback; it has to be accepted.
    pub fn send(&mut self, producer: &Producer, message: Message) {
        let (tell, number, called) = (self.tell.clone(), self.sent, Instant::now());
        self.sent += 1;
        let callback = move |result| {
            let thread = std::thread::current().id();
            let _ = tell.send(Answer { number, result, after: called.elapsed(), thread });
        };
        producer.send_with(message, callback).unwrap();
    }

    /// Waits for as many answers as there were sends, and for one moment more: once means once.
    pub fn all(self) -> Vec<Answer> {
        let mut answers: Vec<Answer> = Vec::new();
        while answers.len() < self.sent {
            let answer = self.told.recv_timeout(PATIENCE);
            answers.push(answer.unwrap_or_else(|_| panic!("{} of {} answers", answers.len(), self.sent)));
        }
        assert!(self.told.recv_timeout(Duration::from_millis(300)).is_err(), "an answer after the last");
        answers.sort_by_key(|answer| answer.number);
        assert!(answers.iter().enumerate().all(|(index, answer)| index == answer.number), "one was answered twice");
        answers
    }
}
