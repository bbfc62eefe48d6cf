use super::*;
use crate::pending::completion;
use crate::pulsar::service_url::HostPort;

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
