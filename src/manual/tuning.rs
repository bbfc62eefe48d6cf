//! What to turn for throughput, latency and memory.
//!
//! | to get | turn |
//! |---|---|
//! | more messages a second | `send_with` or `submit` instead of `send`; batching on (the default), larger batches |
//! | lower latency of single sends | `send`: its batch does not wait; or batching off |
//! | less memory | [`memory_limit`](crate::pulsar::ClientBuilder::memory_limit), [`max_pending`](crate::pulsar::ProducerBuilder::max_pending), [`receiver_queue`](crate::pulsar::ConsumerBuilder::receiver_queue) |
//! | slow callbacks of many partitions | [`callback_threads`](crate::ThreadsBuilder::callback_threads) |
//! | many clients in a process | one [`Threads`](crate::Threads) for all of them |
//! | faster detection on idle links | [`keep_alive_interval`](crate::pulsar::ClientBuilder::keep_alive_interval) |
//!
//! A pending message is charged its body, its properties and 256 bytes against the client's limit (64 MiB). Permits
//! come back when callbacks have returned, so slow callbacks slow down their own producer and nobody else.
//!
//! How large a message may be is the broker's to say (`maxMessageSize`, told in CONNECTED; 5 MiB if it says nothing, 0
//! or less). More than 256 MiB is taken as 256 MiB: what arrives is bounded by it too, one frame and one decompressed
//! body at a time.
//!
//! [`Client::stats`](crate::pulsar::Client::stats) tells what was promised and what happened: the longest answer, the
//! longest time past a deadline, the lag of callbacks and of the loop, and recoveries.
