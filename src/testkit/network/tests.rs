//! The network between real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::{Direction, Network};

/// For what must happen. Far above what it takes.
const LONG: Duration = Duration::from_secs(20);
/// For what must not happen: too short can only hide a failure, never make one.
const SHORT: Duration = Duration::from_millis(150);

fn server() -> (TcpListener, Network) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let network = Network::start(listener.local_addr().unwrap()).unwrap();
    (listener, network)
}

fn connect(network: &Network) -> TcpStream {
    let client = TcpStream::connect(network.address()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

/// A client's socket and the server's socket behind the network.
fn link(listener: &TcpListener, network: &Network) -> (TcpStream, TcpStream) {
    let client = connect(network);
    let (served, _) = listener.accept().unwrap();
    served.set_read_timeout(Some(LONG)).unwrap();
    (client, served)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, text: &str) {
    from.write_all(text.as_bytes()).unwrap();
    expect(to, text);
}

fn expect(stream: &mut TcpStream, text: &str) {
    let mut got = vec![0; text.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), text);
}

fn expect_silence(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let error = stream.read(&mut [0; 16]).expect_err("bytes or an end came through");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    stream.set_read_timeout(Some(LONG)).unwrap();
}

fn expect_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

fn expect_reset(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn passes_bytes_and_half_closes() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    let sent = pattern(3 << 20);
    let writer = thread::spawn({
        let (mut client, sent) = (client.try_clone().unwrap(), sent.clone());
        move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        }
    });
    let mut got = Vec::new();
    served.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == sent, "bytes changed on their way");
    // The other direction stays open after a half-close.
    pass(&mut served, &mut client, "answer");
    drop(served);
    expect_end(&mut client);
    assert_eq!(network.forwarded(Direction::ToServer), sent.len() as u64);
    assert_eq!(network.forwarded(Direction::ToClient), 6);
    drop(client);
    until("the link goes", || network.links() == 0);
}

#[test]
fn passes_a_reset() {
    let (listener, network) = server();
    let (client, mut served) = link(&listener, &network);
    reset(client);
    expect_reset(&mut served);
    let (mut client, served) = link(&listener, &network);
    reset(served);
    expect_reset(&mut client);
    until("the links go", || network.links() == 0);
}

#[test]
fn cut_ends_both_sides_in_good_order() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "x");
    assert_eq!(network.links(), 1);
    network.cut();
    assert_eq!(network.links(), 0);
    // Unread bytes must not turn the end into a reset.
    let _ = client.write_all(&pattern(10_000));
    expect_end(&mut client);
    expect_end(&mut served);
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "again");
}

#[test]
fn reset_breaks_both_sides() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "x");
    network.reset();
    assert_eq!(network.links(), 0);
    expect_reset(&mut client);
    expect_reset(&mut served);
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut served, &mut client, "again");
}

#[test]
fn half_open_swallows_for_good() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "x");
    network.half_open();
    client.write_all(&pattern(1 << 20)).unwrap();
    served.write_all(&pattern(1 << 20)).unwrap();
    expect_silence(&mut client);
    expect_silence(&mut served);
    let (mut other, mut other_served) = link(&listener, &network);
    pass(&mut other, &mut other_served, "new links pass");
    assert_eq!(network.links(), 2);
    drop(client);
    assert_eq!(network.links(), 1, "a closed link still counts");
    expect_silence(&mut served);
    network.reset();
    expect_reset(&mut served);
    assert_eq!(network.forwarded(Direction::ToServer), 1 + 14);
}

#[test]
fn half_open_hides_a_reset() {
    let (listener, network) = server();
    let (mut client, served) = link(&listener, &network);
    network.half_open();
    reset(served);
    expect_silence(&mut client);
    client.write_all(b"into the void").unwrap();
    expect_silence(&mut client);
    network.cut();
    expect_end(&mut client);
}

#[test]
fn freeze_holds_and_thaw_delivers() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    network.freeze();
    client.write_all(b"held ").unwrap();
    client.write_all(b"back").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    served.write_all(b"too").unwrap();
    let mut late = connect(&network);
    late.write_all(b"late").unwrap();
    assert_eq!(network.accepted(), 2);
    expect_silence(&mut served);
    expect_silence(&mut client);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
    network.thaw();
    expect(&mut served, "held back");
    expect_end(&mut served);
    expect(&mut client, "too");
    let (mut late_served, _) = listener.accept().unwrap();
    late_served.set_read_timeout(Some(LONG)).unwrap();
    expect(&mut late_served, "late");
}

