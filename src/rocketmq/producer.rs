//! Producers: the handle and its options.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::client::Client;
use super::driver::Control;
use super::engine::event::{Command, Outgoing, ProducerSpec, Reply, Role, SessionId, SessionSpec};
use super::identity::process;
use super::lane::Lane;
use super::message::{Message, SendReceipt};
use super::topic::TopicQueue;
use super::wire::names;
use crate::closing::{CLOSE_LIMIT, Closing, callbacks_left};
use crate::error::{Error, ErrorKind, SendError};
use crate::pending::{Pending, completion};
use crate::policy::admission::Limits;
use crate::policy::budget::message_charge;
use crate::policy::limits::{Violations, deadline, flush_time};
use crate::policy::progress::Flushed;
use crate::runtime::callback::on_callback_thread;
use crate::runtime::permits::Permits;

const DEFAULT_ATTEMPTS: u32 = 3;
const DEFAULT_IN_FLIGHT: usize = 1024;
/// What a first answer may take longer than any other call, while the server registers the session.
pub(super) const START_TOLERANCE: Duration = Duration::from_secs(3);

/// Options of a [`Producer`].
#[must_use = "the producer exists after `start`"]
pub struct ProducerBuilder {
    client: Client,
    topics: Vec<String>,
    max_attempts: u32,
    send_timeout: Option<Duration>,
    max_in_flight: usize,
    block_when_full: bool,
    stop_failed_groups: bool,
}

impl ProducerBuilder {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            topics: Vec::new(),
            max_attempts: DEFAULT_ATTEMPTS,
            send_timeout: None,
            max_in_flight: DEFAULT_IN_FLIGHT,
            block_when_full: true,
            stop_failed_groups: false,
        }
    }

    /// Declares a topic: `start` then fails if it does not exist, and its route is known before the first send. Other
    /// topics can be sent to as well.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Declares several topics; see [`topic`](Self::topic).
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Attempts of a send: 3 by default, 1 to 100. An attempt that could not be started for want of a connection, or
    /// that was cut off when a dead connection was replaced, does not count.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long a send may take, from the call to its result, over all attempts: attempts × request timeout by
    /// default, 1 ms to 1 day. One value for all messages.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = Some(timeout);
        self
    }

    /// The most messages that may be pending: 1,024 by default, 1 to 65,536. Endpoints get a fair share each.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// Whether a send waits for room (the default) or fails at once with [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn block_when_full(mut self, block: bool) -> Self {
        self.block_when_full = block;
        self
    }

    /// Whether a message group stops when a message of it fails: off by default, the group goes on with the next.
    /// While a group is stopped, what waits in it and what is sent to it fails at once with
    /// [`Misuse`](ErrorKind::Misuse), not sent and with the first failure as the source, until
    /// [`Producer::resume_group`] is called. For programs that may not have a message stored whose predecessor is
    /// missing. A message that failed as [`Unknown`](crate::Delivery::Unknown) may be stored all the same.
    pub fn stop_failed_groups(mut self, stop: bool) -> Self {
        self.stop_failed_groups = stop;
        self
    }

    /// Starts the producer: routes of the declared topics, and a telemetry stream to their endpoints.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) naming everything that is wrong with the options;
    /// [`NotFound`](ErrorKind::NotFound) for a declared topic that does not exist; what the server says;
    /// [`Timeout`](ErrorKind::Timeout) if no endpoint answers; [`Closed`](ErrorKind::Closed).
    pub fn start(self) -> Result<Producer, Error> {
        let mut violations = Violations::new();
        for topic in &self.topics {
            names::check_topic(&mut violations, topic, &self.client.shared.namespace);
        }
        violations.range("max_attempts", self.max_attempts, 1, 100);
        violations.range("max_in_flight", self.max_in_flight, 1, 65_536);
        if let Some(timeout) = self.send_timeout {
            violations.range("send_timeout", timeout, Duration::from_millis(1), Duration::from_secs(86_400));
        }
        violations.finish("producer")?;
        let client = &self.client.shared;
        client.check_open()?;
        let send_timeout = self.send_timeout.unwrap_or(client.request_timeout.saturating_mul(self.max_attempts));
        let id = SessionId(client.next_id());
        let client_id = process().client_id();
        let limits = Limits { max_pending: Some(self.max_in_flight), send_timeout: Some(send_timeout) };
        let post = client.post.clone();
        let permits = Permits::new(limits, 1, Arc::clone(&client.budget), move |_| post.look(id));
        client.register(&permits);
        let size = super::engine::DEFAULT_MAX_BODY_SIZE;
        let lane = Arc::new(Lane::new(Arc::clone(&permits), client.threads.callbacks(), size));
        let spec = SessionSpec {
            namespace: client.namespace.clone(),
            request_timeout: client.request_timeout,
            role: Role::Producer(ProducerSpec {
                topics: self.topics,
                max_attempts: self.max_attempts,
                in_flight: self.max_in_flight,
                stop_failed_groups: self.stop_failed_groups,
            }),
        };
        let (reply, answer) = completion();
        let due = Instant::now() + client.request_timeout.saturating_mul(DEFAULT_ATTEMPTS) + START_TOLERANCE;
        let open = Command::Open { session: id, spec: Box::new(spec), due, reply };
        client.post.control(Control::Open(id, Box::new(client.identity(&client_id)?), Some(Arc::clone(&lane)), open));
        let opened = answer.wait()?;
        lane.max_body_size.store(opened.max_body_size, Ordering::Relaxed);
        let shared = ProducerShared {
            client: self.client.clone(),
            id,
            client_id,
            lane,
            permits,
            block_when_full: self.block_when_full,
            stops_groups: self.stop_failed_groups,
            resumed: Mutex::default(),
            closing: AtomicBool::new(false),
        };
        Ok(Producer { shared: Arc::new(shared) })
    }
}

