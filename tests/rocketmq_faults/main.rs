//! Faults that people met with other RocketMQ and gRPC clients, as tests: the odd field reports 065 to 115, and what
//! released clients were measured to do. All against the embedded proxy, mostly with a network in front. Times are
//! those of the reports and of the promises, plus what a loaded machine may add.
//!
//! | report | shown by |
//! |---|---|
//! | 065 callback lost when the chosen broker dies | `sending::n065_callback_lost` |
//! | 067 callback twice on a stopped producer | `sending::n067_callback_twice`; before start there is no producer to send on |
//! | 069 one silent broker eats the whole timeout | `sending::n069_retry_budget` |
//! | 071 session unknown after a restart of the proxy | `sessions::n071_session_after_restart` |
//! | 073 no start while one of several proxies is down | `sessions::n073_startup_partial`, `sessions::n073_startup_with_nothing_there` |
//! | 075 commands that nobody handles | `sessions::n075_bad_server_input` |
//! | 077 receives before the settings are known | `sessions::n077_no_receive_before_settings`; that a listener runs in order belongs to push consumers, which do not exist yet |
//! | 079 a handler that outlives the invisible duration | `receiving::n079_invisible_duration`; two runs at once are a push consumer's |
//! | 081 acks that can never succeed are retried | `receiving::n081_ack_retry`; a simple consumer tells its user and retries nothing |
//! | 083 a push consumer's cache outgrows its limit | left out: there is no push consumer |
//! | 085 acks are cut off by close | `sessions::n085_shutdown_wait` |
//! | 087 threads stay after close | the suite `leaks_rocketmq` |
//! | 089 destroyed while a reply is on its way | `sessions::n089_teardown`; its threads are counted in `leaks_rocketmq` |
//! | 091 a dead letter is acknowledged instead of forwarded | left out: only push consumers forward |
//! | 093 throttled requests are retried at once | `sending::n093_throttled_sends`, `receiving::n093_throttled_receives` |
//! | 095 idle transactional producers are forgotten | left out: there are no transactions |
//! | 097 a lost commit | left out: there are no transactions |
//! | 099 the channel waits long after an outage | `sending::n099_channel_recovery` |
//! | 101 a peer that stops reading | `sending::n101_half_open` |
//! | 103 the name points elsewhere | left out: gRPC resolves names itself, and takes no resolver of ours |
//! | 105 too many keep-alive pings | left out: the channels send no pings, heartbeats do their work |
//! | 107 an empty poll ends in an error | `receiving::n107_long_poll`; the shortest await duration is 5 s, so there is no wait of 0 |
//! | 109 clocks that differ | `receiving::n109_clock`; jumps of the wall clock are the simulation's business |
//! | 111 queues that come back are not consumed | `receiving::n111_route_change` |
//! | 113 large answers | `receiving::n113_size_limit`; there is no limit on what is received, so none is exceeded |
//! | 115 races under load | `load::n115_data_race` |
//!
//! What released clients do, measured: half-open links never heal, or after minutes (`peers::half_open_…`, and
//! `recovery` in the suite `rocketmq` for sends); a restart of the proxy takes 13 s and more of gRPC's backoff, and
//! consumers never receive again (`peers::restart_…`); sends block for longer than their timeout (all of these).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

mod answers;
mod load;
mod peers;
mod receiving;
mod sending;
mod sessions;
mod slow;
mod stage;
