//! The real server as tests break and mend it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use threadmq::testkit::Network;

static SHARED: Mutex<()> = Mutex::new(());

pub struct Server {
    script: PathBuf,
    dir: String,
    url: String,
    ours: bool,
    _turn: Option<MutexGuard<'static, ()>>,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use tests/run"))
}

pub fn topic(name: &str) -> String {
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{name}-{stamp}")
}

impl Server {
    /// The server of the test run, for one test at a time.
    pub fn shared() -> Self {
        let turn = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let server = Self {
            script: variable("THREADMQ_PULSAR_SERVER").into(),
            dir: variable("THREADMQ_PULSAR_DIR"),
            url: variable("THREADMQ_PULSAR_URL"),
            ours: false,
            _turn: Some(turn),
        };
        // An earlier test may have failed in the middle of its fault.
        server.thaw();
        server.start();
        server
    }

    /// A server of its own that names a network's port in look-ups.
    pub fn behind_network() -> (Network, Self) {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port, http) = (free(), free());
        let network = Network::start(format!("127.0.0.1:{port}")).unwrap();
        let dir = std::env::temp_dir().join(format!("threadmq-half-open-{port}")).to_string_lossy().into_owned();
        let server = Self {
            script: variable("THREADMQ_PULSAR_SERVER").into(),
            dir,
            url: network.url(),
            ours: true,
            _turn: None,
        };
        let advertise = network.address().port().to_string();
        server.call("start", &["--port", &port.to_string(), "--http", &http.to_string(), "--advertise", &advertise]);
        (network, server)
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn freeze(&self) {
        self.call("freeze", &[]);
    }

    pub fn thaw(&self) {
        self.call("thaw", &[]);
    }

    pub fn kill(&self) {
        self.call("kill", &[]);
    }

    pub fn start(&self) {
        self.call("start", &[]);
    }

    fn call(&self, verb: &str, more: &[&str]) {
        let status = Command::new(&self.script).arg(verb).args(["--dir", &self.dir]).args(more).status().unwrap();
        assert!(status.success(), "{verb} of the server failed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ours {
            let _ = Command::new(&self.script).args(["stop", "--dir", &self.dir]).status();
            let _ = std::fs::remove_dir_all(&self.dir);
        } else {
            let _ = Command::new(&self.script).args(["thaw", "--dir", &self.dir]).status();
        }
    }
}
