//! Consumers: the handle and its options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::Client;
use super::engine::event::{AckCommand, Command, ConsumerId, ConsumerSpec, PartId};
use super::event_loop::Control;
use super::message::Message;
use super::receive_queue::ReceiveQueue;
use super::topic::TopicName;
use super::wire::command::MessageIdData;
use super::wire::pb::command_subscribe as proto;
use crate::closing::{CLOSE_LIMIT, Closing};
use crate::error::{Error, ErrorKind};
use crate::pending::{Completion, completion};
use crate::policy::limits::{Violations, deadline};

/// How consumers of a subscription share its messages (`CommandSubscribe.subType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SubscriptionType {
    /// One consumer. The default.
    #[default]
    Exclusive,
    /// Any number; each message goes to one of them.
    Shared,
}

/// Where a new subscription starts (`CommandSubscribe.initialPosition`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InitialPosition {
    /// Behind the last message. The default.
    #[default]
    Latest,
    /// Before the first message that the topic still has.
    Earliest,
}

/// A consumer of one topic with all its partitions. Clones are the same consumer; it closes, without waiting, when
/// the last one is dropped.
///
/// When its broker is lost it subscribes anew for as long as it takes; messages that were not acknowledged come
/// again.
#[derive(Clone)]
pub struct Consumer {
    shared: Arc<ConsumerShared>,
}

struct ConsumerShared {
    client: Client,
    id: ConsumerId,
    topic: TopicName,
    subscription: String,
    sub_type: SubscriptionType,
    queue: Arc<ReceiveQueue>,
    closing: AtomicBool,
}

/// Options of a [`Consumer`].
#[must_use = "the consumer exists after `subscribe`"]
pub struct ConsumerBuilder {
    client: Client,
    topic: String,
    subscription: String,
    sub_type: SubscriptionType,
    initial_position: InitialPosition,
    name: Option<String>,
    queue_size: u32,
    properties: Vec<(String, String)>,
    ack_group_delay: Duration,
    ack_group_max: usize,
    negative_ack_delay: Duration,
}

