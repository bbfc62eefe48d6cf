//! Producers: the handle and its options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::client::Client;
use super::engine::event::{Command, Outgoing, ProducerId, Reply, SendReceipt};
use super::lane::Lane;
use super::message::ProducerMessage;
use super::routing::Router;
use super::topic::TopicName;
use super::wire::compress::Compression;
use super::wire::payload::BatchWriter;
use crate::closing::{CLOSE_LIMIT, Closing, callbacks_left};
use crate::error::{Error, ErrorKind, SendError};
use crate::pending::{Pending, completion};
use crate::policy::budget::message_charge;
use crate::policy::limits::{deadline, flush_time};
use crate::policy::progress::Flushed;
use crate::runtime::callback::on_callback_thread;
use crate::runtime::permits::Permits;

/// Bodies above this are compressed on the caller's thread, when they go alone.
const PACK_ABOVE: usize = 4096;

/// Who else may produce to the topic (`CommandProducer.producer_access_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AccessMode {
    /// Anybody. The default.
    #[default]
    Shared,
    /// Nobody: `create` fails with [`Conflict`](ErrorKind::Conflict) if there is another producer.
    Exclusive,
}

/// A producer. Clones are the same producer; it closes, without waiting, when the last one is dropped.
///
/// Every accepted send is answered exactly once, and its result is fixed at most 100 ms after the send timeout,
/// which counts from the call: while the broker is away too.
#[derive(Clone)]
pub struct Producer {
    pub(super) shared: Arc<ProducerShared>,
}

pub(super) struct ProducerShared {
    pub client: Client,
    pub id: ProducerId,
    pub topic: TopicName,
    pub name: String,
    pub lanes: Vec<Arc<Lane>>,
    pub permits: Arc<Permits<Outgoing>>,
    pub router: Router,
    pub compression: Compression,
    /// What is larger goes alone; 0 without batches.
    pub batch_max_bytes: usize,
    pub block_when_full: bool,
    pub closing: AtomicBool,
}

impl Producer {
    /// Sends a message and waits for the broker's receipt, at most the send timeout. The batch that the message
    /// joins is sent at once.
    ///
    /// # Errors
    ///
    /// Refused at admission, with the message given back: [`Closed`](ErrorKind::Closed),
    /// [`TooLarge`](ErrorKind::TooLarge), [`Misuse`](ErrorKind::Misuse) (sequence id),
    /// [`WouldBlock`](ErrorKind::WouldBlock) (no room, and waiting is switched off or not allowed on a callback
    /// thread), [`Timeout`](ErrorKind::Timeout) (no room in time). Accepted and failed: `Timeout`, `Closed`, or what
    /// the broker said; [`delivery`](SendError::delivery) tells whether the broker may hold it.
    pub fn send(&self, message: impl Into<ProducerMessage>) -> Result<SendReceipt, SendError<ProducerMessage>> {
        self.accept(message.into(), true, self.shared.block_when_full)?.wait().map_err(SendError::accepted)
    }

