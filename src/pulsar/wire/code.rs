//! What the broker's error codes mean: the one table.

use protobuf::Enum;

use super::pb::ServerError;
use crate::error::{Delivery, Error, ErrorKind, Recovery};
use crate::policy::text::one_line;

/// The error for a code that the broker answered `operation` with. `message` is the broker's own text.
///
/// The recovery is about the same call made again. A session that was there before and is being set up again
/// has reasons of its own to go on, for example that the broker still sees its former self.
pub(crate) fn server_error(code: i32, operation: &str, message: &str) -> Error {
    let known = ServerError::from_i32(code);
    let (kind, recovery) = known.map_or((ErrorKind::Broker, Recovery::AfterBackoff), meaning);
    let text = match known {
        Some(known) => format!("{operation} refused by the broker ({known:?}): {}", one_line(message)),
        None => format!("{operation} refused by the broker (code {code}): {}", one_line(message)),
    };
    Error::new(kind, text).with_recovery(recovery).with_code(code).with_delivery(Delivery::Refused)
}

fn meaning(code: ServerError) -> (ErrorKind, Recovery) {
    match code {
        ServerError::UnknownError => (ErrorKind::Broker, Recovery::AfterBackoff),
        // The stores behind the broker.
        ServerError::MetadataError | ServerError::PersistenceError => (ErrorKind::Unavailable, Recovery::AfterBackoff),
        ServerError::AuthenticationError => (ErrorKind::Authentication, Recovery::Never),
        ServerError::AuthorizationError => (ErrorKind::Authorization, Recovery::Never),
        ServerError::ConsumerBusy | ServerError::ProducerBusy | ServerError::ProducerFenced => {
            (ErrorKind::Conflict, Recovery::Never)
        }
        // The broker starts, or the topic has moved or is moving: ask again where it is.
        ServerError::ServiceNotReady => (ErrorKind::Unavailable, Recovery::AfterRefresh),
        // The backlog is over its quota: consumers must catch up first.
        ServerError::ProducerBlockedQuotaExceededError | ServerError::ProducerBlockedQuotaExceededException => {
            (ErrorKind::Unavailable, Recovery::AfterBackoff)
        }
        // Damaged on the way.
        ServerError::ChecksumError => (ErrorKind::Protocol, Recovery::AfterReconnect),
        ServerError::UnsupportedVersionError => (ErrorKind::Unsupported, Recovery::Never),
        ServerError::TopicNotFound | ServerError::SubscriptionNotFound => (ErrorKind::NotFound, Recovery::Never),
        // The broker has lost the session, which comes back by subscribing again.
        ServerError::ConsumerNotFound => (ErrorKind::NotFound, Recovery::AfterBackoff),
        ServerError::TooManyRequests => (ErrorKind::Throttled, Recovery::AfterBackoff),
        ServerError::TopicTerminatedError => (ErrorKind::Broker, Recovery::Never),
        ServerError::InvalidTopicName | ServerError::IncompatibleSchema => (ErrorKind::Config, Recovery::Never),
        // The key range is taken.
        ServerError::ConsumerAssignError => (ErrorKind::Conflict, Recovery::Never),
        ServerError::TransactionCoordinatorNotFound => (ErrorKind::Unavailable, Recovery::AfterRefresh),
        ServerError::InvalidTxnStatus | ServerError::NotAllowedError => (ErrorKind::Misuse, Recovery::Never),
        ServerError::TransactionConflict => (ErrorKind::Conflict, Recovery::Never),
        ServerError::TransactionNotFound => (ErrorKind::NotFound, Recovery::Never),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind and recovery of all codes, in their order, written down a second time.
    const EXPECTED: [(ErrorKind, Recovery); 26] = {
        use ErrorKind::*;
        use Recovery::*;
        [
            (Broker, AfterBackoff),
            (Unavailable, AfterBackoff),
            (Unavailable, AfterBackoff),
            (Authentication, Never),
            (Authorization, Never),
            (Conflict, Never),
            (Unavailable, AfterRefresh),
            (Unavailable, AfterBackoff),
            (Unavailable, AfterBackoff),
            (Protocol, AfterReconnect),
            (Unsupported, Never),
            (NotFound, Never),
            (NotFound, Never),
            (NotFound, AfterBackoff),
            (Throttled, AfterBackoff),
            (Broker, Never),
            (Conflict, Never),
            (Config, Never),
            (Config, Never),
            (Conflict, Never),
            (Unavailable, AfterRefresh),
            (Misuse, Never),
            (Misuse, Never),
            (Conflict, Never),
            (NotFound, Never),
            (Conflict, Never),
        ]
    };

    #[test]
    fn every_code_of_the_protocol() {
        assert_eq!(ServerError::VALUES.len(), EXPECTED.len());
        for (code, expected) in ServerError::VALUES.iter().zip(EXPECTED) {
            let error = server_error(code.value(), "create producer", "why");
            assert_eq!((error.kind(), error.recovery()), expected, "{code:?}");
            assert_eq!(error.code(), Some(code.value()));
            assert_eq!(error.delivery(), Delivery::Refused);
            assert_eq!(error.to_string(), format!("create producer refused by the broker ({code:?}): why"));
        }
    }

    #[test]
    fn unknown_codes_are_kept() {
        for code in [-1, 26, i32::MAX, i32::MIN] {
            let error = server_error(code, "lookup", "why");
            assert_eq!((error.kind(), error.recovery()), (ErrorKind::Broker, Recovery::AfterBackoff));
            assert_eq!(error.code(), Some(code));
            assert_eq!(error.to_string(), format!("lookup refused by the broker (code {code}): why"));
        }
    }
}
