//! The command line tool, run as users run it.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use threadmq::testkit::pulsar::Broker;

const PERF_KEYS: [&str; 12] = [
    "mode",
    "messages",
    "seconds",
    "msgs_per_s",
    "mb_per_s",
    "cpu_us_per_msg",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "max_rss_mb",
    "errors",
];

const VERIFY_KEYS: [&str; 17] = [
    "accepted",
    "answered",
    "unanswered",
    "answered_twice",
    "late",
    "max_answer_ms",
    "max_callback_lag_ms",
    "max_loop_lag_ms",
    "longest_call_ms",
    "ok",
    "timed_out",
    "failed",
    "lost_acknowledged",
    "order_violations",
    "duplicates",
    "recoveries",
    "recovery_ms",
];

fn tool(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_threadmq"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(line: &str) -> Output {
    tool(line).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one object on standard output, with its keys in order.
fn object(output: &Output, keys: &[&str]) -> Value {
    let text = stdout(output);
    assert_eq!(text.lines().count(), 1, "one line, not {text:?}; {}", stderr(output));
    let places: Vec<_> = keys.iter().map(|key| text.find(&format!("\"{key}\":"))).collect();
    assert!(places.iter().all(Option::is_some), "{keys:?} in {text}");
    assert!(places.is_sorted(), "{keys:?} in this order in {text}");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value.as_object().unwrap().len(), keys.len(), "no other keys: {text}");
    value
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Every promise held. A machine so busy that it leaves threads waiting cannot be on time, and says so.
fn assert_holds(output: &Output, found: &Value) {
    for violation in ["unanswered", "answered_twice", "lost_acknowledged", "order_violations"] {
        assert_eq!(number(found, violation), 0.0, "{violation} in {found}");
    }
    assert_eq!(number(found, "accepted"), number(found, "answered"), "{found}");
    if number(found, "late") > 0.0 {
        assert_eq!(output.status.code(), Some(1), "{found}");
        let said = stderr(output);
        let figures: Vec<f64> = said
            .lines()
            .filter(|line| line.starts_with("results were fixed up to"))
            .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()))
            .collect();
        let [overdue, stall] = figures[..] else { panic!("two figures in {said}") };
        assert!(stall > 50.0, "late by {overdue} ms, and the machine by only {stall} ms: {found}");
    } else {
        assert!(output.status.success(), "{found} {}", stderr(output));
    }
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn help_says_defaults_units_and_exit_codes() {
    for line in
        ["--help", "pulsar verify --help", "pulsar perf --help", "pulsar produce --help", "pulsar consume --help"]
    {
        let output = run(line);
        assert!(output.status.success(), "{line}");
        assert!(stdout(&output).contains("130"), "{line}: exit codes");
    }
    let verify = stdout(&run("pulsar verify --help"));
    for part in ["--send-timeout <DURATION>", "[default: 5s]", "--batching <on|off>", "in seconds"] {
        assert!(verify.contains(part), "{part} in {verify}");
    }
}

