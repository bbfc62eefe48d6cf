//! What the library logs, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

struct ToStandardError;

impl Log for ToStandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("threadmq")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{:5} {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}

pub fn install(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Warn,
        2 => LevelFilter::Info,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&ToStandardError).is_ok() {
        log::set_max_level(level);
    }
}
