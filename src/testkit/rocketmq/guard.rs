//! Who may call: the check of signatures, with the answers of the real proxy.

use grpcio::RpcContext;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha1::Sha1;

/// `UNAUTHORIZED`.
pub(super) const UNAUTHORIZED: i32 = 40_100;

/// The access key and secret key that calls have to be signed with, if any.
#[derive(Default)]
pub(super) struct Guard(Mutex<Option<(String, String)>>);

impl Guard {
    pub(super) fn require(&self, access_key: String, secret_key: String) {
        *self.0.lock() = Some((access_key, secret_key));
    }

    /// Why the caller is turned away.
    pub(super) fn refusal(&self, context: &RpcContext<'_>) -> Option<String> {
        let required = self.0.lock();
        let (access_key, secret_key) = required.as_ref()?;
        let header = |wanted: &str| {
            let found = context.request_headers().iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
        };
        refusal(access_key, secret_key, &header("authorization"), &header("x-mq-date-time"))
    }
}

fn refusal(access_key: &str, secret_key: &str, authorization: &str, date: &str) -> Option<String> {
    let part = |name: &str| {
        let mut parts = authorization.split([' ', ',']).filter_map(|part| part.split_once('='));
        parts.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
    };
    let Some(caller) = part("Credential") else { return Some("username cannot be null.".to_owned()) };
    if caller != access_key {
        return Some(format!("User:{caller} is not found."));
    }
    let digest = Hmac::<Sha1>::new_from_slice(secret_key.as_bytes())
        .map(|key| key.chain_update(date.as_bytes()).finalize().into_bytes())
        .unwrap_or_default();
    let expected: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let signed = part("Signature").is_some_and(|signature| signature.eq_ignore_ascii_case(&expected));
    (!signed).then(|| "check signature failed.".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_checked_as_the_real_proxy_does() {
        let with = |authorization: &str| refusal("AK", "secret", authorization, "20250101T000000Z");
        // printf 20250101T000000Z | openssl dgst -sha1 -hmac secret
        let signature = "5dd7c3638fc6955495d4b7d3c4d96a20f092c013";
        let good = |key: &str| format!("MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature=");
        assert_eq!(with(&(good("AK") + signature)), None);
        assert_eq!(with(&(good("AK") + &signature.to_uppercase())), None);
        assert_eq!(with(&(good("AK") + "00")).as_deref(), Some("check signature failed."));
        assert_eq!(with(&(good("BK") + signature)).as_deref(), Some("User:BK is not found."));
        assert_eq!(with("").as_deref(), Some("username cannot be null."));
    }
}