    /// Sends a message and has `callback` called with its result on a callback thread, exactly once if this returns
    /// `Ok` and never if it returns an error. Waits for room, at most the send timeout, unless that is switched off.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn send_with(
        &self,
        message: impl Into<ProducerMessage>,
        callback: impl FnOnce(Result<SendReceipt, Error>) + Send + 'static,
    ) -> Result<(), SendError<ProducerMessage>> {
        let reply = Reply::Callback(Box::new(callback));
        self.admit(message.into(), reply, false, self.shared.block_when_full)
    }

    /// Sends a message; the result can be waited for later. Waits for room as [`send_with`](Self::send_with).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission.
    pub fn submit(
        &self,
        message: impl Into<ProducerMessage>,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        self.accept(message.into(), false, self.shared.block_when_full)
    }

    /// As [`submit`](Self::submit), but never waits for room.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), at admission; [`WouldBlock`](ErrorKind::WouldBlock) if there is no room.
    pub fn try_submit(
        &self,
        message: impl Into<ProducerMessage>,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        self.accept(message.into(), false, false)
    }

    fn accept(
        &self,
        message: ProducerMessage,
        urgent: bool,
        may_wait: bool,
    ) -> Result<Pending<SendReceipt>, SendError<ProducerMessage>> {
        let (reply, pending) = completion();
        self.admit(message, Reply::Completion(reply), urgent, may_wait)?;
        Ok(pending)
    }

    fn admit(
        &self,
        mut message: ProducerMessage,
        reply: Reply,
        urgent: bool,
        may_wait: bool,
    ) -> Result<(), SendError<ProducerMessage>> {
        message.resolve(SystemTime::now);
        let shared = &*self.shared;
        let lane = match shared.lanes.as_slice() {
            [only] => only,
            lanes => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let index = shared.router.route(u64::try_from(now.as_millis()).unwrap_or(0), message.key_text());
                match lanes.get(index) {
                    Some(lane) => lane,
                    None => return Err(SendError::new(Error::new(ErrorKind::Internal, "no such partition"), message)),
                }
            }
        };
        if let Some(error) = lane.failed.get() {
            return Err(SendError::new(error.clone(), message));
        }
        let body = match shared.pack(&mut message) {
            Ok(body) => body,
            Err(error) => return Err(SendError::new(error, message)),
        };
        let size = BatchWriter::single_size(&message.content);
        let limit = lane.max_message_size.load(Ordering::Relaxed) as usize;
        if size > limit && (shared.compression == Compression::None || body.is_some()) {
            let text = format!("message of {size} bytes to {}: the broker accepts {limit} bytes", shared.topic);
            message.unpack(body);
            return Err(SendError::new(Error::new(ErrorKind::TooLarge, text), message));
        }
        let charge = message_charge(message.content.payload.len(), message.extra_bytes());
        let sequence = message.sequence_id;
        let outgoing = Outgoing { content: message.content, reply, urgent };
        let may_wait = may_wait && !on_callback_thread();
        match shared.permits.admit(lane.index, outgoing, charge, sequence, may_wait) {
            Ok(_) => Ok(()),
            // The reply goes unused: a callback of a refused message never runs, and its Pending was never given out.
            Err(refused) => Err(refused.map(|outgoing| {
                let mut message = ProducerMessage::returned(outgoing.content, sequence);
                message.unpack(body);
                message
            })),
        }
    }

    /// Waits until everything accepted before the call has its result and its callback has returned. Batches are
    /// sent at once. On a callback thread only the results are waited for.
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
        self.shared.client.shared.post.command(Command::Flush { producer: self.shared.id });
        let what = if on_callback_thread() { Flushed::Fixed } else { Flushed::Returned };
        self.shared.permits.wait_flushed(what, deadline)
    }

    /// Closes within 30 s; see [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_LIMIT)
    }

    /// Flushes, answers what is left a tenth of the limit (at most 500 ms) before its end with
    /// [`Closed`](ErrorKind::Closed), and leaves the broker. `Ok` means that everything is answered and no callback runs any more. Later sends are refused with
    /// `Closed`. Closing again waits for the same end; the earliest limit counts.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if callbacks outlive the limit by 100 ms, or by 1 s while the machine is too
    /// busy to start any: they still run once each.
    /// [`WouldBlock`](ErrorKind::WouldBlock) on a callback thread: the close is started, and goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Result<(), Error> {
        let mut closing = Closing::start(limit, |now, reply| self.shared.start_close(now, limit, Some(reply)));
        closing.wait()?;
        self.shared.client.shared.wait_callbacks(&self.shared.permits, closing.due).map_err(callbacks_left)
    }

    /// The topic's full name.
    pub fn topic(&self) -> &TopicName {
        &self.shared.topic
    }

    /// The producer's name: the given one, or the one that the broker made (of the first partition).
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number of partitions; 1 for a topic without.
    pub fn partitions(&self) -> usize {
        self.shared.lanes.len()
    }

    /// The highest sequence id that the broker has stored, over all partitions; `None` if there is none yet.
    pub fn last_sequence_id(&self) -> Option<u64> {
        let last = self.shared.lanes.iter().map(|lane| lane.last_stored.load(Ordering::Relaxed)).max()?;
        u64::try_from(last).ok()
    }

    /// Messages that were accepted and are not answered, or whose callback has not returned.
    pub fn pending(&self) -> usize {
        self.shared.permits.pending()
    }
}

impl ProducerShared {
    /// Compresses a body that is large and goes alone, here on the caller's thread: on the loop it would hold up
    /// everybody's answers. Gives the body as it was, if it did.
    fn pack(&self, message: &mut ProducerMessage) -> Result<Option<Bytes>, Error> {
        let size = message.content.payload.len();
        let extras = message.content.extras.as_deref();
        let single = size > self.batch_max_bytes || extras.is_some_and(|extras| extras.deliver_at.is_some());
        let empty = extras.is_some_and(|extras| extras.null_value);
        if self.compression == Compression::None || size <= PACK_ABOVE || !single || empty {
            return Ok(None);
        }
        let packed = message.content.pack(self.compression);
        packed.map(Some).map_err(|error| Error::from(error).in_context(&format!("send to {}", self.topic)))
    }

    fn start_close(&self, now: Instant, limit: Duration, reply: Option<crate::pending::Completion<()>>) {
        self.closing.store(true, Ordering::Release);
        self.permits.close();
        let (flush_until, due) = (deadline(now, flush_time(limit)), deadline(now, limit));
        let close = Command::CloseProducer { producer: self.id, flush_until, due, reply };
        self.client.shared.post.command(close);
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
        f.debug_struct("Producer")
            .field("topic", &self.shared.topic.as_str())
            .field("name", &self.shared.name)
            .field("partitions", &self.shared.lanes.len())
            .finish_non_exhaustive()
    }
}
