//! The thread that accepts connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{SendTimeoutError, Sender};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, Socket, Type};

use super::input::Input;
use crate::runtime::thread::spawn;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// An open port. Dropping it closes the port and joins the thread.
pub(super) struct Listener {
    address: SocketAddr,
    waker: Waker,
    /// Disconnected to end the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Port 0: the system picks one. `receive_buffer` is in bytes and goes to the accepted sockets.
    pub(super) fn open(address: SocketAddr, receive_buffer: Option<usize>, inputs: &Sender<Input>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // The port is taken again while connections of the former listener are still closing down.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;

        let mut poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let mut polled = mio::net::TcpListener::from_std(listener.try_clone()?);
        poll.registry().register(&mut polled, LISTENER, Interest::READABLE)?;
        let (running, stop) = crossbeam_channel::bounded::<()>(0);
        let inputs = inputs.clone();
        let thread = spawn("kit-accept", move || {
            let _polled = polled;
            accept_loop(&mut poll, &listener, &inputs, || {
                matches!(stop.try_recv(), Err(crossbeam_channel::TryRecvError::Disconnected))
            });
        })?;
        Ok(Self { address, waker, running: Some(running), thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.running = None;
        if self.waker.wake().is_ok() {
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn accept_loop(poll: &mut Poll, listener: &TcpListener, inputs: &Sender<Input>, stopped: impl Fn() -> bool) {
    let mut events = Events::with_capacity(4);
    while !stopped() {
        match listener.accept() {
            Ok((stream, from)) => {
                let mut input = Input::Accepted { stream, from, at: Instant::now() };
                // The owner may be waiting for this thread to end.
                while let Err(SendTimeoutError::Timeout(back)) = inputs.send_timeout(input, Duration::from_millis(20)) {
                    if stopped() {
                        return;
                    }
                    input = back;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Err(error) = poll.poll(&mut events, None) {
                    if error.kind() != io::ErrorKind::Interrupted {
                        log::error!("the test broker cannot poll its listener: {error}");
                        return;
                    }
                }
            }
            // Of the connection that was to be accepted, or too many open files: neither ends the listener.
            Err(error) => {
                log::warn!("the test broker could not accept a connection: {error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
