//! What stands between the engine's calls and gRPC: they wait for credentials and certificates, are signed, and one
//! that is refused for its credentials is made once more when there are new ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use grpcio::{Error as GrpcError, Metadata, MetadataBuilder};

use super::channel::{ChannelOptions, Gate, Probed};
use super::credentials::{Refused, Signable, Signing, Supplied};
use super::engine::event::{CallEnd, CallId, EntryId, Fault, RpcEvent, SessionId, StreamId};
use super::identity::Identity;
use super::rpc::{Rpc, RpcSink};
use super::wire::code;
use super::wire::endpoints::Endpoints;
use super::wire::method::Method;
use crate::runtime::clock;

/// gRPC's own word for credentials that are not accepted.
const UNAUTHENTICATED: i32 = 16;

/// A call as the engine asked for it.
#[derive(Clone)]
pub(super) struct Request {
    pub session: SessionId,
    pub entry: EntryId,
    pub method: Method,
    pub body: Bytes,
    pub due: Instant,
}

/// A call that cannot be made yet.
struct Held {
    request: Request,
    /// It was made, and refused: what was answered, for when there are no new credentials in time.
    refused: Option<(u64, Vec<RpcEvent>)>,
    fault: Fault,
}

/// A call under way that may be made once more.
struct Sent {
    request: Request,
    generation: u64,
    /// What came so far of a refusal.
    answer: Vec<RpcEvent>,
}

/// The calls of one client. The driver's.
pub(super) struct Calls<S> {
    rpc: Rpc<S>,
    signing: Signing,
    identities: BTreeMap<SessionId, Identity>,
    held: BTreeMap<CallId, Held>,
    due: BTreeSet<(Instant, CallId)>,
    held_streams: BTreeMap<StreamId, (SessionId, EntryId, Vec<Bytes>)>,
    /// Only while credentials can change.
    sent: HashMap<CallId, Sent>,
    streams: HashMap<StreamId, u64>,
    sink: S,
}

impl<S: RpcSink> Calls<S> {
    pub(super) fn new(options: ChannelOptions, signing: Signing, sink: S) -> Self {
        Self {
            rpc: Rpc::new(options, sink.clone()),
            signing,
            identities: BTreeMap::new(),
            held: BTreeMap::new(),
            due: BTreeSet::new(),
            held_streams: BTreeMap::new(),
            sent: HashMap::new(),
            streams: HashMap::new(),
            sink,
        }
    }

    pub(super) fn add(&mut self, session: SessionId, identity: Identity) {
        self.identities.insert(session, identity);
    }

    pub(super) fn remove(&mut self, session: SessionId) {
        self.identities.remove(&session);
    }

    pub(super) fn connect(&mut self, now: Instant, entry: EntryId, endpoints: Endpoints, first: usize) {
        self.rpc.channels().connect(now, entry, endpoints, first);
    }

    pub(super) fn close(&mut self, entry: EntryId) {
        self.rpc.channels().close(entry);
    }

    /// Makes a call, now or as soon as it can be; its end is posted, once, by its timeout.
    pub(super) fn call(&mut self, now: Instant, call: CallId, request: Request) {
        self.start(now, call, request, true);
    }

    fn start(&mut self, now: Instant, call: CallId, request: Request, again: bool) {
        let (fault, client) = match self.gate(now, request.entry) {
            // Sends that ran out of time while they waited would be cancelled in the moment in which the connection is
            // made. gRPC may then take a stream back that it has not opened, and the server ends the connection.
            Gate::Dialling(_) if request.method == Method::SendMessage => (Fault::Dialling, None),
            Gate::Open(client) | Gate::Dialling(client) => (Fault::NoConnection, Some(client)),
            Gate::Shut(fault) => (fault, None),
            Gate::Wait => {
                let fault = self.waits_for();
                return self.hold(call, Held { request, refused: None, fault });
            }
        };
        let left = request.due.saturating_duration_since(now);
        let (Some(client), false) = (client, left.is_zero()) else {
            return self.sink.post(RpcEvent::Ended { call, ready: false, end: CallEnd::NotStarted(fault) });
        };
        let metadata = self.metadata(request.session);
        self.rpc.call(call, (request.entry, client), request.method, metadata, &request.body, left);
        if again && self.signing.changes() {
            let generation = self.signing.generation();
            self.sent.insert(call, Sent { request, generation, answer: Vec::new() });
        }
    }

    fn hold(&mut self, call: CallId, held: Held) {
        self.due.insert((held.request.due, call));
        self.held.insert(call, held);
    }

