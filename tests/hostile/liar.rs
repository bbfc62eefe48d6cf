//! A server that passes on what a broker says, or says something else.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What becomes of a frame on its way to the client.
pub enum Fate {
    Pass,
    /// These bytes in its place.
    Replaced(Vec<u8>),
    /// These bytes in its place, then the end of the stream.
    Ended(Vec<u8>),
    /// These bytes in its place, then nothing, and the connection stays.
    Stuck(Vec<u8>),
    /// The first bytes in its place, then the second again and again; what the client says is not read.
    Endless(Vec<u8>, Vec<u8>),
}

/// One connection's script: the type of the command in the frame, and the whole frame.
pub type Script = dyn FnMut(u64, &[u8]) -> Fate + Send;

/// Stands before a broker. Its connections end when it is dropped.
pub struct Liar {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    accepted: Arc<AtomicUsize>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    listening: Option<JoinHandle<()>>,
}

impl Liar {
    /// `scripts` makes the script of each connection, from 0 up.
    pub fn start(broker: SocketAddr, scripts: impl Fn(usize) -> Box<Script> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (over, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let streams = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
        let threads = Arc::new(Mutex::new(Vec::new()));
        let listening = std::thread::spawn({
            let (over, accepted) = (Arc::clone(&over), Arc::clone(&accepted));
            let (streams, threads) = (Arc::clone(&streams), Arc::clone(&threads));
            move || {
                for client in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let client = client.unwrap();
                    let server = TcpStream::connect(broker).unwrap();
                    let script = scripts(accepted.fetch_add(1, Ordering::SeqCst));
                    let mut known = streams.lock().unwrap();
                    known.push(client.try_clone().unwrap());
                    known.push(server.try_clone().unwrap());
                    drop(known);
                    let both = relay(client, server, script);
                    threads.lock().unwrap().extend(both);
                }
            }
        });
        Self { address, over, streams, accepted, threads, listening: Some(listening) }
    }

    pub fn url(&self) -> String {
        format!("pulsar://{}", self.address)
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.lock().unwrap().drain(..) {
            let _ = thread.join();
        }
    }
}

fn relay(client: TcpStream, server: TcpStream, mut script: Box<Script>) -> [JoinHandle<()>; 2] {
    let deaf = Arc::new(AtomicBool::new(false));
    let up = std::thread::spawn({
        let (mut client, mut server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let deaf = Arc::clone(&deaf);
        move || {
            let mut buffer = [0; 16 * 1024];
            while !deaf.load(Ordering::SeqCst) {
                match client.read(&mut buffer) {
                    Ok(count) if count > 0 && server.write_all(&buffer[..count]).is_ok() => {}
                    _ => {
                        let _ = server.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
    });
    let down = std::thread::spawn(move || {
        let _ = talk(client, server, &mut script, &deaf);
    });
    [up, down]
}

/// Until one of them is gone.
fn talk(mut client: TcpStream, mut server: TcpStream, script: &mut Script, deaf: &AtomicBool) -> std::io::Result<()> {
    loop {
        let frame = match read_frame(&mut server) {
            Ok(frame) => frame,
            Err(error) => {
                client.shutdown(Shutdown::Both)?;
                return Err(error);
            }
        };
        match script(command_type(&frame), &frame) {
            Fate::Pass => client.write_all(&frame)?,
            Fate::Replaced(bytes) => client.write_all(&bytes)?,
            Fate::Ended(bytes) => {
                client.write_all(&bytes)?;
                client.shutdown(Shutdown::Write)?;
                server.shutdown(Shutdown::Both)?;
                return Ok(());
            }
            Fate::Stuck(bytes) => {
                client.write_all(&bytes)?;
                // What the broker says now is lost.
                std::io::copy(&mut server, &mut std::io::sink())?;
                return Ok(());
            }
            Fate::Endless(first, again) => {
                deaf.store(true, Ordering::SeqCst);
                client.write_all(&first)?;
                let block = again.repeat((64 * 1024 / again.len()).max(1));
                while client.write_all(&block).is_ok() {}
                server.shutdown(Shutdown::Both)?;
                return Ok(());
            }
        }
    }
}

fn read_frame(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let size = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    frame.resize(4 + size, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// The command's first field, which brokers of ours write first.
fn command_type(frame: &[u8]) -> u64 {
    assert_eq!(frame[8], 0x08, "the type stands first");
    let mut value = 0;
    for (place, byte) in frame[9..].iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
