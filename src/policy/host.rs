//! Hosts and ports as users and servers write them.

use std::net::Ipv4Addr;

use super::text::quoted;

const LONGEST: usize = 253;

/// What is wrong with a text, as a clause that quotes the wrong part and says what to write instead.
pub(crate) type Fault = String;

/// Whether `host` can be a DNS name or an IPv4 address. `separators` is what stands between several hosts.
pub(crate) fn check(host: &str, separators: &str) -> Result<(), Fault> {
    if host.len() > LONGEST {
        return Err(format!("has the host {}, which is longer than {LONGEST} characters", quoted(host)));
    }
    if let Some(wrong) = host.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))) {
        let advice = if wrong.is_ascii() {
            format!("separate hosts with {separators}")
        } else {
            "write the name's xn-- form".into()
        };
        return Err(format!("has the character {wrong:?} in the host {}: {advice}", quoted(host)));
    }
    let labels = host.strip_suffix('.').unwrap_or(host);
    if labels.split('.').any(str::is_empty) {
        return Err(format!("has an empty part between dots in the host {}", quoted(host)));
    }
    // A name never ends in a number, so that this can only be an address, and resolvers read short forms oddly.
    let last = labels.rsplit('.').next().unwrap_or_default();
    if last.chars().all(|c| c.is_ascii_digit()) && host.parse::<Ipv4Addr>().is_err() {
        return Err(format!("has the host {}, which is not an IPv4 address", quoted(host)));
    }
    Ok(())
}

/// The port in `text`, which is a part of `item`.
pub(crate) fn port(item: &str, text: &str) -> Result<u16, Fault> {
    let number = if text.chars().all(|c| c.is_ascii_digit()) { text.parse::<u16>().ok() } else { None };
    match number {
        Some(port) if port > 0 => Ok(port),
        _ => Err(format!("has the port {} in {}: write a number from 1 to 65535", quoted(text), quoted(item))),
    }
}
