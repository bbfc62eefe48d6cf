//! What to do after the broker answered a request with an error code. The answers are those of the Java client,
//! except that a ghost of our own does not keep us waiting for ever.

use std::time::Duration;

use protobuf::Enum as _;

use crate::pulsar::wire::pb::ServerError;

/// How long after the loss of a link the broker may still take the old session for alive.
///
/// A real broker needs its keep-alive twice, 60 s by default, to see that a half-open connection is dead.
pub(crate) const GHOST_LIFE: Duration = Duration::from_secs(90);

/// What was asked of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Attempt {
    /// Lookup or partition metadata.
    Lookup,
    /// A producer that has not been created yet.
    FirstCreate,
    /// A producer that was created and lost its place.
    Reconnect,
    /// A consumer that has not subscribed yet.
    FirstSubscribe,
    /// A consumer that was subscribed and lost its place.
    Resubscribe,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// Try again after backoff, from the lookup on. First attempts do so within the operation timeout.
    Retry,
    /// The same, but on a new connection: the broker behind this one is not ready.
    RetryAfterClosingLink,
    /// The call fails; nothing existed before it.
    Fail,
    /// The producer or consumer is over for good.
    Stop,
}

/// What an error code means for an attempt. Codes that this build does not know are retried, as Java does.
///
/// For codes of [`ghost_may_explain`] this is the verdict once a ghost is out of the question; see
/// [`verdict_after_loss`].
pub(crate) fn verdict(code: i32, attempt: Attempt) -> Verdict {
    let Some(error) = ServerError::from_i32(code) else {
        return Verdict::Retry;
    };
    match attempt {
        Attempt::Lookup => lookup(error),
        Attempt::FirstCreate | Attempt::FirstSubscribe => first(error),
        Attempt::Reconnect => reconnect(error),
        Attempt::Resubscribe => resubscribe(error),
    }
}

/// Whether our own lost session, which the broker still takes for alive, can be the reason for this error.
///
/// Of an exclusive producer it can; one that fences others out meets no ghosts, and for it `ProducerFenced` is
/// final. A ghost behind `ProducerBusy` or `ConsumerBusy` needs no rule: those are retried without limit anyhow.
fn ghost_may_explain(code: i32) -> bool {
    ServerError::from_i32(code) == Some(ServerError::ProducerFenced)
}

/// [`verdict`] for an attempt to get back a place whose link was lost this long ago: what a ghost may explain is
/// retried until no ghost can live any more. First attempts have no ghosts.
pub(crate) fn verdict_after_loss(code: i32, attempt: Attempt, since_loss: Duration) -> Verdict {
    let returning = matches!(attempt, Attempt::Reconnect | Attempt::Resubscribe);
    if returning && ghost_may_explain(code) && since_loss < GHOST_LIFE {
        return Verdict::Retry;
    }
    verdict(code, attempt)
}

/// Whether messages that wait for this producer's reconnect fail with the error, although the producer lives on:
/// the topic's backlog quota is used up and the broker wants senders told.
pub(crate) fn fails_pending(code: i32) -> bool {
    ServerError::from_i32(code) == Some(ServerError::ProducerBlockedQuotaExceededException)
}

fn lookup(error: ServerError) -> Verdict {
    use ServerError as E;
    match error {
        E::ServiceNotReady => Verdict::RetryAfterClosingLink,
        E::UnknownError
        | E::MetadataError
        | E::PersistenceError
        | E::AuthenticationError
        | E::TooManyRequests
        | E::TransactionCoordinatorNotFound => Verdict::Retry,
        E::AuthorizationError | E::TopicNotFound | E::InvalidTopicName | E::NotAllowedError => Verdict::Fail,
        // Not for lookups; read as for the create or subscribe that this lookup is for.
        E::ConsumerBusy
        | E::ProducerBlockedQuotaExceededError
        | E::ProducerBlockedQuotaExceededException
        | E::ChecksumError
        | E::UnsupportedVersionError
        | E::SubscriptionNotFound
        | E::ConsumerNotFound
        | E::TopicTerminatedError
        | E::ProducerBusy
        | E::IncompatibleSchema
        | E::ConsumerAssignError
        | E::InvalidTxnStatus
        | E::TransactionConflict
        | E::TransactionNotFound
        | E::ProducerFenced => first(error),
    }
}

fn first(error: ServerError) -> Verdict {
    use ServerError as E;
    match error {
        E::UnknownError
        | E::MetadataError
        | E::PersistenceError
        | E::AuthenticationError
        | E::ServiceNotReady
        | E::ProducerBlockedQuotaExceededError
        | E::ProducerBlockedQuotaExceededException
        | E::UnsupportedVersionError
        | E::TooManyRequests
        | E::TransactionCoordinatorNotFound => Verdict::Retry,
        E::AuthorizationError
        | E::ConsumerBusy
        | E::ChecksumError
        | E::TopicNotFound
        | E::SubscriptionNotFound
        | E::ConsumerNotFound
        | E::TopicTerminatedError
        | E::ProducerBusy
        | E::InvalidTopicName
        | E::IncompatibleSchema
        | E::ConsumerAssignError
        | E::InvalidTxnStatus
        | E::NotAllowedError
        | E::TransactionConflict
        | E::TransactionNotFound
        | E::ProducerFenced => Verdict::Fail,
    }
}