impl Consumer {
    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed) when the consumer or its client is closed; what the broker said if the
    /// subscription can never be attached again.
    pub fn receive(&self) -> Result<Message, Error> {
        match self.shared.queue.receive(None)? {
            Some(message) => Ok(message),
            None => Err(Error::new(ErrorKind::Internal, "receive ended without a deadline")),
        }
    }

    /// Waits for the next message for at most `timeout`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Option<Message>, Error> {
        self.shared.queue.receive(Instant::now().checked_add(timeout))
    }

    /// The next message if it is here already.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    pub fn try_receive(&self) -> Result<Option<Message>, Error> {
        self.shared.queue.receive(Some(Instant::now()))
    }

    /// Acknowledges a message. It is written with others within the ack group's delay; if the link is lost before,
    /// it is written on the next one. A batch is acknowledged at the broker when all its messages are.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed).
    pub fn ack(&self, message: &Message) -> Result<(), Error> {
        self.check_open()?;
        if message.entry.acks.mark(message.index.unwrap_or(0)) {
            let id = message.entry.id.clone();
            self.post(Command::Ack { part: message.entry.part, ack: AckCommand::Individual(id) });
        }
        Ok(())
    }

    /// Acknowledges a message and everything before it of its topic or partition.
    ///
    /// # Errors
    ///
    /// [`Misuse`](ErrorKind::Misuse) on a Shared subscription, [`Closed`](ErrorKind::Closed).
    pub fn ack_cumulative(&self, message: &Message) -> Result<(), Error> {
        self.check_open()?;
        if self.shared.sub_type == SubscriptionType::Shared {
            return Err(Error::new(ErrorKind::Misuse, "ack_cumulative: not possible on a Shared subscription"));
        }
        let entry = &message.entry;
        let whole = message.index.is_none_or(|index| {
            entry.acks.mark_through(index);
            entry.batch_size.is_none_or(|size| index.saturating_add(1) >= size)
        });
        // Inside a batch only what lies before the batch can be told to the broker.
        let id = if whole { Some(entry.id.clone()) } else { before(&entry.id) };
        if let Some(id) = id {
            self.post(Command::Ack { part: entry.part, ack: AckCommand::Cumulative(id) });
        }
        Ok(())
    }

    /// Has the broker deliver a message again after the negative-ack delay; with it the other messages of its batch
    /// that are not acknowledged, and on an Exclusive subscription all that are not.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed).
    pub fn negative_ack(&self, message: &Message) -> Result<(), Error> {
        self.check_open()?;
        self.post(Command::NegativeAck { part: message.entry.part, message_id: message.entry.id.clone() });
        Ok(())
    }

    /// Removes the subscription from the broker and closes the consumer. Every partition is asked, and the call waits
    /// for all their answers, for at most the client's operation timeout.
    ///
    /// # Errors
    ///
    /// What the broker says (other consumers are connected, for example), [`Transport`](ErrorKind::Transport) while
    /// it is not connected or if the connection is lost meanwhile, [`Timeout`](ErrorKind::Timeout),
    /// [`Closed`](ErrorKind::Closed). Of several partitions the error says how many failed, and is that of the first.
    /// The consumer then goes on with the partitions that are left: it receives from them, and can be unsubscribed
    /// again or closed. A partition that gave no answer in time is subscribed anew, because the broker may have
    /// removed its subscription.
    pub fn unsubscribe(&self) -> Result<(), Error> {
        self.check_open()?;
        let due = Instant::now() + self.shared.client.shared.operation_timeout;
        let (reply, answer) = completion();
        self.post(Command::Unsubscribe { consumer: self.shared.id, due, reply });
        answer.wait()?;
        self.shared.closing.store(true, Ordering::Release);
        self.shared.queue.close();
        Ok(())
    }

    /// Closes within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Writes the acknowledgements that are grouped and leaves the broker; the subscription stays. Waiting receivers
    /// end with [`Closed`](ErrorKind::Closed).
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread: the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = Closing::start(limit, |now, reply| self.shared.start_close(now, limit, Some(reply)));
        closing.wait().map(drop)
    }

    /// The topic's full name.
    pub fn topic(&self) -> &TopicName {
        &self.shared.topic
    }

    /// The subscription's name.
    pub fn subscription(&self) -> &str {
        &self.shared.subscription
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the consumer is closed"));
        }
        self.shared.client.shared.check_open()
    }

    fn post(&self, command: Command) {
        self.shared.client.shared.post.command(command);
    }
}

/// The entry before another in the same ledger, if there is one.
fn before(id: &MessageIdData) -> Option<MessageIdData> {
    let entry = id.entry.checked_sub(1)?;
    Some(MessageIdData { entry, ..id.clone() })
}

impl ConsumerShared {
    fn start_close(&self, now: Instant, limit: Duration, reply: Option<Completion<()>>) {
        self.closing.store(true, Ordering::Release);
        self.queue.close();
        let close = Command::CloseConsumer { consumer: self.id, due: deadline(now, limit), reply };
        self.client.shared.post.command(close);
    }
}

