//! Faults that people met with other clients in production, as tests: the odd field reports 001 to 035 that concern
//! producers and basic consumers. Times are those of the reports, three times as long or longer; exact times are the
//! simulation's business.
//!
//! | report | shown by |
//! |---|---|
//! | 001 callback lost while reconnecting | `outage::sends_while_the_broker_is_away_are_answered_in_time` |
//! | 003 send on a closed producer hangs | `closing::every_send_that_races_a_close_returns` |
//! | 005 flush does nothing without batching | `flushing::flush_waits_for_receipts_without_batching`, `flushing::flush_tells_of_a_refused_message` |
//! | 007 close hangs without a cluster | `closing::close_does_not_wait_for_a_broker_that_is_gone`, `closing::nothing_reconnects_after_a_close` |
//! | 009 threads and sockets stay after close | the suite `leaks` |
//! | 011 close loses the open batch | `closing::close_writes_the_open_batch`, `closing::close_answers_a_batch_without_receipt` |
//! | 013 all clients reconnect at once | `outage::clients_come_back_spread_in_time` |
//! | 015 late receipts cause a reconnect loop | `receipts::late_receipts_are_ignored`, `receipts::a_receipt_from_the_future_makes_one_reconnect` |
//! | 017 new messages overtake the resent ones | `outage::the_unanswered_go_first_and_in_order` |
//! | 019 consumer stuck after an unload | `consuming::an_unload_is_survived_with_few_subscribes` |
//! | 021 a peer that only pings | `outage::a_broker_that_only_pings_is_left` |
//! | 023 a send buffer is reused while written | `buffers::a_frame_is_never_mixed_with_the_next`, `buffers::a_frame_cut_by_a_reset_is_not_continued` |
//! | 025 a codec failure blocks the producer | `buffers::incompressible_bodies_pass_every_codec`; a codec that fails cannot be put in from outside: left to the engine's own tests |
//! | 027 memory is not given back after failures | `memory::every_way_out_gives_memory_back`, `memory::a_sender_that_waits_for_memory_wakes` |
//! | 029 a message that is too large blocks the batch | `memory::only_the_message_that_is_too_large_fails` |
//! | 031 permits of expired chunks | left out: there is no chunking |
//! | 033 a lost ack is never sent again | `consuming::an_acknowledgement_survives_the_link` |
//! | 035 redelivery comes too early | `consuming::redelivery_keeps_its_delay` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

#[path = "../answers/mod.rs"]
mod answers;

mod buffers;
mod closing;
mod consuming;
mod flushing;
mod memory;
mod outage;
mod receipts;
mod unsubscribing;

use threadmq::pulsar::Client;
use threadmq::testkit::pulsar::{Broker, EventKind};

fn client(broker: &Broker) -> Client {
    Client::builder(broker.service_url()).build().unwrap()
}

fn bodies(broker: &Broker, topic: &str) -> Vec<String> {
    broker.messages(topic).iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// The SENDs of connections after the first, by their first sequence id.
fn resent(broker: &Broker) -> Vec<u64> {
    let later = broker.log().into_iter().filter(|event| event.connection > 1);
    later
        .filter_map(|event| match event.kind {
            EventKind::Send { sequence_id, .. } => Some(sequence_id),
            _ => None,
        })
        .collect()
}
