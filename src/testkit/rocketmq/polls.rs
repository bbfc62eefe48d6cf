//! Receives that wait for messages.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::mpsc::UnboundedSender;
use protobuf::Message as _;

use super::queue::Ask;
use super::script::End;
use super::sql::Filter;
use super::state::{OK, State, encode, refusal, span, status};
use super::worker::Frame;
use crate::rocketmq::wire::pb;

/// As the real server: polls are no longer.
const LONGEST_POLL: Duration = Duration::from_secs(20);

/// A receive that waits.
pub(super) struct Poll {
    pub until: Instant,
    frames: UnboundedSender<Frame>,
    topic: String,
    group: String,
    filter: Filter,
    ask: Ask,
    /// It ends so after so many frames.
    cut: Option<(usize, End)>,
}

impl State {
    /// `Err` with the refusal.
    pub(super) fn poll(
        &self,
        now: Instant,
        endpoint: usize,
        client: &str,
        body: &[u8],
        frames: UnboundedSender<Frame>,
        cut: Option<(usize, End)>,
    ) -> Result<Poll, Bytes> {
        let refuse = |code: pb::Code, text: &str| refusal(code as i32, text);
        let request = pb::ReceiveMessageRequest::parse_from_bytes(body)
            .map_err(|_| refuse(pb::Code::BAD_REQUEST, "unreadable"))?;
        if !self.clients.contains(client) {
            return Err(refuse(pb::Code::UNRECOGNIZED_CLIENT_TYPE, "no settings of this client are known"));
        }
        let topic = request.message_queue.topic.name.clone();
        if !self.topics.contains_key(&topic) {
            return Err(refuse(pb::Code::TOPIC_NOT_FOUND, "the topic does not exist"));
        }
        let Some(filter) = Filter::of(&request.filter_expression.unwrap_or_default()) else {
            return Err(refuse(pb::Code::ILLEGAL_FILTER_EXPRESSION, "the filter expression cannot be read"));
        };
        let invisible = request.invisible_duration.as_ref().map(span).unwrap_or_default();
        let wait = request.long_polling_timeout.as_ref().map_or(LONGEST_POLL, span);
        let group = request.group.name.clone();
        let max = usize::try_from(request.batch_size).unwrap_or(1).clamp(1, 32);
        let ask = Ask { endpoint, max, invisible, max_attempts: self.max_attempts(&group) };
        Ok(Poll { until: now + wait.min(LONGEST_POLL), frames, topic, group, filter, ask, cut })
    }

    /// When a poll may have something to say.
    pub(super) fn next_due(&self, poll: &Poll) -> Instant {
        let visible = self.topics.get(&poll.topic).and_then(|topic| topic.next_visible(&poll.group, poll.ask.endpoint));
        visible.map_or(poll.until, |at| at.min(poll.until))
    }

    /// Whether a poll is over: it got messages, its time is up, or its client is gone. A stream that is not to end
    /// comes back.
    pub(super) fn serve(&mut self, now: Instant, poll: &Poll) -> (bool, Option<UnboundedSender<Frame>>) {
        if poll.frames.is_closed() {
            return (true, None);
        }
        let mut messages = Vec::new();
        if let Some(topic) = self.topics.get_mut(&poll.topic) {
            let wanted = |message: &pb::Message| poll.filter.wants(message);
            let delivered = topic.deliver(now, &poll.group, &wanted, &poll.ask, &mut self.next_handle);
            messages = delivered.messages;
            for index in delivered.dead {
                self.bury(now, &poll.topic, &poll.group, poll.ask.endpoint, index);
            }
        }
        if messages.is_empty() && poll.until > now {
            return (false, None);
        }
        use pb::receive_message_response::Content;
        let (code, text) = match messages.is_empty() {
            true => (pb::Code::MESSAGE_NOT_FOUND as i32, "no new message"),
            false => (OK, "OK"),
        };
        let mut contents = vec![Content::Status(status(code, text).unwrap_or_default())];
        contents.extend(messages.into_iter().map(Content::Message));
        contents.push(Content::DeliveryTimestamp(std::time::SystemTime::now().into()));
        let end = poll.cut.as_ref().map(|(after, end)| {
            contents.truncate(*after);
            end
        });
        for content in contents {
            let frame = pb::ReceiveMessageResponse { content: Some(content), ..Default::default() };
            let _ = poll.frames.unbounded_send(Frame::Body(encode(&frame)));
        }
        (true, end.and_then(|end| end.put(poll.frames.clone())))
    }
}

impl End {
    /// Ends a stream so. One that is not to end comes back, to be kept.
    pub(super) fn put(&self, frames: UnboundedSender<Frame>) -> Option<UnboundedSender<Frame>> {
        match self {
            Self::Well => None,
            Self::Grpc(code, text) => {
                let _ = frames.unbounded_send(Frame::Failed(*code, text.clone()));
                None
            }
            Self::Never => Some(frames),
        }
    }
}
