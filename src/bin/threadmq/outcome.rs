//! How a command ended, and why one could not run.

use std::error::Error;
use std::fmt;

pub const EXIT_CODES: &str = "\
Exit codes:
  0    all went well
  1    it ran, and something is wrong: messages failed, or a check found a violation
  2    the command line is not usable
  3    it could not run, for example because no broker answers
  130  Ctrl-C was pressed twice; once ends in good order, with the summary so far and the codes above";

/// How a command that ran has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Bad,
}

impl Outcome {
    pub fn good_if(good: bool) -> Self {
        if good { Self::Good } else { Self::Bad }
    }
}

/// Why a command could not run: one text for the user.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What was tried, what went wrong, and what that came from.
    pub fn of(what: &str, error: &(dyn Error + 'static)) -> Self {
        let mut text = format!("{what}: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            // Errors in context repeat the text that they wrap.
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self(text)
    }

    /// With advice on a line of its own.
    pub fn advise(self, advice: &str) -> Self {
        Self(format!("{}\n  {advice}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
