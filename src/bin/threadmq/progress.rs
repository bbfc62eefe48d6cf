//! What is seen while a command runs: a bar on a terminal, lines at most elsewhere. Always on standard error.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far something is until it is dropped.
pub struct Progress {
    bar: Option<ProgressBar>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What to do where no terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    Silent,
    /// A line each so often.
    Lines(Duration),
}

const REDRAW: Duration = Duration::from_millis(200);

impl Progress {
    /// `read` gives the place, out of `total` if that is known, and a text beside it.
    pub fn start(total: Option<u64>, elsewhere: Elsewhere, read: impl Fn() -> (u64, String) + Send + 'static) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| new_bar(total));
        let period = match (&bar, elsewhere) {
            (Some(_), _) => REDRAW,
            (None, Elsewhere::Lines(period)) => period,
            // Not even a thread: it would show in what is measured.
            (None, Elsewhere::Silent) => return Self { bar: None, stop: None, thread: None },
        };
        let (stop, stopped) = channel::<()>();
        let shown = bar.clone();
        let started = Instant::now();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let (place, text) = read();
                match &shown {
                    Some(bar) => {
                        bar.set_position(place);
                        bar.set_message(text);
                    }
                    None => eprintln!("{:5.1} s  {text}", started.elapsed().as_secs_f64()),
                }
            }
        });
        Self { bar, stop: Some(stop), thread: Some(thread) }
    }

    /// A line that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{elapsed_precise} [{bar:30}] {percent:>3}%  {msg}"),
        None => (ProgressBar::new_spinner(), "{elapsed_precise} {spinner}  {msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
