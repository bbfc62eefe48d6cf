//! The answer guarantee, what an error says about a message, and what is not promised.
//!
//! # What is promised
//!
//! A send is *accepted* when the call holds a permit and the message was handed over. A call that finds no room by
//! its deadline, or is refused for any other reason, returns its error and the message at once and never calls back.
//! Every accepted send is answered exactly once:
//!
//! 1. **Once.** The callback runs once, or the [`Pending`](crate::Pending) resolves once, or `send` returns.
//! 2. **In time.** The result is *fixed* at most 100 ms after the send timeout, counted from the call, wherever the
//!    message is: waiting in line, in a batch, unsent because the link is down, written and unanswered, being resent.
//!    `send` and `Pending` return then. A callback starts then, unless an earlier one of its partition still runs or
//!    every callback thread is inside user code.
//! 3. **In order.** Callbacks of one partition run in send order and never two at once; partitions run in parallel.
//! 4. **Apart.** A callback may be slow, may panic, may send on, flush or close its own producer. Links stay alive,
//!    timeouts of other producers fire, nothing deadlocks. On a callback thread a send never waits for room: it fails
//!    with [`WouldBlock`](crate::ErrorKind::WouldBlock).
//! 5. **To the end.** `close_within(limit)` flushes, then answers whatever is left with
//!    [`Closed`](crate::ErrorKind::Closed): at the limit less a tenth of it, at most 500 ms. `Ok` means that all is
//!    answered and that nothing runs later; callbacks that outlive the limit by 100 ms (by 1 s while the
//!    machine is too busy to start any) make it a [`Timeout`](crate::ErrorKind::Timeout) with their number, and still
//!    run once each.
//! 6. **Honest.** Every error says what it was ([`kind`](crate::Error::kind)), what would help
//!    ([`recovery`](crate::Error::recovery)) and whether the broker may hold the message
//!    ([`delivery`](crate::Error::delivery)).
//!
//! # What an error says about the message
//!
//! | [`Delivery`](crate::Delivery) | what happened | what to do |
//! |---|---|---|
//! | `NotSent` | no byte was handed to a socket, and none will be | send it again |
//! | `Refused` | the broker said no | look at `kind()` and `code()` |
//! | `Unknown` | it was handed to a socket and no answer came | the broker may hold it: sending again may store it twice |
//!
//! Over several attempts the worst of them counts. To replay after `Unknown` without duplicates, use a broker with
//! deduplication and a producer with a name of its own: close it, create it again under the same name, and send again
//! with the same sequence ids.
//!
//! # What is not promised
//!
//! - A message that timed out as `Unknown` may be stored, also after the answer.
//! - Without deduplication at the broker a message may be stored twice: after a lost link everything without a receipt
//!   is sent again, in order and unchanged.
//! - With deduplication and without TLS: a frame that was damaged on its way, whose refusal is then lost with its link,
//!   may be reported as stored, because the broker takes the message for known when it comes again. No client can tell
//!   that answer from the one after a lost receipt.
//! - A slow callback delays the callbacks behind it of the same partition. What is promised in time is the result.
//! - Nothing survives the end of the process: messages are kept in memory only.
//! - An acknowledgement is not confirmed by the broker. If it is lost with a link, the message comes again.
//! - With `panic = "abort"` a panic in a callback ends the process, like any other panic. With the default,
//!   `unwind`, it is caught and logged, and the callbacks behind it run.
//!
//! # RocketMQ: attempts, duplicates, order
//!
//! - A send makes up to three attempts, at other endpoints where there are any, all within its one send timeout. What
//!   is refused for good (a topic that does not exist, a message that the server does not take) is not tried again;
//!   what is throttled is, after the pause that the server's settings name.
//! - An attempt that could not be started for want of a connection, or that was cut off because its connection was
//!   replaced, does not count: such a send goes on trying until its timeout.
//! - An attempt whose answer was lost is followed by another, so a message may be stored twice, and one that was
//!   reported as `Unknown` once or twice, later. Consumers must expect duplicates: the message id is the same.
//! - Messages of one group go one after another, always to the same queue. Those that were reported as stored are first
//!   stored in their order. After a message that failed, the group goes on with the next, unless
//!   the producer [stops such groups](crate::rocketmq::ProducerBuilder::stop_failed_groups).
//! - A message that was received and is not acknowledged within its invisible duration comes again. An
//!   acknowledgement is confirmed by the server, and its error says what became of it.
//! - With `panic = "abort"`, a server that ends a send or an acknowledgement well but without any answer, which no
//!   RocketMQ server does, ends the process: the gRPC library panics there. With `unwind` it is an error of that call.