    fn unhold(&mut self, call: CallId) -> Option<Held> {
        let held = self.held.remove(&call)?;
        self.due.remove(&(held.request.due, call));
        Some(held)
    }

    fn gate(&mut self, now: Instant, entry: EntryId) -> Gate {
        match self.signing.signable(now) {
            Signable::Now => self.rpc.channels().gate(now, entry),
            Signable::Later => Gate::Wait,
            Signable::Not(fault) => Gate::Shut(fault),
        }
    }

    /// What a call lacked that waited in vain.
    fn waits_for(&self) -> Fault {
        if self.signing.is_waiting() { Signing::unanswered() } else { Fault::NoConnection }
    }

    fn metadata(&mut self, session: SessionId) -> Result<Metadata, GrpcError> {
        let signature = self.signing.sign(clock::now().unix_ms / 1000);
        match self.identities.get_mut(&session) {
            Some(identity) => identity.metadata(signature),
            None => Ok(MetadataBuilder::new().build()),
        }
    }

    /// The call's end changes nothing any more.
    pub(super) fn cancel(&mut self, call: CallId) {
        self.unhold(call);
        self.sent.remove(&call);
        self.rpc.cancel(call);
    }

    pub(super) fn open_stream(&mut self, now: Instant, stream: StreamId, session: SessionId, entry: EntryId) {
        match self.gate(now, entry) {
            Gate::Open(client) | Gate::Dialling(client) => {
                let metadata = self.metadata(session);
                self.rpc.open_stream(stream, &client, Method::Telemetry, metadata);
                if self.signing.changes() {
                    self.streams.insert(stream, self.signing.generation());
                }
            }
            Gate::Wait => drop(self.held_streams.insert(stream, (session, entry, Vec::new()))),
            Gate::Shut(fault) => {
                let reason = fault.error("telemetry").to_string();
                self.sink.post(RpcEvent::StreamEnded { stream, reason });
            }
        }
    }

    pub(super) fn write(&mut self, stream: StreamId, body: Bytes) {
        match self.held_streams.get_mut(&stream) {
            Some((_, _, writes)) => writes.push(body),
            None => self.rpc.write(stream, body),
        }
    }

    pub(super) fn cancel_stream(&mut self, stream: StreamId) {
        self.held_streams.remove(&stream);
        self.streams.remove(&stream);
        self.rpc.cancel_stream(stream);
    }

    /// What became of a call whose end was announced, if the engine is to know.
    pub(super) fn look(&mut self, now: Instant, call: CallId, ready: bool) -> Option<RpcEvent> {
        let event = self.rpc.look(call, ready)?;
        self.arrived(now, event)
    }

