//! The metadata that go with every call, and the signature among them. Servers read these as HTTP/2 headers, so
//! that every value has to be printable ASCII.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use super::hex;
use crate::error::{Error, ErrorKind};
use crate::policy::limits::Violations;

/// What a client says of itself in every call.
#[derive(Debug, Clone)]
pub(crate) struct Headers {
    client_id: String,
    client_version: String,
    namespace: String,
}

impl Headers {
    /// The level of the other clients that this one corresponds to. Servers read it as one of theirs: below 5.0.3
    /// they hide why they refuse a polling time. The crate's own version is in the settings' user agent.
    pub(crate) const CLIENT_VERSION: &str = "5.2.0";

    /// `namespace` may be empty. Fails with kind `Config`, naming every field that does not fit.
    pub(crate) fn new(client_id: &str, client_version: &str, namespace: &str) -> Result<Self, Error> {
        let mut violations = Violations::new();
        check(&mut violations, "client id", client_id);
        check(&mut violations, "client version", client_version);
        if !namespace.is_empty() {
            check(&mut violations, "namespace", namespace);
        }
        violations.finish("request headers")?;
        let [client_id, client_version, namespace] = [client_id, client_version, namespace].map(str::to_owned);
        Ok(Self { client_id, client_version, namespace })
    }

    /// The most that a call has.
    pub(crate) const MOST: usize = 9;

    /// Tells `add` each header of one call. `request_id` is new for each; `signature` is made for this second.
    pub(crate) fn each(
        &self,
        request_id: &str,
        signature: Option<&Signature>,
        mut add: impl FnMut(&'static str, &str),
    ) {
        add("x-mq-language", "RUST");
        add("x-mq-protocol", "v2");
        add("x-mq-client-id", &self.client_id);
        add("x-mq-client-version", &self.client_version);
        add("x-mq-request-id", request_id);
        if !self.namespace.is_empty() {
            add("x-mq-namespace", &self.namespace);
        }
        let Some(signature) = signature else { return };
        add("x-mq-date-time", &signature.date);
        if let Some(token) = &signature.session_token {
            add("x-mq-session-token", token);
        }
        add("authorization", &signature.authorization);
    }
}

/// Signs calls with one set of credentials: HMAC-SHA1 over the date, which makes one signature a second.
#[derive(Clone)]
pub(crate) struct Signer {
    access_key: String,
    secret: Hmac<Sha1>,
    session_token: Option<String>,
    latest: Option<Signature>,
}

/// The headers that show who calls.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    second: u64,
    date: String,
    session_token: Option<String>,
    authorization: String,
}

impl Signer {
    /// Fails with kind `Config`, naming every field that does not fit; their values are never quoted.
    pub(crate) fn new(access_key: &str, secret_key: &str, session_token: Option<&str>) -> Result<Self, Error> {
        let mut violations = Violations::new();
        check(&mut violations, "access key", access_key);
        // The server splits the header at these, and drops what follows a slash.
        if access_key.contains([' ', ',', '=', '/']) {
            violations.add("access key: holds a space, comma, equals sign or slash, which servers cut it at".into());
        }
        if secret_key.is_empty() {
            violations.add("secret key: is empty".into());
        }
        if let Some(token) = session_token {
            check(&mut violations, "session token", token);
        }
        violations.finish("credentials")?;
        let secret = Hmac::new_from_slice(secret_key.as_bytes())
            .map_err(|error| Error::new(ErrorKind::Internal, "the secret key makes no HMAC").with_source(error))?;
        let session_token = session_token.map(str::to_owned);
        Ok(Self { access_key: access_key.to_owned(), secret, session_token, latest: None })
    }

    /// The signature for a call at `unix_seconds`; the one made last if that was in the same second.
    pub(crate) fn sign(&mut self, unix_seconds: u64) -> &Signature {
        let latest = self.latest.take().filter(|latest| latest.second == unix_seconds);
        let current = latest.unwrap_or_else(|| self.signature(unix_seconds));
        self.latest.insert(current)
    }

    fn signature(&self, second: u64) -> Signature {
        let date = date(second);
        let digest = self.secret.clone().chain_update(date.as_bytes()).finalize().into_bytes();
        let authorization = format!(
            "MQv2-HMAC-SHA1 Credential={}, SignedHeaders=x-mq-date-time, Signature={}",
            self.access_key,
            hex::upper(digest)
        );
        Signature { second, date, session_token: self.session_token.clone(), authorization }
    }
}

/// Secrets stay out of logs, and so does what could stand for them.
impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signature").field("date", &self.date).finish_non_exhaustive()
    }
}