impl Drop for ConsumerShared {
    /// The last handle is gone: the close starts, and nobody waits for it.
    fn drop(&mut self) {
        if !self.closing.load(Ordering::Acquire) {
            self.start_close(Instant::now(), CLOSE_LIMIT, None);
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.shared.topic.as_str())
            .field("subscription", &self.shared.subscription)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    pub(super) fn new(client: Client, topic: String, subscription: String) -> Self {
        Self {
            client,
            topic,
            subscription,
            sub_type: SubscriptionType::default(),
            initial_position: InitialPosition::default(),
            name: None,
            queue_size: 1000,
            properties: Vec::new(),
            ack_group_delay: Duration::from_millis(100),
            ack_group_max: 1000,
            negative_ack_delay: Duration::from_secs(60),
        }
    }

    /// How the subscription is shared; [`SubscriptionType::Exclusive`] by default.
    pub fn subscription_type(mut self, kind: SubscriptionType) -> Self {
        self.sub_type = kind;
        self
    }

    /// Where a new subscription starts; [`InitialPosition::Latest`] by default. An existing one goes on where it is.
    pub fn initial_position(mut self, position: InitialPosition) -> Self {
        self.initial_position = position;
        self
    }

    /// The consumer's name (`consumer_name`), shown in the broker's statistics; random by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Messages that the broker may have on the way to each partition's queue: 1000 by default, 1 to 100,000. More
    /// bridges slower round trips and costs memory.
    pub fn receiver_queue(mut self, messages: u32) -> Self {
        self.queue_size = messages;
        self
    }

    /// Adds a property that the broker shows in its statistics (`metadata`).
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// Acknowledgements are written together after this delay, or when there are so many: 100 ms and 1000 by default;
    /// a delay of zero writes each at once. Up to 1 minute, and 1 to 100,000.
    pub fn ack_grouping(mut self, delay: Duration, messages: usize) -> Self {
        self.ack_group_delay = delay;
        self.ack_group_max = messages;
        self
    }

    /// How long after a negative acknowledgement the broker is asked to deliver again: 60 s by default, up to 1 day.
    /// Never earlier than that.
    pub fn negative_ack_delay(mut self, delay: Duration) -> Self {
        self.negative_ack_delay = delay;
        self
    }

    /// Subscribes to all partitions of the topic, within the client's operation timeout.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options; what the broker says;
    /// [`Timeout`](ErrorKind::Timeout) with the last failure as its source; [`Closed`](ErrorKind::Closed).
    pub fn subscribe(self) -> Result<Consumer, Error> {
        let topic = self.check()?;
        let client = &self.client.shared;
        let due = Instant::now() + client.operation_timeout;
        let partitions = client.partitions(&topic, due)?;
        let id = ConsumerId(client.next_id());
        let parts: Vec<(PartId, String)> =
            partitions.iter().map(|topic| (PartId(client.next_id()), topic.as_str().to_owned())).collect();
        let name = self.name.unwrap_or_else(|| format!("{:08x}", crate::runtime::clock::entropy_seed() as u32));
        let spec = Arc::new(ConsumerSpec {
            subscription: self.subscription.clone(),
            sub_type: match self.sub_type {
                SubscriptionType::Exclusive => proto::SubType::Exclusive,
                SubscriptionType::Shared => proto::SubType::Shared,
            },
            name,
            initial_position: match self.initial_position {
                InitialPosition::Latest => proto::InitialPosition::Latest,
                InitialPosition::Earliest => proto::InitialPosition::Earliest,
            },
            properties: self.properties,
            queue_size: self.queue_size,
            ack_group_delay: self.ack_group_delay,
            ack_group_max: self.ack_group_max,
            nack_delay: self.negative_ack_delay,
        });
        let queue = Arc::new(ReceiveQueue::new(&parts, self.queue_size, client.post.clone()));
        let ids = parts.iter().map(|(part, _)| *part).collect();
        let (reply, answer) = completion();
        let open = Command::OpenConsumer { consumer: id, spec, parts, due, reply };
        client.post.control(Control::OpenConsumer(ids, Arc::clone(&queue), open));
        answer.wait()?;
        let shared = ConsumerShared {
            client: self.client.clone(),
            id,
            topic,
            subscription: self.subscription,
            sub_type: self.sub_type,
            queue,
            closing: AtomicBool::new(false),
        };
        Ok(Consumer { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<TopicName, Error> {
        let mut violations = Violations::new();
        let topic = violations.take(TopicName::parse(&self.topic));
        if self.subscription.trim().is_empty() {
            violations.add("subscription: must not be empty".to_owned());
        }
        let minute = Duration::from_secs(60);
        violations.range("receiver_queue", self.queue_size, 1, 100_000);
        violations.range("ack_grouping delay", self.ack_group_delay, Duration::ZERO, minute);
        violations.range("ack_grouping messages", self.ack_group_max, 1, 100_000);
        violations.range("negative_ack_delay", self.negative_ack_delay, Duration::ZERO, minute * 1440);
        violations.finish("consumer")?;
        self.client.shared.check_open()?;
        topic.ok_or_else(|| Error::new(ErrorKind::Config, "consumer: no topic"))
    }
}
