//! What is read of a server's certificate whose check is switched off: the names it holds, because gRPC compares one
//! with what it was told to expect. Nothing here decides whether a certificate is good.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The hosts that a certificate names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    dns: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Counts only where there are no alternative names.
    common: Option<String>,
}

impl Names {
    /// Reads the names; `None` if `der` is no certificate.
    pub(crate) fn of(der: &[u8]) -> Option<Self> {
        let (certificate, _) = Item::read(der)?.of(SEQUENCE)?;
        let (whole, _) = Item::read(certificate)?.of(SEQUENCE)?;
        let mut items = Items(whole);
        // version (if it is not the first), serial number, algorithm, issuer, validity, subject, key
        let mut item = items.next()?;
        if item.tag == VERSION {
            item = items.next()?;
        }
        (item.tag == INTEGER).then_some(())?;
        let subject = items.nth(3)?.of(SEQUENCE)?.0;
        items.next()?;
        let extensions = items.find(|item| item.tag == EXTENSIONS).map(|item| item.body);
        let mut names = extensions.and_then(alternative_names).unwrap_or_default();
        if names.dns.is_empty() && names.addresses.is_empty() {
            names.common = common_name(subject);
        }
        Some(names)
    }

    /// Whether `host` is among them.
    pub(crate) fn hold(&self, host: &str) -> bool {
        match host.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address),
            Err(_) => self.dns.iter().chain(&self.common).any(|name| covers(name, host)),
        }
    }

    /// A name that gRPC finds in this certificate: `host` itself if that is one, so that nothing has to be pretended.
    pub(crate) fn expected(&self, host: &str) -> Option<String> {
        if self.hold(host) {
            return Some(host.to_owned());
        }
        let first = self.dns.iter().chain(&self.common).next().map(|name| match name.strip_prefix("*.") {
            Some(domain) => format!("any.{domain}"),
            None => name.clone(),
        });
        first.or_else(|| self.addresses.first().map(ToString::to_string))
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.dns.iter().chain(&self.common).cloned();
        let all: Vec<String> = names.chain(self.addresses.iter().map(ToString::to_string)).collect();
        if all.is_empty() { f.write_str("no host") } else { f.write_str(&all.join(", ")) }
    }
}

/// One star stands for one label.
fn covers(name: &str, host: &str) -> bool {
    let (name, host) = (name.trim_end_matches('.'), host.trim_end_matches('.'));
    match (name.strip_prefix("*."), host.split_once('.')) {
        (Some(domain), Some((_, rest))) => domain.contains('.') && domain.eq_ignore_ascii_case(rest),
        _ => name.eq_ignore_ascii_case(host),
    }
}

