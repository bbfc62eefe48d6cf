use super::*;
use crate::pending::completion;
use crate::policy::admission::Limits;
use crate::pulsar::engine::event::{Outgoing, ProducerId, ProducerSpec, Reply};
use crate::pulsar::service_url::HostPort;
use crate::pulsar::topic::TopicName;
use crate::pulsar::wire::compress::Compression;
use crate::pulsar::wire::payload::Content;
use crate::pulsar::wire::pb::ProducerAccessMode;
use crate::runtime::budget::Budget;
use crate::runtime::permits::Permits;

fn options() -> EngineOptions {
    EngineOptions {
        service: vec![HostPort { host: "b".into(), port: 6650 }],
        tls: false,
        client_version: String::new(),
        auth_method: String::new(),
        auth_data: Vec::new(),
        connection_timeout: Duration::from_secs(10),
        operation_timeout: Duration::from_secs(30),
        keep_alive: Duration::from_secs(30),
        seed: 1,
    }
}

/// Posted after the last turn looked and before the inboxes closed. `create` and `subscribe` wait without a limit of
/// their own, because every command is answered.
#[test]
fn what_is_posted_while_the_loop_ends_is_answered() {
    let threads = Threads::builder().callback_threads(1).build().unwrap();
    let (mut event_loop, post) = EventLoop::new(options(), threads, Arc::new(StatsCell::default())).unwrap();
    event_loop.finished = true;
    let (reply, mut answer) = completion();
    let due = Instant::now() + Duration::from_secs(30);
    post.command(Command::Partitions { topic: "t".into(), due, reply });
    event_loop.run();
    let error = answer.try_wait().expect("answered").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    drop(post);
}

/// A client with thousands of producers may flush each of them all the time.
#[test]
fn a_flush_takes_what_its_producer_admitted_and_looks_at_no_other() {
    let threads = Threads::builder().callback_threads(1).build().unwrap();
    let (mut event_loop, post) = EventLoop::new(options(), threads.clone(), Arc::new(StatsCell::default())).unwrap();
    let spec = Arc::new(ProducerSpec {
        name: None,
        access_mode: ProducerAccessMode::Shared,
        properties: Vec::new(),
        initial_sequence_id: None,
        compression: Compression::None,
        batching: None,
    });
    let producers: Vec<_> = (1..=2)
        .map(|number| {
            let limits = Limits { max_pending: None, send_timeout: None };
            let permits = Permits::new(limits, 1, Arc::new(Budget::new(None)), |_| {});
            permits.open(0, 0);
            let topic = TopicName::parse("t").unwrap();
            let lane = Lane::new(LaneId(number), 0, &topic, Arc::clone(&permits), threads.callbacks().lane());
            let (reply, answer) = completion();
            let open = Command::OpenProducer {
                producer: ProducerId(number),
                spec: Arc::clone(&spec),
                lanes: vec![(LaneId(number), "t".into())],
                due: Instant::now() + Duration::from_secs(30),
                reply,
            };
            event_loop.control(clock::now(), Control::OpenProducer(vec![Arc::new(lane)], open));
            let content = Content::default();
            let message = Outgoing { content, reply: Reply::Answered, urgent: false };
            permits.admit(0, message, 1, None, false).unwrap();
            (permits, answer)
        })
        .collect();
    let left = |which: usize| {
        let mut messages = Vec::new();
        producers[which].0.take(0, &mut messages);
        messages.len()
    };
    event_loop.control(clock::now(), Control::Command(Command::Flush { producer: ProducerId(1) }));
    assert_eq!((left(0), left(1)), (0, 1));
    drop(post);
}
