//! Names of topics and of their partitions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::policy::text::quoted;

const PARTITION_MARK: &str = "-partition-";

/// Whether the broker stores a topic's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicDomain {
    /// `persistent://`: messages are stored until all subscriptions have acknowledged them. The default.
    Persistent,
    /// `non-persistent://`: messages go to the consumers that are connected now and are stored nowhere.
    NonPersistent,
}

impl TopicDomain {
    fn scheme(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::NonPersistent => "non-persistent",
        }
    }
}

impl fmt::Display for TopicDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme())
    }
}

/// The full name of a topic or of one of its partitions.
///
/// [`parse`](Self::parse) reads the short and the long forms:
///
/// | written | full name |
/// |---|---|
/// | `orders` | `persistent://public/default/orders` |
/// | `shop/eu/orders` | `persistent://shop/eu/orders` |
/// | `persistent://shop/eu/orders` | the same |
/// | `non-persistent://shop/eu/orders` | the same |
/// | `persistent://shop/cluster/eu/orders` | the same; the form with a cluster, from before Pulsar 2.0 |
///
/// A name that ends in `-partition-N` is partition N of the topic before it. Cloning is cheap. Names are equal
/// when their full names are.
///
/// ```
/// use threadmq::pulsar::TopicName;
///
/// let topic = TopicName::parse("shop/eu/orders")?;
/// assert_eq!(topic.as_str(), "persistent://shop/eu/orders");
/// assert_eq!(topic.partition(3).local_name(), "orders-partition-3");
/// assert_eq!(topic.partition(3).partition_index(), Some(3));
/// # Ok::<(), threadmq::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName {
    /// Checked: `domain://` and then three parts, or four if `has_cluster`.
    full: Arc<str>,
    domain: TopicDomain,
    has_cluster: bool,
}

impl TopicName {
    /// Reads a topic name in any of the forms above.
    ///
    /// Tenant, cluster and namespace consist of ASCII letters, digits and `-`, `=`, `:`, `.`, `_`. The last part
    /// is free, except for control characters, and must not be blank; a `/` in it is possible in the form with a
    /// cluster alone.
    ///
    /// # Errors
    /// Kind [`Config`](ErrorKind::Config), with a text that quotes what is wrong.
    pub fn parse(name: &str) -> Result<Self, Error> {
        Self::read(name).map_err(|fault| Error::new(ErrorKind::Config, format!("topic name {fault}")))
    }

    fn read(name: &str) -> Result<Self, String> {
        if name.chars().any(char::is_control) {
            return Err(format!("{} has a control character: remove it", quoted(name)));
        }
        match name.split_once("://") {
            Some((scheme, rest)) => Self::read_long(name, scheme, rest),
            None => Self::read_short(name),
        }
    }

