//! Simple consumers: receive, acknowledge, change the invisible duration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::Client;
use super::driver::Control;
use super::engine::event::{Answers, Arrived, Command, ConsumerSpec, Prepared, ReplyOf, Role, SessionId, SessionSpec};
use super::filter::FilterExpression;
use super::handle;
use super::identity::process;
use super::producer::START_TOLERANCE;
use super::received::MessageView;
use super::wire::method::Method;
use super::wire::names;
use crate::closing::{CLOSE_LIMIT, Closing};
use crate::error::{Error, ErrorKind};
use crate::pending::completion;
use crate::policy::limits::{Violations, deadline, flush_time};

const DEFAULT_AWAIT: Duration = Duration::from_secs(15);
/// The server's range of invisible durations is narrower by default: 10 s to 12 h.
const LONGEST_INVISIBLE: Duration = Duration::from_secs(12 * 3600);
/// The server gives no more at once.
const MOST_MESSAGES: usize = 32;

/// Options of a [`SimpleConsumer`].
#[must_use = "the consumer exists after `start`"]
pub struct SimpleConsumerBuilder {
    client: Client,
    group: String,
    subscriptions: BTreeMap<String, FilterExpression>,
    await_duration: Duration,
}

impl SimpleConsumerBuilder {
    pub(super) fn new(client: Client, group: String) -> Self {
        Self { client, group, subscriptions: BTreeMap::new(), await_duration: DEFAULT_AWAIT }
    }

    /// Subscribes to messages of a topic. Given again for the same topic, the last filter counts.
    pub fn subscribe(mut self, topic: impl Into<String>, filter: FilterExpression) -> Self {
        self.subscriptions.insert(topic.into(), filter);
        self
    }

    /// How long a receive waits for messages (`long_polling_timeout`): 15 s by default, 5 s to 1 hour. The server
    /// polls for at most 20 s at a time, and refuses less than 5 s.
    pub fn await_duration(mut self, duration: Duration) -> Self {
        self.await_duration = duration;
        self
    }

    /// Starts the consumer: routes of its topics, and a telemetry stream to their endpoints.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options;
    /// [`NotFound`](ErrorKind::NotFound) for a topic that does not exist; what the server says;
    /// [`Timeout`](ErrorKind::Timeout) if no endpoint answers; [`Closed`](ErrorKind::Closed).
    pub fn start(self) -> Result<SimpleConsumer, Error> {
        let mut violations = Violations::new();
        let namespace = &self.client.shared.namespace;
        names::check_consumer_group(&mut violations, &self.group, namespace);
        for (topic, filter) in &self.subscriptions {
            names::check_topic(&mut violations, topic, namespace);
            filter.violation().into_iter().for_each(|violation| violations.add(violation));
        }
        violations.range("await_duration", self.await_duration, Duration::from_secs(5), Duration::from_secs(3600));
        violations.finish("simple consumer")?;
        let client = &self.client.shared;
        client.check_open()?;
        let id = SessionId(client.next_id());
        let client_id = process().client_id();
        let subscriptions =
            self.subscriptions.iter().map(|(topic, filter)| (topic.clone(), filter.to_proto())).collect();
        let role = Role::SimpleConsumer(ConsumerSpec {
            group: self.group.clone(),
            subscriptions,
            await_duration: self.await_duration,
        });
        let spec = SessionSpec { namespace: client.namespace.clone(), request_timeout: client.request_timeout, role };
        let (reply, answer) = completion();
        let due = Instant::now() + client.request_timeout.saturating_mul(3) + START_TOLERANCE;
        let open = Command::Open { session: id, spec: Box::new(spec), due, reply };
        client.post.control(Control::Open(id, Box::new(client.identity(&client_id)?), None, open));
        answer.wait()?;
        let shared = ConsumerShared {
            client: self.client.clone(),
            id,
            client_id,
            group: self.group,
            closing: AtomicBool::new(false),
        };
        Ok(SimpleConsumer { shared: Arc::new(shared) })
    }
}

