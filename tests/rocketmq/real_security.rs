//! TLS and credentials against a real server of its own, which takes nothing else: only with the other real server.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, ClientBuilder, Credentials, FilterExpression, Message, TlsOptions};
use threadmq::{Error, ErrorKind};

use crate::target::{INVISIBLE, PATIENCE};

/// A server that is stopped at the end.
struct Server {
    script: String,
    endpoint: String,
    dir: String,
}

impl Server {
    /// `None` where no real servers are to be started.
    fn start() -> Option<Self> {
        std::env::var("THREADMQ_ROCKETMQ_ENDPOINT").ok()?;
        let script = std::env::var("THREADMQ_ROCKETMQ_SERVER").expect("THREADMQ_ROCKETMQ_SERVER goes with it");
        let arguments = ["start", "--free", "--tls", "enforcing", "--user", "alice:wonderland"];
        let output = Command::new(&script).args(arguments).output().expect("the server's script runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout).unwrap();
        let value = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("{name} in {told}")).to_owned()
        };
        let server = Self { endpoint: value("ROCKETMQ_ENDPOINT"), dir: value("ROCKETMQ_DIR"), script };
        server.admin(&["topic", "create", "t"]);
        server.admin(&["group", "create", "g"]);
        Some(server)
    }

    fn admin(&self, arguments: &[&str]) {
        let output = Command::new(&self.script).args(arguments).args(["--dir", &self.dir]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn client(&self) -> ClientBuilder {
        Client::builder(format!("https://{}", self.endpoint))
    }

    fn certificate(&self) -> Vec<u8> {
        std::fs::read(PathBuf::from(&self.dir).join("conf/server.crt")).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.admin(&["kill"]);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn any_certificate() -> TlsOptions {
    TlsOptions::new().danger_accept_invalid_certificates(true)
}

/// Sends, receives, acknowledges, closes.
fn round_trip(builder: ClientBuilder) -> Result<(), Error> {
    let client = builder.build()?;
    let result = exchange(&client);
    client.close()?;
    result
}

fn exchange(client: &Client) -> Result<(), Error> {
    let producer = client.producer().topic("t").start()?;
    let receipt = producer.send(Message::new("t", "x"))?;
    let consumer = client
        .simple_consumer("g")
        .subscribe("t", FilterExpression::all())
        .await_duration(Duration::from_secs(5))
        .start()?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for message in consumer.receive(8, INVISIBLE)? {
            consumer.ack(&message)?;
            if message.message_id() == receipt.message_id() {
                return Ok(());
            }
        }
    }
    panic!("the message did not come within {PATIENCE:?}");
}

/// One test, because the server takes its time to start.
#[test]
fn a_real_server_that_takes_tls_and_signed_calls_alone() {
    let Some(server) = Server::start() else { return };
    let signed = |tls: TlsOptions| server.client().tls(tls).credentials("alice", "wonderland");

    // The certificate is self-signed, and for localhost and 127.0.0.1.
    round_trip(signed(any_certificate())).unwrap();
    round_trip(signed(TlsOptions::new().root_certificates(server.certificate()))).unwrap();
    let named = TlsOptions::new().root_certificates(server.certificate()).server_name("localhost");
    round_trip(signed(named)).unwrap();

    let refused = |builder: ClientBuilder, kind: ErrorKind, part: &str| {
        let error = round_trip(builder).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(signed(TlsOptions::new()), ErrorKind::Tls, "certificate is not issued by a trusted authority");
    let foreign = TlsOptions::new().root_certificates(server.certificate()).server_name("other.example");
    refused(signed(foreign), ErrorKind::Tls, "not for other.example");
    let plain = Client::builder(&server.endpoint).credentials("alice", "wonderland");
    refused(plain, ErrorKind::Tls, "speaks TLS and the client does not");

    let any = || server.client().tls(any_certificate());
    refused(any().credentials("alice", "queen"), ErrorKind::Authentication, "check signature failed");
    refused(any().credentials("bob", "queen"), ErrorKind::Authentication, "bob is not found");
    refused(any(), ErrorKind::Authentication, "username cannot be null");

    rotation(&server);
}

/// The provider gives what the server does not take, then what it takes.
fn rotation(server: &Server) {
    let asked = AtomicBool::new(false);
    let provider = move || {
        let secret = if asked.swap(true, Ordering::SeqCst) { "wonderland" } else { "queen" };
        Ok(Credentials::new("alice", secret))
    };
    let client = server.client().tls(any_certificate()).credentials_provider(provider).build().unwrap();
    // Refused with the first ones; the provider may be asked again 3 s after.
    let error = exchange(&client).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    let until = Instant::now() + PATIENCE;
    while let Err(error) = exchange(&client) {
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    client.close().unwrap();
}