fn reconnect(error: ServerError) -> Verdict {
    use ServerError as E;
    match error {
        E::TopicNotFound | E::TopicTerminatedError | E::ProducerFenced => Verdict::Stop,
        _ => Verdict::Retry,
    }
}

fn resubscribe(error: ServerError) -> Verdict {
    use ServerError as E;
    match error {
        E::TopicNotFound => Verdict::Stop,
        _ => Verdict::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line a code: lookup, first create or subscribe, producer reconnect, consumer reconnect.
    /// R retry, C retry after closing the link, F fail, S stop.
    const TABLE: [(i32, &str); 26] = [
        (0, "RRRR"),
        (1, "RRRR"),
        (2, "RRRR"),
        (3, "RRRR"),
        (4, "FFRR"),
        (5, "FFRR"),
        (6, "CRRR"),
        (7, "RRRR"),
        (8, "RRRR"),
        (9, "FFRR"),
        (10, "RRRR"),
        (11, "FFSS"),
        (12, "FFRR"),
        (13, "FFRR"),
        (14, "RRRR"),
        (15, "FFSR"),
        (16, "FFRR"),
        (17, "FFRR"),
        (18, "FFRR"),
        (19, "FFRR"),
        (20, "RRRR"),
        (21, "FFRR"),
        (22, "FFRR"),
        (23, "FFRR"),
        (24, "FFRR"),
        (25, "FFSR"),
    ];

    fn letter(verdict: Verdict) -> char {
        match verdict {
            Verdict::Retry => 'R',
            Verdict::RetryAfterClosingLink => 'C',
            Verdict::Fail => 'F',
            Verdict::Stop => 'S',
        }
    }

    #[test]
    fn every_code_has_its_verdicts() {
        let known: Vec<i32> = ServerError::VALUES.iter().map(|e| e.value()).collect();
        assert_eq!(TABLE.map(|(code, _)| code).to_vec(), known, "the table lists every code of the protocol");
        for (code, expected) in TABLE {
            let columns = [Attempt::Lookup, Attempt::FirstCreate, Attempt::Reconnect, Attempt::Resubscribe];
            let got: String = columns.map(|attempt| letter(verdict(code, attempt))).into_iter().collect();
            assert_eq!(got, expected, "code {code}");
            assert_eq!(verdict(code, Attempt::FirstSubscribe), verdict(code, Attempt::FirstCreate), "code {code}");
        }
    }

    #[test]
    fn unknown_codes_are_retried() {
        for code in [-1, 26, i32::MAX] {
            for attempt in [Attempt::Lookup, Attempt::FirstCreate, Attempt::Reconnect, Attempt::Resubscribe] {
                assert_eq!(verdict_after_loss(code, attempt, Duration::ZERO), Verdict::Retry);
            }
        }
    }

    #[test]
    fn a_ghost_excuses_for_ninety_seconds() {
        let (before, after) = (GHOST_LIFE - Duration::from_millis(1), GHOST_LIFE);
        let fenced = ServerError::ProducerFenced.value();
        let busy = ServerError::ConsumerBusy.value();
        assert_eq!(verdict_after_loss(fenced, Attempt::Reconnect, before), Verdict::Retry);
        assert_eq!(verdict_after_loss(fenced, Attempt::Reconnect, after), Verdict::Stop);
        assert_eq!(verdict_after_loss(busy, Attempt::Resubscribe, before), Verdict::Retry);
        assert_eq!(verdict_after_loss(busy, Attempt::Resubscribe, after), Verdict::Retry);
        assert_eq!(verdict_after_loss(fenced, Attempt::FirstCreate, Duration::ZERO), Verdict::Fail);
        assert_eq!(verdict_after_loss(busy, Attempt::FirstSubscribe, Duration::ZERO), Verdict::Fail);
        for (code, _) in TABLE {
            assert_eq!(ghost_may_explain(code), code == fenced, "code {code}");
            if !ghost_may_explain(code) {
                let late = verdict_after_loss(code, Attempt::Reconnect, after);
                assert_eq!(verdict_after_loss(code, Attempt::Reconnect, Duration::ZERO), late, "code {code}");
            }
        }
    }

    #[test]
    fn only_the_quota_exception_fails_what_waits() {
        for (code, _) in TABLE {
            assert_eq!(fails_pending(code), code == 8, "code {code}");
        }
    }
}