    fn read_long(name: &str, scheme: &str, rest: &str) -> Result<Self, String> {
        let domain = match scheme {
            "persistent" => TopicDomain::Persistent,
            "non-persistent" => TopicDomain::NonPersistent,
            _ => {
                let wrong = quoted(scheme);
                return Err(format!("has the unknown domain {wrong}: write persistent:// or non-persistent://"));
            }
        };
        let mut parts = rest.splitn(4, '/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(tenant), Some(namespace), Some(local), None) => {
                check_parts(name, &[("tenant", tenant), ("namespace", namespace)], local)?;
                Ok(Self { full: name.into(), domain, has_cluster: false })
            }
            (Some(tenant), Some(cluster), Some(namespace), Some(local)) => {
                check_parts(name, &[("tenant", tenant), ("cluster", cluster), ("namespace", namespace)], local)?;
                Ok(Self { full: name.into(), domain, has_cluster: true })
            }
            _ => Err(format!("{} is incomplete: write {scheme}://tenant/namespace/topic", quoted(name))),
        }
    }

    fn read_short(name: &str) -> Result<Self, String> {
        let mut parts = name.splitn(4, '/');
        let full = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(local), None, None, None) => {
                check_parts(name, &[], local)?;
                format!("persistent://public/default/{local}")
            }
            (Some(tenant), Some(namespace), Some(local), None) => {
                check_parts(name, &[("tenant", tenant), ("namespace", namespace)], local)?;
                format!("persistent://{name}")
            }
            _ => {
                return Err(format!(
                    "{} has neither one part nor three: write topic or tenant/namespace/topic",
                    quoted(name)
                ));
            }
        };
        Ok(Self { full: full.into(), domain: TopicDomain::Persistent, has_cluster: false })
    }

    /// The full name, `domain://tenant/namespace/topic`.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// Whether the broker stores the messages.
    pub fn domain(&self) -> TopicDomain {
        self.domain
    }

    /// The tenant, `shop` in `persistent://shop/eu/orders`.
    pub fn tenant(&self) -> &str {
        self.part(0)
    }

    /// The cluster, in names of the form from before Pulsar 2.0.
    pub fn cluster(&self) -> Option<&str> {
        self.has_cluster.then(|| self.part(1))
    }

    /// The namespace with its tenant, `shop/eu` in `persistent://shop/eu/orders`, as admin tools write it.
    pub fn namespace(&self) -> &str {
        let path = self.path();
        let local = self.local_name();
        path.strip_suffix(local).and_then(|rest| rest.strip_suffix('/')).unwrap_or(path)
    }

    /// The last part, `orders` in `persistent://shop/eu/orders`, with the partition suffix if there is one.
    pub fn local_name(&self) -> &str {
        self.part(if self.has_cluster { 3 } else { 2 })
    }

    /// The number N of a name that ends in `-partition-N`.
    ///
    /// As in the Java client, N is written without leading zeros and is at most 2³¹ − 1; anything else belongs to
    /// the name.
    pub fn partition_index(&self) -> Option<u32> {
        self.split_partition().map(|(_, index)| index)
    }

    /// The name of partition `index` of this topic; for a partition, of the topic that it belongs to.
    ///
    /// Does not ask the server whether there is such a partition.
    pub fn partition(&self, index: u32) -> Self {
        let topic = self.split_partition().map_or(self.as_str(), |(topic, _)| topic);
        Self { full: format!("{topic}{PARTITION_MARK}{index}").into(), ..*self }
    }

    /// The topic that this partition belongs to, or the name itself if it is no partition's.
    pub fn partitioned_topic(&self) -> Self {
        match self.split_partition() {
            None => self.clone(),
            Some((topic, _)) => Self { full: topic.into(), ..*self },
        }
    }

    /// The full name before `-partition-N`, and N.
    fn split_partition(&self) -> Option<(&str, u32)> {
        let (_, digits) = self.local_name().rsplit_once(PARTITION_MARK).filter(|(topic, _)| !topic.is_empty())?;
        let well_formed = digits.chars().all(|c| c.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        let index = digits.parse::<u32>().ok().filter(|&index| well_formed && i32::try_from(index).is_ok())?;
        let (topic, _) = self.full.rsplit_once(PARTITION_MARK)?;
        Some((topic, index))
    }

    fn path(&self) -> &str {
        self.full.split_once("://").map_or("", |(_, path)| path)
    }

    fn part(&self, index: usize) -> &str {
        let parts = if self.has_cluster { 4 } else { 3 };
        self.path().splitn(parts, '/').nth(index).unwrap_or_default()
    }
}

fn check_parts(name: &str, parts: &[(&str, &str)], local: &str) -> Result<(), String> {
    for (what, part) in parts {
        if part.is_empty() {
            return Err(format!("{} has an empty {what}", quoted(name)));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '=' | ':' | '.' | '_');
        if let Some(wrong) = part.chars().find(|&c| !fits(c)) {
            return Err(format!("has the character {wrong:?} in the {what} {}", quoted(part)));
        }
    }
    if local.trim().is_empty() {
        return Err(format!("{} has an empty last part", quoted(name)));
    }
    Ok(())
}

