//! Calls and streams of gRPC.
//!
//! Nothing here blocks. A call's end is seen on a gRPC thread, which reads the state of the channel and posts both
//! (frequent calls: it posts that there is something to look at). Requests and responses are bytes; who sends them
//! knows what they are.

use std::collections::HashMap;
use std::io::Read;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Either, FutureExt, select};
use grpcio::{
    CallOption, Channel, Client, ConnectivityState, Error as GrpcError, GrpcSlice, Marshaller, MessageReader, Metadata,
    Method as GrpcMethod, MethodType, WriteFlags,
};

use super::channel::{ChannelOptions, Channels, Probed};
use super::engine::event::{CallEnd, CallId, EntryId, RpcEvent, StreamId};
use super::unary::UnaryCalls;
use super::wire::method::{Kind, Method};

/// Whoever hears of what happened. Called on gRPC threads, so it must not block.
pub(super) trait RpcSink: Clone + Send + Sync + 'static {
    fn post(&self, event: RpcEvent);

    /// As `post`, and nobody has to be woken for it: something that is posted soon will.
    fn leave(&self, event: RpcEvent);

    /// Called on threads that may block.
    fn probed(&self, entry: EntryId, probed: Probed);

    /// A call is to be [looked at](Rpc::look): its end has come. `ready` is the state of its channel.
    fn over(&self, call: CallId, ready: bool);
}

/// The calls of one client.
pub(super) struct Rpc<S> {
    channels: Channels<S>,
    calls: HashMap<CallId, (EntryId, AbortHandle)>,
    frequent: UnaryCalls<S>,
    streams: HashMap<StreamId, Stream>,
    sink: S,
}

/// Requests and responses as bytes.
pub(super) type GrpcBytesMethod = GrpcMethod<Bytes, Bytes>;

struct Stream {
    writer: mpsc::Sender<Bytes>,
    abort: AbortHandle,
}

impl<S: RpcSink> Rpc<S> {
    pub(super) fn new(options: ChannelOptions, sink: S) -> Self {
        let channels = Channels::new(options, sink.clone());
        let frequent = UnaryCalls::new(sink.clone());
        Self { channels, calls: HashMap::new(), frequent, streams: HashMap::new(), sink }
    }

    pub(super) fn channels(&mut self) -> &mut Channels<S> {
        &mut self.channels
    }

    /// Starts a call; its end is posted, once.
    pub(super) fn call(
        &mut self,
        call: CallId,
        (entry, client): (EntryId, Client),
        method: Method,
        metadata: Result<Metadata, GrpcError>,
        body: &Bytes,
        timeout: Duration,
    ) {
        let options = match metadata {
            Ok(metadata) => CallOption::default().timeout(timeout).headers(metadata),
            Err(error) => {
                self.sink.post(RpcEvent::Ended { call, ready: false, end: failed(&error) });
                return;
            }
        };
        if matches!(method, Method::SendMessage | Method::AckMessage) {
            self.frequent.start(call, &client, &grpc_method(method), body, options);
            return;
        }
        let (abort, registration) = AbortHandle::new_pair();
        let sink = self.sink.clone();
        let channel = client.channel().clone();
        match method.kind() {
            // Read as a stream, which is the same on the wire: grpcio's own future for one answer panics on its thread,
            // and with that ends all calls of the process, when a call ends well without one.
            Kind::Unary => match client.server_streaming(&grpc_method(method), body, options) {
                Ok(receiver) => {
                    let first = receiver.fold(Ok(None), |before: Result<Option<Bytes>, GrpcError>, frame| {
                        std::future::ready(before.and_then(|first| frame.map(|body| first.or(Some(body)))))
                    });
                    let ended = Abortable::new(first, registration).map(move |outcome| {
                        let end = match outcome {
                            Ok(Ok(Some(response))) => CallEnd::Response(response),
                            Ok(Ok(None)) => CallEnd::Failed { code: 0, message: "there is no answer".to_owned() },
                            Ok(Err(error)) => failed(&error),
                            Err(_) => CallEnd::Cancelled,
                        };
                        sink.post(RpcEvent::Ended { call, ready: is_ready(&channel), end });
                    });
                    client.spawn(ended);
                }
                Err(error) => sink.post(RpcEvent::Ended { call, ready: is_ready(&channel), end: failed(&error) }),
            },
            Kind::ServerStream => match client.server_streaming(&grpc_method(method), body, options) {
                Ok(receiver) => {
                    let (frames, mut left) = (sink.clone(), 0);
                    let read = receiver
                        .map(move |frame| frame.map(|body| post_frame(&frames, &mut left, call, body)))
                        .fold(Ok(()), |before: Result<(), GrpcError>, frame| std::future::ready(before.and(frame)));
                    let ended = Abortable::new(read, registration).map(move |outcome| {
                        let end = match outcome {
                            Ok(Ok(())) => CallEnd::StreamOver,
                            Ok(Err(error)) => failed(&error),
                            Err(_) => CallEnd::Cancelled,
                        };
                        sink.post(RpcEvent::Ended { call, ready: is_ready(&channel), end });
                    });
                    client.spawn(ended);
                }
                Err(error) => sink.post(RpcEvent::Ended { call, ready: is_ready(&channel), end: failed(&error) }),
            },
            Kind::Duplex => {
                let end = CallEnd::Failed { code: 12, message: format!("{} is no call but a stream", method.path()) };
                sink.post(RpcEvent::Ended { call, ready: false, end });
                return;
            }
        }
        self.calls.insert(call, (entry, abort));
    }

