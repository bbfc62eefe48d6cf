use std::time::{Duration, Instant};

use super::PATIENCE;
use super::client::Client;
use crate::pulsar::wire::command::*;
use crate::pulsar::wire::pb::{self, ServerError as Code, command_lookup_topic_response::LookupType};
use crate::testkit::pulsar::{Broker, EventKind, Request, ServerError};

fn look_up(client: &mut Client, topic: &str) -> pb::CommandLookupTopicResponse {
    let request = client.request_id();
    client.send(&lookup(topic, request, false));
    let answer = client.other(|answer| answer.lookupTopicResponse.is_some());
    assert_eq!(answer.lookupTopicResponse.request_id(), request);
    answer.lookupTopicResponse.unwrap()
}

fn partitions(client: &mut Client, topic: &str) -> pb::CommandPartitionedTopicMetadataResponse {
    let request = client.request_id();
    client.send(&partitioned_metadata(topic, request));
    let answer = client.other(|answer| answer.partitionMetadataResponse.is_some());
    assert_eq!(answer.partitionMetadataResponse.request_id(), request);
    answer.partitionMetadataResponse.unwrap()
}

#[test]
fn records_how_a_client_connects() {
    let broker = Broker::builder().max_message_size(12345).start().unwrap();
    let mut client = Client::dial(&broker);
    client.send(&connect("tester-1", "token", b"secret", Some("inner:6650")));
    let answer = client.other(|answer| answer.connected.is_some());
    assert_eq!(answer.connected.max_message_size(), 12345);
    client.assert_alive();
    let log = broker.log();
    assert!(matches!(log[0].kind, EventKind::Accepted { .. }));
    let EventKind::Connect {
        client_version,
        auth_method,
        auth_data,
        supports_auth_refresh,
        supports_broker_entry_metadata,
        proxy_to_broker_url,
        ..
    } = &log[1].kind
    else {
        panic!("{log:?}");
    };
    assert_eq!((client_version.as_str(), auth_method.as_str(), &auth_data[..]), ("tester-1", "token", &b"secret"[..]));
    assert!(*supports_auth_refresh && *supports_broker_entry_metadata);
    assert_eq!(proxy_to_broker_url.as_deref(), Some("inner:6650"));
    assert!(matches!(log[2].kind, EventKind::Ping));
    assert!(log.iter().all(|event| event.connection == 1));

    broker.challenge("token", b"PulsarAuthRefresh");
    client.other(|answer| answer.authChallenge.is_some());
    client.send(&auth_response("tester-1", "token", b"fresh"));
    assert!(broker.wait_for(PATIENCE, |log| {
        log.iter().any(|e| matches!(&e.kind, EventKind::AuthResponse { auth_data, .. } if auth_data == "fresh"))
    }));
}

#[test]
fn knows_partitions_and_places() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    assert_eq!(partitions(&mut client, "orders").partitions(), 0);
    broker.create_partitioned_topic("orders", 3);
    assert_eq!(partitions(&mut client, "persistent://public/default/orders").partitions(), 3);
    let found = look_up(&mut client, "orders-partition-1");
    assert_eq!(found.response(), LookupType::Connect);
    assert_eq!(found.brokerServiceUrl(), broker.service_url());

    for n in [2, 0] {
        client.producer(&format!("persistent://public/default/orders-partition-{n}"), n);
        client.publish(n, 0, &format!("to {n}"));
        assert_eq!(client.receipt().message_id.unwrap().partition, n as i32);
    }
    let all: Vec<_> = broker.messages("orders").into_iter().map(|m| (m.id.partition(), m.payload)).collect();
    assert_eq!(all, [(Some(0), "to 0".into()), (Some(2), "to 2".into())]);

    broker.assign("orders-partition-1", "127.0.0.1:9");
    assert_eq!(look_up(&mut client, "orders-partition-1").brokerServiceUrl(), "pulsar://127.0.0.1:9");
    broker.assign("orders-partition-1", None);
    broker.advertise("pulsar://network:1");
    assert_eq!(look_up(&mut client, "orders-partition-1").brokerServiceUrl(), "pulsar://network:1");
    broker.redirect("orders", "pulsar://there:2", true);
    let found = look_up(&mut client, "orders");
    assert_eq!((found.response(), found.brokerServiceUrl()), (LookupType::Redirect, "pulsar://there:2"));
    assert!(found.authoritative());
    broker.end_redirect("orders");
    assert_eq!(look_up(&mut client, "orders").response(), LookupType::Connect);
    broker.redirect_loop(true);
    let found = look_up(&mut client, "any");
    assert_eq!((found.response(), found.brokerServiceUrl()), (LookupType::Redirect, "pulsar://network:1"));
}

