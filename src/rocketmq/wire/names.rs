//! What names and messages may look like: the limits of the servers, checked before anything is sent.

use crate::error::{Error, ErrorKind};
use crate::policy::limits::Violations;
use crate::policy::text::quoted;

const LONGEST_TOPIC: usize = 127;
const LONGEST_GROUP: usize = 120;
const LONGEST_MESSAGE_GROUP: usize = 63;
const MOST_PROPERTIES: usize = 128;
/// Tag, keys and properties together.
const MOST_PROPERTY_BYTES: usize = 16 * 1024;

/// Topics of the servers' own. So are those that begin with `rmq_sys_`.
const SYSTEM_TOPICS: [&str; 10] = [
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "SCHEDULE_TOPIC_XXXX_V2",
    "SELF_TEST_TOPIC",
    "TBW102",
    "TRANS_CHECK_MAX_TIME_TOPIC",
];

/// Property names that the servers use themselves, sorted.
const RESERVED: [&str; 47] = [
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "CORRELATION_ID",
    "DELAY",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INNER_MULTI_QUEUE_OFFSET",
    "INSTANCE_ID",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    "ORIGIN_MESSAGE_ID",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_ON",
    "TRANSFER_FLAG",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "UNIQ_KEY",
    "WAIT",
    "__BORNHOST",
];

/// Adds what is wrong with a topic. The servers count `namespace`, which may be empty, as a part of its name.
pub(crate) fn check_topic(violations: &mut Violations, name: &str, namespace: &str) {
    check_resource(violations, "topic", name, namespace, LONGEST_TOPIC);
    if SYSTEM_TOPICS.contains(&name) || name.starts_with("rmq_sys_") {
        violations.add(format!("topic: {} is one of the servers' own", quoted(name)));
    }
}

/// Adds what is wrong with a consumer group. The servers count `namespace`, which may be empty, as a part of it.
pub(crate) fn check_consumer_group(violations: &mut Violations, name: &str, namespace: &str) {
    check_resource(violations, "consumer group", name, namespace, LONGEST_GROUP);
    if name.starts_with("CID_RMQ_SYS_") {
        violations.add(format!("consumer group: {} is one of the servers' own", quoted(name)));
    }
}

fn check_resource(violations: &mut Violations, field: &str, name: &str, namespace: &str, longest: usize) {
    if name.is_empty() {
        violations.add(format!("{field}: is empty"));
    }
    if let Some(wrong) = name.chars().find(|&c| !(c.is_ascii_alphanumeric() || matches!(c, '%' | '|' | '_' | '-'))) {
        violations.add(format!(
            "{field}: {} has the character {wrong:?}, where letters, digits, '%', '|', '_' and '-' are allowed",
            quoted(name)
        ));
    }
    // The two are joined with a '%'.
    let whole = if namespace.is_empty() { name.len() } else { namespace.len() + 1 + name.len() };
    if whole > longest {
        let with = if namespace.is_empty() { "" } else { " with the namespace" };
        violations.add(format!("{field}: {} is {whole} bytes long{with}, at most {longest}", quoted(name)));
    }
}

/// What of a message the servers have rules for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageFields<'a> {
    pub topic: &'a str,
    /// Empty for none.
    pub namespace: &'a str,
    pub body_bytes: usize,
    pub tag: Option<&'a str>,
    pub keys: &'a [String],
    pub message_group: Option<&'a str>,
    pub lite_topic: Option<&'a str>,
    pub priority: Option<i32>,
    /// It has a delivery time.
    pub is_timed: bool,
    pub is_transaction: bool,
}

/// Limits that servers change by their settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageLimits {
    pub body_bytes: usize,
    pub lite_topic_chars: usize,
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self { body_bytes: 4 * 1024 * 1024, lite_topic_chars: 64 }
    }
}

