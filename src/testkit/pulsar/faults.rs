//! How a test makes the broker misbehave.

use std::time::Duration;

use super::connection::Ending;
use super::entry::Corruption;
use super::script::Fate;
use super::state::{Mute, State, full_name};
use super::topic::Topic;
use super::{Broker, Request, ServerError};
use crate::pulsar::wire::command::{auth_challenge, encode_ping};

/// # Receipts
/// What happens to the receipts of a topic. The messages are stored all the same.
impl Broker {
    /// Keeps the receipts of the topic back, until [`release_receipts`](Self::release_receipts).
    pub fn hold_receipts(&self, topic: &str) {
        self.with_topic(topic, |topic| topic.receipts.hold = true);
    }

    /// Sends what was held, in order, and holds no more. Receipts whose producer has gone are dropped.
    pub fn release_receipts(&self, topic: &str) {
        let topic = full_name(topic);
        self.ask(move |state| {
            let released = state.topic(&topic).map(|topic| topic.receipts.release());
            state.send_receipts(&released.unwrap_or_default());
        });
    }

    /// Sends one of the held receipts and goes on holding the others. False if there is none for this sequence id
    /// (of a batch: its first).
    pub fn release_receipt(&self, topic: &str, sequence_id: u64) -> bool {
        let topic = full_name(topic);
        self.ask(move |state| {
            let released = state.topic(&topic).and_then(|topic| topic.receipts.release_one(sequence_id));
            state.send_receipts(released.as_slice());
            released.is_some()
        })
    }

    /// Loses the next `times` receipts.
    pub fn drop_receipts(&self, topic: &str, times: u64) {
        self.with_topic(topic, move |topic| topic.receipts.drop = times);
    }

    /// Sends each receipt this much later. `None` ends it.
    pub fn delay_receipts(&self, topic: &str, delay: impl Into<Option<Duration>>) {
        let delay = delay.into();
        self.with_topic(topic, move |topic| topic.receipts.delay = delay);
    }

    /// Sends each receipt twice.
    pub fn duplicate_receipts(&self, topic: &str, on: bool) {
        self.with_topic(topic, move |topic| topic.receipts.duplicate = on);
    }

    /// Turns the order of each two receipts around. The last of an odd number waits until this is switched off.
    pub fn reorder_receipts(&self, topic: &str, on: bool) {
        let topic = full_name(topic);
        self.ask(move |state| {
            let waiting = state.topic(&topic).and_then(|topic| topic.receipts.reorder(on));
            state.send_receipts(waiting.as_slice());
        });
    }

    /// Answers a batch with the sequence id of its last message where that of the first belongs.
    pub fn receipt_by_highest(&self, topic: &str, on: bool) {
        self.with_topic(topic, move |topic| topic.receipts.by_highest = on);
    }

    /// Answers the `nth` SEND from now (1 is the next) with an error; it is not stored.
    pub fn answer_send_with(&self, topic: &str, nth: u64, error: ServerError) {
        self.with_topic(topic, move |topic| topic.receipts.refuse(nth, error.code()));
    }
}

/// # Requests
/// Faults for the next requests of a kind, of any topic. Several for the same kind are used one after the other.
impl Broker {
    /// Answers the next `times` requests with an error; nothing else happens.
    pub fn fail_next(&self, request: Request, error: ServerError, times: u64) {
        self.ask(move |state| state.script.add(request, Fate::Fail(error), times));
    }

    /// Does as if the next `times` requests had not come.
    pub fn ignore_next(&self, request: Request, times: u64) {
        self.ask(move |state| state.script.add(request, Fate::Ignore, times));
    }

    /// Carries the next `times` requests out and never answers them.
    pub fn lose_answer_of_next(&self, request: Request, times: u64) {
        self.ask(move |state| state.script.add(request, Fate::LoseAnswer, times));
    }

    /// Carries the next request out and answers it this much later.
    pub fn delay_next(&self, request: Request, delay: Duration) {
        self.ask(move |state| state.script.add(request, Fate::Delay(delay), 1));
    }

    /// Forgets all faults of requests and all answers to CONNECT that have not been used.
    pub fn clear_requests(&self) {
        self.ask(|state| state.script.clear());
    }

    /// What look-ups are answered with: the address of a network in front of the broker, for example. A URL, or
    /// `host:port`.
    pub fn advertise(&self, url: &str) {
        let url = as_url(url);
        self.ask(move |state| state.routes.advertised = Some(url));
    }

