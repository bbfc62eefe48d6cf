//! Threads of ours: named, and with a floor under their panics.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

/// Starts a thread called `tmq-<name>`. Linux keeps 15 bytes of that. A panic ends the thread and is logged.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    spawn_with(name, body, |_| {})
}

/// The same; after a panic, `on_panic` runs on the thread with the panic's text, once `body` and all that it
/// owned are unwound.
pub(crate) fn spawn_with(
    name: &str,
    body: impl FnOnce() + Send + 'static,
    on_panic: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let name = format!("tmq-{name}");
    let shown = name.clone();
    Builder::new().name(name).spawn(move || {
        // What the body shared with others is judged by `on_panic`, whose work it is to close it.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
            let text = panic_text(&*payload);
            log::error!("thread {shown} panicked: {text}");
            on_panic(&text);
        }
    })
}

/// A running thread whose end can be waited for with a limit.
pub(crate) struct Ending {
    handle: JoinHandle<()>,
    /// Disconnected when the body is over.
    over: Receiver<()>,
}

/// Like [`spawn`], with a handle that can be joined with a limit.
pub(crate) fn spawn_ending(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Ending> {
    let (running, over) = bounded::<()>(0);
    let handle = spawn(name, move || {
        let _running = running;
        body();
    })?;
    Ok(Ending { handle, over })
}

impl Ending {
    /// True on the thread itself.
    pub fn is_current(&self) -> bool {
        self.handle.thread().id() == thread::current().id()
    }

    /// Waits until the thread is gone. Returns at once on the thread itself, which cannot wait for its own end.
    pub fn join(self) {
        if !self.is_current() {
            // A panic of the body was caught and logged inside.
            let _ = self.handle.join();
        }
    }

    /// The same with a limit: gives itself back if the body still runs at `deadline`.
    pub fn join_by(self, deadline: Instant) -> Result<(), Self> {
        if !self.is_current() && self.over.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            return Err(self);
        }
        self.join();
        Ok(())
    }
}

/// The text that a panic was raised with.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "no text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn threads_carry_their_name() {
        let (tx, rx) = mpsc::channel();
        let handle = spawn("unit", move || tx.send(std::thread::current().name().map(str::to_owned)).unwrap()).unwrap();
        assert_eq!(rx.recv().unwrap().as_deref(), Some("tmq-unit"));
        handle.join().unwrap();
    }

    #[test]
    fn a_panic_is_caught_and_told() {
        let (tx, rx) = mpsc::channel();
        let owned = tx.clone();
        let body = move || {
            let _owned = owned;
            panic!("went {}", "wrong");
        };
        let handle = spawn_with("unit", body, move |text| tx.send(text.to_owned()).unwrap()).unwrap();
        assert_eq!(rx.recv().unwrap(), "went wrong");
        handle.join().expect("the panic stays inside");
        assert!(rx.recv().is_err(), "what the body owned is dropped");
    }

    #[test]
    fn a_panic_of_another_type_has_a_text_too() {
        let payload: Box<dyn Any + Send> = Box::new(7);
        assert_eq!(panic_text(&*payload), "no text");
    }
}