#[test]
fn what_was_reset_in_a_freeze_is_not_delivered() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    network.freeze();
    client.write_all(b"old bytes").unwrap();
    reset(client);
    assert_eq!(network.links(), 0);
    expect_silence(&mut served);
    network.thaw();
    expect_reset(&mut served);
    assert_eq!(network.forwarded(Direction::ToServer), 0);
}

#[test]
fn refuse_fails_connects_at_once() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    network.refuse();
    for _ in 0..3 {
        assert_eq!(TcpStream::connect(network.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    // The port stays taken: nobody gets it who does not insist.
    let rival = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    assert_eq!(rival.bind(&network.address().into()).unwrap_err().kind(), ErrorKind::AddrInUse);
    pass(&mut client, &mut served, "present links stay");
    network.refuse();
    network.accept().unwrap();
    network.accept().unwrap();
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "back");
    assert_eq!(network.accepted(), 2);
}

#[test]
fn stall_builds_backpressure_in_one_direction() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    network.stall(Direction::ToServer);
    client.set_write_timeout(Some(SHORT)).unwrap();
    let (chunk, mut sent) = (pattern(64 << 10), 0);
    let blocked = loop {
        match client.write(&chunk) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        assert!(sent < 256 << 20, "no backpressure");
    };
    assert!(matches!(blocked.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{blocked}");
    expect_silence(&mut served);
    pass(&mut served, &mut client, "the other way passes");
    assert_eq!(network.forwarded(Direction::ToServer), 0);
    network.resume(Direction::ToServer);
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    served.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), sent);

    network.stall(Direction::ToClient);
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "new links, too");
    served.write_all(b"held").unwrap();
    expect_silence(&mut client);
    network.resume(Direction::ToClient);
    expect(&mut client, "held");
}

#[test]
fn latency_delays_each_direction() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    let latency = Duration::from_millis(60);
    network.latency(latency);
    let start = Instant::now();
    pass(&mut client, &mut served, "ping");
    assert!(start.elapsed() >= latency);
    pass(&mut served, &mut client, "pong");
    assert!(start.elapsed() >= 2 * latency);
    let start = Instant::now();
    client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut served);
    assert!(start.elapsed() >= latency, "an end of stream travels like bytes");
    // Many writes are on their way together.
    let start = Instant::now();
    for _ in 0..50 {
        served.write_all(b"0123456789").unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    expect(&mut client, &"0123456789".repeat(50));
    assert!(start.elapsed() < 25 * latency, "writes waited for each other");
    network.latency(Duration::ZERO);
    pass(&mut served, &mut client, "fast again");
}

#[test]
fn throttle_limits_the_rate() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    network.throttle(Some(100_000));
    let sent = "x".repeat(50_000);
    let start = Instant::now();
    pass(&mut client, &mut served, &sent);
    // Half a second, less one burst.
    assert!(start.elapsed() >= Duration::from_millis(470), "{:?}", start.elapsed());
    network.throttle(Some(0));
    served.write_all(b"held").unwrap();
    expect_silence(&mut client);
    network.throttle(None);
    expect(&mut client, "held");
}

#[test]
fn cut_after_counts_exactly() {
    let (listener, network) = server();
    for (count, text) in [(0, ""), (1, "a"), (5, "abcde")] {
        let (mut client, mut served) = link(&listener, &network);
        network.cut_after(count, Direction::ToServer);
        pass(&mut served, &mut client, if count == 0 { "" } else { "not counted" });
        let _ = client.write_all(b"ab");
        let _ = client.write_all(b"cdefgh");
        let mut got = String::new();
        served.read_to_string(&mut got).unwrap();
        assert_eq!(got, text);
        expect_end(&mut client);
        until("the link goes", || network.links() == 0);
    }
    let (mut client, mut served) = link(&listener, &network);
    network.cut_after(100_000, Direction::ToClient);
    let _ = served.write_all(&pattern(200_000));
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got == pattern(100_000));
    // It happens once.
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut served, &mut client, &"y".repeat(200_000));
}

