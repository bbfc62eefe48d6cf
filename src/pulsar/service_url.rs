//! Service URLs as users write them, and the broker URLs in lookup answers.

use std::fmt;
use std::net::Ipv6Addr;

use crate::error::{Error, ErrorKind};
use crate::policy::host::{self, Fault};
use crate::policy::text::quoted;

const PLAIN_PORT: u16 = 6650;
const TLS_PORT: u16 = 6651;

/// A host name or address and a port. Names are compared as they were written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostPort {
    /// A DNS name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// From 1 to 65535.
    pub port: u16,
}

impl HostPort {
    /// Reads `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.
    ///
    /// Fails with kind `Config`; the text quotes the wrong part.
    #[cfg(test)]
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, Error> {
        check_characters(text)
            .and_then(|()| parse_host_port(text, default_port))
            .map_err(|fault| Error::new(ErrorKind::Config, format!("address {fault}")))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A checked service URL: `pulsar://host[:port][,host[:port]…][/]`, or the same with `pulsar+ssl://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceUrl {
    hosts: Vec<HostPort>,
    tls: bool,
}

impl ServiceUrl {
    /// Reads a service URL. The port defaults to 6650, with TLS to 6651; IPv6 addresses stand in brackets.
    ///
    /// Fails with kind `Config`; the text quotes the wrong part, except for what may be a password.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        parse_url(text)
            .map(|(hosts, tls)| Self { hosts, tls })
            .map_err(|fault| Error::new(ErrorKind::Config, format!("service URL {fault}")))
    }

    /// The hosts in the order written, at least one; duplicates stay.
    pub(crate) fn hosts(&self) -> &[HostPort] {
        &self.hosts
    }

    /// Whether connections use TLS.
    pub(crate) fn tls(&self) -> bool {
        self.tls
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "pulsar+ssl://" } else { "pulsar://" })?;
        for (index, host) in self.hosts.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            host.fmt(f)?;
        }
        Ok(())
    }
}

/// Reads the URL of one broker as a lookup answer names it; the flag says whether it asks for TLS.
///
/// Fails with kind `Protocol`, because a peer wrote it.
pub(crate) fn parse_broker_url(text: &str) -> Result<(HostPort, bool), Error> {
    let protocol = |fault: Fault| Error::new(ErrorKind::Protocol, format!("broker URL {fault}"));
    let (mut hosts, tls) = parse_url(text).map_err(protocol)?;
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok((host, tls)),
        _ => Err(protocol(format!("{} names several hosts: a lookup answer names one", quoted(text)))),
    }
}

fn parse_url(text: &str) -> Result<(Vec<HostPort>, bool), Fault> {
    check_characters(text)?;
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("{} has no scheme: write pulsar://host:port or pulsar+ssl://host:port", quoted(text)));
    };
    let tls = parse_scheme(scheme)?;
    if let Some(at) = rest.find(['?', '#']) {
        let tail = rest.get(at..).unwrap_or_default();
        return Err(format!("has a query or fragment {}: remove it", quoted(tail)));
    }
    let list = match rest.split_once('/') {
        None => rest,
        Some((list, "")) => list,
        Some((_, path)) => return Err(format!("has a path {}: remove it", quoted(&format!("/{path}")))),
    };
    if list.is_empty() {
        return Err(format!("{} has no host: write {scheme}://host:port", quoted(text)));
    }
    let port = if tls { TLS_PORT } else { PLAIN_PORT };
    let hosts = list.split(',').map(|item| {
        if item.is_empty() {
            Err(format!("has an empty item in the host list {}: remove the extra comma", quoted(list)))
        } else {
            parse_host_port(item, port)
        }
    });
    Ok((hosts.collect::<Result<_, _>>()?, tls))
}

/// What no part of a URL may hold. Comes first, so that a password before an `@` is never quoted.
fn check_characters(text: &str) -> Result<(), Fault> {
    if text.contains('@') {
        return Err("has user information before '@': remove it and give credentials as an authentication".into());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("{} has a space or control character: remove it", quoted(text)));
    }
    Ok(())
}

fn parse_scheme(scheme: &str) -> Result<bool, Fault> {
    if scheme.eq_ignore_ascii_case("pulsar") {
        return Ok(false);
    }
    if scheme.eq_ignore_ascii_case("pulsar+ssl") {
        return Ok(true);
    }
    let advice = if scheme.eq_ignore_ascii_case("http") {
        "lookups go over the binary protocol: write pulsar:// and the broker's port, 6650 by default"
    } else if scheme.eq_ignore_ascii_case("https") {
        "lookups go over the binary protocol: write pulsar+ssl:// and the broker's TLS port, 6651 by default"
    } else {
        "write pulsar:// or pulsar+ssl://"
    };
    Err(format!("has the unknown scheme {}: {advice}", quoted(scheme)))
}

fn parse_host_port(item: &str, default_port: u16) -> Result<HostPort, Fault> {
    let (host, port) = match item.strip_prefix('[') {
        Some(inner) => split_bracketed(item, inner)?,
        None => split_plain(item)?,
    };
    let port = match port {
        None => default_port,
        Some(port) => host::port(item, port)?,
    };
    Ok(HostPort { host: host.to_owned(), port })
}

fn split_bracketed<'a>(item: &str, inner: &'a str) -> Result<(&'a str, Option<&'a str>), Fault> {
    let Some((address, after)) = inner.split_once(']') else {
        return Err(format!("has no closing bracket in {}: write it like [::1]:6650", quoted(item)));
    };
    let (bare, zone) = match address.split_once('%') {
        None => (address, "0"),
        Some((bare, zone)) => (bare, zone),
    };
    let zone_fits = !zone.is_empty() && zone.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if bare.parse::<Ipv6Addr>().is_err() || !zone_fits {
        return Err(format!("has {} in brackets, which is not an IPv6 address", quoted(address)));
    }
    if after.is_empty() {
        return Ok((address, None));
    }
    match after.strip_prefix(':') {
        Some(port) => Ok((address, Some(port))),
        None => Err(format!("has {} after the bracket in {}: only :port may follow", quoted(after), quoted(item))),
    }
}

fn split_plain(item: &str) -> Result<(&str, Option<&str>), Fault> {
    let (host, port) = match item.split_once(':') {
        None => (item, None),
        Some((host, port)) => (host, Some(port)),
    };
    if port.is_some_and(|port| port.contains(':')) {
        return Err(format!(
            "has more than one colon in {}: write an IPv6 address in brackets, like [::1]:6650",
            quoted(item)
        ));
    }
    if host.is_empty() {
        return Err(format!("has an empty host in {}: write host:port", quoted(item)));
    }
    host::check(host, "commas")?;
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(text: &str) -> Vec<(String, u16)> {
        let url = ServiceUrl::parse(text).unwrap();
        url.hosts().iter().map(|h| (h.host.clone(), h.port)).collect()
    }

    #[test]
    fn reads_good_urls() {
        assert_eq!(hosts("pulsar://a"), [("a".into(), 6650)]);
        assert_eq!(hosts("pulsar://a:1/"), [("a".into(), 1)]);
        assert_eq!(hosts("pulsar+ssl://a,b:65535"), [("a".into(), 6651), ("b".into(), 65535)]);
        assert_eq!(hosts("pulsar://[::1]:7,[fe80::1%eth0]"), [("::1".into(), 7), ("fe80::1%eth0".into(), 6650)]);
        assert_eq!(
            hosts("pulsar://10.0.0.1:6650,my_broker-0.ns.svc."),
            [("10.0.0.1".into(), 6650), ("my_broker-0.ns.svc.".into(), 6650)]
        );
        assert_eq!(hosts("PULSAR://a,a"), [("a".into(), 6650), ("a".into(), 6650)]);
        assert!(ServiceUrl::parse("pulsar+ssl://a").unwrap().tls());
        assert!(!ServiceUrl::parse("pulsar://a").unwrap().tls());
    }

    #[test]
    fn displays_what_it_reads() {
        let url = ServiceUrl::parse("pulsar+ssl://[::1],b:1/").unwrap();
        assert_eq!(url.to_string(), "pulsar+ssl://[::1]:6651,b:1");
        assert_eq!(ServiceUrl::parse(&url.to_string()).unwrap(), url);
    }

    #[test]
    fn refuses_bad_urls_and_quotes_the_wrong_part() {
        let cases = [
            ("", "no scheme"),
            ("localhost:6650", "\"localhost:6650\" has no scheme"),
            ("pulsar:/a", "no scheme"),
            ("http://a:8080", "\"http\": lookups go over the binary protocol: write pulsar://"),
            ("https://a", "write pulsar+ssl://"),
            ("kafka://a", "\"kafka\""),
            ("://a", "scheme \"\""),
            ("pulsar://", "no host"),
            ("pulsar:///", "no host"),
            ("pulsar://::1:6650", "\"::1:6650\": write an IPv6 address in brackets"),
            ("pulsar://::1", "in brackets"),
            ("pulsar://[::1", "no closing bracket in \"[::1\""),
            ("pulsar://[]:1", "\"\" in brackets"),
            ("pulsar://[a]:1", "\"a\" in brackets"),
            ("pulsar://[fe80::1%]:1", "\"fe80::1%\""),
            ("pulsar://[::1]6650", "\"6650\" after the bracket"),
            ("pulsar://[::1]:", "port \"\""),
            ("pulsar://:6650", "empty host in \":6650\""),
            ("pulsar://a:", "port \"\" in \"a:\""),
            ("pulsar://a:0", "port \"0\""),
            ("pulsar://a:65536", "port \"65536\""),
            ("pulsar://a:+1", "port \"+1\""),
            ("pulsar://a:b", "port \"b\""),
            ("pulsar://a:1/x", "path \"/x\""),
            ("pulsar://a//", "path \"//\""),
            ("pulsar://a:1/,b:2", "path \"/,b:2\""),
            ("pulsar://a?x=1", "\"?x=1\""),
            ("pulsar://a/#x", "\"#x\""),
            ("pulsar://a b", "space"),
            (" pulsar://a", "space"),
            ("pulsar://a\n", "\"pulsar://a\\n\""),
            ("pulsar://a,,b", "empty item in the host list \"a,,b\""),
            ("pulsar://a,", "empty item"),
            ("pulsar://,", "empty item"),
            ("pulsar://a;b", "';'"),
            ("pulsar://bücher", "xn--"),
            ("pulsar://a..b", "\"a..b\""),
            ("pulsar://.", "\".\""),
            ("pulsar://1.2.3", "\"1.2.3\""),
            ("pulsar://256.1.1.1:1", "\"256.1.1.1\""),
            ("pulsar://6650", "\"6650\""),
            ("pulsar://[[::1]]", "\"[::1\" in brackets"),
            ("pulsar://pulsar://a", "path \"//a\""),
        ];
        for (text, part) in cases {
            let error = ServiceUrl::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(error.to_string().starts_with("service URL "), "{error}");
        }
        let long = format!("pulsar://{}", "a".repeat(254));
        assert!(ServiceUrl::parse(&long).unwrap_err().to_string().contains("253"));
    }

    #[test]
    fn user_information_is_not_repeated() {
        for text in ["pulsar://me:hunter2@a", "pulsar://me:hunter2@a:b:c/x?y z", "hunter2@"] {
            let error = ServiceUrl::parse(text).unwrap_err();
            assert!(error.to_string().contains('@') && !format!("{error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn reads_addresses() {
        let parsed = HostPort::parse("[::1]", 9).unwrap();
        assert_eq!(parsed, HostPort { host: "::1".into(), port: 9 });
        assert_eq!(parsed.to_string(), "[::1]:9");
        assert_eq!(HostPort::parse("h:2", 9).unwrap().to_string(), "h:2");
        assert_eq!(HostPort::parse("", 9).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(HostPort::parse("a,b", 9).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(HostPort::parse("a/", 9).unwrap_err().kind(), ErrorKind::Config);
    }

    #[test]
    fn reads_broker_urls() {
        let (host, tls) = parse_broker_url("pulsar+ssl://[::1]:7").unwrap();
        assert_eq!((host.to_string().as_str(), tls), ("[::1]:7", true));
        assert_eq!(parse_broker_url("pulsar://b").unwrap(), (HostPort { host: "b".into(), port: 6650 }, false));
        for text in ["", "pulsar://a,b", "http://a", "pulsar://a:99999"] {
            assert_eq!(parse_broker_url(text).unwrap_err().kind(), ErrorKind::Protocol, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*", tail in "[-a-z0-9:.,/@%\\[\\]?#é \\n]{0,40}") {
            let _ = ServiceUrl::parse(&text);
            let _ = parse_broker_url(&text);
            let _ = parse_broker_url(&format!("pulsar://{tail}"));
            if let Ok(url) = ServiceUrl::parse(&format!("pulsar://{tail}")) {
                prop_assert_eq!(ServiceUrl::parse(&url.to_string()).unwrap(), url);
            }
        }
    }
}
