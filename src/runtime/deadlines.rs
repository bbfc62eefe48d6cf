//! The machinery of the two deadline threads: keys come in, and go back to their loop when they are due.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;

use super::thread::{Ending, panic_text, spawn_ending};
use crate::policy::deadline::DeadlineQueue;

/// At most so many messages are taken before what is due is looked at again.
const BATCH: usize = 4_096;

/// Who is told that a key is due.
pub(crate) trait DeadlineSink: Send + Sync {
    /// Posts the key to a loop's control inbox. Runs on the deadline thread: must not block.
    fn due(&self, key: u64);
}

/// A thread that sleeps until the next key is due. Ends when it is told to or when this is dropped; watches that
/// are left then do nothing.
pub(crate) struct DeadlineThread {
    /// Unbounded by its own; what is in it is bounded because callers arm a key only when it is unarmed or moves
    /// earlier, and keys are lanes, links and requests in flight.
    messages: Sender<Message>,
    next_sink: AtomicU64,
    ending: Mutex<Option<Ending>>,
}

/// The deadlines of one sink. Dropping it cancels them all.
pub(crate) struct Watch {
    sink: u64,
    messages: Sender<Message>,
}

enum Message {
    Sink(u64, Arc<dyn DeadlineSink>),
    Arm(Key, Instant),
    Cancel(Key),
    Remove(u64),
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    sink: u64,
    key: u64,
}

impl DeadlineThread {
    /// Starts `tmq-<name>`.
    pub fn start(name: &str) -> io::Result<Self> {
        let (messages, inbox) = unbounded();
        let ending = spawn_ending(name, move || Clockwork::new(inbox).run())?;
        Ok(Self { messages, next_sink: AtomicU64::new(0), ending: Mutex::new(Some(ending)) })
    }

    pub fn sink(&self, sink: Arc<dyn DeadlineSink>) -> Watch {
        let id = self.next_sink.fetch_add(1, Ordering::Relaxed);
        post(&self.messages, Message::Sink(id, sink));
        Watch { sink: id, messages: self.messages.clone() }
    }

    /// Tells the thread to end. Nothing is due after that.
    pub fn shutdown(&self) {
        post(&self.messages, Message::Stop);
    }

    /// Ends the thread and waits until it is gone. It never blocks, so this is short.
    #[cfg(test)]
    pub fn shutdown_and_join(&self) {
        self.shutdown();
        if let Some(ending) = self.ending.lock().take() {
            ending.join();
        }
    }

    /// Waits for the end that [`shutdown`](Self::shutdown) asked for. False if it is not over by `deadline`.
    pub fn join_by(&self, deadline: Instant) -> bool {
        // Somebody else may wait for the same end.
        let Some(mut slot) = self.ending.try_lock_until(deadline) else { return false };
        let Some(ending) = slot.take() else { return true };
        match ending.join_by(deadline) {
            Ok(()) => true,
            Err(ending) => {
                *slot = Some(ending);
                false
            }
        }
    }
}

impl Drop for DeadlineThread {
    /// Does not wait: the last clone may be dropped on any thread, this one included.
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Watch {
    /// Arms `key` if it is unarmed or armed for later. When it is due, the sink is told once and the key is unarmed.
    pub fn arm(&self, key: u64, at: Instant) {
        post(&self.messages, Message::Arm(Key { sink: self.sink, key }, at));
    }

    /// The sink may still be told if the key is due at this moment.
    pub fn cancel(&self, key: u64) {
        post(&self.messages, Message::Cancel(Key { sink: self.sink, key }));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        post(&self.messages, Message::Remove(self.sink));
    }
}

/// After the thread has ended nothing can be due any more, and there is nothing to say to it.
fn post(messages: &Sender<Message>, message: Message) {
    let _ = messages.send(message);
}

/// What the thread owns.
struct Clockwork {
    inbox: Receiver<Message>,
    sinks: HashMap<u64, Arc<dyn DeadlineSink>>,
    queue: DeadlineQueue<Key>,
}

impl Clockwork {
    fn new(inbox: Receiver<Message>) -> Self {
        Self { inbox, sinks: HashMap::new(), queue: DeadlineQueue::new() }
    }

