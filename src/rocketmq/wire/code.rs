//! What the server's status codes mean, and gRPC's: the one table.

use std::error::Error as StdError;

use protobuf::Enum;

use super::pb::{Code, Status};
use crate::error::{Delivery, Error, ErrorKind, Recovery};
use crate::policy::text::one_line;

/// Kind, what would help, and whether the server may have stored the message or done what was asked.
type Meaning = (ErrorKind, Recovery, Delivery);

/// Whether an answer's status says that the request was carried out, if only in part: after
/// [`MULTIPLE_RESULTS`](Code::MULTIPLE_RESULTS) the entries' own statuses count.
///
/// `operation` names the call and what it was about. An error has the code as it was sent, also an unknown one.
pub(crate) fn check(status: Option<&Status>, operation: &str) -> Result<(), Error> {
    let Some(status) = status else {
        let text = format!("{operation}: the server's answer has no status");
        return Err(Error::new(ErrorKind::Protocol, text).with_delivery(Delivery::Unknown));
    };
    let code = status.code.value();
    if is_success(code) { Ok(()) } else { Err(status_error(code, operation, &status.message)) }
}

/// Whether a code says that a request was carried out, if only in part.
pub(crate) fn is_success(code: i32) -> bool {
    matches!(Code::from_i32(code), Some(Code::OK | Code::MULTIPLE_RESULTS))
}

/// Whether each entry of an answer has a result of its own.
pub(crate) fn is_mixed(code: i32) -> bool {
    code == Code::MULTIPLE_RESULTS.value()
}

/// Whether a receive ended without messages, which is no error.
pub(crate) fn is_nothing_found(code: i32) -> bool {
    code == Code::MESSAGE_NOT_FOUND.value()
}

/// Whether the server has lost this client's settings: telemetry should be renewed at once. (It says the same to
/// clients of a kind that it does not know.)
pub(crate) fn is_settings_missing(code: i32) -> bool {
    code == Code::UNRECOGNIZED_CLIENT_TYPE.value()
}