    /// What look-ups of this topic are answered with; the broker says that it is the owner. `None` ends it.
    pub fn assign<'a>(&self, topic: &str, url: impl Into<Option<&'a str>>) {
        let (topic, url) = (full_name(topic), url.into().map(as_url));
        self.ask(move |state| match url {
            Some(url) => drop(state.routes.assigned.insert(topic, url)),
            None => drop(state.routes.assigned.remove(&topic)),
        });
    }

    /// Answers look-ups of the topic with a redirect, until [`end_redirect`](Self::end_redirect).
    pub fn redirect(&self, topic: &str, url: &str, authoritative: bool) {
        let (topic, url) = (full_name(topic), as_url(url));
        self.ask(move |state| drop(state.routes.redirects.insert(topic, (url, authoritative))));
    }

    /// Ends a [redirect](Self::redirect).
    pub fn end_redirect(&self, topic: &str) {
        let topic = full_name(topic);
        self.ask(move |state| drop(state.routes.redirects.remove(&topic)));
    }

    /// Answers every look-up with a redirect to this very broker.
    pub fn redirect_loop(&self, on: bool) {
        self.ask(move |state| state.routes.redirect_loop = on);
    }

    /// What CONNECTED states and frames are judged by from now on; see
    /// [`BrokerBuilder::max_message_size`](super::BrokerBuilder::max_message_size).
    pub fn set_max_message_size(&self, bytes: usize) {
        self.ask(move |state| state.common.max_message_size.store(bytes, std::sync::atomic::Ordering::Relaxed));
    }

    /// Asks every connected client for new credentials (AUTH_CHALLENGE).
    pub fn challenge(&self, auth_method: &str, data: &[u8]) {
        let challenge = auth_challenge("threadmq-testkit", auth_method, data);
        self.ask(move |state| {
            for id in state.connection_ids() {
                state.push(id, &challenge);
            }
        });
    }
}

/// # Sessions
impl Broker {
    /// Closes the producers of a topic (CLOSE_PRODUCER) and gives their number. With a URL the client is told where
    /// to go.
    pub fn close_producers<'a>(&self, topic: &str, assigned_url: impl Into<Option<&'a str>>) -> usize {
        let (topic, url) = (full_name(topic), assigned_url.into().map(as_url));
        self.ask(move |state| state.close_producers_of(&topic, url.as_deref()))
    }

    /// Closes the consumers of a topic (CLOSE_CONSUMER) and gives their number. With a URL the client is told where
    /// to go.
    pub fn close_consumers<'a>(&self, topic: &str, assigned_url: impl Into<Option<&'a str>>) -> usize {
        let (topic, url) = (full_name(topic), assigned_url.into().map(as_url));
        self.ask(move |state| {
            let topic = state.topic_index(&topic);
            state.close_consumers_of(topic, None, url.as_deref())
        })
    }

    /// Closes producers and consumers of a topic, as an unload does. The topic is there again at once.
    pub fn unload(&self, topic: &str) {
        self.close_producers(topic, None);
        self.close_consumers(topic, None);
    }

    /// Ends a topic for good: sends and new producers are refused with `TopicTerminatedError`, and its producers
    /// are closed. Its messages stay.
    pub fn terminate(&self, topic: &str) {
        self.with_topic(topic, |topic| topic.terminated = true);
        self.close_producers(topic, None);
    }
}

/// # Connections
/// `…_connections` are about those that are open now; the others about all, those that come included.
impl Broker {
    /// Closes every connection with a FIN; what was written leaves first. They are closed when this returns.
    pub fn drop_connections(&self) {
        self.end_all(Ending::Fin);
    }

    /// Closes every connection with a reset (RST). They are closed when this returns.
    pub fn reset_connections(&self) {
        self.end_all(Ending::Reset);
    }

    /// Closes the port: new connections are refused by the system and leave no trace in the log. Connections that
    /// are open stay. `false` opens it again.
    ///
    /// # Errors
    /// When the port cannot be opened again, because somebody else has taken it.
    pub fn refuse_connections(&self, on: bool) -> std::io::Result<()> {
        self.ask(move |state| {
            if on {
                state.close_port();
                Ok(())
            } else {
                state.open_port()
            }
        })
    }