impl FromStr for TopicName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::parse(name)
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.full
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicName({})", self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    #[test]
    fn reads_every_form() {
        for (written, full) in [
            ("t", "persistent://public/default/t"),
            ("a/b/t", "persistent://a/b/t"),
            ("persistent://a/b/t", "persistent://a/b/t"),
            ("non-persistent://a/b/t", "non-persistent://a/b/t"),
            ("persistent://a/c/b/t", "persistent://a/c/b/t"),
            ("persistent://a/c/b/t/u", "persistent://a/c/b/t/u"),
            ("persistent://a/b/é ü", "persistent://a/b/é ü"),
        ] {
            let topic = name(written);
            assert_eq!(topic.as_str(), full);
            assert_eq!(topic.to_string(), full);
            assert_eq!(full.parse::<TopicName>().unwrap(), topic);
        }
    }

    #[test]
    fn tells_the_parts() {
        let topic = name("non-persistent://shop/eu.1/orders");
        assert_eq!(topic.domain(), TopicDomain::NonPersistent);
        assert_eq!((topic.tenant(), topic.cluster()), ("shop", None));
        assert_eq!((topic.namespace(), topic.local_name()), ("shop/eu.1", "orders"));
        let old = name("persistent://shop/c1/eu/orders/x");
        assert_eq!((old.tenant(), old.cluster()), ("shop", Some("c1")));
        assert_eq!((old.namespace(), old.local_name()), ("shop/c1/eu", "orders/x"));
        assert_eq!(name("t").namespace(), "public/default");
    }

    #[test]
    fn knows_partitions() {
        for (written, index) in [
            ("t-partition-0", Some(0)),
            ("t-partition-12", Some(12)),
            ("t-partition-2147483647", Some(2_147_483_647)),
            ("t-partition-2147483648", None),
            ("t-partition-99999999999999", None),
            ("t-partition-01", None),
            ("t-partition-00", None),
            ("t-partition--1", None),
            ("t-partition-+1", None),
            ("t-partition-", None),
            ("t-partition-1x", None),
            ("-partition-1", None),
            ("t-partition-1-partition-2", Some(2)),
            ("t", None),
            ("persistent://a-partition-1/b/t", None),
            ("persistent://a/c/b/t-partition-4", Some(4)),
        ] {
            assert_eq!(name(written).partition_index(), index, "{written}");
        }
    }

    #[test]
    fn names_partitions() {
        let topic = name("a/b/t");
        assert_eq!(topic.partition(7).as_str(), "persistent://a/b/t-partition-7");
        assert_eq!(topic.partition(7), name("a/b/t-partition-7"));
        assert_eq!(topic.partition(7).partition(8), topic.partition(8));
        assert_eq!(topic.partition(7).partitioned_topic(), topic);
        assert_eq!(topic.partitioned_topic(), topic);
        let old = name("persistent://a/c/b/t").partition(1);
        assert_eq!((old.cluster(), old.local_name()), (Some("c"), "t-partition-1"));
    }

    #[test]
    fn refuses_bad_names_and_quotes_what_is_wrong() {
        for (written, part) in [
            ("", "\"\" has an empty last part"),
            (" ", "empty last part"),
            ("a/b", "\"a/b\" has neither one part nor three"),
            ("a/b/c/d", "neither one part nor three"),
            ("a/b/", "\"a/b/\" has an empty last part"),
            ("/b/c", "empty tenant"),
            ("a//c", "empty namespace"),
            ("http://a/b/t", "unknown domain \"http\""),
            ("Persistent://a/b/t", "unknown domain \"Persistent\""),
            ("://a/b/t", "unknown domain \"\""),
            ("persistent://", "incomplete"),
            ("persistent://t", "\"persistent://t\" is incomplete: write persistent://tenant/namespace/topic"),
            ("non-persistent://a/t", "write non-persistent://"),
            ("persistent://a/b/", "empty last part"),
            ("persistent://a/c//t", "empty namespace"),
            ("persistent://a//b/t", "empty cluster"),
            ("persistent:///b/t", "empty tenant"),
            ("persistent://a b/b/t", "' ' in the tenant \"a b\""),
            ("a/é/t", "'é' in the namespace \"é\""),
            ("t\n", "control character"),
        ] {
            let error = TopicName::parse(written).expect_err(written);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part), "{written}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_reads_again(text in "(persistent://|non-persistent://)?[-a-z/:0-9é]{0,40}(-partition-[0-9]{1,12})?") {
            if let Ok(topic) = TopicName::parse(&text) {
                prop_assert_eq!(&name(topic.as_str()), &topic);
                prop_assert_eq!(&name(topic.partition(5).as_str()), &topic.partition(5));
                prop_assert_eq!(topic.partition(5).partition_index(), Some(5));
                prop_assert_eq!(format!("{}://{}/{}", topic.domain(), topic.namespace(), topic.local_name()), topic.as_str());
            }
        }
    }
}
