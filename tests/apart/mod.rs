//! Tests that run in a process of their own, so that its memory can be told from that of others and a hang can be
//! ended. Shared by the hostile suites.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process that runs one test.
const APART: &str = "THREADMQ_TEST_APART";

/// Runs the test of this name apart. Its process may grow by so many KiB, and is ended after `hangs`.
pub fn apart(test: &str, most_kib: u64, hangs: Duration, body: impl FnOnce()) {
    if std::env::var_os(APART).is_none() {
        return run_alone(test, hangs);
    }
    let before = peak();
    body();
    let grown = peak().saturating_sub(before);
    println!("{test} is done, peak memory grew by {grown} KiB");
    assert!(grown < most_kib, "memory grew by {grown} KiB");
}

fn run_alone(test: &str, hangs: Duration) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(APART, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = stdout.read_to_string(&mut said);
        said
    });
    let end = Instant::now() + hangs;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            process.kill().unwrap();
            process.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = reading.join().unwrap();
    print!("{said}");
    let status = status.unwrap_or_else(|| panic!("{test} hangs"));
    // A name that is wrong would run nothing, and pass.
    assert!(status.success() && said.contains("is done, peak memory"), "{test}: {status}");
}

/// The most memory that the process ever had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
