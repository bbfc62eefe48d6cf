//! The calls of `apache.rocketmq.v2.MessagingService`.

/// One call of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    QueryRoute,
    Heartbeat,
    SendMessage,
    QueryAssignment,
    ReceiveMessage,
    AckMessage,
    ForwardMessageToDeadLetterQueue,
    PullMessage,
    UpdateOffset,
    GetOffset,
    QueryOffset,
    EndTransaction,
    Telemetry,
    NotifyClientTermination,
    ChangeInvisibleDuration,
    RecallMessage,
    SyncLiteSubscription,
}

/// How many messages go each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One request, one answer.
    Unary,
    /// One request, a stream of answers.
    ServerStream,
    /// A stream each way.
    Duplex,
}

/// Path and name of a call from one literal.
macro_rules! path {
    ($name:literal) => {
        concat!("/apache.rocketmq.v2.MessagingService/", $name)
    };
}

impl Method {
    /// All calls, in the order of the service. The pull model's four ([`PullMessage`](Self::PullMessage) and those
    /// about offsets) are known to the protocol, but proxies answer them with UNIMPLEMENTED.
    pub(crate) const ALL: [Self; 17] = [
        Self::QueryRoute,
        Self::Heartbeat,
        Self::SendMessage,
        Self::QueryAssignment,
        Self::ReceiveMessage,
        Self::AckMessage,
        Self::ForwardMessageToDeadLetterQueue,
        Self::PullMessage,
        Self::UpdateOffset,
        Self::GetOffset,
        Self::QueryOffset,
        Self::EndTransaction,
        Self::Telemetry,
        Self::NotifyClientTermination,
        Self::ChangeInvisibleDuration,
        Self::RecallMessage,
        Self::SyncLiteSubscription,
    ];

    /// The path that gRPC calls it by.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::QueryRoute => path!("QueryRoute"),
            Self::Heartbeat => path!("Heartbeat"),
            Self::SendMessage => path!("SendMessage"),
            Self::QueryAssignment => path!("QueryAssignment"),
            Self::ReceiveMessage => path!("ReceiveMessage"),
            Self::AckMessage => path!("AckMessage"),
            Self::ForwardMessageToDeadLetterQueue => path!("ForwardMessageToDeadLetterQueue"),
            Self::PullMessage => path!("PullMessage"),
            Self::UpdateOffset => path!("UpdateOffset"),
            Self::GetOffset => path!("GetOffset"),
            Self::QueryOffset => path!("QueryOffset"),
            Self::EndTransaction => path!("EndTransaction"),
            Self::Telemetry => path!("Telemetry"),
            Self::NotifyClientTermination => path!("NotifyClientTermination"),
            Self::ChangeInvisibleDuration => path!("ChangeInvisibleDuration"),
            Self::RecallMessage => path!("RecallMessage"),
            Self::SyncLiteSubscription => path!("SyncLiteSubscription"),
        }
    }

    /// What error texts call it.
    #[cfg(test)]
    pub(crate) fn name(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::ReceiveMessage | Self::PullMessage => Kind::ServerStream,
            Self::Telemetry => Kind::Duplex,
            _ => Kind::Unary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocketmq::wire::pb::service;

    #[test]
    fn every_call_of_the_protocol() {
        let file = service::file_descriptor().proto();
        let service = &file.service[0];
        let declared: Vec<_> = service
            .method
            .iter()
            .map(|method| {
                let kind = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => Kind::Unary,
                    (false, true) => Kind::ServerStream,
                    (_, _) => Kind::Duplex,
                };
                (format!("/{}.{}/{}", file.package(), service.name(), method.name()), method.name().to_owned(), kind)
            })
            .collect();
        let ours: Vec<_> =
            Method::ALL.iter().map(|call| (call.path().to_owned(), call.name().to_owned(), call.kind())).collect();
        assert_eq!(ours, declared);
    }
}
