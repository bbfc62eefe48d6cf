//! Addresses of proxies: as users write them, as the protocol carries them, and as gRPC dials them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::pb;
use crate::error::{Error, ErrorKind};
use crate::policy::host::{self, Fault};
use crate::policy::text::quoted;

/// Usual ports of what speaks another protocol.
const OTHERS: [(u16, &str); 5] = [
    (9876, "a name server"),
    (8080, "a proxy's remoting port"),
    (10909, "a broker"),
    (10911, "a broker"),
    (10912, "a broker"),
];

/// Addresses under which one proxy, or proxies that are as good as each other, can be reached.
///
/// Two of the same addresses are equal however they were written and in whatever order they came. There is at
/// least one address, and all are of one scheme. Cloning is cheap: every received message has a copy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Endpoints {
    scheme: Scheme,
    /// In order, each once.
    addresses: Arc<[Address]>,
}

/// What the hosts of some endpoints are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scheme {
    Ipv4,
    Ipv6,
    DomainName,
}

/// One host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    /// An address in its canonical form, IPv6 without brackets, or a name in lower case.
    pub host: String,
    /// From 1 to 65535.
    pub port: u16,
}

/// What a user gives a client to start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessPoint {
    pub endpoints: Endpoints,
    /// Whether the text asks for TLS with `https://`, or for none with `http://`.
    pub tls: Option<bool>,
}

impl AccessPoint {
    /// Reads `host:port`, or several IP addresses as `host:port;host:port`, after `http://`, `https://` or nothing.
    /// IPv6 addresses stand in brackets. There is no default port.
    ///
    /// Fails with kind `Config`; the text quotes the wrong part, except for what may be a password.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|fault| Error::new(ErrorKind::Config, format!("endpoints {fault}")))
    }
}

impl Endpoints {
    /// Reads what a server sent. What the hosts look like counts, whatever scheme it says.
    ///
    /// Fails with kind `Protocol`; the text quotes the wrong part.
    pub(crate) fn from_proto(sent: &pb::Endpoints) -> Result<Self, Error> {
        let read = |address: &pb::Address| {
            let port = u16::try_from(address.port).ok().filter(|&port| port > 0);
            let port = port.ok_or_else(|| format!("have the port {}", address.port))?;
            let host = &address.host;
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let (scheme, host) = match bare.parse::<Ipv6Addr>() {
                Ok(address) => (Scheme::Ipv6, address.to_string()),
                Err(_) => named(host)?,
            };
            Ok((scheme, Address { host, port }))
        };
        let found: Result<Vec<_>, Fault> = sent.addresses.iter().map(read).collect();
        found
            .and_then(Self::of)
            .map_err(|fault| Error::new(ErrorKind::Protocol, format!("the server's endpoints: {fault}")))
    }

    pub(crate) fn to_proto(&self) -> pb::Endpoints {
        let scheme = match self.scheme {
            Scheme::Ipv4 => pb::AddressScheme::IPv4,
            Scheme::Ipv6 => pb::AddressScheme::IPv6,
            Scheme::DomainName => pb::AddressScheme::DOMAIN_NAME,
        };
        let address = |address: &Address| pb::Address {
            host: address.host.clone(),
            port: address.port.into(),
            ..Default::default()
        };
        pb::Endpoints {
            scheme: scheme.into(),
            addresses: self.addresses.iter().map(address).collect(),
            ..Default::default()
        }
    }

    /// What gRPC dials, beginning with the address at the place `first`, counted round and round: clients that
    /// begin at different places share the load. Of several names only that one can be given.
    pub(crate) fn target(&self, first: usize) -> String {
        let at = first.checked_rem(self.addresses.len()).unwrap_or(0);
        let (before, from) = self.addresses.split_at_checked(at).unwrap_or((&[], &self.addresses));
        let mut addresses = from.iter().chain(before).map(ToString::to_string);
        match self.scheme {
            Scheme::Ipv4 => format!("ipv4:{}", addresses.collect::<Vec<_>>().join(",")),
            Scheme::Ipv6 => format!("ipv6:{}", addresses.collect::<Vec<_>>().join(",")),
            Scheme::DomainName => format!("dns:{}", addresses.next().unwrap_or_default()),
        }
    }

    /// The one at the place `first` alone.
    pub(crate) fn alone(&self, first: usize) -> Self {
        let at = first.checked_rem(self.addresses.len()).unwrap_or(0);
        Self { scheme: self.scheme, addresses: self.addresses.get(at).cloned().into_iter().collect() }
    }

