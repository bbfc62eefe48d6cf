use super::*;
use proptest::prelude::*;

fn topic_faults(name: &str, namespace: &str) -> String {
    let mut violations = Violations::new();
    check_topic(&mut violations, name, namespace);
    violations.finish("x").map_or_else(|error| error.to_string(), |()| String::new())
}

fn group_faults(name: &str, namespace: &str) -> String {
    let mut violations = Violations::new();
    check_consumer_group(&mut violations, name, namespace);
    violations.finish("x").map_or_else(|error| error.to_string(), |()| String::new())
}

const GOOD: MessageFields<'static> = MessageFields {
    topic: "orders",
    namespace: "",
    body_bytes: 1,
    tag: None,
    keys: &[],
    message_group: None,
    lite_topic: None,
    priority: None,
    is_timed: false,
    is_transaction: false,
};

fn message(fields: MessageFields<'_>, properties: &[(&str, &str)]) -> Result<(), Error> {
    check_message(&fields, properties.iter().copied(), &MessageLimits::default())
}

fn refused(fields: MessageFields<'_>, properties: &[(&str, &str)], kind: ErrorKind, text: &str) {
    let error = message(fields, properties).expect_err(text);
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

#[test]
fn topics() {
    for name in ["orders", "%RETRY%g-1", "a|b", "A_b-9%", &"t".repeat(127)] {
        assert_eq!(topic_faults(name, ""), "", "{name}");
    }
    for (name, fault) in [
        ("", "topic: is empty"),
        (" ", "topic: \" \" has the character ' '"),
        ("a.b", "topic: \"a.b\" has the character '.', where letters, digits, '%', '|', '_' and '-' are allowed"),
        ("bücher", "'ü'"),
        ("a\nb", "\"a\\nb\" has the character '\\n'"),
        (&"t".repeat(128), "is 128 bytes long, at most 127"),
        ("TBW102", "\"TBW102\" is one of the servers' own"),
        ("rmq_sys_REVIVE_LOG", "one of the servers' own"),
    ] {
        assert!(topic_faults(name, "").contains(fault), "{name}: {}", topic_faults(name, ""));
    }
    assert_eq!(topic_faults(&"t".repeat(121), "names"), "", "the namespace, the sign between, and the topic");
    assert!(topic_faults(&"t".repeat(122), "names").contains("is 128 bytes long with the namespace, at most 127"));
    for name in SYSTEM_TOPICS {
        assert!(topic_faults(name, "").contains("servers' own"));
    }
}

#[test]
fn consumer_groups() {
    assert_eq!(group_faults(&"g".repeat(120), ""), "");
    assert!(group_faults(&"g".repeat(121), "").contains("is 121 bytes long, at most 120"));
    assert!(group_faults("CID_RMQ_SYS_TRANS", "").contains("servers' own"));
    assert!(group_faults("", "").contains("consumer group: is empty"));
    assert!(group_faults("a b", "").contains("consumer group: \"a b\" has the character ' '"));
}

#[test]
fn good_messages() {
    let keys = ["k 1".to_owned(), "ключ".to_owned()];
    let group = "g".repeat(63);
    for fields in [
        GOOD,
        MessageFields { body_bytes: 4 * 1024 * 1024, tag: Some("red"), keys: &keys, ..GOOD },
        MessageFields { message_group: Some(&group), ..GOOD },
        MessageFields { lite_topic: Some("lite"), ..GOOD },
        MessageFields { priority: Some(0), ..GOOD },
        MessageFields { is_timed: true, ..GOOD },
        MessageFields { is_transaction: true, ..GOOD },
    ] {
        message(fields, &[("colour", "red"), ("ключ", "значение")]).unwrap();
    }
}

#[test]
fn each_rule_names_its_field_and_limit() {
    use ErrorKind::{Misuse, TooLarge};
    let keys = ["a".to_owned(), " ".to_owned(), "b\u{7F}".to_owned()];
    refused(MessageFields { body_bytes: 0, ..GOOD }, &[], Misuse, "message: body: is empty");
    refused(
        MessageFields { body_bytes: 4 * 1024 * 1024 + 1, ..GOOD },
        &[],
        TooLarge,
        "message: body: is 4194305 bytes long, at most 4194304",
    );
    refused(MessageFields { tag: Some(" \t"), ..GOOD }, &[], Misuse, "message: tag: \" \\t\" is blank");
    refused(
        MessageFields { tag: Some("a|b"), ..GOOD },
        &[],
        Misuse,
        "message: tag: \"a|b\" has a '|', which stands between tags in a filter",
    );
    refused(
        MessageFields { keys: &keys, ..GOOD },
        &[],
        Misuse,
        "message: key: \" \" is blank; key: \"b\\u{7f}\" has a control character",
    );
    let group = "g".repeat(64);
    refused(
        MessageFields { message_group: Some(&group), ..GOOD },
        &[],
        Misuse,
        "message: message group: is 64 bytes long, at most 63",
    );
    refused(MessageFields { message_group: Some(""), ..GOOD }, &[], Misuse, "message: message group: \"\" is blank");
    let lite = "é".repeat(65);
    refused(
        MessageFields { lite_topic: Some(&lite), ..GOOD },
        &[],
        Misuse,
        "message: lite topic: is 65 characters long, at most 64",
    );
    refused(MessageFields { priority: Some(-1), ..GOOD }, &[], Misuse, "message: priority: -1 is negative");
    refused(GOOD, &[("", "v")], Misuse, "message: property name: \"\" is blank");
    refused(GOOD, &[("k", "")], Misuse, "message: property \"k\": its value is blank");
    refused(GOOD, &[("k", "a\nb")], Misuse, "message: property \"k\": its value has a control character");
    refused(GOOD, &[("KEYS", "v")], Misuse, "message: property name: \"KEYS\" is reserved for the servers");
}

#[test]
fn properties_are_limited_in_number_and_size() {
    let names: Vec<String> = (0..129).map(|n| format!("p{n}")).collect();
    let properties: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
    message(GOOD, &properties[..128]).unwrap();
    refused(GOOD, &properties, ErrorKind::TooLarge, "message: properties: there are 129, at most 128");

    // Tag, keys and properties are counted together, in bytes: 3 + 8 + 1 and the value.
    let (keys, value) = (["ключ".to_owned()], "v".repeat(16 * 1024));
    let fields = MessageFields { tag: Some("tag"), keys: &keys, ..GOOD };
    message(fields, &[("p", &value[..16 * 1024 - 12])]).unwrap();
    refused(
        fields,
        &[("p", &value[..16 * 1024 - 11])],
        ErrorKind::TooLarge,
        "message: properties: with tag and keys they are 16385 bytes long, at most 16384",
    );
}

#[test]
fn types_exclude_each_other() {
    let fields = MessageFields { message_group: Some("g"), is_timed: true, priority: Some(1), ..GOOD };
    refused(
        fields,
        &[],
        ErrorKind::Misuse,
        "message: message type: a message group and a delivery time and a priority exclude each other",
    );
    let one_of = |n: usize, mut fields: MessageFields<'static>| {
        match n {
            0 => fields.message_group = Some("g"),
            1 => fields.is_timed = true,
            2 => fields.lite_topic = Some("l"),
            3 => fields.priority = Some(1),
            _ => fields.is_transaction = true,
        }
        fields
    };
    for (first, second) in (0..5).flat_map(|first| (0..5).map(move |second| (first, second))) {
        assert_eq!(message(one_of(first, one_of(second, GOOD)), &[]).is_ok(), first == second);
    }
}

