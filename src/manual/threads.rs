//! Which threads there are, what may block, and rules for callbacks.
//!
//! | thread | what it does | blocks on |
//! |---|---|---|
//! | `tmq-io-0`, one a client | sockets, protocol, results | its poll |
//! | `tmq-supervisor` | keep-alive, reconnection, operation deadlines | its queue |
//! | `tmq-sweeper` | send timeouts | its queue |
//! | `tmq-rocketmq`, one a RocketMQ client | sessions, routes, heartbeats, results; has its own deadlines | its queue |
//! | `tmq-grpc-0`, one for all RocketMQ clients of the process | posts what became of calls | gRPC's completion queue |
//! | `tmq-callback-N`, two by default | callbacks of users | user code |
//! | `tmq-lookup`, started when needed | host names | the system's resolver |
//! | `tmq-credentials`, `tmq-tls-probe` (RocketMQ), while there is work | credentials that users supply, looks at servers' certificates | user code, the network |
//!
//! gRPC has a few more threads of its own, which it does not name after us; they and `tmq-grpc-0` stay until the
//! process ends. `tmq-supervisor`, `tmq-sweeper` and `tmq-callback-N` belong to a [`Threads`](crate::Threads), which
//! several clients can share. The number of threads does not grow with producers, consumers, topics or connections.
//!
//! Only threads of users wait, and only for room (permits), for results, and for messages. The event loop never
//! resolves names, runs user code or waits on a channel.
//!
//! # Rules for callbacks
//!
//! - **Do not hold a lock that your callback takes while you call a blocking `send`**, `flush` or `close`: the send
//!   may wait for room, room comes back when callbacks return, and the callback waits for your lock.
//! - A callback may call `send_with` of its own producer. When there is no room that fails with
//!   [`WouldBlock`](crate::ErrorKind::WouldBlock) and gives the message back; it never waits.
//! - A callback may wait for a `send` or a `Pending`: those are answered by the event loop itself. While it waits it
//!   holds up the callbacks behind it.
//! - `flush` in a callback waits for results, not for callbacks. `close` in a callback starts the close, returns
//!   `WouldBlock`, and goes on by itself.
//! - A producer that a callback has captured stays open as long as the callback has not run. With a send timeout of
//!   `None` and a broker that never comes back, that is for ever.
//! - To send to B when A has been stored, call B's `send_with` in A's callback and keep the message when B is full:
//!
//! ```
//! # #[cfg(feature = "testkit")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let broker = threadmq::testkit::pulsar::Broker::start()?;
//! # let url = broker.service_url();
//! use threadmq::pulsar::Client;
//!
//! let client = Client::builder(url).build()?;
//! let (a, b) = (client.producer("a").create()?, client.producer("b").create()?);
//! let (full, retry_later) = std::sync::mpsc::channel();
//! a.send_with("first", move |stored| {
//!     if stored.is_ok() {
//!         if let Err(refused) = b.send_with("second", |_| {}) {
//!             // No room now: the message comes back, for a thread that may wait.
//!             if let (_, Some(message)) = refused.into_parts() {
//!                 let _ = full.send(message);
//!             }
//!         }
//!     }
//! })?;
//! # a.flush()?;
//! # drop(retry_later);
//! # client.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "testkit"))]
//! # fn main() {}
//! ```