    /// The end of the call is still posted, once.
    pub(super) fn cancel(&mut self, call: CallId) {
        match self.calls.remove(&call) {
            Some((_, abort)) => abort.abort(),
            None => self.frequent.cancel(call),
        }
    }

    /// What became of a call whose end was announced by [`RpcSink::over`]; nothing if it was cancelled since.
    pub(super) fn look(&mut self, call: CallId, ready: bool) -> Option<RpcEvent> {
        self.frequent.look(call, ready)
    }

    /// No frequent call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.frequent.is_idle()
    }

    /// Whoever waited for the ends has been told.
    pub(super) fn clear(&mut self) {
        self.frequent.clear();
    }

    /// The call's end has arrived: it says something of its channel, too. Frequent ones are left out: heartbeats say
    /// the same.
    pub(super) fn ended(&mut self, now: Instant, call: CallId, ready: bool, end: &CallEnd) {
        let Some((entry, _)) = self.calls.remove(&call) else { return };
        match end {
            CallEnd::Failed { code: UNAVAILABLE, message } if !ready => self.channels.failed(now, entry, message),
            CallEnd::Response(_) | CallEnd::StreamOver => self.channels.works(entry),
            _ => {}
        }
    }

    pub(super) fn open_stream(
        &mut self,
        stream: StreamId,
        client: &Client,
        method: Method,
        metadata: Result<Metadata, GrpcError>,
    ) {
        let over = |reason: String| RpcEvent::StreamEnded { stream, reason };
        let opened = metadata.and_then(|metadata| {
            // No deadline: it lives as long as the session.
            client.duplex_streaming(&grpc_method(method), CallOption::default().headers(metadata))
        });
        let (sender, receiver) = match opened {
            Ok(both) => both,
            Err(error) => {
                self.sink.post(over(error.to_string()));
                return;
            }
        };
        let (writer, writes) = mpsc::channel::<Bytes>(UNREAD);
        let (abort, registration) = AbortHandle::new_pair();
        let frames = self.sink.clone();
        let read = receiver
            .map(move |frame| frame.map(|body| frames.post(RpcEvent::StreamFrame { stream, body })))
            .fold(Ok(()), |before: Result<(), GrpcError>, frame| std::future::ready(before.and(frame)))
            .boxed();
        // One after another, and in the order in which they were asked for. The end of `writes` half-closes it.
        let write = writes.map(|body| Ok((body, WriteFlags::default()))).forward(sender).boxed();
        // A write that fails says less than the status that the reader gets, so that one is waited for.
        let both = select(read, write).then(|first| match first {
            Either::Left((ended, _)) => std::future::ready(ended).boxed(),
            Either::Right((_, read)) => read,
        });
        let sink = self.sink.clone();
        let ended = Abortable::new(both, registration).map(move |outcome| {
            let reason = match outcome {
                Ok(Ok(())) => "the server ended the stream".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "cancelled".to_owned(),
            };
            sink.post(RpcEvent::StreamEnded { stream, reason });
        });
        client.spawn(ended);
        self.streams.insert(stream, Stream { writer, abort });
    }

    /// Cancels a stream whose server asks and asks and does not read the answers.
    pub(super) fn write(&mut self, stream: StreamId, body: Bytes) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        // Otherwise, if it fails, the stream's end is on its way.
        if open.writer.try_send(body).is_err_and(|refused| refused.is_full()) {
            log::warn!("a server does not read what it is sent on its telemetry stream, which is cancelled");
            self.cancel_stream(stream);
        }
    }

    /// Cancels before it closes, so that a write that is stuck on a dead link holds nothing up.
    pub(super) fn cancel_stream(&mut self, stream: StreamId) {
        if let Some(open) = self.streams.remove(&stream) {
            open.abort.abort();
        }
    }

    /// The stream's end has arrived.
    pub(super) fn stream_ended(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }
}