#[test]
fn everything_wrong_is_told_at_once() {
    let fields = MessageFields { topic: "a.b", body_bytes: usize::MAX, tag: Some("|"), priority: Some(-1), ..GOOD };
    let error = message(fields, &[("TTL", "")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    for field in ["topic:", "body:", "tag:", "priority:", "property name:", "property \"TTL\""] {
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn servers_change_limits() {
    let limits = MessageLimits { body_bytes: 10, lite_topic_chars: 3 };
    let fields = MessageFields { body_bytes: 11, lite_topic: Some("four"), ..GOOD };
    let error = check_message(&fields, [], &limits).unwrap_err().to_string();
    assert!(error.contains("at most 10") && error.contains("at most 3"), "{error}");
}

#[test]
fn reserved_names_are_sorted() {
    assert!(RESERVED.is_sorted() && SYSTEM_TOPICS.is_sorted());
    for name in RESERVED {
        assert!(message(GOOD, &[(name, "v")]).is_err(), "{name}");
    }
}

proptest! {
    #[test]
    fn any_text_may_be_given(topic: String, tag: String, keys: Vec<String>, group: String, properties: Vec<(String, String)>) {
        let fields = MessageFields { topic: &topic, tag: Some(&tag), keys: &keys, message_group: Some(&group), ..GOOD };
        let properties: Vec<_> = properties.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let _ = message(fields, &properties);
        let _ = group_faults(&group, &topic);
    }
}