#[test]
fn bad_values_name_the_flag() {
    for (line, parts) in [
        ("pulsar verify --send-timeout 5", ["--send-timeout", "unit"]),
        ("pulsar verify --freeze 5s", ["--embedded", "required"]),
        ("pulsar verify --embedded --freeze soon", ["--freeze", "soon"]),
        ("pulsar perf produce --rate 0", ["--rate", "more than zero"]),
        ("pulsar perf sideways", ["sideways", "produce"]),
        ("pulsar produce --topic t --size huge", ["--size", "bytes"]),
        ("pulsar produce --topic t --batching maybe", ["--batching", "on, off"]),
        ("pulsar consume --topic t --receiver-queue 0", ["--receiver-queue", "1"]),
        ("pulsar produce --count 1", ["--topic", "required"]),
        ("broker pulsar --partitions orders", ["--partitions", "TOPIC=NUMBER"]),
    ] {
        let output = run(line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        for part in parts {
            assert!(stderr(&output).contains(part), "{line}: {part} in {}", stderr(&output));
        }
    }
}

#[test]
fn what_cannot_run_says_why_and_exits_with_3() {
    for (line, part) in [
        ("pulsar produce --topic t --url http://localhost", "http"),
        ("pulsar produce --topic a//b --url pulsar://127.0.0.1:1", "a//b"),
        ("pulsar verify --embedded --seconds 5 --freeze 20s", "--seconds"),
    ] {
        let output = run(line);
        assert_eq!(output.status.code(), Some(3), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{line}");
    }
}

#[test]
fn produces_and_consumes() {
    let broker = Broker::start().unwrap();
    let url = broker.service_url();
    let keys =
        ["messages", "ok", "timed_out", "failed", "refused", "seconds", "msgs_per_s", "mb_per_s", "last_message_id"];
    let output = run(&format!("pulsar produce --url {url} --topic t --message hello --key k --count 3 --json"));
    assert!(output.status.success(), "{}", stderr(&output));
    let produced = object(&output, &keys);
    assert_eq!((number(&produced, "messages"), number(&produced, "ok")), (3.0, 3.0));

    let mut child = tool(&format!("pulsar produce --url {url} --topic t --lines --batching off"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"first line\nsecond line\n").unwrap();
    assert!(child.wait().unwrap().success());

    let output = run(&format!("pulsar consume --url {url} --topic t --from earliest --count 5"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "k\thello\nk\thello\nk\thello\nfirst line\nsecond line\n");

    let keys = ["messages", "bytes", "seconds", "msgs_per_s", "mb_per_s"];
    let output = run(&format!("pulsar consume --url {url} --topic t --from earliest --idle 1s --json"));
    let consumed = object(&output, &keys);
    assert_eq!((number(&consumed, "messages"), number(&consumed, "bytes")), (5.0, 36.0));
}

#[test]
fn perf_prints_its_figures() {
    let broker = Broker::start().unwrap();
    let url = broker.service_url();
    for (mode, options) in [
        ("produce", "--count 20000 --inflight 1000"),
        ("produce", "--count 2000 --batching off --compression lz4 --size 1k"),
        ("sync", "--count 50 --batching off"),
        ("latency", "--count 500 --rate 1000"),
        ("consume", "--count 5000"),
    ] {
        let output = run(&format!("pulsar perf {mode} --url {url} --json {options}"));
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let figures = object(&output, &PERF_KEYS);
        assert_eq!(figures["mode"], mode);
        let count: f64 = options.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_eq!(number(&figures, "messages"), count, "{mode}: {figures}");
        assert_eq!(number(&figures, "errors"), 0.0, "{mode}: {figures}");
        assert!(number(&figures, "msgs_per_s") > 0.0, "{mode}: {figures}");
        assert!(number(&figures, "max_rss_mb") > 1.0, "{mode}: {figures}");
        if mode == "consume" {
            assert_eq!(figures["p50_us"], Value::Null);
        } else {
            assert!(number(&figures, "p50_us") <= number(&figures, "max_us"), "{mode}: {figures}");
        }
    }
}

/// The promise through a half-open link.
#[test]
fn verify_holds_while_the_link_goes_half_open() {
    for batching in ["on", "off"] {
        let line = "pulsar verify --embedded --half-open 1 --rate 200 --seconds 16 --send-timeout 1s --json";
        let output = run(&format!("{line} --batching {batching}"));
        let found = object(&output, &VERIFY_KEYS);
        assert_holds(&output, &found);
        assert_eq!(number(&found, "accepted"), 3200.0, "{found}");
        assert!(number(&found, "timed_out") > 0.0, "{found}");
        assert!(number(&found, "recoveries") >= 1.0, "{found}");
        assert!(number(&found, "recovery_ms") > 1000.0, "{found}");
    }
}

#[test]
fn verify_holds_while_the_broker_freezes_and_restarts() {
    let line = "pulsar verify --embedded --freeze 3s --restart 2s --rate 200 --seconds 14 --send-timeout 1s --json";
    let output = run(line);
    let found = object(&output, &VERIFY_KEYS);
    assert_holds(&output, &found);
    assert!(number(&found, "timed_out") > 0.0, "{found}");
}

/// A broker that acknowledges and throws away must not pass.
#[test]
fn verify_finds_what_a_broker_loses() {
    let broker = Broker::builder().discard(true).start().unwrap();
    let url = broker.service_url();
    let output = run(&format!("pulsar verify --url {url} --rate 100 --seconds 1 --patience 1s --json"));
    let found = object(&output, &VERIFY_KEYS);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert_eq!(number(&found, "lost_acknowledged"), 100.0, "{found}");
    let output = run(&format!("pulsar verify --url {url} --rate 100 --seconds 1 --patience 1s"));
    assert!(stdout(&output).contains("A PROMISE WAS BROKEN"), "{}", stdout(&output));
}

#[test]
fn verify_logs_events_for_comparisons() {
    let broker = Broker::start().unwrap();
    let path = std::env::temp_dir().join(format!("threadmq-tool-events-{}", std::process::id()));
    let url = broker.service_url();
    let line = format!("pulsar verify --url {url} --topic events --rate 50 --seconds 1 --no-read-back --events");
    let output = tool(&line).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines = |head: &str| text.lines().filter(|line| line.starts_with(head)).count();
    assert_eq!((lines("S "), lines("C ")), (50, 50), "{text}");
    assert_eq!((lines("X start"), lines("X close "), lines("X closed"), lines("X end")), (1, 1, 1, 1), "{text}");
    assert!(text.lines().filter(|line| line.starts_with("C ")).all(|line| line.ends_with(" ok")), "{text}");
    assert!(broker.messages("events").first().is_some_and(|first| first.payload.starts_with(b"0 ")));
}

#[test]
fn ctrl_c_ends_a_verification_with_the_summary_so_far() {
    let child = tool("pulsar verify --embedded --rate 100 --seconds 600 --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(3));
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let found = object(&output, &VERIFY_KEYS);
    assert_holds(&output, &found);
    assert!(number(&found, "ok") > 0.0 && number(&found, "ok") < 60_000.0, "{found}");
}

#[test]
fn the_broker_serves_until_ctrl_c() {
    let mut child = tool("broker pulsar --port 0 --partitions orders=3").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let url = lines.next().unwrap();
    assert!(url.starts_with("pulsar://"), "{url}");
    let output = run(&format!("pulsar produce --url {url} --topic orders --count 30 --batching off"));
    assert!(output.status.success(), "{}", stderr(&output));
    interrupt(&child);
    let rest: Vec<String> = lines.collect();
    assert!(child.wait().unwrap().success());
    assert!(rest.iter().any(|line| line.contains("30 messages")), "{rest:?}");
}

#[test]
fn the_demo_shows_timeouts_and_the_recovery() {
    let output = run("demo");
    let (text, progress) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{progress}");
    for part in ["half-open", "sends time out", "connection is replaced"] {
        assert!(progress.contains(part), "{part} in {progress}");
    }
    assert!(text.contains("every promise held"), "{text}");
}

#[cfg(feature = "rocketmq")]
mod rocketmq {
    use threadmq::rocketmq::{Client, FilterExpression, MessageType};
    use threadmq::testkit::rocketmq::Proxy;

    use super::*;

    fn proxy() -> Proxy {
        let proxy = Proxy::start().unwrap();
        proxy.create_topic("t", MessageType::Normal, 4);
        proxy
    }

    #[test]
    fn bad_values_name_the_flag() {
        for (line, part) in [
            ("rocketmq verify --send-timeout 5s", "--topic"),
            ("rocketmq verify --topic t --freeze 5s", "--embedded"),
            ("rocketmq verify --topic t --access-key k", "--secret-key"),
            ("rocketmq produce --topic t --type odd", "--type"),
            ("rocketmq perf consume --topic t --receivers 0", "--receivers"),
            ("rocketmq consume --topic t --invisible 1s", "10s"),
            ("broker rocketmq --topic t=odd", "TOPIC=TYPE"),
        ] {
            let output = run(line);
            assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
            assert!(stderr(&output).contains(part), "{line}: {part} in {}", stderr(&output));
        }
    }

    #[test]
    fn what_cannot_run_says_why_and_exits_with_3() {
        let proxy = proxy();
        let output = run(&format!("rocketmq produce --topic none --endpoint {}", proxy.endpoints()));
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("administrator"), "{}", stderr(&output));
    }

    #[test]
    fn produces_and_consumes() {
        let proxy = proxy();
        let endpoint = proxy.endpoints();
        // The group begins where the topic ends: its first poll comes before the messages.
        let consumer = tool(&format!("rocketmq consume --endpoint {endpoint} --topic t --group g --count 3"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = format!("rocketmq produce --endpoint {endpoint} --topic t --message hello --key k --count 3 --json");
        let output = run(&line);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("\"ok\":3"), "{}", stdout(&output));
        let output = consumer.wait_with_output().unwrap();
        assert_eq!(stdout(&output), "k\thello\nk\thello\nk\thello\n");
        assert!(output.status.success());
    }

    #[test]
    fn perf_prints_its_figures() {
        let proxy = proxy();
        let endpoint = proxy.endpoints();
        for (mode, options) in [
            ("produce", "--count 2000 --inflight 100"),
            ("sync", "--count 50"),
            ("latency", "--count 200 --rate 200"),
            ("consume", "--count 500"),
        ] {
            let output = run(&format!("rocketmq perf {mode} --endpoint {endpoint} --topic t --json {options}"));
            assert!(output.status.success(), "{mode}: {}", stderr(&output));
            let figures = object(&output, &PERF_KEYS);
            assert_eq!(figures["mode"], mode);
            let count: f64 = options.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert_eq!(number(&figures, "messages"), count, "{mode}: {figures}");
            assert_eq!(number(&figures, "errors"), 0.0, "{mode}: {figures}");
            if mode == "consume" {
                assert_eq!(figures["p50_us"], Value::Null);
            } else {
                assert!(number(&figures, "p50_us") <= number(&figures, "max_us"), "{mode}: {figures}");
            }
        }
    }

    #[test]
    fn verify_holds_while_the_link_goes_half_open() {
        let line = "rocketmq verify --embedded --half-open 1 --rate 100 --seconds 24 --send-timeout 3s --json";
        let output = run(line);
        let found = object(&output, &VERIFY_KEYS);
        assert_holds(&output, &found);
        assert_eq!(number(&found, "accepted"), 2400.0, "{found}");
        assert!(number(&found, "timed_out") > 0.0, "{found}");
        assert_eq!(number(&found, "recoveries"), 1.0, "{found}");
        assert!(number(&found, "recovery_ms") > 1000.0, "{found}");
    }

    #[test]
    fn verify_keeps_the_order_of_groups_while_the_proxy_restarts() {
        let line = "rocketmq verify --embedded --type fifo --restart 2s --rate 100 --seconds 10 --json";
        let output = run(line);
        let found = object(&output, &VERIFY_KEYS);
        assert_holds(&output, &found);
        // Without a connection no attempt is started: sends wait, and succeed with their first one.
        assert!(number(&found, "max_answer_ms") > 1000.0, "{found}");
    }

    /// Messages that somebody else in the group takes are lost to the reader: it must not pass.
    #[test]
    fn verify_finds_what_the_reader_is_not_given() {
        let proxy = proxy();
        let endpoint = proxy.endpoints();
        let client = Client::builder(&endpoint).build().unwrap();
        let thief = client.simple_consumer("g").subscribe("t", FilterExpression::all()).start().unwrap();
        let line = format!("rocketmq verify --endpoint {endpoint} --topic t --group g --rate 100 --seconds 2");
        let mut stolen = 0;
        let output = thread::scope(|scope| {
            let verify = scope.spawn(|| run(&format!("{line} --patience 2s --json")));
            while stolen == 0 {
                let messages = thief.receive(1, Duration::from_secs(60)).unwrap();
                stolen += thief.ack_batch(&messages).unwrap().len();
            }
            verify.join().unwrap()
        });
        client.close().unwrap();
        let found = object(&output, &VERIFY_KEYS);
        assert_eq!(output.status.code(), Some(1), "{found}");
        assert_eq!(number(&found, "lost_acknowledged"), stolen as f64, "{found}");
    }

    #[test]
    fn servers_with_a_certificate_of_their_own_are_spoken_to_when_told_so() {
        let proxy = Proxy::builder().tls(Proxy::SELF_SIGNED.0, Proxy::SELF_SIGNED.1).start().unwrap();
        proxy.create_topic("t", MessageType::Normal, 4);
        let line = format!("rocketmq produce --endpoint https://{} --topic t --count 3", proxy.addr(0));
        assert!(run(&format!("{line} --tls-insecure")).status.success());
        let output = run(&line);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("certificate"), "{}", stderr(&output));
        assert_eq!(proxy.stored("t").len(), 3);
    }

    #[test]
    fn the_broker_serves_until_ctrl_c() {
        let mut child =
            tool("broker rocketmq --port 0 --topic t --topic f=fifo").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let endpoint = lines.next().unwrap();
        let output = run(&format!("rocketmq produce --endpoint {endpoint} --topic t --count 30"));
        assert!(output.status.success(), "{}", stderr(&output));
        let output = run(&format!("rocketmq produce --endpoint {endpoint} --topic f --type fifo --count 12"));
        assert!(output.status.success(), "{}", stderr(&output));
        let output = run(&format!("rocketmq topics --endpoint {endpoint} t f --json"));
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(found["topics"][1]["topic"], "f");
        assert_eq!(found["topics"][1]["queues"].as_array().unwrap().len(), 4);
        assert_eq!(found["topics"][1]["queues"][0]["accepts"][0], "FIFO");
        let output = run(&format!("rocketmq topics --endpoint {endpoint} nowhere"));
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
        interrupt(&child);
        let rest: Vec<String> = lines.collect();
        assert!(child.wait().unwrap().success());
        assert!(rest.iter().any(|line| line.contains("42 messages")), "{rest:?}");
    }

    #[test]
    fn the_demo_shows_timeouts_and_the_recovery() {
        let output = run("demo rocketmq");
        let (text, progress) = (stdout(&output), stderr(&output));
        assert!(output.status.success(), "{text}{progress}");
        for part in ["half-open", "sends time out", "connection is replaced"] {
            assert!(progress.contains(part), "{part} in {progress}");
        }
        assert!(text.contains("every promise held"), "{text}");
    }
}