/// A simple consumer: it receives when asked, and every message is the user's to acknowledge. Clones are the same
/// consumer; it closes, without waiting, when the last one is dropped.
#[derive(Clone)]
pub struct SimpleConsumer {
    shared: Arc<ConsumerShared>,
}

struct ConsumerShared {
    client: Client,
    id: SessionId,
    client_id: String,
    group: String,
    closing: AtomicBool,
}

impl SimpleConsumer {
    /// Receives up to `max` messages (1 to 32), waiting at most the await duration for the first; none is no error.
    /// All brokers of all subscribed topics are asked at once, so a message in any queue is found. Others do not see
    /// the messages for `invisible_duration` (10 s to 12 h by default of the server); not acknowledged by then, they
    /// are delivered again.
    ///
    /// # Errors
    ///
    /// [`Misuse`](ErrorKind::Misuse) for numbers out of range or without a subscription;
    /// [`WouldBlock`](ErrorKind::WouldBlock) if 1,024 receives of this consumer wait already; what the server says;
    /// [`Closed`](ErrorKind::Closed). Any other error means that no poll succeeded in the time: [`Timeout`](ErrorKind::Timeout)
    /// if no server answered within the request timeout after the await duration. [`Protocol`](ErrorKind::Protocol) if
    /// messages came and none can be read; of several, those are left out, and come again as if they were not
    /// acknowledged.
    pub fn receive(&self, max: usize, invisible_duration: Duration) -> Result<Vec<MessageView>, Error> {
        let (reply, answer) = completion();
        self.start_receive(max, invisible_duration, ReplyOf::Completion(reply))?;
        // Read here: the thread that receives pays for it.
        MessageView::read_all(answer.wait()?)
    }