    /// Accepts new connections and resets them at once. Unlike refused ones they are in the log.
    pub fn hang_up(&self, on: bool) {
        self.ask(move |state| state.hang_up = on);
    }

    /// Accepts and reads everything, carries out nothing, answers nothing, not even pings.
    pub fn silence(&self, on: bool) {
        self.ask(move |state| state.set_mute(on.then_some(Mute::Silent)));
    }

    /// The same, for the connections that are open now, as long as they live; those that come are served.
    pub fn silence_connections(&self) {
        self.ask(|state| {
            for connection in state.connections.values_mut() {
                connection.mute(Mute::Silent);
            }
        });
    }

    /// Sends a PING at this interval, answers CONNECT, and nothing else. `None` ends it.
    pub fn ping_only(&self, interval: impl Into<Option<Duration>>) {
        let interval = interval.into();
        self.ask(move |state| {
            state.set_mute(interval.map(|_| Mute::PingOnly));
            if let Some(interval) = interval {
                let change = state.mute_changes;
                ping_all(state, interval, change);
            }
        });
    }

    /// The same, for the connections that are open now, as long as they live; those that come are served.
    pub fn ping_only_connections(&self, interval: Duration) {
        self.ask(move |state| {
            for connection in state.connections.values_mut() {
                connection.mute(Mute::PingOnly);
            }
            ping_these(state, interval, state.connection_ids());
        });
    }

    /// Stops reading, so that the clients' sockets fill up. What the system takes in meanwhile is read afterwards.
    /// The broker learns of nothing, not even of connections that end; what it has to write is still written.
    pub fn freeze_reads(&self, on: bool) {
        self.ask(move |state| state.common.pace.freeze(on));
    }

    /// Reads no more than this from each connection. `None` ends it.
    pub fn read_slowly(&self, bytes_per_second: impl Into<Option<u64>>) {
        let rate = bytes_per_second.into();
        self.ask(move |state| state.common.pace.limit(rate));
    }

    fn end_all(&self, ending: Ending) {
        self.ask(move |state| {
            let all = state.connection_ids();
            state.end_connections(&all, ending);
        });
    }
}

/// # Nonsense
impl Broker {
    /// Writes these bytes to every open connection, between two frames.
    pub fn send_raw(&self, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.ask(move |state| {
            for connection in state.connections.values_mut() {
                connection.write_anyway(|out| out.extend_from_slice(&bytes));
            }
        });
    }

    /// Answers the next `times` CONNECTs with these bytes, where CONNECTED belongs.
    pub fn answer_connect_with(&self, bytes: &[u8], times: u64) {
        let bytes = bytes.to_vec();
        self.ask(move |state| state.script.greet_with(bytes, false, times));
    }

    /// The same, followed by zeros without end.
    pub fn answer_connect_endlessly(&self, bytes: &[u8], times: u64) {
        let bytes = bytes.to_vec();
        self.ask(move |state| state.script.greet_with(bytes, true, times));
    }

    /// Damages the next MESSAGE of the topic that is delivered; called several times, the next several. What is
    /// stored stays whole.
    pub fn corrupt_next_message(&self, topic: &str, corruption: Corruption) {
        self.with_topic(topic, move |topic| topic.corruptions.push_back(corruption));
    }
}

impl Broker {
    fn with_topic(&self, topic: &str, act: impl FnOnce(&mut Topic) + Send + 'static) {
        let topic = full_name(topic);
        self.ask(move |state| {
            if let Some(topic) = state.topic(&topic) {
                act(topic);
            }
        });
    }
}

fn as_url(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("pulsar://{url}") }
}

fn ping(state: &mut State, id: u64) {
    if let Some(connection) = state.connections.get_mut(&id) {
        connection.write_anyway(encode_ping);
    }
}

fn ping_all(state: &mut State, interval: Duration, change: u64) {
    if state.mute_changes == change {
        for id in state.connection_ids() {
            ping(state, id);
        }
        state.later(interval, Box::new(move |state| ping_all(state, interval, change)));
    }
}

fn ping_these(state: &mut State, interval: Duration, mut ids: Vec<u64>) {
    ids.retain(|id| state.connections.contains_key(id));
    if !ids.is_empty() {
        for &id in &ids {
            ping(state, id);
        }
        state.later(interval, Box::new(move |state| ping_these(state, interval, ids)));
    }
}
