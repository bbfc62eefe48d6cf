//! One line an event, for programs that compare clients under faults.
//!
//! `S number called returned [error]`, `C number at ok|error`, `X what at [note]`; times in milliseconds of the
//! Unix epoch.

use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::outcome::Failure;

pub struct EventLog(Mutex<LineWriter<File>>);

/// Now, as the lines have it.
pub fn unix_millis() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

impl EventLog {
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::of(&format!("--events {}", path.display()), &error))?;
        Ok(Self(Mutex::new(LineWriter::new(file))))
    }

    pub fn sent(&self, number: u64, called: f64, error: Option<&str>) {
        self.line(&format!("S {number} {called:.1} {:.1} {}", unix_millis(), error.unwrap_or_default()));
    }

    pub fn answered(&self, number: u64, error: Option<&str>) {
        self.line(&format!("C {number} {:.1} {}", unix_millis(), error.unwrap_or("ok")));
    }

    pub fn mark(&self, what: &str, note: &str) {
        self.line(&format!("X {what} {:.1} {note}", unix_millis()));
    }

    fn line(&self, text: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not change what is observed.
        let _ = writeln!(file, "{}", text.replace('\n', " ").trim_end());
    }
}