/// A producer. Clones are the same producer; it closes, without waiting, when the last one is dropped.
///
/// Every accepted send is answered exactly once, and its result is fixed at most 100 ms after the send timeout,
/// which counts from the call: while no proxy answers too.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<ProducerShared>,
}

struct ProducerShared {
    client: Client,
    id: SessionId,
    client_id: String,
    lane: Arc<Lane>,
    permits: Arc<Permits<Outgoing>>,
    block_when_full: bool,
    stops_groups: bool,
    /// Groups that may go on, until a message of theirs says so.
    resumed: Mutex<HashSet<String>>,
    closing: AtomicBool,
}

impl Producer {
    /// Sends a message and waits for its result, at most the send timeout.
    ///
    /// # Errors
    ///
    /// Refused at admission, with the message given back: [`Misuse`](ErrorKind::Misuse) naming everything that is
    /// wrong with the message, [`TooLarge`](ErrorKind::TooLarge), [`Closed`](ErrorKind::Closed),
    /// [`WouldBlock`](ErrorKind::WouldBlock) (no room, and waiting is switched off or not allowed on a callback
    /// thread), [`Timeout`](ErrorKind::Timeout) (no room in time). Accepted and failed: `Timeout`, `Closed`, or what
    /// the server said; [`delivery`](SendError::delivery) tells whether the server may hold it.
    pub fn send(&self, message: Message) -> Result<SendReceipt, SendError<Message>> {
        self.accept(message, self.shared.block_when_full)?.wait().map_err(SendError::accepted)
    }

