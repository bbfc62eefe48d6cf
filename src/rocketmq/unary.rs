//! Frequent calls with one answer, polled by the driver: a completion on a gRPC thread only posts that there is
//! something to look at. A task on that thread would cost a second call object of gRPC's for each call, and reading
//! the answer as a stream three more completions.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use grpcio::{CallOption, Channel, Client, ClientUnaryReceiver};

use super::engine::event::{CallEnd, CallId, RpcEvent};
use super::rpc::{GrpcBytesMethod, RpcSink, failed, is_ready};

/// The calls of one client that have no answer yet.
pub(super) struct UnaryCalls<S> {
    waiting: HashMap<CallId, Waiting>,
    /// Over. Taking a call down takes longer than telling its result.
    over: Vec<Waiting>,
    sink: S,
}

struct Waiting {
    receiver: ClientUnaryReceiver<Bytes>,
    waker: Waker,
}

/// Runs on gRPC's thread when a call is over.
struct Over<S> {
    call: CallId,
    channel: Channel,
    sink: S,
}

impl<S: RpcSink + Sync> Wake for Over<S> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.sink.over(self.call, is_ready(&self.channel));
    }
}

impl<S: RpcSink + Sync> UnaryCalls<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { waiting: HashMap::new(), over: Vec::new(), sink }
    }

    pub(super) fn start(
        &mut self,
        call: CallId,
        client: &Client,
        method: &GrpcBytesMethod,
        body: &Bytes,
        options: CallOption,
    ) {
        let channel = client.channel().clone();
        match client.unary_call_async(method, body, options) {
            Ok(receiver) => {
                let over = Over { call, channel: channel.clone(), sink: self.sink.clone() };
                self.waiting.insert(call, Waiting { receiver, waker: Waker::from(Arc::new(over)) });
                // Registers the waker. It may be over by now.
                if let Some(event) = self.look(call, is_ready(&channel)) {
                    self.sink.post(event);
                }
            }
            Err(error) => self.sink.post(RpcEvent::Ended { call, ready: is_ready(&channel), end: failed(&error) }),
        }
    }

    /// What became of a call of which a completion was posted, if it is over. `ready` is what the channel's state was
    /// when that happened.
    pub(super) fn look(&mut self, call: CallId, ready: bool) -> Option<RpcEvent> {
        let waiting = self.waiting.get_mut(&call)?;
        let mut context = Context::from_waker(&waiting.waker);
        // grpcio panics here when a call ends well without an answer. A server that does so is found by its routes and
        // heartbeats, which are read otherwise; this is for one that does so now and then.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut waiting.receiver).poll(&mut context)));
        let end = match polled {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(Ok(response))) => CallEnd::Response(response),
            Ok(Poll::Ready(Err(error))) => failed(&error),
            Err(_) => CallEnd::Failed { code: 0, message: "there is no answer".to_owned() },
        };
        self.over.extend(self.waiting.remove(&call));
        Some(RpcEvent::Ended { call, ready, end })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes down what is over.
    pub(super) fn clear(&mut self) {
        self.over.clear();
    }

    /// Its end is posted, once.
    pub(super) fn cancel(&mut self, call: CallId) {
        if let Some(mut waiting) = self.waiting.remove(&call) {
            waiting.receiver.cancel();
            self.sink.post(RpcEvent::Ended { call, ready: false, end: CallEnd::Cancelled });
        }
    }
}

impl<S> Drop for UnaryCalls<S> {
    fn drop(&mut self) {
        self.waiting.values_mut().for_each(|waiting| waiting.receiver.cancel());
    }
}