/// `BEGIN CERTIFICATE`, as gRPC wants it.
pub(crate) fn pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for place in 0..4 {
                let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or(0);
                let digit = ALPHABET.get(index).copied().map_or('=', char::from);
                text.push(if place > three.len() { '=' } else { digit });
            }
        }
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// `id-ce-subjectAltName`, and what it holds of use here.
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const DNS_NAME: u8 = 0x82;
const ADDRESS: u8 = 0x87;
/// `id-at-commonName`.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// One value of DER: its tag and its contents.
struct Item<'a> {
    tag: u8,
    body: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Item<'a> {
    fn read(from: &'a [u8]) -> Option<Self> {
        let (&[tag, short], rest) = from.split_first_chunk::<2>()?;
        let (length, rest) = match short {
            0..=0x7f => (usize::from(short), rest),
            0x81..=0x84 => {
                let (long, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
                (long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (body, rest) = rest.split_at_checked(length)?;
        Some(Self { tag, body, rest })
    }

    /// The contents and what follows, if it is of this kind.
    fn of(&self, tag: u8) -> Option<(&'a [u8], &'a [u8])> {
        (self.tag == tag).then_some((self.body, self.rest))
    }
}

/// The values that stand one behind the other.
struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let item = Item::read(self.0)?;
        self.0 = item.rest;
        Some(item)
    }
}

fn alternative_names(extensions: &[u8]) -> Option<Names> {
    let (list, _) = Item::read(extensions)?.of(SEQUENCE)?;
    let mut value = None;
    for extension in Items(list) {
        let mut parts = Items(extension.body);
        if parts.next().is_some_and(|id| id.tag == OBJECT && id.body == ALTERNATIVE_NAME) {
            // Perhaps whether it is critical, then the value.
            value = parts.find(|part| part.tag == OCTETS).map(|part| part.body);
        }
    }
    let (list, _) = Item::read(value?)?.of(SEQUENCE)?;
    let mut names = Names::default();
    for name in Items(list) {
        match name.tag {
            DNS_NAME => names.dns.extend(readable(name.body)),
            ADDRESS => {
                let v4 = <[u8; 4]>::try_from(name.body).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
                let v6 = <[u8; 16]>::try_from(name.body).map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
                names.addresses.extend(v4.or(v6));
            }
            _ => {}
        }
    }
    Some(names)
}

fn common_name(subject: &[u8]) -> Option<String> {
    let mut found = None;
    for set in Items(subject).filter(|set| set.tag == SET) {
        for attribute in Items(set.body) {
            let mut parts = Items(attribute.body);
            if parts.next().is_some_and(|id| id.tag == OBJECT && id.body == COMMON_NAME) {
                found = parts.next().and_then(|value| readable(value.body)).or(found);
            }
        }
    }
    found
}

/// A text that can be told to gRPC: printable, and without what would end it early.
fn readable(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let printable = !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_graphic());
    printable.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common: Option<&str>, dns: &[&str], addresses: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "somebody");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.subject_alt_names = dns
            .iter()
            .map(|name| SanType::DnsName(Ia5String::try_from(*name).unwrap()))
            .chain(addresses.iter().map(|address| SanType::IpAddress(address.parse().unwrap())))
            .collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_read() {
        let names = Names::of(&certificate(Some("c"), &["a.example", "*.b.example"], &["10.0.0.1", "::1"])).unwrap();
        assert_eq!(names.dns, ["a.example", "*.b.example"]);
        assert_eq!(names.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(names.common, None, "it does not count beside others");
        assert_eq!(names.to_string(), "a.example, *.b.example, 10.0.0.1, ::1");
        assert!(names.hold("x.b.example") && names.hold("10.0.0.1") && !names.hold("10.0.0.2") && !names.hold("c"));
        let names = Names::of(&certificate(Some("c.example"), &[], &[])).unwrap();
        assert_eq!(names, Names { common: Some("c.example".to_owned()), ..Names::default() });
        assert_eq!(Names::of(&certificate(None, &[], &[])), Some(Names::default()));
        assert_eq!(Names::default().to_string(), "no host");
    }

    #[test]
    fn the_host_itself_is_expected_if_the_certificate_names_it() {
        let expected = |dns: &[&str], addresses: &[&str], host: &str| {
            Names::of(&certificate(Some("common"), dns, addresses)).unwrap().expected(host).unwrap()
        };
        assert_eq!(expected(&["x", "Proxy.Example"], &[], "proxy.example"), "proxy.example");
        assert_eq!(expected(&["*.b.example"], &[], "a.b.example"), "a.b.example");
        assert_eq!(expected(&["*.b.example"], &[], "b.example"), "any.b.example");
        assert_eq!(expected(&["localhost"], &["127.0.0.1"], "127.0.0.1"), "127.0.0.1");
        assert_eq!(expected(&["localhost"], &["127.0.0.1"], "10.0.0.1"), "localhost");
        assert_eq!(expected(&[], &["::1"], "10.0.0.1"), "::1");
        assert_eq!(expected(&[], &[], "10.0.0.1"), "common");
        assert_eq!(Names::default().expected("a"), None);
    }

    #[test]
    fn pem_is_read_back() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        for length in [0, 1, 2, 3, 47, 48, 49, 1000] {
            let der: Vec<u8> = (0..length).map(|at: usize| (at * 7 % 256) as u8).collect();
            let read = CertificateDer::from_pem_slice(pem(&der).as_bytes()).unwrap();
            assert_eq!(read.as_ref(), der);
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Names::of(&bytes);
        }

        #[test]
        fn a_damaged_certificate_is_read_or_not(at in 0..400usize, to: u8, cut in 0..400usize) {
            let mut der = certificate(Some("c"), &["a.example"], &["10.0.0.1"]);
            if let Some(byte) = der.get_mut(at) {
                *byte = to;
            }
            let _ = Names::of(&der);
            let _ = Names::of(der.get(..cut).unwrap_or(&der));
        }
    }
}
