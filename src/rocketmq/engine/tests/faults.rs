//! Faults strike, and end.

use bytes::Bytes;

use super::network::{StreamState, Wire, bytes};
use super::plan::Fault;
use super::schedule::{Micros, SEC};
use super::world::{Event, Stage, World};
use crate::rocketmq::engine::event::{EntryId, RpcEvent, StreamId};
use crate::rocketmq::wire::pb;

impl World {
    fn entries(&self, endpoint: usize) -> Vec<EntryId> {
        self.links.iter().filter(|(_, l)| l.endpoint == endpoint && !l.closed).map(|(id, _)| *id).collect()
    }

    pub(super) fn fault(&mut self, index: usize) {
        if matches!(self.stage, Stage::Healed | Stage::Probing) {
            return;
        }
        let (_, fault) = self.plan.faults[index];
        self.note("fault", fault.kind() as u64, index as u64);
        self.meet(fault);
        match fault {
            Fault::HalfOpen { endpoint, thaw } => {
                for entry in self.entries(endpoint) {
                    if self.links[&entry].wire == Wire::Ready {
                        self.set(entry, Wire::HalfOpen);
                        thaw.into_iter().for_each(|after| self.after(after, Event::Thaw(entry)));
                    }
                }
            }
            Fault::Restart { endpoint, down } => {
                self.endpoints[endpoint].up = false;
                self.endpoints[endpoint].known.clear();
                for entry in self.entries(endpoint) {
                    if self.links[&entry].wire == Wire::Ready {
                        self.dial(entry, 0);
                        self.cut(entry);
                    }
                }
                self.after(down, Event::Mend(fault));
            }
            Fault::Lies { endpoint } => {
                for entry in self.entries(endpoint) {
                    if self.links[&entry].wire == Wire::Ready {
                        self.set(entry, Wire::Lying);
                        self.cut(entry);
                    }
                }
                self.after(5 * SEC, Event::Mend(fault));
            }
            Fault::Slow { endpoint, by, span } => {
                self.endpoints[endpoint].slow = by;
                self.after(span, Event::Mend(fault));
            }
            Fault::LosesAnswers { endpoint, span } => {
                self.endpoints[endpoint].mute = true;
                self.after(span, Event::Mend(fault));
            }
            Fault::Status { endpoint, code, span } => {
                self.endpoints[endpoint].code = Some(code);
                self.after(span, Event::Mend(fault));
            }
            Fault::ForgetsSettings { endpoint } => self.endpoints[endpoint].known.clear(),
            Fault::EndsStreams { endpoint } => {
                for entry in self.entries(endpoint) {
                    self.cut_streams(entry);
                }
            }
            Fault::AsksToReconnect { endpoint } => {
                let command = pb::telemetry_command::Command::ReconnectEndpointsCommand(Default::default());
                let body = bytes(&pb::TelemetryCommand { command: Some(command), ..Default::default() });
                let open = |(_, s): &(&StreamId, &StreamState)| !s.over && self.links[&s.entry].endpoint == endpoint;
                let stream = self.streams.iter().find(open).map(|(id, _)| *id);
                stream.into_iter().for_each(|stream| self.post(RpcEvent::StreamFrame { stream, body: body.clone() }));
            }
            Fault::Leaves { endpoint, span } => {
                self.endpoints[endpoint].left = !self.endpoints[1 - endpoint].left;
                self.after(span, Event::Mend(fault));
            }
            Fault::RefusesSettings { endpoint, code, span } => {
                self.endpoints[endpoint].refuses_settings = Some(code);
                self.after(span, Event::Mend(fault));
            }
            Fault::DelaysSettings { endpoint, by, span } => {
                self.endpoints[endpoint].settings_late = by;
                self.after(span, Event::Mend(fault));
            }
            Fault::RoutesFail { code, span } => {
                self.routes_fail = Some(code);
                self.after(span, Event::Mend(fault));
            }
            Fault::Leap { by } => self.leap(by),
            Fault::OddCommands { endpoint } => self.odd_commands(endpoint),
            Fault::Expires { endpoint } => self.expire_all(endpoint),
        }
    }

    /// The program stands still, the servers do not.
    fn leap(&mut self, by: Micros) {
        if self.stage != Stage::Busy {
            return;
        }
        let from = self.now;
        self.now += by;
        self.leaps.push((from, self.now));
        let now = self.now;
        for link in self.links.values_mut().filter(|link| link.dead_since.is_some()) {
            link.dead_since = Some(now);
        }
    }

    fn odd_commands(&mut self, endpoint: usize) {
        use pb::telemetry_command::Command;
        let open = |(_, s): &(&StreamId, &StreamState)| !s.over && self.links[&s.entry].endpoint == endpoint;
        let Some(stream) = self.streams.iter().find(open).map(|(id, _)| *id) else { return };
        let stack = pb::PrintThreadStackTraceCommand { nonce: "why".into(), ..Default::default() };
        let commands = [
            Some(Command::PrintThreadStackTraceCommand(stack)),
            Some(Command::VerifyMessageCommand(Default::default())),
            Some(Command::RecoverOrphanedTransactionCommand(Default::default())),
            Some(Command::NotifyUnsubscribeLiteCommand(Default::default())),
            None,
        ];
        for command in commands {
            let body = bytes(&pb::TelemetryCommand { command, ..Default::default() });
            self.post(RpcEvent::StreamFrame { stream, body });
        }
        self.post(RpcEvent::StreamFrame { stream, body: Bytes::from_static(&[0xff, 0xff, 0xff]) });
    }

    pub(super) fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Restart { endpoint, .. } => self.endpoints[endpoint].up = true,
            Fault::Lies { endpoint } => {
                for entry in self.entries(endpoint) {
                    if self.links[&entry].wire == Wire::Lying {
                        self.dial(entry, 0);
                        self.cut(entry);
                    }
                }
            }
            Fault::Slow { endpoint, .. } => self.endpoints[endpoint].slow = 0,
            Fault::LosesAnswers { endpoint, .. } => self.endpoints[endpoint].mute = false,
            Fault::Status { endpoint, .. } => self.endpoints[endpoint].code = None,
            Fault::Leaves { endpoint, .. } => self.endpoints[endpoint].left = false,
            Fault::RefusesSettings { endpoint, .. } => self.endpoints[endpoint].refuses_settings = None,
            Fault::DelaysSettings { endpoint, .. } => self.endpoints[endpoint].settings_late = 0,
            Fault::RoutesFail { .. } => self.routes_fail = None,
            _ => {}
        }
    }

    /// The old connection carries everything on, also what was given up.
    pub(super) fn thaw(&mut self, entry: EntryId) {
        if self.links.get(&entry).is_some_and(|link| link.wire == Wire::HalfOpen) {
            self.set(entry, Wire::Ready);
            self.release(entry);
        }
    }

    pub(super) fn heal(&mut self, endpoint: usize) {
        let state = &mut self.endpoints[endpoint];
        (state.up, state.slow, state.mute, state.code, state.left) = (true, 0, false, None, false);
        (state.refuses_settings, state.settings_late) = (None, 0);
        self.routes_fail = None;
    }
}
