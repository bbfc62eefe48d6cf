//! How lost and half-open connections are found and replaced.
//!
//! A dead link is found by evidence and replaced; a live one is left alone.
//!
//! - A connection is pinged when it was idle for the keep-alive interval (30 s), or when the broker owes an answer
//!   for 2 s. After a ping only a pong, or the answer to something sent after the ping, shows that it lives; the
//!   broker's own pings do not. After 3 s without, it is closed by reset, so that a peer that was only frozen does not
//!   work off what has been sent again elsewhere. So a dead connection is closed within 6 s under sends and 33 s
//!   idle.
//! - A refused connection is tried again after 100 ms, doubling up to 10 s (2 s while sends wait), with jitter; once
//!   an outage there is a try shortly before the timeout of the message that was oldest when it began.
//! - The addresses of a name are tried 250 ms apart, each while those before it still try, IPv4 and IPv6 in turns;
//!   the first that connects is used. All of them together have the connection timeout.
//! - When a producer is attached again, everything without a receipt is sent again first, in order, with its sequence
//!   ids and unchanged; new messages follow.
//! - A real broker holds a producer of the same name back until it has checked its old connection (5 s by default),
//!   and answers an exclusive producer that it is fenced by its own ghost: for 90 s after a link was lost that is
//!   tried again, then it is final. When a producer is first created it is final at once.
//! - A consumer subscribes again for as long as it takes. What was in its queue is dropped and comes again;
//!   acknowledgements that were not written yet are written then.
//! - A broker that closes a single producer or consumer (an unload) ends no connection. If it names the next broker,
//!   that is used once without a look-up. Brokers that do it again within 30 s are followed after a look-up and with
//!   growing pauses, up to 10 s (2 s while sends wait).
//!
//! # RocketMQ
//!
//! A client has one transport to each endpoint. The evidence against it is its heartbeats: every session sends one to
//! each of its endpoints every 10 s, with a deadline of 3 s; a good one of any session is enough.
//!
//! - Two in a row past their deadline, or one that ends UNAVAILABLE while the transport reads READY, and it is replaced:
//!   a new one takes its place, telemetry streams are opened on it with Settings first, and what was under way on the
//!   old one is broken off and tried again. The server may ask for the same by its reconnect command.
//! - A call that fails brings the next heartbeat forward (at most once in 3 s) and takes its endpoint out of favour
//!   until a heartbeat is answered. By itself it condemns nothing: slow, throttling or refusing servers keep their
//!   transport. So a half-open transport is replaced within 10 s under sends and 17 s when idle.
//! - A transport that is dialling is left to dial: first after 200 ms, then up to 3 s apart, at the next address of the
//!   endpoint where it has several. Sends are not started on it; they wait for their time or go elsewhere.
//! - An address is replaced at most once in 30 s, except by the server's command. Evidence that came meanwhile is acted
//!   on at the end of that time.
//! - Routes are asked for every 30 s. Endpoints that leave them are taken leave of, new ones get a telemetry stream.
