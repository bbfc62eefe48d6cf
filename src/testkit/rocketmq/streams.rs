//! Telemetry: the streams, the settings that come and go on them, the server's commands.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use futures_channel::mpsc::UnboundedSender;
use protobuf::Message as _;

use super::script::{Effect, End};
use super::state::{OK, State, encode, status};
use super::worker::Frame;
use crate::rocketmq::wire::pb;
use pb::telemetry_command::Command;

#[derive(Default)]
pub(super) struct Streams {
    open: BTreeMap<u64, Stream>,
    pub without_settings: u64,
    /// Settings that came, by endpoint.
    pub settings: HashMap<usize, u64>,
    pub traces: Vec<String>,
    /// Everything else that clients wrote.
    pub replies: Vec<Vec<u8>>,
}

struct Stream {
    endpoint: usize,
    client: String,
    frames: UnboundedSender<Frame>,
    written: bool,
    effect: Option<Effect>,
    /// Settings that were answered.
    answered: usize,
}

impl Streams {
    pub(super) fn end_all(&mut self) {
        self.open.clear();
    }

    pub(super) fn count(&self, endpoint: usize) -> usize {
        self.open.values().filter(|stream| stream.endpoint == endpoint).count()
    }

    /// Writes a command on all streams of an endpoint.
    pub(super) fn write(&self, endpoint: usize, body: &Bytes) {
        for stream in self.open.values().filter(|stream| stream.endpoint == endpoint) {
            let _ = stream.frames.unbounded_send(Frame::Body(body.clone()));
        }
    }

    pub(super) fn ended(&mut self, stream: u64) {
        self.open.remove(&stream);
    }
}

/// A frame that is to be written later.
pub(super) type Later = Option<(Duration, UnboundedSender<Frame>, Frame)>;

impl State {
    pub(super) fn open_stream(
        &mut self,
        endpoint: usize,
        client: String,
        stream: u64,
        frames: UnboundedSender<Frame>,
        effect: Option<Effect>,
    ) {
        if let Some(Effect::Grpc(code, text)) = effect {
            let _ = frames.unbounded_send(Frame::Failed(code, text));
            return;
        }
        let opened = Stream { endpoint, client, frames, written: false, effect, answered: 0 };
        self.streams.open.insert(stream, opened);
    }

    pub(super) fn telemetry(&mut self, stream: u64, body: &[u8]) -> Later {
        let open = self.streams.open.get_mut(&stream)?;
        let command = pb::TelemetryCommand::parse_from_bytes(body).ok()?;
        let first = !std::mem::replace(&mut open.written, true);
        match command.command {
            Some(Command::Settings(settings)) => {
                *self.streams.settings.entry(open.endpoint).or_default() += 1;
                return self.answer_settings(stream, settings);
            }
            Some(Command::ThreadStackTrace(ref trace)) => {
                self.streams.traces.push(trace.thread_stack_trace.clone().unwrap_or_default());
            }
            _ => {}
        }
        self.streams.replies.push(body.to_vec());
        self.streams.without_settings += u64::from(first);
        None
    }

    fn answer_settings(&mut self, stream: u64, mut settings: pb::Settings) -> Later {
        let open = self.streams.open.get_mut(&stream)?;
        if !matches!(open.effect, Some(Effect::Lost | Effect::Status(..) | Effect::Bytes(_) | Effect::Frames(..))) {
            self.clients.insert(open.client.clone());
        }
        if let Some(pb::settings::Pub_sub::Publishing(publishing)) = &mut settings.pub_sub {
            publishing.max_body_size = i32::try_from(self.max_body_size).unwrap_or(i32::MAX);
            publishing.validate_message_type = true;
        }
        settings.backoff_policy = self.backoff.clone().into();
        let answer = |code: i32, text: &str| {
            let command = Some(Command::Settings(settings.clone()));
            let answer = pb::TelemetryCommand { status: status(code, text), command, ..Default::default() };
            Frame::Body(encode(&answer))
        };
        let frames = &open.frames;
        let put = |frame: Frame| drop(frames.unbounded_send(frame));
        open.answered += 1;
        let mut end = None;
        let mut later = None;
        match &open.effect {
            Some(Effect::Silent | Effect::Lost) => {}
            Some(Effect::Late(delay)) => later = Some((*delay, frames.clone(), answer(OK, "OK"))),
            Some(Effect::Status(code, text)) => put(answer(*code, text)),
            Some(Effect::Bytes(bytes)) => put(Frame::Body(Bytes::from(bytes.clone()))),
            Some(Effect::Frames(frames, then)) => {
                frames.iter().for_each(|frame| put(Frame::Body(Bytes::from(frame.clone()))));
                end = Some(then.clone());
            }
            Some(Effect::Cut(after, then)) => {
                if *after > 0 {
                    put(answer(OK, "OK"));
                }
                end = (open.answered >= *after).then(|| then.clone());
            }
            Some(Effect::Grpc(..)) | None => put(answer(OK, "OK")),
        }
        match end {
            None | Some(End::Never) => {}
            Some(end) => {
                end.put(frames.clone());
                self.streams.open.remove(&stream);
            }
        }
        later
    }
}

/// A command of the server without contents but its nonce.
pub(super) fn command(command: Command) -> Bytes {
    encode(&pb::TelemetryCommand { command: Some(command), ..Default::default() })
}

pub(super) fn reconnect_command() -> Bytes {
    let nonce = "1".to_owned();
    command(Command::ReconnectEndpointsCommand(pb::ReconnectEndpointsCommand { nonce, ..Default::default() }))
}

pub(super) fn threads_command() -> Bytes {
    let nonce = "1".to_owned();
    command(Command::PrintThreadStackTraceCommand(pb::PrintThreadStackTraceCommand { nonce, ..Default::default() }))
}

pub(super) fn backoff(initial: Duration, max: Duration, multiplier: f32) -> pb::RetryPolicy {
    let exponential = pb::ExponentialBackoff {
        initial: protobuf::MessageField::some(initial.into()),
        max: protobuf::MessageField::some(max.into()),
        multiplier,
        ..Default::default()
    };
    let mut policy = pb::RetryPolicy { max_attempts: 3, ..Default::default() };
    policy.set_exponential_backoff(exponential);
    policy
}
