//! Telemetry: a stream from each session to each endpoint, for settings and the server's commands.

use std::time::{Duration, Instant};

use protobuf::Message as _;

use super::addresses::{AddressId, encode};
use super::event::{Action, SessionId, StreamId};
use super::session::{SETTINGS_PERIOD, State, Telemetry};
use super::settings::{self, Settings};
use super::{Engine, Timer};
use crate::error::{Error, Recovery};
use crate::rocketmq::wire::{code, pb};

/// A stream that ended is opened again after this.
const RENEW_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn leave(&mut self, id: SessionId, address: AddressId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.timers.cancel(Timer::Renew(id, address));
        if let Some(Telemetry::Open { stream, .. }) = session.links.remove(&address) {
            self.streams.remove(&stream);
            self.act(Action::CancelStream { stream });
        }
    }

    /// Opens the stream to an endpoint; Settings are the first thing that is written on it.
    pub(super) fn open_stream(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let Some(link) = self.sessions.get(&id).and_then(|session| session.links.get(&address)) else { return };
        if *link != Telemetry::Resting {
            return;
        }
        let entry = self.entry(now, address);
        let stream = StreamId(self.id());
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.links.insert(address, Telemetry::Open { stream, answered: false });
        let settings = encode(&settings::ours(&session.spec, &self.options));
        self.streams.insert(stream, (id, address));
        self.act(Action::OpenStream { stream, session: id, entry });
        if !mutant!(SettingsAreNotFirst) {
            self.act(Action::WriteStream { stream, body: settings });
        }
    }

    /// The channel was replaced: the stream moves to the new one at once.
    pub(super) fn renew_now(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let Some(link) = self.sessions.get_mut(&id).and_then(|session| session.links.get_mut(&address)) else { return };
        if let Telemetry::Open { stream, .. } = *link {
            *link = Telemetry::Resting;
            self.streams.remove(&stream);
            self.act(Action::CancelStream { stream });
        }
        self.timers.cancel(Timer::Renew(id, address));
        self.open_stream(now, id, address);
    }

    pub(super) fn stream_ended(&mut self, now: Instant, stream: StreamId, reason: &str) {
        let Some((id, address)) = self.streams.remove(&stream) else { return };
        let Some(link) = self.sessions.get_mut(&id).and_then(|session| session.links.get_mut(&address)) else { return };
        log::debug!("telemetry ended and is opened again in {RENEW_PAUSE:?}: {reason}");
        *link = Telemetry::Resting;
        if !mutant!(StreamsAreNotRenewed) {
            self.timers.arm(Timer::Renew(id, address), now + RENEW_PAUSE);
        }
    }

    fn write_settings(&mut self, id: SessionId, address: Option<AddressId>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let body = encode(&settings::ours(&session.spec, &self.options));
        let streams: Vec<StreamId> = session
            .links
            .iter()
            .filter(|(known, _)| address.is_none_or(|address| address == **known))
            .filter_map(|(_, link)| match link {
                Telemetry::Open { stream, .. } => Some(*stream),
                Telemetry::Resting => None,
            })
            .collect();
        for stream in streams {
            self.act(Action::WriteStream { stream, body: body.clone() });
        }
    }

    /// Every five minutes.
    pub(super) fn resend_settings(&mut self, now: Instant, id: SessionId) {
        if self.sessions.contains_key(&id) {
            self.timers.arm(Timer::Settings(id), now + SETTINGS_PERIOD);
            self.write_settings(id, None);
        }
    }

    /// The server does not know the session: it is told at once.
    pub(super) fn settings_missing(&mut self, now: Instant, id: SessionId, address: AddressId) {
        let resting = self
            .sessions
            .get(&id)
            .and_then(|session| session.links.get(&address))
            .is_some_and(|link| *link == Telemetry::Resting);
        if resting {
            self.timers.cancel(Timer::Renew(id, address));
            self.open_stream(now, id, address);
        } else {
            self.write_settings(id, Some(address));
        }
    }

    /// Subscriptions changed, or it is time for it: the servers are told now.
    pub(super) fn settings_changed(&mut self, id: SessionId) {
        self.write_settings(id, None);
    }

    /// A command of the server.
    pub(super) fn telemetry(&mut self, now: Instant, stream: StreamId, body: &[u8]) {
        use pb::telemetry_command::Command;
        let Some((id, address)) = self.streams.get(&stream).copied() else { return };
        let command = match pb::TelemetryCommand::parse_from_bytes(body) {
            Ok(command) => command,
            Err(error) => {
                log::warn!("a telemetry command cannot be read and is ignored: {error}");
                return;
            }
        };
        match command.command {
            Some(Command::Settings(theirs)) => {
                if let Err(error) = code::check(command.status.as_ref(), "settings") {
                    self.settings_refused(now, id, &error);
                    return;
                }
                self.settings_answered(now, id, address, stream, &theirs);
            }
            Some(Command::ReconnectEndpointsCommand(_)) => self.reconnect_asked(now, address),
            Some(Command::PrintThreadStackTraceCommand(asked)) => {
                let trace = pb::ThreadStackTrace {
                    nonce: asked.nonce,
                    thread_stack_trace: Some(self.describe_threads()),
                    ..Default::default()
                };
                self.reply(stream, Command::ThreadStackTrace(trace), None);
            }
            Some(Command::VerifyMessageCommand(asked)) => {
                let result = pb::VerifyMessageResult { nonce: asked.nonce, ..Default::default() };
                let status = pb::Status {
                    code: pb::Code::NOT_IMPLEMENTED.into(),
                    message: "only push consumers verify messages".to_owned(),
                    ..Default::default()
                };
                self.reply(stream, Command::VerifyMessageResult(result), Some(status));
            }
            Some(Command::RecoverOrphanedTransactionCommand(_)) => {
                log::warn!("the server asks for the outcome of a transaction: this session has none");
            }
            Some(Command::NotifyUnsubscribeLiteCommand(_)) => {
                log::warn!("the server ended a lite subscription: this session has none");
            }
            Some(_) | None => log::info!("a telemetry command of an unknown kind is ignored"),
        }
    }

    fn reply(&mut self, stream: StreamId, command: pb::telemetry_command::Command, status: Option<pb::Status>) {
        let answer = pb::TelemetryCommand { command: Some(command), status: status.into(), ..Default::default() };
        let body = encode(&answer);
        self.act(Action::WriteStream { stream, body });
    }

    /// The names of our threads and what each has to do.
    fn describe_threads(&self) -> String {
        format!(
            "tmq-rocketmq: {} sessions, {} calls, {} streams\ntmq-grpc-0: waits for completions\n\
             tmq-supervisor: waits for deadlines\ntmq-sweeper: waits for deadlines\ntmq-callback-N: run callbacks\n",
            self.sessions.len(),
            self.calls.len(),
            self.streams.len()
        )
    }

    fn settings_answered(
        &mut self,
        now: Instant,
        id: SessionId,
        address: AddressId,
        stream: StreamId,
        theirs: &pb::Settings,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let before = session.settings.max_body_size;
        session.settings = Settings::of(theirs);
        let max_body_size = session.settings.max_body_size;
        if let Some(link) = session.links.get_mut(&address) {
            *link = Telemetry::Open { stream, answered: true };
        }
        if before != max_body_size {
            self.act(Action::BodyLimit { session: id, max_body_size });
        }
        self.started(now, id);
        self.pump(now, id);
    }

    fn settings_refused(&mut self, now: Instant, id: SessionId, error: &Error) {
        log::error!("the server refuses the session's settings: {error}");
        let starting = self.sessions.get(&id).is_some_and(|session| matches!(session.state, State::Starting { .. }));
        if starting && error.recovery() == Recovery::Never {
            self.abort(now, id, error);
        }
    }
}
