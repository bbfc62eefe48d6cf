//! The checker itself: it must see planted violations, and nothing in clean code.

use crate::rules::check;
use crate::source::Source;
use crate::without_tests;

fn complaints(path: &str, text: &str) -> Vec<String> {
    check(&Source::read(path, text))
}

fn caught(path: &str, text: &str, part: &str) {
    let found = complaints(path, text);
    assert!(found.iter().any(|complaint| complaint.contains(part)), "not caught in {path}: {text}\n{found:?}");
}

fn clean(path: &str, text: &str) {
    assert_eq!(complaints(path, text), Vec::<String>::new(), "{text}");
}

#[test]
fn impure_code_is_caught() {
    for text in [
        "use std::thread;",
        "use std::{fmt, thread};",
        "use std::{fmt, sync::{Arc, Mutex as Lock}};",
        "use std::sync::mpsc::channel;",
        "use std::sync::Condvar;",
        "use std::sync::*;",
        "use std::net::TcpStream;",
        "use std::net::{Ipv4Addr, TcpListener};",
        "fn f() { std::thread::sleep(d) }",
        "use std::sync; struct S { lock: sync::Mutex<u8> }",
        "use crossbeam_channel::Sender;",
        "use parking_lot::Mutex;",
        "type Stream = mio::net::TcpStream;",
        "use crate::runtime::clock;",
        "use super::super::super::runtime::clock;",
    ] {
        caught("src/pulsar/engine/retry.rs", text, "pure, but names");
    }
    for text in [
        "use std::time::Instant; fn f() { let now = Instant::now(); }",
        "use std::time::Instant as Clock; fn f() { let now = Clock::now(); }",
        "use std::time; fn f() { time::SystemTime::now() }",
        "fn f(then: Instant) -> bool { then.elapsed() > LIMIT }",
        "fn f<'a>(c: char) -> Instant { if c == '\"' { Instant::now() } else { g('x') } }",
        "fn f() { let c = b'\"'; Instant::now() }",
        "fn f() { r#\"\"\"#; Instant::now() }",
        "/* /* */ */ fn f() { Instant::now() }",
        "#[cfg(any(test, feature = \"testkit\"))] fn f() { Instant::now() }",
        "#[cfg(not(test))] fn f() { Instant::now() }",
        "#[cfg(test)] mod tests; fn f() { Instant::now() }",
        "#[cfg(test)] use a::{b, c}; fn f() { Instant::now() }",
        "#[cfg(test)] mod tests { fn g() {} } fn f() { Instant::now() }",
    ] {
        caught("src/policy/backoff.rs", text, "reads the clock");
    }
    for path in ["src/pulsar/topic.rs", "src/pulsar/wire/frame.rs", "src/rocketmq/engine/route.rs", "src/error.rs"] {
        caught(path, "use std::thread;", "pure");
    }
}

#[test]
fn clean_code_passes() {
    for text in [
        "use std::net::{Ipv4Addr, IpAddr}; use std::sync::{Arc, atomic::AtomicU32}; use std::time::Instant;",
        "// std::thread::spawn\n/// Instant::now\n/* mio::Poll */ fn f() { g(\"use std::thread;\") }",
        "fn f() { r#\"Instant::now() \"quoted\" \"#; }",
        "fn f<'a>(now: Instant, x: &'a str) -> char { '\\'' }",
        "#[cfg(test)]\nmod tests { use std::thread; fn f() { thread::spawn(g); } }",
        "#[cfg(test)] use std::{thread, time}; fn f() {}",
        "#[cfg(all(test, feature = \"x\"))] fn f() { Instant::now() }",
    ] {
        clean("src/pulsar/engine/retry.rs", text);
    }
    clean("src/pulsar/event_loop.rs", "use mio::Poll; fn f() { Instant::now() }");
    clean(
        "src/policy/budget.rs",
        "#![allow(clippy::indexing_slicing)] use std::mem; use crate::error::{Error, ErrorKind}; use super::backoff::Backoff; mod rest;
         use rest::Rest; fn f() { mem::take(x); u64::from(3); Self::new(); ErrorKind::Config; Backoff::new() }",
    );
}

