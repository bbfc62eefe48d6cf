//! What a group is given of a topic, step by step.

use std::time::{Duration, Instant};

use super::queue::{Ask, Topic};
use crate::rocketmq::MessageType;
use crate::rocketmq::wire::pb;

const HIDDEN: Duration = Duration::from_secs(10);

struct Stage {
    topic: Topic,
    now: Instant,
    handles: u64,
    max_attempts: u32,
}

impl Stage {
    /// A topic with messages `0…` of these message groups.
    fn new(groups: &[Option<&str>]) -> Self {
        let mut topic = Topic::new(MessageType::Normal, 1, vec![0]);
        let now = Instant::now();
        for (number, group) in groups.iter().enumerate() {
            let properties = pb::SystemProperties {
                message_id: number.to_string(),
                message_group: group.map(str::to_owned),
                ..Default::default()
            };
            let system_properties = protobuf::MessageField::some(properties);
            topic.store(now, pb::Message { system_properties, ..Default::default() }, 0);
        }
        Self { topic, now, handles: 0, max_attempts: 16 }
    }

    /// Ids, each with its handle.
    fn take(&mut self, max: usize) -> Vec<(usize, String)> {
        let ask = Ask { endpoint: 0, max, invisible: HIDDEN, max_attempts: self.max_attempts };
        let delivered = self.topic.deliver(self.now, "g", &|_| true, &ask, &mut self.handles);
        let one = |message: pb::Message| {
            let properties = message.system_properties.unwrap();
            (properties.message_id.parse().unwrap(), properties.receipt_handle.unwrap())
        };
        delivered.messages.into_iter().map(one).collect()
    }

    fn ids(&mut self, max: usize) -> Vec<usize> {
        self.take(max).into_iter().map(|(id, _)| id).collect()
    }

    fn ack(&mut self, handle: &str) -> bool {
        self.topic.acknowledge(self.now, "g", handle)
    }
}

#[test]
fn what_is_out_is_hidden_until_its_time_is_over() {
    let mut stage = Stage::new(&[None; 3]);
    let taken = stage.take(2);
    assert_eq!(stage.ids(9), [2]);
    assert!(stage.ack(&taken[0].1) && !stage.ack(&taken[0].1), "once");
    stage.now += HIDDEN;
    assert!(!stage.ack(&taken[1].1), "too late");
    assert_eq!(stage.ids(9), [1, 2]);
    assert!(!stage.ack(&taken[1].1), "void");
    assert_eq!(stage.topic.next_visible("g", 0), Some(stage.now + HIDDEN));
}

#[test]
fn a_changed_time_gives_a_new_handle() {
    let mut stage = Stage::new(&[None]);
    let handle = stage.take(1).remove(0).1;
    let changed = stage.topic.change(stage.now, "g", &handle, HIDDEN * 2).unwrap();
    assert_eq!(stage.topic.change(stage.now, "g", &handle, HIDDEN), None);
    stage.now += HIDDEN;
    assert_eq!(stage.ids(1), [0_usize; 0]);
    assert!(stage.ack(&changed));
    stage.now += HIDDEN * 9;
    assert_eq!(stage.ids(1), [0_usize; 0]);
}

#[test]
fn a_message_group_waits_for_what_is_out() {
    let mut stage = Stage::new(&[Some("a"), Some("a"), Some("b"), None, Some("a")]);
    let taken = stage.take(2);
    assert_eq!(taken.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1], "several in one receive");
    assert_eq!(stage.ids(9), [2, 3], "others go on");
    assert!(stage.ack(&taken[0].1));
    assert_eq!(stage.ids(9), [0_usize; 0], "one is still out");
    stage.now += HIDDEN;
    assert_eq!(stage.ids(9), [1, 2, 3, 4], "it comes again before the next of its group");
}

#[test]
fn a_message_is_given_only_so_often() {
    let mut stage = Stage::new(&[Some("a"), Some("a")]);
    stage.max_attempts = 2;
    for _ in 0..2 {
        assert_eq!(stage.ids(1), [0]);
        stage.now += HIDDEN;
    }
    assert_eq!(stage.ids(9), [1], "the group goes on after its dead letter");
}

/// Each step costs what it hands out: 100,000 messages would take hours otherwise.
#[test]
fn a_large_backlog_is_no_slower() {
    let mut stage = Stage::new(&vec![None; 100_000]);
    let (started, mut count) = (Instant::now(), 0);
    loop {
        let taken = stage.take(32);
        if taken.is_empty() {
            break;
        }
        count += taken.len();
        assert!(taken.iter().all(|(_, handle)| stage.ack(handle)));
    }
    assert_eq!(count, 100_000);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