/// Checks a message and its properties.
///
/// An error names every field that breaks a rule, and the rule. Its kind is `TooLarge` if sizes are all that is
/// wrong, else `Misuse`.
pub(crate) fn check_message<'a>(
    fields: &MessageFields<'_>,
    properties: impl IntoIterator<Item = (&'a str, &'a str)>,
    limits: &MessageLimits,
) -> Result<(), Error> {
    let mut wrong = Violations::new();
    check_topic(&mut wrong, fields.topic, fields.namespace);
    if fields.body_bytes == 0 {
        wrong.add("body: is empty".into());
    }
    if let Some(tag) = fields.tag {
        check_text(&mut wrong, "tag", tag);
        if tag.contains('|') {
            wrong.add(format!("tag: {} has a '|', which stands between tags in a filter", quoted(tag)));
        }
    }
    for key in fields.keys {
        check_text(&mut wrong, "key", key);
    }
    if let Some(group) = fields.message_group {
        check_text(&mut wrong, "message group", group);
        if group.len() > LONGEST_MESSAGE_GROUP {
            wrong.add(format!("message group: is {} bytes long, at most {LONGEST_MESSAGE_GROUP}", group.len()));
        }
    }
    if let Some(topic) = fields.lite_topic {
        check_text(&mut wrong, "lite topic", topic);
        let (length, longest) = (topic.chars().count(), limits.lite_topic_chars);
        if length > longest {
            wrong.add(format!("lite topic: is {length} characters long, at most {longest}"));
        }
    }
    if let Some(priority) = fields.priority.filter(|&priority| priority < 0) {
        wrong.add(format!("priority: {priority} is negative"));
    }
    check_type(&mut wrong, fields);

    let mut bytes = fields.keys.iter().map(String::len).chain(fields.tag.map(str::len)).fold(0, usize::saturating_add);
    let mut count = 0_usize;
    for (key, value) in properties {
        count = count.saturating_add(1);
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
        check_property(&mut wrong, key, value);
    }

    // Sizes come last: they decide on the kind if nothing came before.
    let kind = if wrong.is_empty() { ErrorKind::TooLarge } else { ErrorKind::Misuse };
    if fields.body_bytes > limits.body_bytes {
        wrong.add(format!("body: is {} bytes long, at most {}", fields.body_bytes, limits.body_bytes));
    }
    if count > MOST_PROPERTIES {
        wrong.add(format!("properties: there are {count}, at most {MOST_PROPERTIES}"));
    }
    if bytes > MOST_PROPERTY_BYTES {
        wrong.add(format!("properties: with tag and keys they are {bytes} bytes long, at most {MOST_PROPERTY_BYTES}"));
    }
    wrong.finish_as(kind, "message")
}

/// At most one of these decides a message's type.
fn check_type(wrong: &mut Violations, fields: &MessageFields<'_>) {
    let types = [
        ("a message group", fields.message_group.is_some()),
        ("a delivery time", fields.is_timed),
        ("a lite topic", fields.lite_topic.is_some()),
        ("a priority", fields.priority.is_some()),
        ("a transaction", fields.is_transaction),
    ];
    let mut given = types.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let all = given.fold(format!("{first} and {second}"), |all, next| format!("{all} and {next}"));
        wrong.add(format!("message type: {all} exclude each other"));
    }
}

fn check_property(wrong: &mut Violations, key: &str, value: &str) {
    check_text(wrong, "property name", key);
    if RESERVED.binary_search(&key).is_ok() {
        wrong.add(format!("property name: {} is reserved for the servers", quoted(key)));
    }
    if let Some(fault) = fault_in(value) {
        wrong.add(format!("property {}: its value {fault}", quoted(key)));
    }
}

fn check_text(wrong: &mut Violations, field: &str, text: &str) {
    if let Some(fault) = fault_in(text) {
        wrong.add(format!("{field}: {} {fault}", quoted(text)));
    }
}

fn fault_in(text: &str) -> Option<&'static str> {
    if text.trim().is_empty() {
        Some("is blank")
    } else if text.chars().any(char::is_control) {
        Some("has a control character")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