#[test]
fn files_of_tests_are_left_out() {
    let parent =
        Source::read("src/pulsar/engine/mod.rs", "#[cfg(test)]\nmod world;\n#[cfg(test)]\npub(crate) mod tests;");
    let text = "use std::thread;\n".repeat(600);
    let files = ["world.rs", "world/model.rs", "tests/mod.rs"];
    let sources = files.map(|file| Source::read(&format!("src/pulsar/engine/{file}"), &text));
    for source in without_tests(std::iter::once(parent).chain(sources).collect()).iter().skip(1) {
        let found = check(source);
        assert!(found.len() == 1 && found.iter().all(|text| text.contains("600 lines")), "{found:?}");
    }
    let other = Source::read("src/pulsar/engine/world.rs", "use std::thread;");
    let parent = Source::read("src/pulsar/engine/mod.rs", "mod world;");
    assert_eq!(without_tests(vec![parent, other]).iter().flat_map(check).count(), 1);
}

#[test]
fn broken_layers_are_caught() {
    for (path, text) in [
        ("src/policy/retry.rs", "use crate::pulsar::wire::pb;"),
        ("src/policy/retry.rs", "use super::super::pulsar::topic;"),
        ("src/policy/retry.rs", "use protobuf::Message;"),
        ("src/policy/retry.rs", "fn f() { log::warn!(\"x\") }"),
        ("src/policy/mod.rs", "use crate::{error::Error, threads::Threads};"),
    ] {
        caught(path, text, "policy may use");
    }
    for (path, text) in [
        ("src/pulsar/client.rs", "use crate::rocketmq::client;"),
        ("src/pulsar/mod.rs", "use super::rocketmq;"),
        ("src/rocketmq/wire/code.rs", "use crate::{pulsar::topic, error};"),
        ("src/testkit/broker.rs", "use crate::pulsar::{wire::frame, engine::batch};"),
        ("src/testkit/broker/session.rs", "fn f() { crate::rocketmq::engine::route::pick() }"),
        ("src/testkit/broker.rs", "use crate::pulsar::*;"),
        ("src/runtime/inbox.rs", "use crate::pulsar::engine;"),
        ("src/pulsar/client.rs", "use crate::testkit::Network;"),
    ] {
        caught(path, text, "must not know");
    }
    clean("src/testkit/broker.rs", "use crate::pulsar::wire::frame; use crate::pulsar::topic::TopicName;");
    clean("src/lib.rs", "pub mod pulsar; pub mod rocketmq; pub use pulsar::Client;");
}

#[test]
fn long_files_are_caught() {
    caught("src/runtime/gate.rs", &"\n".repeat(600), "600 lines");
    clean("src/runtime/gate.rs", &"\n".repeat(599));
}

#[test]
fn threads_made_elsewhere_or_without_our_name_are_caught() {
    for text in [
        "use std::thread; fn f() { thread::Builder::new().name(\"tmq-x\".into()) }",
        "use std::thread::Builder; fn f() { Builder::new().name(\"tmq-x\".into()) }",
    ] {
        caught("src/pulsar/event_loop.rs", text, "alone");
        clean("src/runtime/thread.rs", text);
        clean("src/testkit/broker.rs", text);
    }
    for text in
        ["use std::thread; fn f() { thread::spawn(g) }", "use std::thread::spawn;", "fn f() { std::thread::spawn(g) }"]
    {
        caught("src/testkit/broker.rs", text, "without a name");
        caught("src/runtime/thread.rs", text, "without a name");
        clean("src/bin/threadmq/perf.rs", text);
    }
    let build = "use std::thread::Builder; fn f() { Builder::new()";
    caught("src/testkit/broker.rs", &format!("{build}.name(\"broker\".into()) }}"), "\"broker\" does not start");
    caught("src/testkit/broker.rs", &format!("{build}.name(format!(\"t-{{n}}\")) }}"), "does not start");
    caught("src/testkit/broker.rs", &format!("{build}.spawn(g) }}"), "no name");
    caught("src/runtime/thread.rs", &format!("{build}.name(name) }}"), "no name");
    clean("src/runtime/thread.rs", &format!("{build}.name(format!(\"tmq-{{name}}\")) }}"));
    clean("src/runtime/thread.rs", &format!("{build}.name(name) }} const PREFIX: &str = \"tmq-\";"));
    let grpc = "use grpcio::EnvBuilder; fn f() { EnvBuilder::new().name_prefix(\"grpc-\") }";
    caught("src/rocketmq/rpc.rs", grpc, "\"grpc-\" does not start");
}
