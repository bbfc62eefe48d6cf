//! Which tests show which line of the specification; a line without a test fails, and so does a name that is none.

const LINES: &[(&str, &[&str])] = &[
    (
        "service URLs: several hosts in turn",
        &["several_hosts_are_tried_in_turn", "nobody_listening_is_a_timeout_that_says_why"],
    ),
    ("every builder reports all violations at once", &["bad_options_are_all_named_at_once"]),
    ("look-up of partitions", &["the_names_of_partitions_are_known"]),
    (
        "send, send_with, submit, try_submit",
        &["callbacks_run_once_each_in_send_order", "submit_and_try_submit_resolve_to_receipts"],
    ),
    ("flush waits for results and callbacks", &["callbacks_run_once_each_in_send_order"]),
    (
        "close flushes first; closes are idempotent; calls after close",
        &[
            "close_flushes_first_and_later_sends_are_refused_with_their_message",
            "dropping_the_last_handle_sends_what_was_accepted",
        ],
    ),
    (
        "producer name and access modes",
        &[
            "a_producer_has_the_given_name_or_one_from_the_broker",
            "an_exclusive_producer_keeps_others_out_until_it_closes",
        ],
    ),
    ("sequence ids", &["sequence_ids_start_where_they_are_told_and_only_rise"]),
    ("blocking when full, or failing", &["a_full_producer_refuses_or_waits_as_it_was_told"]),
    ("memory limit", &["the_memory_limit_holds_and_everything_comes_back"]),
    (
        "batching",
        &[
            "messages_sent_together_share_a_batch_and_singles_do_not",
            "a_full_batch_leaves_before_its_delay_and_a_blocking_send_flushes_its_batch",
        ],
    ),
    (
        "compression",
        &["every_codec_carries_batches_and_single_messages", "incompressible_bodies_of_all_sizes_survive_every_codec"],
    ),
    (
        "key, ordering key, properties, event time",
        &["everything_that_travels_with_a_message_arrives", "keys_may_be_bytes"],
    ),
    ("deliver after", &["delayed_messages_come_after_their_delay_to_a_shared_subscription"]),
    ("null value", &["a_null_value_is_not_an_empty_body"]),
    (
        "round robin, single and key routing, hash vectors",
        &[
            "round_robin_spreads_and_one_consumer_reads_all_partitions",
            "a_key_stays_on_its_partition_and_both_hashes_agree_with_the_other_clients",
            "single_routing_keeps_to_one_partition",
        ],
    ),
    (
        "TooLarge with the message given back, mates unharmed",
        &[
            "a_message_over_the_limit_is_refused_at_once_and_its_neighbours_are_unharmed",
            "a_message_of_nearly_the_limit_goes_through",
        ],
    ),
    ("resending in order", &["sends_and_receives_go_on_in_order_over_unloads"]),
    ("terminal errors", &["a_terminated_topic_fails_its_producer_for_good"]),
    ("sends of many threads", &["sends_from_many_threads_are_all_stored_each_threads_in_order"]),
    (
        "Exclusive and Shared subscriptions",
        &["an_exclusive_subscription_has_one_consumer", "a_shared_subscription_gives_each_message_to_one_consumer"],
    ),
    ("initial position", &["a_new_subscription_starts_where_it_is_told"]),
    ("receiver queue and permits", &["a_small_queue_still_delivers_everything"]),
    ("receive, receive_timeout, try_receive, close", &["receive_honours_its_time_limit_and_close_wakes_it"]),
    (
        "ack and ack_cumulative",
        &[
            "acknowledged_messages_do_not_come_again_and_others_do",
            "a_batch_that_is_acknowledged_in_part_comes_again_whole",
            "a_cumulative_acknowledgement_covers_what_came_before",
        ],
    ),
    (
        "negative_ack with its delay",
        &[
            "a_negative_acknowledgement_brings_the_message_back_after_its_delay",
            "an_exclusive_consumer_gets_everything_unacknowledged_again_in_order",
        ],
    ),
    ("unsubscribe", &["unsubscribe_removes_the_subscription_and_its_backlog"]),
    ("partitioned topics as one consumer", &["round_robin_spreads_and_one_consumer_reads_all_partitions"]),
    ("reconnect and resubscribe", &["sends_and_receives_go_on_in_order_over_unloads"]),
];

const SOURCES: &[&str] = &[
    include_str!("consumer.rs"),
    include_str!("message.rs"),
    include_str!("partitions.rs"),
    include_str!("producer.rs"),
    include_str!("sending.rs"),
    include_str!("sessions.rs"),
];

#[test]
fn every_line_has_a_test_and_every_test_a_line() {
    let tests: Vec<&str> = SOURCES
        .iter()
        .flat_map(|source| source.split("#[test]").skip(1))
        .filter_map(|rest| rest.split("fn ").nth(1)?.split('(').next())
        .collect();
    for (line, names) in LINES {
        assert!(!names.is_empty(), "no test for: {line}");
        for name in *names {
            assert!(tests.contains(name), "{line} names {name}, which is no test");
        }
    }
    for test in tests {
        assert!(LINES.iter().any(|(_, names)| names.contains(&test)), "{test} stands for no line");
    }
}
