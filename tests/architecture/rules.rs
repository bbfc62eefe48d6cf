//! The rules, each a function from one file to the complaints about it.

use crate::source::Source;

const LONGEST_FILE: usize = 600;

/// Folders whose files decide and touch nothing.
const PURE_FOLDERS: [&str; 5] =
    ["src/policy/", "src/pulsar/wire/", "src/pulsar/engine/", "src/rocketmq/wire/", "src/rocketmq/engine/"];
/// Single files of the same kind.
const PURE_FILES: [&str; 7] = [
    "src/error.rs",
    "src/policy.rs",
    "src/pulsar/topic.rs",
    "src/pulsar/message_id.rs",
    "src/pulsar/routing.rs",
    "src/pulsar/service_url.rs",
    "src/rocketmq/filter.rs",
];

/// Starts of paths that a pure file must not name: threads, sockets, locks, channels, files.
const IMPURE: [&str; 26] = [
    "std::thread",
    "std::net::Tcp",
    "std::net::Udp",
    "std::net::ToSocketAddrs",
    "std::net::*",
    "std::os",
    "std::fs",
    "std::env",
    "std::process",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::sync::Barrier",
    "std::sync::mpsc",
    "std::sync::*",
    "std::*",
    "crossbeam",
    "parking_lot",
    "loom",
    "mio",
    "socket2",
    "grpcio",
    "rustls",
    "ureq",
    "crate::runtime",
    "crate::testkit",
];

/// Roots of paths that `policy` may name.
const POLICY_MAY: [&str; 5] = ["std", "core", "alloc", "crate::error", "crate::policy"];

const THREAD_FILE: &str = "src/runtime/thread.rs";

/// All complaints about one file. Code for tests has been taken out of it, but still counts in its length.
pub fn check(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |text: String| complaints.push(format!("{}: {text}", source.path));
    if source.lines >= LONGEST_FILE {
        complain(format!("{} lines; split it before {LONGEST_FILE}", source.lines));
    }
    if is_pure(&source.path) {
        purity(source, &mut complain);
    }
    if in_part(&source.path, "policy") {
        policy(source, &mut complain);
    }
    layers(source, &mut complain);
    threads(source, &mut complain);
    complaints
}

fn is_pure(path: &str) -> bool {
    PURE_FILES.contains(&path) || PURE_FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Whether a file belongs to `src/PART.rs` or `src/PART/`.
fn in_part(path: &str, part: &str) -> bool {
    let rest = path.strip_prefix("src/").and_then(|rest| rest.strip_prefix(part));
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Whether `path` is `part` or lies below it.
fn below(path: &str, part: &str) -> bool {
    path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn purity(source: &Source, complain: &mut impl FnMut(String)) {
    for path in &source.paths {
        if IMPURE.iter().any(|start| path.starts_with(start)) {
            complain(format!("pure, but names {path}"));
        }
        if ["Instant::now", "SystemTime::now"].iter().any(|call| path.ends_with(call)) {
            complain(format!("pure, but reads the clock with {path}"));
        }
    }
    if source.methods.iter().any(|method| method == "elapsed") {
        complain("pure, but reads the clock with elapsed".into());
    }
}

fn policy(source: &Source, complain: &mut impl FnMut(String)) {
    for path in &source.paths {
        let root = path.split("::").next().unwrap_or_default();
        // A root in capitals is a type of this file or an imported one, whose import is looked at by itself;
        // the numbers and built-in types have lower-case names.
        let built_in = ["f32", "f64", "bool", "char", "str"].contains(&root)
            || root.strip_prefix(['u', 'i']).is_some_and(|bits| bits == "size" || bits.parse::<u8>().is_ok());
        let local = root.starts_with(char::is_uppercase) || source.modules.iter().any(|module| module == root);
        // A name that `use` gave to something allowed, such as `mem` for `std::mem`, has been resolved before.
        if !built_in && !local && !POLICY_MAY.iter().any(|part| below(path, part)) {
            complain(format!("policy may use std, error and policy alone, but names {path}"));
        }
    }
}

fn layers(source: &Source, complain: &mut impl FnMut(String)) {
    let forbidden: &[&str] = if in_part(&source.path, "pulsar") {
        &["crate::rocketmq", "crate::testkit"]
    } else if in_part(&source.path, "rocketmq") {
        &["crate::pulsar", "crate::testkit"]
    } else if in_part(&source.path, "testkit") {
        &["crate::pulsar::engine", "crate::rocketmq::engine", "crate::pulsar::*", "crate::rocketmq::*"]
    } else if in_part(&source.path, "runtime") {
        &["crate::pulsar", "crate::rocketmq", "crate::testkit"]
    } else {
        &[]
    };
    for path in &source.paths {
        if forbidden.iter().any(|part| below(path, part)) {
            complain(format!("must not know of {path}"));
        }
    }
}

fn threads(source: &Source, complain: &mut impl FnMut(String)) {
    // The tool is a program that uses the library, not a part of it.
    if source.path.starts_with("src/bin/") {
        return;
    }
    let starts = |path: &str, what: &str| path == format!("std::thread::{what}") || path == format!("thread::{what}");
    let mut names_threads = false;
    for path in &source.paths {
        if starts(path, "spawn") || path == "std::thread::*" {
            complain(format!("{path} makes a thread without a name"));
        }
        if path.contains("thread::Builder") || path == "grpcio::EnvBuilder" {
            names_threads = true;
            let at_home = source.path == THREAD_FILE || in_part(&source.path, "testkit");
            if !at_home && path.contains("thread::Builder") {
                complain(format!("threads are made in {THREAD_FILE} and testkit alone, but it names {path}"));
            }
        }
    }
    if names_threads {
        thread_names(source, complain);
    }
}

/// Each name that is written out starts with `tmq-`, and there is one.
fn thread_names(source: &Source, complain: &mut impl FnMut(String)) {
    let calls = source.text.split(".name(").chain(source.text.split(".name_prefix(").skip(1)).skip(1);
    let mut any = false;
    for call in calls {
        // A name that is not written where it is given is written somewhere else in the file.
        let argument = call.trim_start().trim_start_matches("format!(").trim_start();
        if let Some(name) = argument.strip_prefix('"') {
            any = true;
            if !name.starts_with("tmq-") {
                let name: String = name.chars().take_while(|&c| c != '"').collect();
                complain(format!("the thread name \"{name}\" does not start with tmq-"));
            }
        }
    }
    if !any && !source.text.contains("\"tmq-") {
        complain("makes threads, but no name that starts with tmq-".into());
    }
}
