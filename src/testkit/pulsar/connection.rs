//! One TCP connection: a thread that reads and decodes, and a thread that writes.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, unbounded};
use socket2::SockRef;

use super::input::{Incoming, Input};
use super::pace::Pace;
use crate::pulsar::wire::command::{Command, decode};
use crate::pulsar::wire::frame::{FRAME_PADDING, WireError, next_frame};
use crate::runtime::thread::spawn;

/// How long a blocked write or post stays deaf to the end of the connection.
const DEAF: Duration = Duration::from_millis(20);

/// The most that one read takes.
const READ_SIZE: usize = 128 * 1024;

/// What the connections of a broker share.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) pace: Pace,
    pub(super) max_message_size: AtomicUsize,
    /// Off: the checksums of entries are not looked at.
    pub(super) verify_checksums: bool,
}

/// How the broker ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// What was written leaves first, if the peer takes it; then FIN.
    Fin,
    /// RST, at once.
    Reset,
}

/// The owner's end of a connection.
pub(super) struct Link {
    shared: Arc<Shared>,
    writes: Option<Sender<Write>>,
    threads: Vec<JoinHandle<()>>,
}

/// What the writer is told to do.
enum Write {
    Bytes(Vec<u8>),
    /// Zeros until the connection ends.
    Endless,
}

struct Shared {
    id: u64,
    stream: TcpStream,
    ending: AtomicBool,
    /// With `ending`: by reset, so the writer sends no FIN.
    reset: AtomicBool,
    common: Arc<Common>,
}

impl Link {
    pub(super) fn open(
        id: u64,
        stream: TcpStream,
        common: &Arc<Common>,
        inputs: &Sender<Input>,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEAF))?;
        let shared = Arc::new(Shared {
            id,
            stream,
            ending: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            common: Arc::clone(common),
        });
        let (writes, to_write) = unbounded();
        let mut link = Self { shared: Arc::clone(&shared), writes: Some(writes), threads: Vec::new() };
        let (reading, inputs) = (Arc::clone(&shared), inputs.clone());
        link.threads.push(spawn("kit-read", move || read_loop(&reading, &inputs))?);
        link.threads.push(spawn("kit-write", move || write_loop(&shared, &to_write))?);
        Ok(link)
    }

    pub(super) fn write(&self, bytes: Vec<u8>) {
        self.tell(Write::Bytes(bytes));
    }

    pub(super) fn write_endlessly(&self) {
        self.tell(Write::Endless);
    }

    fn tell(&self, write: Write) {
        if let Some(writes) = &self.writes {
            // A writer that is gone has met a dead socket; the reader reports that.
            let _ = writes.send(write);
        }
    }

    /// Starts the end; [`finish`](Self::finish) completes it.
    pub(super) fn begin_end(&mut self, ending: Ending) {
        if ending == Ending::Reset {
            self.shared.reset.store(true, Ordering::Release);
            // Errors mean that the socket is gone already.
            let _ = SockRef::from(&self.shared.stream).set_linger(Some(Duration::ZERO));
        }
        self.shared.ending.store(true, Ordering::Release);
        self.writes = None;
        self.shared.common.pace.wake();
        if ending == Ending::Reset {
            // Wakes the reader and sends nothing.
            let _ = self.shared.stream.shutdown(Shutdown::Read);
        }
    }

    /// Waits for both threads. The socket is closed when this returns.
    pub(super) fn finish(mut self) {
        for thread in self.threads.drain(..) {
            // A panic is logged where it happened.
            let _ = thread.join();
        }
    }
}

fn read_loop(shared: &Shared, inputs: &Sender<Input>) {
    let mut chunk = vec![0; READ_SIZE];
    let mut buffer = BytesMut::new();
    let common = &shared.common;
    let (mut by_reset, mut malformed) = (false, None);
    while let Some(most) = common.pace.wait(&shared.ending, READ_SIZE) {
        let room = chunk.get_mut(..most).unwrap_or_default();
        let read = match (&shared.stream).read(room) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                by_reset = error.kind() == ErrorKind::ConnectionReset;
                break;
            }
        };
        let at = Instant::now();
        common.pace.spend(&shared.ending, read);
        // It may have been frozen during the read: then nobody is to see these bytes yet.
        if common.pace.wait(&shared.ending, READ_SIZE).is_none() {
            break;
        }
        buffer.extend_from_slice(chunk.get(..read).unwrap_or_default());
        let mut items = Vec::new();
        let cut = take_items(&mut buffer, common, &mut items);
        if !items.is_empty() && !post(shared, inputs, Input::Read { connection: shared.id, at, items }) {
            break;
        }
        if let Err(error) = cut {
            malformed = Some(error);
            break;
        }
    }
    let gone = Input::Gone { connection: shared.id, at: Instant::now(), by_reset, malformed };
    post(shared, inputs, gone);
    // A socket closed with unread bytes sends a reset, where a FIN was meant. The writer shuts both ways down.
    if malformed.is_none() {
        while shared.ending.load(Ordering::Acquire) && !shared.reset.load(Ordering::Acquire) {
            if !matches!((&shared.stream).read(&mut chunk), Ok(1..)) {
                break;
            }
        }
    }
}

fn take_items(buffer: &mut BytesMut, common: &Common, items: &mut Vec<Incoming>) -> Result<(), WireError> {
    let most = common.max_message_size.load(Ordering::Relaxed).saturating_add(FRAME_PADDING);
    while let Some(frame) = next_frame(buffer, most)? {
        let size = frame.len();
        let command = decode(frame)?;
        let intact = match &command {
            Command::Send(send) if common.verify_checksums => super::entry::is_intact(&send.entry),
            _ => true,
        };
        items.push(Incoming { command, size, intact });
    }
    Ok(())
}

/// Hands over to the owner, which may be waiting for this very thread to end.
fn post(shared: &Shared, inputs: &Sender<Input>, mut input: Input) -> bool {
    loop {
        match inputs.send_timeout(input, DEAF) {
            Ok(()) => return true,
            Err(SendTimeoutError::Disconnected(_)) => return false,
            Err(SendTimeoutError::Timeout(back)) => {
                if shared.ending.load(Ordering::Acquire) {
                    return false;
                }
                input = back;
            }
        }
    }
}

fn write_loop(shared: &Shared, writes: &Receiver<Write>) {
    let zeros = vec![0; 64 * 1024];
    for write in writes {
        let written = match write {
            Write::Bytes(bytes) => write_all(shared, &bytes),
            Write::Endless => {
                // Each write blocks until the peer takes it.
                let mut alive = true;
                while alive && !shared.ending.load(Ordering::Acquire) {
                    alive = write_all(shared, &zeros);
                }
                false
            }
        };
        if !written {
            break;
        }
    }
    if !shared.reset.load(Ordering::Acquire) {
        let _ = shared.stream.shutdown(Shutdown::Both);
    }
}

/// False when the peer is gone, or takes nothing while the connection ends.
fn write_all(shared: &Shared, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        if shared.reset.load(Ordering::Acquire) {
            return false;
        }
        match (&shared.stream).write(bytes) {
            Ok(0) => return false,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                // The write timed out.
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    if shared.ending.load(Ordering::Acquire) {
                        return false;
                    }
                }
                _ => return false,
            },
        }
    }
    true
}
