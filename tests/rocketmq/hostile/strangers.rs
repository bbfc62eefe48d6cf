//! Peers that are no proxies: the wrong port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use threadmq::rocketmq::{Client, Message};
use threadmq::testkit::pulsar::Broker;
use threadmq::{Delivery, ErrorKind};

use super::SLACK;

/// Takes connections and treats each in the same way, until it is dropped.
struct Stranger {
    address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Stranger {
    /// `says` as soon as it is connected to or spoken to; then it closes, or stays silent.
    fn start(says: &'static [u8], closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&over);
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let mut greeting = [0; 24];
                let _ = stream.read_exact(&mut greeting);
                let _ = stream.write_all(says);
                if !closes {
                    kept.push(stream);
                }
            }
        });
        Self { address, over }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

/// Start fails in time and says what may be wrong; a send to an undeclared topic does, too.
fn says_what_may_be_wrong(what: &str, endpoints: &str) {
    let client = Client::builder(endpoints).request_timeout(Duration::from_secs(1)).build().unwrap();
    let called = Instant::now();
    let error = client.producer().topic("t").start().unwrap_err();
    println!("{what}: {error} (after {:?})", called.elapsed());
    assert!(called.elapsed() < Duration::from_secs(6) + SLACK, "{what}: {:?}", called.elapsed());
    let kinds = [ErrorKind::Transport, ErrorKind::Timeout, ErrorKind::Unavailable, ErrorKind::Unsupported];
    assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
    let shown = error.to_string();
    assert!(shown.contains("gRPC port") && shown.contains("8081"), "{what}: {shown}");
    let producer = client.producer().send_timeout(Duration::from_secs(2)).start().unwrap();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    println!("{what}: {error}");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unsupported), "{what}: {error}");
    assert_eq!(error.delivery(), Delivery::NotSent, "{what}: {error}");
    let shown = error.to_string();
    assert!(shown.contains("gRPC port") && shown.contains("8081"), "{what}: {shown}");
    client.close().unwrap();
}

#[test]
fn the_port_of_something_else_is_told() {
    let page = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    // How a name server, a broker and a remoting port frame: a length, a header length, a header.
    let remoting = b"\0\0\0\x1e\0\0\0\x1a{\"code\":3,\"flag\":1,\"x\":0}";
    let strangers = [
        ("one that closes", Stranger::start(b"", true)),
        ("one that says nothing", Stranger::start(b"", false)),
        ("one that speaks HTTP/1.1", Stranger::start(page, true)),
        ("one that speaks remoting", Stranger::start(remoting, false)),
        ("one that speaks garbage", Stranger::start(&[0xff; 4096], false)),
    ];
    std::thread::scope(|scope| {
        for (what, stranger) in &strangers {
            scope.spawn(move || says_what_may_be_wrong(what, &stranger.address.to_string()));
        }
        scope.spawn(|| says_what_may_be_wrong("nobody", "127.0.0.1:1"));
        // Where a real name server is at hand: at whatever port.
        if let Ok(address) = std::env::var("THREADMQ_ROCKETMQ_NAMESRV") {
            scope.spawn(move || says_what_may_be_wrong("a name server", &address));
        }
        scope.spawn(|| {
            let broker = Broker::start().unwrap();
            says_what_may_be_wrong("a Pulsar broker", &broker.address().to_string());
        });
    });
}

/// A usual port is named for what it is, whether anybody is there or not.
#[test]
fn usual_ports_are_known() {
    for (port, what) in [(9876, "looks like a name server"), (8080, "looks like a proxy's remoting port")] {
        let endpoint = format!("127.0.0.2:{port}");
        let client = Client::builder(endpoint.as_str()).request_timeout(Duration::from_secs(1)).build().unwrap();
        let shown = client.producer().topic("t").start().unwrap_err().to_string();
        assert!(shown.contains(what) && shown.contains(&endpoint) && shown.contains("8081"), "{shown}");
        client.close().unwrap();
    }
}
