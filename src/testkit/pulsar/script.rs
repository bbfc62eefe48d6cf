//! What happens to the next requests of a kind. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use super::ServerError;

/// A kind of request; see [`Broker::fail_next`](super::Broker::fail_next).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// CONNECT. A failure closes the connection, as a broker does.
    Connect,
    /// PARTITIONED_METADATA.
    Partitions,
    /// LOOKUP.
    Lookup,
    /// PRODUCER.
    Producer,
    /// CLOSE_PRODUCER.
    CloseProducer,
    /// SUBSCRIBE.
    Subscribe,
    /// CLOSE_CONSUMER.
    CloseConsumer,
    /// UNSUBSCRIBE.
    Unsubscribe,
    /// ACK. Only its answer can fail or be late, and only if the client wants one.
    Ack,
    /// SEEK.
    Seek,
    /// GET_LAST_MESSAGE_ID.
    LastMessageId,
    /// PING. It can be ignored and delayed.
    Ping,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Fail(ServerError),
    /// As if it had never come.
    Ignore,
    /// Carried out, and the answer is lost.
    LoseAnswer,
    /// Carried out, and the answer is late.
    Delay(Duration),
}

#[derive(Debug, Default)]
pub(super) struct Script {
    acts: VecDeque<Act>,
    /// What answers the next CONNECTs.
    greetings: VecDeque<Greeting>,
}

#[derive(Debug)]
struct Act {
    request: Request,
    fate: Fate,
    left: u64,
}

#[derive(Debug)]
struct Greeting {
    bytes: Vec<u8>,
    endless: bool,
    left: u64,
}

impl Script {
    pub(super) fn add(&mut self, request: Request, fate: Fate, times: u64) {
        if times > 0 {
            self.acts.push_back(Act { request, fate, left: times });
        }
    }

    /// The fate of this request; those for its kind are used in the order in which they were added.
    pub(super) fn take(&mut self, request: Request) -> Option<Fate> {
        let at = self.acts.iter().position(|act| act.request == request)?;
        let act = self.acts.get_mut(at)?;
        act.left -= 1;
        let fate = act.fate;
        if act.left == 0 {
            self.acts.remove(at);
        }
        Some(fate)
    }

    pub(super) fn greet_with(&mut self, bytes: Vec<u8>, endless: bool, times: u64) {
        if times > 0 {
            self.greetings.push_back(Greeting { bytes, endless, left: times });
        }
    }

    /// What answers this CONNECT instead of CONNECTED, and whether it never ends.
    pub(super) fn greeting(&mut self) -> Option<(Vec<u8>, bool)> {
        let first = self.greetings.front_mut()?;
        first.left -= 1;
        let taken = (first.bytes.clone(), first.endless);
        if first.left == 0 {
            self.greetings.pop_front();
        }
        Some(taken)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
