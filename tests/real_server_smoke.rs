//! The shortest possible talk with the real server that `tests/run` starts: bytes by hand, none of the library's code.
//! It shows that the test run has a real server, and what that server says it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A protobuf field of wire type 2. All lengths here are below 128, so a length is one byte.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(length < 128);
    [&[number << 3 | 2, length], content].concat()
}

/// `BaseCommand { type: CONNECT, connect: { client_version, protocol_version: 21 } }` in its frame.
fn connect_frame() -> Vec<u8> {
    let mut connect = field(1, b"threadmq-smoke");
    connect.extend([4 << 3, 21]);
    let command = [&[1 << 3, 2][..], &field(2, &connect)].concat();
    let size = u32::try_from(command.len()).unwrap();
    [&(size + 4).to_be_bytes()[..], &size.to_be_bytes(), &command].concat()
}

#[test]
#[ignore = "needs a real Pulsar server: tests/run starts one"]
fn real_server_answers_connect_with_connected() {
    let url = std::env::var("THREADMQ_PULSAR_URL").expect("THREADMQ_PULSAR_URL is not set: use tests/run");
    let address = url.strip_prefix("pulsar://").expect("a pulsar:// URL");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(&connect_frame()).unwrap();

    let mut sizes = [0; 8];
    socket.read_exact(&mut sizes).unwrap();
    let total = u32::from_be_bytes(sizes[..4].try_into().unwrap());
    let size = u32::from_be_bytes(sizes[4..].try_into().unwrap());
    assert_eq!(total, size + 4, "a frame without payload");
    assert!(size < 128, "CONNECTED is small, got {size} bytes");
    let mut command = vec![0; size as usize];
    socket.read_exact(&mut command).unwrap();

    // type: CONNECTED, then field 3, whose field 1 is the server's version.
    assert_eq!(command[..3], [1 << 3, 3, 3 << 3 | 2], "not CONNECTED: {command:?}");
    assert_eq!(command[4], 1 << 3 | 2, "no server version: {command:?}");
    let version = &command[6..][..command[5] as usize];
    println!("the server is {}", String::from_utf8_lossy(version));
    assert!(version.starts_with(b"Pulsar"), "{}", String::from_utf8_lossy(version));
}