/// Whether a response says that the caller's credentials are not accepted. Its status is looked at and nothing else:
/// it is the first field of every response.
pub(crate) fn is_unauthorized(response: &[u8]) -> bool {
    /// Field 1 of a response, a message; in it field 1, a number.
    const STATUS: u8 = 0x0a;
    const CODE: u8 = 0x08;
    let read = || -> Option<bool> {
        let (status, body) = (response.strip_prefix(&[STATUS])?, Code::UNAUTHORIZED.value());
        // Its length, in as many bytes as have the highest bit set, and one more.
        let length = status.iter().position(|byte| byte & 0x80 == 0)?;
        let mut code = status.get(length + 1..)?.strip_prefix(&[CODE])?.iter();
        let mut value = 0u64;
        for shift in (0..).step_by(7).take(5) {
            let byte = code.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        Some(u64::try_from(body).is_ok_and(|unauthorized| value == unauthorized))
    };
    read().unwrap_or(false)
}

/// The error for a code that is no success. `message` is the server's own text.
pub(crate) fn status_error(code: i32, operation: &str, message: &str) -> Error {
    let known = Code::from_i32(code);
    let (kind, recovery, delivery) = known.map_or_else(|| meaning_of_unknown(code), meaning);
    let message = one_line(message);
    let text = match known {
        Some(known) => format!("{operation}: the server answered {known:?}: {message}"),
        None => format!("{operation}: the server answered with code {code}: {message}"),
    };
    Error::new(kind, text).with_recovery(recovery).with_code(code).with_delivery(delivery)
}

fn meaning(code: Code) -> Meaning {
    use Delivery::{Refused, Unknown};
    use ErrorKind::*;
    use Recovery::{AfterBackoff, Elsewhere, Never};
    match code {
        // Not a code, or one that says that all went well: no error can be made of it.
        Code::CODE_UNSPECIFIED | Code::OK | Code::MULTIPLE_RESULTS => (Protocol, AfterBackoff, Unknown),

        // What the user chose once.
        Code::ILLEGAL_ACCESS_POINT
        | Code::ILLEGAL_TOPIC
        | Code::ILLEGAL_CONSUMER_GROUP
        | Code::ILLEGAL_FILTER_EXPRESSION
        | Code::ILLEGAL_POLLING_TIME
        | Code::INVALID_CLIENT_PROPERTIES => (Config, Never, Refused),
        // What the user chose for this call.
        Code::BAD_REQUEST
        | Code::ILLEGAL_MESSAGE_TAG
        | Code::ILLEGAL_MESSAGE_KEY
        | Code::ILLEGAL_MESSAGE_GROUP
        | Code::ILLEGAL_MESSAGE_PROPERTY_KEY
        | Code::INVALID_TRANSACTION_ID
        | Code::ILLEGAL_MESSAGE_ID
        | Code::ILLEGAL_INVISIBLE_TIME
        | Code::ILLEGAL_DELIVERY_TIME
        | Code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        | Code::MESSAGE_CORRUPTED
        | Code::ILLEGAL_OFFSET
        | Code::ILLEGAL_LITE_TOPIC
        | Code::MESSAGE_BODY_EMPTY => (Misuse, Never, Refused),
        // The handle is too old: the message is or will be delivered anew, under another one.
        Code::INVALID_RECEIPT_HANDLE => (NotFound, Never, Refused),
        // The server has no settings of this client; they are sent again.
        Code::UNRECOGNIZED_CLIENT_TYPE => (Unavailable, AfterBackoff, Refused),
        // Every call of ours has one.
        Code::CLIENT_ID_REQUIRED => (Internal, Never, Refused),

        Code::UNAUTHORIZED => (Authentication, Never, Refused),
        Code::PAYMENT_REQUIRED | Code::FORBIDDEN => (Authorization, Never, Refused),
        Code::NOT_FOUND
        | Code::MESSAGE_NOT_FOUND
        | Code::TOPIC_NOT_FOUND
        | Code::CONSUMER_GROUP_NOT_FOUND
        | Code::OFFSET_NOT_FOUND => (NotFound, Never, Refused),
        Code::REQUEST_TIMEOUT => (Timeout, AfterBackoff, Unknown),
        Code::PAYLOAD_TOO_LARGE
        | Code::MESSAGE_BODY_TOO_LARGE
        | Code::REQUEST_HEADER_FIELDS_TOO_LARGE
        | Code::MESSAGE_PROPERTIES_TOO_LARGE => (TooLarge, Never, Refused),
        Code::PRECONDITION_FAILED => (Conflict, Never, Refused),
        Code::TOO_MANY_REQUESTS => (Throttled, AfterBackoff, Refused),
        // Not how often but how many: somebody has to raise the quota or give some up.
        Code::LITE_TOPIC_QUOTA_EXCEEDED | Code::LITE_SUBSCRIPTION_QUOTA_EXCEEDED => (Throttled, Never, Refused),

        Code::INTERNAL_ERROR | Code::INTERNAL_SERVER_ERROR => (Broker, Elsewhere, Unknown),
        // Stored on the master, and so far nowhere else.
        Code::HA_NOT_AVAILABLE => (Unavailable, Elsewhere, Unknown),
        Code::PROXY_TIMEOUT | Code::MASTER_PERSISTENCE_TIMEOUT | Code::SLAVE_PERSISTENCE_TIMEOUT => {
            (Timeout, Elsewhere, Unknown)
        }
        Code::NOT_IMPLEMENTED
        | Code::UNSUPPORTED
        | Code::VERSION_UNSUPPORTED
        | Code::VERIFY_FIFO_MESSAGE_UNSUPPORTED => (Unsupported, Never, Refused),
        Code::FAILED_TO_CONSUME_MESSAGE => (Broker, Never, Refused),
    }
}

/// Codes follow HTTP: of a newer one at least the family is known.
fn meaning_of_unknown(code: i32) -> Meaning {
    match code / 100 {
        429 => (ErrorKind::Throttled, Recovery::AfterBackoff, Delivery::Refused),
        400..=499 => (ErrorKind::Broker, Recovery::Never, Delivery::Refused),
        _ => (ErrorKind::Broker, Recovery::AfterBackoff, Delivery::Unknown),
    }
}

/// The names of gRPC's codes, by number.
const GRPC: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The error for a call that gRPC ended with a status of its own, so that there is no answer. `source` is the
/// library's error.
///
/// The code is gRPC's number, which is never one of the server's: those have five digits. RESOURCE_EXHAUSTED
/// alone gets the code that servers use for the same, 42900; a message above a size limit ends so too, so the
/// text stays.
pub(crate) fn grpc_error(
    code: i32,
    operation: &str,
    message: &str,
    source: impl Into<Box<dyn StdError + Send + Sync>>,
) -> Error {
    let name = usize::try_from(code).ok().and_then(|number| GRPC.get(number));
    let (kind, recovery, delivery) = grpc_meaning(code);
    let code_seen = if kind == ErrorKind::Throttled { Code::TOO_MANY_REQUESTS.value() } else { code };
    let message = one_line(message);
    let text = match name {
        Some(name) => format!("{operation}: the call ended with {name}: {message}"),
        None => format!("{operation}: the call ended with gRPC code {code}: {message}"),
    };
    Error::new(kind, text).with_recovery(recovery).with_code(code_seen).with_source(source).with_delivery(delivery)
}

fn grpc_meaning(code: i32) -> Meaning {
    use Delivery::{Refused, Unknown};
    use ErrorKind::*;
    use Recovery::{AfterBackoff, AfterReconnect, Never};
    match code {
        // Cut off, by us with the transport under it or by a server that goes away.
        1 | 14 => (Transport, AfterReconnect, Unknown),
        3 | 11 => (Misuse, Never, Refused),
        4 => (Timeout, AfterBackoff, Unknown),
        5 => (NotFound, Never, Refused),
        6 | 9 => (Conflict, Never, Refused),
        7 => (Authorization, Never, Refused),
        8 => (Throttled, AfterBackoff, Refused),
        10 => (Conflict, AfterBackoff, Unknown),
        12 => (Unsupported, Never, Refused),
        16 => (Authentication, Never, Refused),
        // OK without an answer.
        0 => (Protocol, AfterBackoff, Unknown),
        // UNKNOWN, INTERNAL, DATA_LOSS, and what is yet to come.
        _ => (Broker, AfterBackoff, Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Delivery::{Refused, Unknown};
    use ErrorKind::*;
    use Recovery::{AfterBackoff, AfterReconnect, Elsewhere, Never};
    use proptest::prelude::*;
    use protobuf::EnumOrUnknown;

    /// All codes in their order, written down a second time. None is a success.
    const EXPECTED: [(i32, Option<Meaning>); 54] = [
        (0, Some((Protocol, AfterBackoff, Unknown))),
        (20000, None),
        (30000, None),
        (40000, Some((Misuse, Never, Refused))),
        (40001, Some((Config, Never, Refused))),
        (40002, Some((Config, Never, Refused))),
        (40003, Some((Config, Never, Refused))),
        (40004, Some((Misuse, Never, Refused))),
        (40005, Some((Misuse, Never, Refused))),
        (40006, Some((Misuse, Never, Refused))),
        (40007, Some((Misuse, Never, Refused))),
        (40008, Some((Misuse, Never, Refused))),
        (40009, Some((Misuse, Never, Refused))),
        (40010, Some((Config, Never, Refused))),
        (40011, Some((Misuse, Never, Refused))),
        (40012, Some((Misuse, Never, Refused))),
        (40013, Some((NotFound, Never, Refused))),
        (40014, Some((Misuse, Never, Refused))),
        (40015, Some((Unavailable, AfterBackoff, Refused))),
        (40016, Some((Misuse, Never, Refused))),
        (40017, Some((Internal, Never, Refused))),
        (40018, Some((Config, Never, Refused))),
        (40019, Some((Misuse, Never, Refused))),
        (40020, Some((Misuse, Never, Refused))),
        (40021, Some((Config, Never, Refused))),
        (40100, Some((Authentication, Never, Refused))),
        (40200, Some((Authorization, Never, Refused))),
        (40300, Some((Authorization, Never, Refused))),
        (40400, Some((NotFound, Never, Refused))),
        (40401, Some((NotFound, Never, Refused))),
        (40402, Some((NotFound, Never, Refused))),
        (40403, Some((NotFound, Never, Refused))),
        (40404, Some((NotFound, Never, Refused))),
        (40800, Some((Timeout, AfterBackoff, Unknown))),
        (41300, Some((TooLarge, Never, Refused))),
        (41301, Some((TooLarge, Never, Refused))),
        (41302, Some((Misuse, Never, Refused))),
        (42800, Some((Conflict, Never, Refused))),
        (42900, Some((Throttled, AfterBackoff, Refused))),
        (42901, Some((Throttled, Never, Refused))),
        (42902, Some((Throttled, Never, Refused))),
        (43100, Some((TooLarge, Never, Refused))),
        (43101, Some((TooLarge, Never, Refused))),
        (50000, Some((Broker, Elsewhere, Unknown))),
        (50001, Some((Broker, Elsewhere, Unknown))),
        (50002, Some((Unavailable, Elsewhere, Unknown))),
        (50100, Some((Unsupported, Never, Refused))),
        (50400, Some((Timeout, Elsewhere, Unknown))),
        (50401, Some((Timeout, Elsewhere, Unknown))),
        (50402, Some((Timeout, Elsewhere, Unknown))),
        (50500, Some((Unsupported, Never, Refused))),
        (50501, Some((Unsupported, Never, Refused))),
        (50502, Some((Unsupported, Never, Refused))),
        (60000, Some((Broker, Never, Refused))),
    ];

    fn status(code: i32) -> Status {
        Status { code: EnumOrUnknown::from_i32(code), message: "why".into(), ..Status::default() }
    }

    fn meaning_of(error: &Error) -> Meaning {
        (error.kind(), error.recovery(), error.delivery())
    }

    #[test]
    fn every_code_of_the_protocol() {
        let numbers: Vec<_> = Code::VALUES.iter().map(|code| code.value()).collect();
        assert_eq!(numbers, EXPECTED.map(|(number, _)| number));
        for (number, meaning) in EXPECTED {
            let result = check(Some(&status(number)), "send to t");
            assert_eq!(result.is_ok(), is_success(number));
            assert_eq!(result.as_ref().err().map(meaning_of), meaning, "{number}");
            let Err(error) = result else { continue };
            assert_eq!(error.code(), Some(number));
            let name = Code::from_i32(number).unwrap();
            assert_eq!(error.to_string(), format!("send to t: the server answered {name:?}: why"));
        }
    }

    #[test]
    fn unknown_codes_are_kept_and_their_families_known() {
        for (code, expected) in [
            (40022, (Broker, Never, Refused)),
            (42903, (Throttled, AfterBackoff, Refused)),
            (49999, (Broker, Never, Refused)),
            (50003, (Broker, AfterBackoff, Unknown)),
            (20001, (Broker, AfterBackoff, Unknown)),
            (70000, (Broker, AfterBackoff, Unknown)),
            (-1, (Broker, AfterBackoff, Unknown)),
            (i32::MIN, (Broker, AfterBackoff, Unknown)),
            (i32::MAX, (Broker, AfterBackoff, Unknown)),
        ] {
            let error = check(Some(&status(code)), "send").unwrap_err();
            assert_eq!(meaning_of(&error), expected, "{code}");
            assert_eq!(error.code(), Some(code));
            assert_eq!(error.to_string(), format!("send: the server answered with code {code}: why"));
        }
    }

    #[test]
    fn a_refusal_of_the_credentials_is_seen_in_any_response() {
        use protobuf::Message;
        for code in EXPECTED.map(|(number, _)| number) {
            for text in ["", "why", &"long ".repeat(1000)] {
                let status = Status { code: EnumOrUnknown::from_i32(code), message: text.into(), ..Status::default() };
                let response = super::super::pb::SendMessageResponse {
                    status: protobuf::MessageField::some(status),
                    entries: vec![Default::default()],
                    ..Default::default()
                };
                let response = response.write_to_bytes().unwrap();
                assert_eq!(is_unauthorized(&response), code == 40100, "{code}");
                for cut in 0..response.len().min(8) {
                    is_unauthorized(&response[..cut]);
                }
            }
        }
        for other in [&[][..], &[0x0a], &[0x0a, 0xff, 0xff, 0xff, 0xff], &[0x12, 2, 8, 1], &[0x0a, 0xff, 0x01, 8, 0xff]]
        {
            assert!(!is_unauthorized(other));
        }
    }

    #[test]
    fn an_answer_without_a_status_is_in_doubt() {
        let error = check(None, "send").unwrap_err();
        assert_eq!((error.kind(), error.delivery(), error.code()), (Protocol, Unknown, None));
    }

    #[test]
    fn codes_with_a_meaning_of_their_own() {
        assert!(is_nothing_found(40401) && !is_nothing_found(40400));
        assert!(is_settings_missing(40015) && !is_settings_missing(40017));
    }

    #[test]
    fn every_code_of_grpc() {
        let expected = [
            (Protocol, AfterBackoff, Unknown),
            (Transport, AfterReconnect, Unknown),
            (Broker, AfterBackoff, Unknown),
            (Misuse, Never, Refused),
            (Timeout, AfterBackoff, Unknown),
            (NotFound, Never, Refused),
            (Conflict, Never, Refused),
            (Authorization, Never, Refused),
            (Throttled, AfterBackoff, Refused),
            (Conflict, Never, Refused),
            (Conflict, AfterBackoff, Unknown),
            (Misuse, Never, Refused),
            (Unsupported, Never, Refused),
            (Broker, AfterBackoff, Unknown),
            (Transport, AfterReconnect, Unknown),
            (Broker, AfterBackoff, Unknown),
            (Authentication, Never, Refused),
        ];
        for (number, (expected, name)) in expected.into_iter().zip(GRPC).enumerate() {
            let number = number as i32;
            let error = grpc_error(number, "send", "why", "the library's own");
            assert_eq!(meaning_of(&error), expected, "{name}");
            assert_eq!(error.code(), Some(if number == 8 { 42900 } else { number }));
            assert_eq!(error.to_string(), format!("send: the call ended with {name}: why"));
            assert_eq!(error.source().map(ToString::to_string), Some("the library's own".into()));
        }
    }

    proptest! {
        #[test]
        fn any_code_may_come(code: i32, message: String) {
            let error = status_error(code, "send", &message);
            prop_assert_eq!(error.code(), Some(code));
            prop_assert!(error.to_string().len() < 2_000);
            prop_assert!(error.delivery() > Delivery::NotSent);
            prop_assert!(grpc_error(code, "send", &message, "x").delivery() > Delivery::NotSent);
        }
    }
}
