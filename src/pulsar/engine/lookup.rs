//! Look-ups over the binary protocol: which broker serves a topic, and how many partitions it has.

use std::time::Instant;

use super::Engine;
use super::attachment::Owner;
use super::event::LinkId;
use super::requests::Purpose;
use super::targets::{Place, TargetId, Waiter};
use crate::error::{Error, ErrorKind, Recovery};
use crate::pulsar::service_url::parse_broker_url;
use crate::pulsar::wire::pb;
use crate::pulsar::wire::{code, command as wire};

/// The most partitions that are believed; a lane or part each is made of the number.
const MOST_PARTITIONS: u32 = 100_000;
/// Redirects followed in one look-up (as all clients do).
const MAX_HOPS: u8 = 20;

#[derive(Debug)]
pub(super) struct Lookup {
    pub asker: Asker,
    topic: String,
    authoritative: bool,
    hops: u8,
    /// Where it is asked now.
    pub at: TargetId,
}

/// Who wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// Which broker serves the owner's topic.
    Owner(Owner),
    /// How many partitions an operation's topic has.
    Partitions(u64),
}

impl Engine {
    pub(super) fn start_lookup(&mut self, now: Instant, asker: Asker, topic: String) {
        self.next_lookup += 1;
        let id = self.next_lookup;
        let at = self.service_target(now);
        self.lookups.insert(id, Lookup { asker, topic, authoritative: false, hops: 0, at });
        self.ask(now, id);
    }

    /// Ends the look-ups of an asker that no longer wants to know.
    pub(super) fn forget_lookups(&mut self, asker: Asker) {
        self.lookups.retain(|_, lookup| lookup.asker != asker);
    }

    fn ask(&mut self, now: Instant, id: u64) {
        let Some(at) = self.lookups.get(&id).map(|lookup| lookup.at) else { return };
        if let Some(link) = self.want(now, at, Waiter::Lookup(id)) {
            self.lookup_linked(now, id, link);
        }
    }

    pub(super) fn lookup_linked(&mut self, now: Instant, id: u64, link: LinkId) {
        if !self.lookups.contains_key(&id) {
            return;
        }
        let request = self.new_request(now, link, Purpose::Lookup(id));
        let Some(lookup) = self.lookups.get(&id) else { return };
        let command = match lookup.asker {
            Asker::Owner(_) => wire::lookup(&lookup.topic, request, lookup.authoritative),
            Asker::Partitions(_) => wire::partitioned_metadata(&lookup.topic, request),
        };
        self.send_request(now, link, &command);
    }

    /// The link to the host being asked could not be made. A service host is asked again, or another one: its dial
    /// waits out the pause of its target, so that the asker needs none of its own. A broker that a redirect named is
    /// not waited for, because by now another may be right.
    pub(super) fn lookup_link_failed(&mut self, now: Instant, id: u64, error: &Error) {
        let Some(lookup) = self.lookups.get(&id) else { return };
        if lookup.hops > 0 || error.recovery() == Recovery::Never {
            self.lookup_failed(now, id, error);
            return;
        }
        match lookup.asker {
            Asker::Owner(owner) => {
                if let Some(attachment) = self.attachment(owner) {
                    attachment.last_error = Some(error.clone());
                }
            }
            Asker::Partitions(operation) => self.partitions_delayed(operation, error),
        }
        let at = self.service_target(now);
        if let Some(lookup) = self.lookups.get_mut(&id) {
            lookup.at = at;
        }
        self.ask(now, id);
    }