    /// No frequent call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.rpc.is_idle()
    }

    /// Whoever waited for the ends of calls has been told.
    pub(super) fn clear(&mut self) {
        self.rpc.clear();
    }

    /// Looks at what happened before the engine does. `None` if it is not to know, or not yet.
    pub(super) fn arrived(&mut self, now: Instant, event: RpcEvent) -> Option<RpcEvent> {
        match event {
            RpcEvent::Ended { call, ready, end } => {
                self.rpc.ended(now, call, ready, &end);
                let Some(sent) = self.sent.remove(&call) else { return Some(RpcEvent::Ended { call, ready, end }) };
                let refused = !sent.answer.is_empty() || is_refused(&end);
                let event = RpcEvent::Ended { call, ready, end };
                if refused { self.refused(now, call, sent, event) } else { Some(event) }
            }
            RpcEvent::Frame { call, body } => match self.sent.get_mut(&call) {
                Some(sent) if !sent.answer.is_empty() || code::is_unauthorized(&body) => {
                    sent.answer.push(RpcEvent::Frame { call, body });
                    None
                }
                _ => Some(RpcEvent::Frame { call, body }),
            },
            RpcEvent::StreamFrame { stream, body } => {
                let refused = code::is_unauthorized(&body);
                let signed = self.streams.get(&stream).copied().filter(|_| refused);
                match signed.map(|generation| self.signing.refused(now, generation)) {
                    // The engine opens another, by when there may be new ones.
                    Some(Refused::Again | Refused::Wait) => {
                        self.rpc.cancel_stream(stream);
                        None
                    }
                    Some(Refused::Final) | None => Some(RpcEvent::StreamFrame { stream, body }),
                }
            }
            RpcEvent::StreamEnded { stream, reason } => {
                self.streams.remove(&stream);
                self.rpc.stream_ended(stream);
                Some(RpcEvent::StreamEnded { stream, reason })
            }
        }
    }

    fn refused(&mut self, now: Instant, call: CallId, sent: Sent, end: RpcEvent) -> Option<RpcEvent> {
        let Sent { request, generation, mut answer } = sent;
        match self.signing.refused(now, generation) {
            Refused::Again => {
                self.start(now, call, request, false);
                None
            }
            Refused::Wait => {
                answer.push(end);
                let held = Held { request, refused: Some((generation, answer)), fault: Fault::NoConnection };
                self.hold(call, held);
                None
            }
            Refused::Final if answer.is_empty() => Some(end),
            Refused::Final => {
                answer.into_iter().for_each(|event| self.sink.post(event));
                self.sink.post(end);
                None
            }
        }
    }

    /// The provider of credentials has answered.
    pub(super) fn supplied(&mut self, now: Instant, answer: Supplied) {
        self.signing.supplied(now, answer);
        self.release(now);
    }

    /// Somebody has looked at an entry's server.
    pub(super) fn probed(&mut self, now: Instant, entry: EntryId, probed: Probed) {
        self.rpc.channels().probed(now, entry, probed);
        self.release(now);
    }

    /// What waits is tried again; some of it may wait on.
    fn release(&mut self, now: Instant) {
        // Streams first: their Settings are the first thing that a connection carries.
        for (stream, (session, entry, writes)) in std::mem::take(&mut self.held_streams) {
            self.open_stream(now, stream, session, entry);
            writes.into_iter().for_each(|body| self.write(stream, body));
        }
        for call in self.held.keys().copied().collect::<Vec<_>>() {
            let Some(Held { request, refused, fault }) = self.unhold(call) else { continue };
            match refused {
                None => self.start(now, call, request, true),
                Some((generation, _)) if self.signing.generation() > generation => {
                    self.start(now, call, request, false);
                }
                Some(refused) if self.signing.is_waiting() => {
                    self.hold(call, Held { request, refused: Some(refused), fault });
                }
                Some((_, answer)) => answer.into_iter().for_each(|event| self.sink.post(event)),
            }
        }
    }

    /// When [`due`](Self::due) has something to do next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self.due.first().map(|(at, _)| *at);
        [held, self.signing.poll_timeout()].into_iter().flatten().min()
    }

    /// Asks for credentials before they expire; ends what has waited for as long as it may.
    pub(super) fn due(&mut self, now: Instant) {
        self.signing.due(now);
        while let Some((_, call)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let Some(held) = self.unhold(call) else { continue };
            match held.refused {
                Some((_, answer)) => answer.into_iter().for_each(|event| self.sink.post(event)),
                None => self.sink.post(RpcEvent::Ended { call, ready: false, end: CallEnd::NotStarted(held.fault) }),
            }
        }
    }
}

fn is_refused(end: &CallEnd) -> bool {
    match end {
        CallEnd::Response(body) => code::is_unauthorized(body),
        CallEnd::Failed { code, .. } => *code == UNAUTHENTICATED,
        _ => false,
    }
}