    fn run(mut self) {
        loop {
            let first = match self.queue.next_due() {
                Some(due) => self.inbox.recv_deadline(due),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match first {
                Ok(message) => {
                    if !self.take_batch(message) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tell_due();
        }
    }

    /// False when told to end.
    fn take_batch(&mut self, first: Message) -> bool {
        if !self.take(first) {
            return false;
        }
        for _ in 0..BATCH {
            match self.inbox.try_recv() {
                Ok(message) => {
                    if !self.take(message) {
                        return false;
                    }
                }
                Err(_) => break,
            }
        }
        true
    }

    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Sink(id, sink) => {
                self.sinks.insert(id, sink);
            }
            Message::Arm(key, at) => {
                self.queue.arm(key, at);
            }
            Message::Cancel(key) => {
                self.queue.cancel(key);
            }
            Message::Remove(id) => {
                self.sinks.remove(&id);
                self.queue.retain(|key| key.sink != id);
            }
            Message::Stop => return false,
        }
        true
    }

    fn tell_due(&mut self) {
        let now = Instant::now();
        while let Some(Key { sink: id, key }) = self.queue.pop_due(now) {
            let Some(sink) = self.sinks.get(&id) else { continue };
            // One broken sink must not take the deadlines of all others with it.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| sink.due(key))) {
                log::error!("a deadline sink panicked: {}", panic_text(&*payload));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    struct Told(Sender<(u64, Instant)>);

    impl DeadlineSink for Told {
        fn due(&self, key: u64) {
            assert_ne!(key, 666, "planted");
            let _ = self.0.send((key, Instant::now()));
        }
    }

    fn watch(thread: &DeadlineThread) -> (Watch, Receiver<(u64, Instant)>) {
        let (tx, rx) = unbounded();
        (thread.sink(Arc::new(Told(tx))), rx)
    }

    #[test]
    fn keys_are_told_when_due_and_never_before() {
        let thread = DeadlineThread::start("unit").unwrap();
        let (watch, told) = watch(&thread);
        let start = Instant::now();
        let (first, second) = (start + Duration::from_millis(20), start + Duration::from_millis(60));
        watch.arm(2, second);
        watch.arm(1, first);
        let (key, at) = told.recv_timeout(LONG).unwrap();
        assert!(key == 1 && at >= first);
        let (key, at) = told.recv_timeout(LONG).unwrap();
        assert!(key == 2 && at >= second);
        thread.shutdown_and_join();
    }

    #[test]
    fn a_key_armed_for_later_stays_and_one_armed_earlier_moves() {
        let thread = DeadlineThread::start("unit").unwrap();
        let (watch, told) = watch(&thread);
        let far = Instant::now() + LONG * 60;
        watch.arm(1, far);
        watch.arm(1, Instant::now());
        assert_eq!(told.recv_timeout(LONG).unwrap().0, 1);
        // Unarmed now: can be armed again, and a later time does not replace it.
        watch.arm(1, Instant::now() + Duration::from_millis(10));
        watch.arm(1, far);
        assert_eq!(told.recv_timeout(LONG).unwrap().0, 1);
        thread.shutdown_and_join();
        assert!(told.try_recv().is_err(), "told once each time it was armed");
    }

    #[test]
    fn a_cancelled_key_and_a_dropped_watch_are_silent() {
        let thread = DeadlineThread::start("unit").unwrap();
        let (kept, told) = watch(&thread);
        let (dropped, silent) = watch(&thread);
        let soon = Instant::now() + Duration::from_millis(100);
        kept.arm(1, soon);
        kept.cancel(1);
        dropped.arm(1, soon);
        drop(dropped);
        kept.arm(2, soon);
        assert_eq!(told.recv_timeout(LONG).unwrap().0, 2, "key 1 would have come first");
        assert!(silent.recv_timeout(LONG).is_err(), "the sink itself is dropped");
    }

    #[test]
    fn a_panicking_sink_does_not_end_the_thread() {
        let thread = DeadlineThread::start("unit").unwrap();
        let (watch, told) = watch(&thread);
        watch.arm(666, Instant::now());
        watch.arm(1, Instant::now() + Duration::from_millis(10));
        assert_eq!(told.recv_timeout(LONG).unwrap().0, 1);
    }

    #[test]
    fn the_thread_ends_with_its_last_handle() {
        let thread = DeadlineThread::start("unit").unwrap();
        let (watch, told) = watch(&thread);
        watch.arm(1, Instant::now() + LONG * 60);
        drop(thread);
        assert!(told.recv_timeout(LONG).is_err(), "the thread drops its sinks when it ends");
        watch.arm(2, Instant::now());
    }

    #[test]
    fn joining_is_idempotent_and_keeps_its_limit() {
        let thread = DeadlineThread::start("unit").unwrap();
        assert!(!thread.join_by(Instant::now()), "it was not told to end");
        thread.shutdown();
        assert!(thread.join_by(Instant::now() + LONG));
        assert!(thread.join_by(Instant::now()));
        thread.shutdown_and_join();
    }
}