    /// The answer to "which broker serves this topic".
    pub(super) fn topic_answer(&mut self, now: Instant, id: u64, answer: &pb::CommandLookupTopicResponse) {
        let Some(lookup) = self.lookups.get(&id) else { return };
        let kind = answer.response.map(|kind| kind.value());
        let redirect = kind == Some(pb::command_lookup_topic_response::LookupType::Redirect as i32);
        let connect = kind == Some(pb::command_lookup_topic_response::LookupType::Connect as i32);
        if !redirect && !connect {
            let code = answer.error.map_or(0, |code| code.value());
            let error = code::server_error(code, &format!("look-up of {}", lookup.topic), answer.message());
            self.lookup_failed(now, id, &error);
            return;
        }
        let url = if self.options.tls { answer.brokerServiceUrlTls() } else { answer.brokerServiceUrl() };
        let broker = match parse_broker_url(url) {
            Ok((broker, _)) => broker,
            Err(error) => {
                let context = format!("look-up of {}", lookup.topic);
                self.lookup_failed(now, id, &error.in_context(&context));
                return;
            }
        };
        let place = if answer.proxy_through_service_url() {
            let via = self.targets.get(lookup.at).map(|target| target.place.physical().clone());
            match via {
                Some(via) if via != broker => Place::Proxied { via, broker },
                _ => Place::Direct(broker),
            }
        } else {
            Place::Direct(broker)
        };
        let target = self.target_at(now, place);
        if connect {
            let asker = self.lookups.remove(&id).map(|lookup| lookup.asker);
            if let Some(Asker::Owner(owner)) = asker {
                self.located(now, owner, target);
            }
            return;
        }
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        lookup.hops += 1;
        if lookup.hops > MAX_HOPS {
            let text = format!("look-up of {} was redirected more than {MAX_HOPS} times", lookup.topic);
            let error = Error::new(ErrorKind::Unavailable, text).with_recovery(Recovery::AfterBackoff);
            self.lookup_failed(now, id, &error);
            return;
        }
        lookup.at = target;
        lookup.authoritative = answer.authoritative();
        self.ask(now, id);
    }

    /// The answer to "how many partitions has this topic".
    pub(super) fn partitions_answer(
        &mut self,
        now: Instant,
        id: u64,
        answer: &pb::CommandPartitionedTopicMetadataResponse,
    ) {
        let Some(lookup) = self.lookups.get(&id) else { return };
        let success = pb::command_partitioned_topic_metadata_response::LookupType::Success as i32;
        if answer.error.is_some() || answer.response.is_some_and(|response| response.value() != success) {
            let code = answer.error.map_or(0, |code| code.value());
            let error = code::server_error(code, &format!("partitions of {}", lookup.topic), answer.message());
            self.lookup_failed(now, id, &error);
            return;
        }
        if answer.partitions() > MOST_PARTITIONS {
            let text = format!("partitions of {}: the broker counts {}", lookup.topic, answer.partitions());
            let error = Error::new(ErrorKind::Protocol, text).with_recovery(Recovery::Never);
            self.lookup_failed(now, id, &error);
            return;
        }
        let asker = lookup.asker;
        self.lookups.remove(&id);
        if let Asker::Partitions(operation) = asker {
            self.partitions_known(operation, answer.partitions());
        }
    }

    pub(super) fn lookup_failed(&mut self, now: Instant, id: u64, error: &Error) {
        let Some(lookup) = self.lookups.remove(&id) else { return };
        match lookup.asker {
            Asker::Owner(owner) => self.locate_failed(now, owner, error),
            Asker::Partitions(operation) => self.partitions_failed(now, operation, error),
        }
    }

    /// The service host to ask: the present one, unless it is resting after a failure and another is not.
    fn service_target(&mut self, now: Instant) -> TargetId {
        let count = self.options.service.len();
        let ids: Vec<TargetId> = (0..count)
            .filter_map(|step| self.options.service.get((self.service_cursor + step) % count).cloned())
            .map(|host| self.targets.intern(Place::Direct(host)))
            .collect();
        let gate = |id: &TargetId| {
            let target = self.targets.get(*id);
            target.filter(|target| target.link.is_none()).and_then(|target| target.gated(now)).unwrap_or(now)
        };
        let best = ids.iter().min_by_key(|id| gate(id)).copied();
        best.unwrap_or(TargetId(0))
    }

    /// A link ended: if look-ups use its host, they turn to the next.
    pub(super) fn service_link_failed(&mut self, id: TargetId) {
        let count = self.options.service.len();
        let current = self.options.service.get(self.service_cursor).cloned();
        let failed = self.targets.get(id).map(|target| target.place.physical().clone());
        if current.is_some() && current == failed {
            self.service_cursor = (self.service_cursor + 1) % count;
        }
    }
}