    /// As [`receive`](Self::receive), with the result given to `callback` on a callback thread, exactly once if this
    /// returns `Ok`.
    ///
    /// # Errors
    ///
    /// [`Misuse`](ErrorKind::Misuse) and [`Closed`](ErrorKind::Closed), at once.
    pub fn receive_with(
        &self,
        max: usize,
        invisible_duration: Duration,
        callback: impl FnOnce(Result<Vec<MessageView>, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let reply = ReplyOf::Callback(Box::new(move |result| callback(result.and_then(MessageView::read_all))));
        self.start_receive(max, invisible_duration, reply)
    }

    fn start_receive(&self, max: usize, invisible: Duration, reply: ReplyOf<Vec<Arrived>>) -> Result<(), Error> {
        self.check_open("receive")?;
        let mut violations = Violations::new();
        violations.range("max", max, 1, MOST_MESSAGES);
        violations.range("invisible_duration", invisible, Duration::from_millis(1), LONGEST_INVISIBLE);
        violations.finish("receive").map_err(|error| error.with_kind(ErrorKind::Misuse))?;
        let session = self.shared.id;
        self.shared.client.shared.post.command(Command::Receive { session, max, invisible, reply });
        Ok(())
    }

    /// Acknowledges a message: it is not delivered to the group again.
    ///
    /// # Errors
    ///
    /// What the server says, for example that the invisible duration was over; [`Timeout`](ErrorKind::Timeout) after
    /// the request timeout; [`Closed`](ErrorKind::Closed).
    pub fn ack(&self, message: &MessageView) -> Result<(), Error> {
        let mut results = self.ack_batch(std::slice::from_ref(message))?;
        results.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "acknowledge: there is no result")))
    }

    /// Acknowledges several messages, with one call for each topic and endpoint; one result for each, in their order.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed), for all of them.
    pub fn ack_batch(&self, messages: &[MessageView]) -> Result<Vec<Result<(), Error>>, Error> {
        self.check_open("acknowledge")?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let handles: Vec<_> = messages.iter().map(MessageView::handle).collect();
        let (places, calls) = handle::acknowledge(self.namespace(), &self.shared.group, &handles);
        Ok(places.results(&handles, self.call(Method::AckMessage, calls)?))
    }

    /// Changes when a message becomes visible to others again, counted from now: 0 gives it back at once. The message
    /// that comes back has the new receipt handle; the old one is void.
    ///
    /// # Errors
    ///
    /// [`Misuse`](ErrorKind::Misuse) for more than 12 h; else as [`ack`](Self::ack).
    pub fn change_invisible_duration(
        &self,
        message: &MessageView,
        invisible_duration: Duration,
    ) -> Result<MessageView, Error> {
        self.check_open("change of the invisible duration")?;
        let mut violations = Violations::new();
        violations.range("invisible_duration", invisible_duration, Duration::ZERO, LONGEST_INVISIBLE);
        violations.finish("change of the invisible duration").map_err(|error| error.with_kind(ErrorKind::Misuse))?;
        let handle = message.handle();
        let call = handle::change(self.namespace(), &self.shared.group, &handle, invisible_duration);
        let answers = self.call(Method::ChangeInvisibleDuration, vec![call])?;
        handle::changed(&handle, answers).map(|handle| message.with_handle(handle))
    }

    /// Makes calls and waits for their answers.
    fn call(&self, method: Method, calls: Vec<Prepared>) -> Result<Answers, Error> {
        let client = &self.shared.client.shared;
        let due = deadline(Instant::now(), client.request_timeout);
        let (reply, answers) = completion();
        client.post.command(Command::Prepared { session: self.shared.id, method, calls, due, reply });
        answers.wait()
    }

    /// Adds or replaces a subscription. The next receive goes by it.
    ///
    /// # Errors
    ///
    /// [`Misuse`](ErrorKind::Misuse) for a topic or filter that no server takes; [`Closed`](ErrorKind::Closed).
    pub fn subscribe(&self, topic: impl Into<String>, filter: FilterExpression) -> Result<(), Error> {
        let topic = topic.into();
        let mut violations = Violations::new();
        names::check_topic(&mut violations, &topic, &self.shared.client.shared.namespace);
        filter.violation().into_iter().for_each(|violation| violations.add(violation));
        violations.finish("subscribe").map_err(|error| error.with_kind(ErrorKind::Misuse))?;
        self.resubscribe(topic, Some(filter))
    }

    /// Ends a subscription. Messages of the topic that were received can still be acknowledged.
    ///
    /// # Errors
    ///
    /// [`Closed`](ErrorKind::Closed).
    pub fn unsubscribe(&self, topic: impl Into<String>) -> Result<(), Error> {
        self.resubscribe(topic.into(), None)
    }

    fn resubscribe(&self, topic: String, filter: Option<FilterExpression>) -> Result<(), Error> {
        self.check_open("subscribe")?;
        let (reply, answer) = completion();
        let filter = filter.map(|filter| filter.to_proto());
        let command = Command::Subscribe { session: self.shared.id, topic, filter, reply };
        self.shared.client.shared.post.command(command);
        answer.wait()
    }

    /// Closes within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Ends receives with [`Closed`](ErrorKind::Closed), waits for acknowledgements under way, and takes leave of the
    /// server. Closing again waits for the same end.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if it took longer; [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread:
    /// the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = Closing::start(limit, |now, reply| self.shared.start_close(now, limit, Some(reply)));
        match closing.wait()? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Timeout, "close: the consumer has not ended yet")),
        }
    }

    /// The id by which the server knows this consumer.
    pub fn client_id(&self) -> &str {
        &self.shared.client_id
    }

    /// The consumer group.
    pub fn group(&self) -> &str {
        &self.shared.group
    }

    fn namespace(&self) -> &str {
        &self.shared.client.shared.namespace
    }

    fn check_open(&self, what: &str) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, format!("{what}: the consumer is closed")));
        }
        self.shared.client.shared.check_open()
    }
}

impl ConsumerShared {
    fn start_close(&self, now: Instant, limit: Duration, reply: Option<crate::pending::Completion<()>>) {
        self.closing.store(true, Ordering::Release);
        let flush_until = deadline(now, flush_time(limit));
        self.client.shared.post.command(Command::Close { session: self.id, flush_until, reply });
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

impl std::fmt::Debug for SimpleConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimpleConsumer")
            .field("group", &self.shared.group)
            .field("client_id", &self.shared.client_id)
            .finish_non_exhaustive()
    }
}