impl<S> Drop for Rpc<S> {
    fn drop(&mut self) {
        self.calls.values().for_each(|(_, abort)| abort.abort());
        self.streams.values().for_each(|stream| stream.abort.abort());
    }
}

/// Frames up to this size together may be left for the end of their stream.
const LEFT: usize = 64 * 1024;
/// What a frame counts on top of its size: a few dozen of small ones are left.
const FRAME: usize = 1024;

/// A frame changes nothing before its stream ends, or somebody looks by the clock: to wake the driver for each costs
/// more than the frame. (Except of a server that gives more than was asked for: it is broken off when the driver wakes,
/// at the latest when the receive is due.) But one that never ends its stream must not fill the memory meanwhile.
fn post_frame(sink: &impl RpcSink, left: &mut usize, call: CallId, body: Bytes) {
    *left = left.saturating_add(body.len()).saturating_add(FRAME);
    let frame = RpcEvent::Frame { call, body };
    if *left > LEFT {
        *left = 0;
        sink.post(frame);
    } else {
        sink.leave(frame);
    }
}

/// So many writes wait on a stream. More than any server has reason to ask for at once.
const UNREAD: usize = 1024;

/// What gRPC says when there is no connection, and when one breaks.
const UNAVAILABLE: i32 = 14;

/// A half-open link reads READY, a refused one does not.
pub(super) fn is_ready(channel: &Channel) -> bool {
    channel.check_connectivity_state(false) == ConnectivityState::GRPC_CHANNEL_READY
}

pub(super) fn failed(error: &GrpcError) -> CallEnd {
    /// `UNKNOWN`: what gRPC says without a status.
    const UNKNOWN: i32 = 2;
    match error {
        GrpcError::RpcFailure(status) => {
            CallEnd::Failed { code: status.code().into(), message: status.message().to_owned() }
        }
        other => CallEnd::Failed { code: UNKNOWN, message: other.to_string() },
    }
}

fn grpc_method(method: Method) -> GrpcBytesMethod {
    // What goes to a server does not depend on it.
    let ty = match method.kind() {
        Kind::Unary | Kind::ServerStream => MethodType::ServerStreaming,
        Kind::Duplex => MethodType::Duplex,
    };
    let bytes = || Marshaller { ser: write_bytes, de: read_bytes };
    GrpcMethod { ty, name: method.path(), req_mar: bytes(), resp_mar: bytes() }
}

fn write_bytes(body: &Bytes, into: &mut GrpcSlice) -> grpcio::Result<()> {
    *into = GrpcSlice::from(&body[..]);
    Ok(())
}

fn read_bytes(mut reader: MessageReader) -> grpcio::Result<Bytes> {
    let mut body = Vec::with_capacity(reader.len());
    reader.read_to_end(&mut body).map_err(|error| GrpcError::Codec(Box::new(error)))?;
    Ok(Bytes::from(body))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What came, and whether the driver was to be woken for it.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<bool>>>);

    impl RpcSink for Heard {
        fn post(&self, _: RpcEvent) {
            self.0.lock().unwrap().push(true);
        }

        fn leave(&self, _: RpcEvent) {
            self.0.lock().unwrap().push(false);
        }

        fn probed(&self, _: EntryId, _: Probed) {}

        fn over(&self, _: CallId, _: bool) {}
    }

    #[test]
    fn frames_wake_the_driver_by_their_size() {
        let woken = |frames: usize, size: usize| {
            let (heard, mut left) = (Heard::default(), 0);
            for _ in 0..frames {
                post_frame(&heard, &mut left, CallId(1), Bytes::from(vec![0; size]));
            }
            let heard = heard.0.lock().unwrap();
            assert_eq!(heard.len(), frames, "each is posted");
            heard.iter().filter(|woken| **woken).count()
        };
        assert_eq!(woken(32, 512), 0, "a usual receive");
        assert_eq!(woken(32, 4 << 20), 32);
        // A server that sends for ever: no more than 64 at a time lie there, and no more than 64 KiB.
        assert_eq!(woken(65_000, 0), 1_000);
        assert_eq!(woken(4_000, 1_000), 121);
    }
}