    /// Sends a message and has `callback` called with its result on a callback thread, exactly once if this returns
    /// `Ok` and never if it returns an error. Waits for room, at most the send timeout, unless that is switched off.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn send_with(
        &self,
        message: Message,
        callback: impl FnOnce(Result<SendReceipt, Error>) + Send + 'static,
    ) -> Result<(), SendError<Message>> {
        self.admit(message, Reply::Callback(Box::new(callback)), self.shared.block_when_full)
    }

    /// Sends a message; the result can be waited for later. Waits for room as [`send_with`](Self::send_with).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn submit(&self, message: Message) -> Result<Pending<SendReceipt>, SendError<Message>> {
        self.accept(message, self.shared.block_when_full)
    }

    /// As [`submit`](Self::submit), but never waits for room.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission; [`WouldBlock`](ErrorKind::WouldBlock) if there is no room.
    pub fn try_submit(&self, message: Message) -> Result<Pending<SendReceipt>, SendError<Message>> {
        self.accept(message, false)
    }

    fn accept(&self, message: Message, may_wait: bool) -> Result<Pending<SendReceipt>, SendError<Message>> {
        let (reply, pending) = completion();
        self.admit(message, Reply::Completion(reply), may_wait)?;
        Ok(pending)
    }

    fn admit(&self, message: Message, reply: Reply, may_wait: bool) -> Result<(), SendError<Message>> {
        let shared = &*self.shared;
        let namespace = &shared.client.shared.namespace;
        if let Err(error) = message.check(namespace, shared.lane.max_body_size.load(Ordering::Relaxed)) {
            return Err(SendError::new(error, message));
        }
        let now = SystemTime::now();
        let process = process();
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let message_id = process.message_ids.next(seconds);
        let request = match message.encode(namespace, message_id.as_str(), &process.host, now) {
            Ok(request) => request,
            Err(error) => return Err(SendError::new(error, message)),
        };
        // Told with the message, so that it is known neither earlier nor later.
        let resumes = shared.stops_groups && message.group().is_some_and(|group| shared.resumed.lock().remove(group));
        let outgoing = Outgoing {
            topic: message.topic().into(),
            kind: message.message_type().wire(),
            group: message.group().map(Into::into),
            resumes,
            request,
            reply,
            body_size: message.body().len(),
        };
        let charge = message_charge(message.body().len(), message.extra_bytes());
        let may_wait = may_wait && !on_callback_thread();
        match shared.permits.admit(0, outgoing, charge, None, may_wait) {
            Ok(_) => Ok(()),
            // The reply goes unused: a callback of a refused message never runs, and its Pending was never given out.
            Err(refused) => {
                if resumes {
                    shared.resumed.lock().extend(message.group().map(str::to_owned));
                }
                Err(refused.map(|_| message))
            }
        }
    }

    /// Waits until everything accepted before the call has its result and its callback has returned. On a callback
    /// thread only the results are waited for.
    ///
    /// # Errors
    ///
    /// The first failure among the messages it waited for, in context.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_until(None)
    }

    /// As [`flush`](Self::flush), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); [`Timeout`](ErrorKind::Timeout) if the limit is over: everything goes on.
    pub fn flush_within(&self, limit: Duration) -> Result<(), Error> {
        self.flush_until(Some(deadline(Instant::now(), limit)))
    }

    fn flush_until(&self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "flush: the producer is closed"));
        }
        self.shared.client.shared.check_open()?;
        let what = if on_callback_thread() { Flushed::Fixed } else { Flushed::Returned };
        self.shared.permits.wait_flushed(what, deadline)
    }

    /// Lets a message group go on that a failed message [stopped](ProducerBuilder::stop_failed_groups). What was sent to
    /// it before this call has failed or fails; what is sent from here on is not stopped. Returns at once.
    pub fn resume_group(&self, group: &str) {
        if self.shared.stops_groups {
            self.shared.resumed.lock().insert(group.to_owned());
        }
    }

    /// Closes within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Waits for results, answers what is left shortly before the limit with [`Closed`](ErrorKind::Closed), and takes
    /// leave of the server. `Ok` means that everything is answered and no callback runs any more. Later sends are
    /// refused with `Closed`. Closing again waits for the same end; the earliest limit counts.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if callbacks outlive the limit: they still run once each.
    /// [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread: the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = Closing::start(limit, |now, reply| self.shared.start_close(now, limit, Some(reply)));
        closing.wait()?;
        self.shared.permits.wait_idle(Some(closing.due)).map_err(callbacks_left)
    }

    /// The queues of a declared topic.
    pub(super) fn queues(&self, topic: &str) -> Result<Vec<TopicQueue>, Error> {
        let (reply, answer) = completion();
        let command = Command::Describe { session: self.shared.id, topic: topic.to_owned(), reply };
        self.shared.client.shared.post.command(command);
        answer.wait()
    }

    /// The id by which the server knows this producer.
    pub fn client_id(&self) -> &str {
        &self.shared.client_id
    }

    /// Messages that were accepted and are not answered, or whose callback has not returned.
    pub fn pending(&self) -> usize {
        self.shared.permits.pending()
    }
}

impl ProducerShared {
    fn start_close(&self, now: Instant, limit: Duration, reply: Option<crate::pending::Completion<()>>) {
        self.closing.store(true, Ordering::Release);
        self.permits.close();
        let flush_until = deadline(now, flush_time(limit));
        self.client.shared.post.command(Command::Close { session: self.id, flush_until, reply });
    }
}

impl Drop for ProducerShared {
    /// The last handle is gone: the close starts, and nobody waits for it.
    fn drop(&mut self) {
        if !self.closing.load(Ordering::Acquire) {
            self.start_close(Instant::now(), CLOSE_LIMIT, None);
        }
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("client_id", &self.shared.client_id).finish_non_exhaustive()
    }
}