/// Until when a call may take that was asked for now.
pub(super) fn until(now: Instant, timeout: Duration) -> Instant {
    crate::policy::limits::deadline(now, timeout)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::channel::Security;
    use super::super::credentials::{Credentials, Source};
    use super::super::probe::Probe;
    use super::super::wire::endpoints::AccessPoint;
    use super::*;
    use crate::policy::recovery::{HeartbeatTiming, TransportRecovery};

    #[derive(Clone)]
    struct Told(Sender<RpcEvent>);

    impl RpcSink for Told {
        fn post(&self, event: RpcEvent) {
            let _ = self.0.send(event);
        }

        fn leave(&self, event: RpcEvent) {
            self.post(event);
        }

        fn over(&self, _: CallId, _: bool) {}

        fn probed(&self, _: EntryId, _: Probed) {}
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Always the same.
    fn entry(now: Instant) -> EntryId {
        TransportRecovery::new(HeartbeatTiming::default()).added(0, now)
    }

    /// Takes connections and says nothing, so that channels stay as they are.
    fn silent() -> String {
        static LISTENER: std::sync::OnceLock<std::net::TcpListener> = std::sync::OnceLock::new();
        let listener = LISTENER.get_or_init(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        listener.local_addr().unwrap().to_string()
    }

    /// A provider that never answers: tests answer for it.
    fn calls(now: Instant) -> (Calls<Told>, Receiver<RpcEvent>) {
        let (tell, told) = channel();
        let security = Security::Plaintext(Arc::new(Probe::new(None).unwrap()));
        let options = ChannelOptions { security, environment_proxy: false };
        let source = Source::Provider(Arc::new(|| Ok(Credentials::new("a", "b"))));
        let signing = Signing::new(source, |_| {}).unwrap();
        let mut calls = Calls::new(options, signing, Told(tell));
        calls.connect(now, entry(now), AccessPoint::parse(&silent()).unwrap().endpoints, 0);
        calls.add(SessionId(1), Identity::new("c", "").unwrap());
        (calls, told)
    }

    fn request(due: Instant) -> Request {
        let entry = entry(Instant::now());
        Request { session: SessionId(1), entry, method: Method::AckMessage, body: Bytes::new(), due }
    }

    fn not_started(event: RpcEvent) -> (CallId, Fault) {
        match event {
            RpcEvent::Ended { call, end: CallEnd::NotStarted(fault), .. } => (call, fault),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sends_are_not_started_on_a_channel_that_dials() {
        let now = Instant::now();
        let (mut calls, told) = calls(now);
        calls.supplied(now, Ok(Credentials::new("a", "b")));
        calls.call(now, CallId(1), request(now + SECOND * 600));
        assert!(told.try_recv().is_err(), "an acknowledgement is under way");
        calls.call(now, CallId(2), Request { method: Method::SendMessage, ..request(now + SECOND * 600) });
        assert_eq!(not_started(told.try_recv().unwrap()), (CallId(2), Fault::Dialling));
    }

    #[test]
    fn a_stream_whose_server_does_not_read_is_cancelled() {
        let now = Instant::now();
        let (mut calls, told) = calls(now);
        calls.supplied(now, Ok(Credentials::new("a", "b")));
        let stream = StreamId(1);
        calls.open_stream(now, stream, SessionId(1), entry(now));
        for _ in 0..1_000 {
            calls.write(stream, Bytes::from_static(b"stacks"));
        }
        assert!(told.try_recv().is_err(), "the channel dials, and so many may wait");
        for _ in 0..100 {
            calls.write(stream, Bytes::from_static(b"stacks"));
        }
        let ended = told.recv_timeout(SECOND * 60).unwrap();
        assert_eq!(ended, RpcEvent::StreamEnded { stream, reason: "cancelled".to_owned() });
        calls.arrived(now, ended);
        calls.write(stream, Bytes::from_static(b"stacks"));
        assert!(told.try_recv().is_err(), "once");
    }

    #[test]
    fn calls_wait_for_credentials_as_long_as_they_may() {
        let now = Instant::now();
        let (mut calls, told) = calls(now);
        calls.call(now, CallId(1), request(now + SECOND * 2));
        calls.call(now, CallId(2), request(now + SECOND));
        calls.call(now, CallId(3), request(now + SECOND));
        calls.cancel(CallId(3));
        assert!(told.try_recv().is_err());
        assert_eq!(calls.poll_timeout(), Some(now + SECOND));
        calls.due(now + SECOND);
        assert_eq!(not_started(told.try_recv().unwrap()), (CallId(2), Signing::unanswered()));
        assert!(told.try_recv().is_err());
        // The provider fails: who waits is told why, and so is who comes in the next 3 s.
        calls.supplied(now + SECOND, Err("locked".to_owned()));
        calls.call(now + SECOND, CallId(4), request(now + SECOND * 2));
        let fault = Fault::Credentials { reason: "locked".to_owned() };
        for call in [1, 4] {
            assert_eq!(not_started(told.try_recv().unwrap()), (CallId(call), fault.clone()));
        }
        assert_eq!(calls.poll_timeout(), None);
    }

    #[test]
    fn a_refused_call_waits_for_new_credentials_and_keeps_its_answer() {
        let now = Instant::now();
        let (mut calls, told) = calls(now);
        calls.signing.signable(now);
        calls.supplied(now, Ok(Credentials::new("a", "b")));
        for (call, due) in [(1, SECOND * 600), (2, SECOND * 900)] {
            let (request, generation) = (request(now + due), calls.signing.generation());
            calls.sent.insert(CallId(call), Sent { request, generation, answer: Vec::new() });
        }
        // Status 40100.
        let refusal = |call| RpcEvent::Ended {
            call: CallId(call),
            ready: true,
            end: CallEnd::Response(Bytes::from_static(&[0x0a, 4, 8, 0xa4, 0xb9, 2])),
        };
        let soon = now + SECOND;
        assert_eq!(calls.arrived(soon, refusal(1)), Some(refusal(1)), "it was asked just now");
        let later = now + SECOND * 500;
        assert_eq!(calls.arrived(later, refusal(2)), None, "the provider is asked");
        calls.supplied(later, Ok(Credentials::new("a", "b")));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [refusal(2)], "the same again: nothing would change");
        assert!(calls.held.is_empty() && calls.due.is_empty());
    }
}