    #[cfg(test)]
    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// At least one, in order.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What may be wrong with the addresses, to be told when nothing answers there as it should.
    pub(crate) fn hint(&self) -> String {
        let suspect = self.addresses.iter().find_map(|address| {
            let (_, what) = OTHERS.iter().find(|(port, _)| *port == address.port)?;
            Some(format!("{address} looks like {what}: give the proxy's gRPC port, 8081 by default"))
        });
        suspect.unwrap_or_else(|| {
            "is this the proxy's gRPC port (8081 by default), not that of a name server (9876), a broker (10911) or \
             remoting (8080)?"
                .to_owned()
        })
    }

    fn of(found: Vec<(Scheme, Address)>) -> Result<Self, Fault> {
        let Some((scheme, first)) = found.first() else { return Err("there is no address".into()) };
        let scheme = *scheme;
        if let Some((_, other)) = found.iter().find(|(other, _)| *other != scheme) {
            return Err(format!(
                "{} and {} are not of one kind",
                quoted(&first.to_string()),
                quoted(&other.to_string())
            ));
        }
        let mut addresses: Vec<Address> = found.into_iter().map(|(_, address)| address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(Self { scheme, addresses: addresses.into() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            let separator = if index > 0 { ";" } else { "" };
            write!(f, "{separator}{address}")?;
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<AccessPoint, Fault> {
    // Comes first, so that a password before an `@` is never quoted.
    if text.contains('@') {
        return Err("have user information before '@': remove it and give credentials".into());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("{} have a space or control character: remove it", quoted(text)));
    }
    let (tls, list) = match text.split_once("://") {
        None => (None, text),
        Some((scheme, rest)) => {
            let tls = parse_prefix(scheme)?;
            (Some(tls), rest.strip_suffix('/').unwrap_or(rest))
        }
    };
    if list.contains("://") {
        return Err(format!("have a second prefix in {}: write it once, before all addresses", quoted(list)));
    }
    if let Some(at) = list.find(['/', '?', '#']) {
        let tail = list.get(at..).unwrap_or_default();
        return Err(format!("have a path or query {}: remove it", quoted(tail)));
    }
    if list.is_empty() {
        return Err(format!("{} have no address: write host:port", quoted(text)));
    }
    let items = list.split(';').map(|item| match item {
        "" => Err(format!("have an empty item in {}: remove the extra semicolon", quoted(list))),
        item => parse_address(item),
    });
    let endpoints = Endpoints::of(items.collect::<Result<_, _>>()?)?;
    if endpoints.scheme == Scheme::DomainName && endpoints.addresses.len() > 1 {
        return Err(format!("{} are several names: give one, or IP addresses", quoted(list)));
    }
    Ok(AccessPoint { endpoints, tls })
}

fn parse_prefix(scheme: &str) -> Result<bool, Fault> {
    if scheme.eq_ignore_ascii_case("http") {
        Ok(false)
    } else if scheme.eq_ignore_ascii_case("https") {
        Ok(true)
    } else {
        Err(format!("have the unknown prefix {}: write http://, https:// or none", quoted(scheme)))
    }
}

fn parse_address(item: &str) -> Result<(Scheme, Address), Fault> {
    let (scheme, host, port) = match item.strip_prefix('[') {
        Some(inner) => {
            let (bare, after) = inner
                .split_once(']')
                .ok_or_else(|| format!("have no closing bracket in {}: write it like [::1]:8081", quoted(item)))?;
            let address: Ipv6Addr =
                bare.parse().map_err(|_| format!("have {} in brackets, which is not an IPv6 address", quoted(bare)))?;
            if !after.is_empty() && !after.starts_with(':') {
                return Err(format!(
                    "have {} after the bracket in {}: only :port may follow",
                    quoted(after),
                    quoted(item)
                ));
            }
            (Scheme::Ipv6, address.to_string(), after.strip_prefix(':'))
        }
        None => {
            let (host, port) = match item.split_once(':') {
                None => (item, None),
                Some((host, port)) => (host, Some(port)),
            };
            if port.is_some_and(|port| port.contains(':')) {
                let advice = "write an IPv6 address in brackets, like [::1]:8081";
                return Err(format!("have more than one colon in {}: {advice}", quoted(item)));
            }
            if host.is_empty() {
                return Err(format!("have an empty host in {}: write host:port", quoted(item)));
            }
            let (scheme, host) = named(host)?;
            (scheme, host, port)
        }
    };
    let Some(port) = port else {
        return Err(format!("have no port in {}: write the proxy's gRPC port, 8081 by default", quoted(item)));
    };
    Ok((scheme, Address { host, port: host::port(item, port)? }))
}

/// An IPv4 address or a name, in the form in which it is compared.
fn named(host: &str) -> Result<(Scheme, String), Fault> {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok((Scheme::Ipv4, address.to_string()));
    }
    host::check(host, "semicolons")?;
    Ok((Scheme::DomainName, host.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests;