/// Adds what is wrong with a header's value, without repeating the value: it may be a secret.
fn check(violations: &mut Violations, field: &str, value: &str) {
    if value.trim().is_empty() {
        violations.add(format!("{field}: is empty"));
    } else if let Some(at) = value.chars().position(|c| !(c == ' ' || c.is_ascii_graphic())) {
        let place = at.saturating_add(1);
        violations.add(format!("{field}: character {place} is not printable ASCII, which headers have to be"));
    } else if value.trim().len() < value.len() {
        // Intermediaries cut them off, and the signature would be about another value.
        violations.add(format!("{field}: begins or ends with a space"));
    }
}

/// `yyyyMMdd'T'HHmmss'Z'` in UTC.
fn date(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The Gregorian date that lies so many days after 1970-01-01, after Howard Hinnant's `civil_from_days`: years
/// that begin in March put the leap day last, and 400 of them make an era of fixed length.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / ERA, days % ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(headers: &Headers, signature: Option<&Signature>) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        headers.each("r-1", signature, |name, value| found.push((name, value.to_owned())));
        found
    }

    #[test]
    fn a_call_says_who_makes_it() {
        let headers = Headers::new("host@1@0@x", "5.2.0", "").unwrap();
        let expected = [
            ("x-mq-language", "RUST"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-id", "host@1@0@x"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-request-id", "r-1"),
        ];
        assert_eq!(all(&headers, None), expected.map(|(name, value)| (name, value.to_owned())));
        let headers = Headers::new("host@1@0@x", "5.2.0", "orders").unwrap();
        assert_eq!(all(&headers, None)[5], ("x-mq-namespace", "orders".to_owned()));
    }

    #[test]
    fn a_signed_call_shows_date_token_and_signature() {
        let headers = Headers::new("c", "5.2.0", "").unwrap();
        let mut signer = Signer::new("AK", "secret", Some("token")).unwrap();
        let found = all(&headers, Some(signer.sign(1_735_689_600)));
        assert_eq!(
            found[5..7],
            [("x-mq-date-time", "20250101T000000Z".into()), ("x-mq-session-token", "token".into())]
        );
        // From another implementation: printf 20250101T000000Z | openssl dgst -sha1 -hmac secret
        let expected = "MQv2-HMAC-SHA1 Credential=AK, SignedHeaders=x-mq-date-time, \
                        Signature=5DD7C3638FC6955495D4B7D3C4D96A20F092C013";
        assert_eq!(found[7..], [("authorization", expected.to_owned())]);

        let mut signer = Signer::new("AK", "secret", None).unwrap();
        let found = all(&headers, Some(signer.sign(1_735_689_600)));
        assert!(found.iter().all(|(name, _)| *name != "x-mq-session-token"));
    }

    #[test]
    fn one_signature_serves_a_second() {
        let mut signer = Signer::new("AK", "secret", None).unwrap();
        let first = signer.sign(100).clone();
        assert_eq!(*signer.sign(100), first);
        let second = signer.sign(101).clone();
        assert!(second.date == "19700101T000141Z" && second.authorization != first.authorization);
        assert_eq!(*signer.sign(100), first, "a clock that steps back is followed");
    }

    #[test]
    fn dates_of_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_609_459_200, "20210101T000000Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (253_402_300_799, "99991231T235959Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        assert!(date(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for days in 1..200_000 {
            let (year, month, day) = civil(days);
            let follows = match before {
                (y, 12, 31) => (year, month, day) == (y + 1, 1, 1),
                (y, m, d) => (year, month, day) == (y, m, d + 1) || (d >= 28 && (year, month, day) == (y, m + 1, 1)),
            };
            assert!(follows, "{before:?} {:?}", (year, month, day));
            before = (year, month, day);
        }
    }

    #[test]
    fn values_that_headers_cannot_hold_are_named_and_not_repeated() {
        let error = Headers::new("büro@1", "", "a\nb").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(
            error.to_string(),
            "request headers: client id: character 2 is not printable ASCII, which headers have to be; \
             client version: is empty; namespace: character 2 is not printable ASCII, which headers have to be"
        );
        let error = Signer::new("a,b", "", Some("hunter2 ")).unwrap_err();
        let text = error.to_string();
        for part in ["access key: holds", "secret key: is empty", "session token: begins or ends with a space"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!format!("{error:?}").contains("hunter2"));
        for access_key in ["", " ", "a b", "a=b", "a/b", "ä"] {
            assert!(Signer::new(access_key, "s", None).unwrap_err().to_string().contains("access key"), "{access_key}");
        }
        assert!(Signer::new("a", "ключ", Some("t==")).is_ok(), "a secret key is bytes");
    }

    #[test]
    fn secrets_stay_out_of_debug_texts() {
        let mut signer = Signer::new("AK-7", "hunter2", Some("token-7")).unwrap();
        let signature = signer.sign(0).clone();
        let text = format!("{signer:?} {signature:?}");
        for secret in ["AK-7", "hunter2", "token-7", "Signature="] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