#[test]
fn new_links_go_to_a_new_upstream() {
    let (first, network) = server();
    let second = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut client, mut served) = link(&first, &network);
    network.set_upstream(second.local_addr().unwrap()).unwrap();
    let (mut other, mut other_served) = link(&second, &network);
    pass(&mut other, &mut other_served, "new");
    pass(&mut client, &mut served, "old");
    let none: &[SocketAddr] = &[];
    assert!(network.set_upstream(none).is_err());
}

#[test]
fn a_link_without_a_server_is_reset() {
    let (listener, network) = server();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut client = connect(&network);
    expect_reset(&mut client);
    until("the link goes", || network.links() == 0);
    // Several addresses are tried in turn.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    network.set_upstream(&[address, listener.local_addr().unwrap()][..]).unwrap();
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "x");
    pass(&mut served, &mut client, "y");
}

#[test]
fn dropping_closes_everything() {
    let (listener, network) = server();
    let (mut client, mut served) = link(&listener, &network);
    let address = network.address();
    drop(network);
    for stream in [&mut client, &mut served] {
        match stream.read(&mut [0; 1]) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn counts_are_exact() {
    let (listener, network) = server();
    for count in 1..=200 {
        let (mut client, mut served) = link(&listener, &network);
        assert_eq!((network.accepted(), network.links()), (count, 1));
        pass(&mut client, &mut served, "abc");
        assert_eq!(network.forwarded(Direction::ToServer), 3 * count);
        if count % 2 == 0 {
            reset(client)
        } else {
            drop(client)
        }
        assert_eq!(network.links(), 0);
    }
}

#[test]
fn tells_when_clients_connected() {
    let (_listener, network) = server();
    let start = Instant::now();
    let _clients: Vec<_> = (0..3).map(|_| connect(&network)).collect();
    assert_eq!(network.accepted(), 3);
    let times = network.connect_times();
    assert!(times.len() == 3 && times.is_sorted() && times.iter().all(|&at| at >= start));
    assert_eq!(network.links(), 3);
    assert_eq!(network.url(), format!("pulsar://{}", network.address()));
}

#[test]
fn an_address_in_use_is_an_error() {
    let (listener, network) = server();
    assert!(Network::listen_on(network.address(), listener.local_addr().unwrap()).is_err());
}

#[test]
fn many_links_run_side_by_side() {
    let (listener, network) = server();
    let links: Vec<_> = (0..16).map(|_| link(&listener, &network)).collect();
    network.latency(Duration::from_millis(2));
    thread::scope(|scope| {
        for (mut client, mut served) in links {
            scope.spawn(move || {
                let mut got = vec![0; 1 << 20];
                served.read_exact(&mut got).unwrap();
                served.write_all(&got).unwrap();
            });
            scope.spawn(move || {
                let (sent, mut got) = (pattern(1 << 20), vec![0; 1 << 20]);
                client.write_all(&sent).unwrap();
                client.read_exact(&mut got).unwrap();
                assert!(got == sent);
            });
        }
    });
    until("all links go", || network.links() == 0);
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_network_uses_no_processor_time() {
    let (listener, network) = server();
    let name = format!("tmq-net-{}", network.address().port());
    // Ticks of a hundredth of a second, user and system.
    let spent = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
        let stat = stats.into_iter().find(|stat| stat.contains(&format!("({name})"))).expect("the thread is there");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let quiet = |state: &str| {
        let before = spent();
        thread::sleep(SHORT);
        assert!(spent() - before <= 5, "spins: {state}");
    };
    let (mut client, mut served) = link(&listener, &network);
    pass(&mut client, &mut served, "x");
    quiet("idle");
    client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut served);
    quiet("half-closed");
    let (client, mut served) = link(&listener, &network);
    network.freeze();
    served.write_all(b"held").unwrap();
    reset(client);
    quiet("frozen, with bytes and a reset");
    network.thaw();
    let (client, served) = link(&listener, &network);
    network.stall(Direction::ToServer);
    network.stall(Direction::ToClient);
    drop((client, served));
    quiet("stalled, with both ends closed");
    network.half_open();
    quiet("half-open, with both ends closed");
    let (mut client, _served) = link(&listener, &network);
    network.resume(Direction::ToServer);
    client.set_write_timeout(Some(SHORT)).unwrap();
    while client.write(&[0; 65536]).is_ok() {}
    quiet("full, and the server does not read");
    network.cut();
    quiet("cut, and nobody closes");
    network.refuse();
    quiet("refusing");
}