#[test]
fn fails_requests_of_a_kind() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    broker.fail_next(Request::Lookup, ServerError::TOO_MANY_REQUESTS, 2);
    broker.fail_next(Request::Lookup, ServerError::from_code(4711), 1);
    broker.fail_next(Request::Partitions, ServerError::METADATA, 1);
    broker.fail_next(Request::Producer, ServerError::SERVICE_NOT_READY, 1);
    broker.fail_next(Request::Subscribe, ServerError::AUTHORIZATION, 1);
    for _ in 0..2 {
        let failed = look_up(&mut client, "t");
        assert_eq!((failed.response(), failed.error()), (LookupType::Failed, Code::TooManyRequests));
    }
    assert_eq!(look_up(&mut client, "t").error.unwrap().value(), 4711);
    assert_eq!(look_up(&mut client, "t").response(), LookupType::Connect);
    assert_eq!(partitions(&mut client, "t").error(), Code::MetadataError);
    let request = client.ask_for_producer("t", 1, |_| {});
    assert_eq!(client.error(request), Code::ServiceNotReady);
    client.producer("t", 1);
    let request = client.ask_to_subscribe("t", 1, pb::command_subscribe::SubType::Shared, |_| {});
    assert_eq!(client.error(request), Code::AuthorizationError);

    broker.fail_next(Request::Connect, ServerError::AUTHENTICATION, 1);
    let mut refused = Client::dial(&broker);
    refused.send(&connect("tester", "", b"", None));
    assert_eq!(refused.error(u64::MAX), Code::AuthenticationError);
    refused.end();
    Client::connect(&broker);
}

#[test]
fn ignores_delays_and_loses_answers() {
    let broker = Broker::start().unwrap();
    let mut client = Client::connect(&broker);
    broker.ignore_next(Request::Producer, 1);
    broker.lose_answer_of_next(Request::Subscribe, 1);
    broker.ignore_next(Request::Ping, 1);
    client.ask_for_producer("t", 1, |_| {});
    client.ask_to_subscribe("t", 1, pb::command_subscribe::SubType::Exclusive, |_| {});
    client.encode(encode_ping);
    client.assert_alive();
    // The one was not carried out, the other was.
    let request = client.ask_to_subscribe("t", 2, pb::command_subscribe::SubType::Exclusive, |_| {});
    assert_eq!(client.error(request), Code::ConsumerBusy);
    assert_eq!(broker.close_producers("t", None), 0);

    let delay = Duration::from_millis(200);
    broker.delay_next(Request::Lookup, delay);
    let asked = Instant::now();
    client.send(&lookup("t", 70, false));
    client.assert_alive();
    let answer = client.other(|answer| answer.lookupTopicResponse.is_some());
    assert_eq!(answer.lookupTopicResponse.request_id(), 70);
    assert!(asked.elapsed() >= delay);

    broker.fail_next(Request::Lookup, ServerError::UNKNOWN, 100);
    broker.clear_requests();
    assert_eq!(look_up(&mut client, "t").response(), LookupType::Connect);
}
