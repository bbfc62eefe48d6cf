//! What a liar says in place of a frame.

use super::Noise;
use super::liar::Fate;

// Numbers of the protocol's commands.
pub const CONNECTED: u64 = 3;
pub const SEND_RECEIPT: u64 = 7;
pub const MESSAGE: u64 = 9;
pub const SUCCESS: u64 = 13;
pub const PRODUCER_SUCCESS: u64 = 17;
pub const PARTITIONS: u64 = 22;
pub const LOOKUP: u64 = 24;

/// A frame around the bytes of a command.
pub fn framed(command: &[u8]) -> Vec<u8> {
    let size = u32::try_from(command.len()).unwrap();
    let mut frame = (size + 4).to_be_bytes().to_vec();
    frame.extend(size.to_be_bytes());
    frame.extend(command);
    frame
}

pub fn ping() -> Vec<u8> {
    // type PING, and an empty CommandPing
    framed(&[0x08, 18, 0x92, 0x01, 0x00])
}

/// SEND_RECEIPT with the required fields only.
pub fn receipt(producer: u8, sequence: u8) -> Vec<u8> {
    framed(&[0x08, 7, 0x3a, 4, 0x08, producer, 0x10, sequence])
}

/// A lie about a frame.
pub type Lie = fn(&[u8]) -> Fate;

/// Lies after which nothing can be made of the connection or of the answer, with a name each.
pub const LIES: &[(&str, Lie)] = &[
    ("cut off", |frame| Fate::Ended(frame[..frame.len() / 2].to_vec())),
    ("cut off in the size", |frame| Fate::Ended(frame[..3].to_vec())),
    ("half, then silence", |frame| Fate::Stuck(frame[..frame.len() / 2].to_vec())),
    ("nothing", |_| Fate::Stuck(Vec::new())),
    ("the end", |_| Fate::Ended(Vec::new())),
    ("2 GiB", |_| Fate::Endless(0x8000_0000_u32.to_be_bytes().to_vec(), vec![0])),
    ("4 GiB", |_| Fate::Endless(u32::MAX.to_be_bytes().to_vec(), vec![0xff])),
    ("100 MiB", |_| Fate::Endless((100_u32 << 20).to_be_bytes().to_vec(), vec![0])),
    ("4 MiB of a command", |_| {
        let mut size = (4_u32 << 20).to_be_bytes().to_vec();
        size.extend(((4_u32 << 20) - 4).to_be_bytes());
        Fate::Endless(size, vec![0])
    }),
    ("a frame of nothing", |_| Fate::Endless(Vec::new(), vec![0])),
    ("a command larger than its frame", |frame| {
        let mut frame = frame.to_vec();
        frame[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        Fate::Stuck(frame)
    }),
    ("a command of nothing", |frame| {
        let mut frame = frame.to_vec();
        frame[4..8].copy_from_slice(&0_u32.to_be_bytes());
        Fate::Stuck(frame)
    }),
    ("a command only clients send", |_| Fate::Stuck(framed(&[0x08, 11, 0x5a, 4, 0x08, 1, 0x10, 1]))),
    ("an unknown command", |_| Fate::Stuck(framed(&[0x08, 127]))),
    ("a type without its command", |frame| Fate::Stuck(framed(&frame[8..10]))),
    ("noise in a frame", |frame| {
        let mut noise = frame.to_vec();
        let random = Noise(0x5eed).bytes(frame.len());
        noise[8..].copy_from_slice(&random[8..]);
        Fate::Stuck(noise)
    }),
    ("noise", |_| Fate::Endless(Vec::new(), Noise(0xbad).bytes(4096))),
    ("HTTP", |_| Fate::Ended(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec())),
    ("HTTP without end", |_| Fate::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b"<p>hello</p>".to_vec())),
    ("a TLS alert", |_| Fate::Ended(vec![0x15, 3, 1, 0, 2, 2, 40])),
    ("a TLS record", |_| Fate::Endless(vec![0x16, 3, 3, 0x40, 0, 2, 0, 0x3f, 0xfc], vec![0x17, 3, 3, 0x40, 0])),
    ("pings without end", |_| Fate::Endless(Vec::new(), ping())),
    ("receipts without end", |_| Fate::Endless(Vec::new(), receipt(99, 7))),
];
