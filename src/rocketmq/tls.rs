//! TLS as the user states it, checked, and lowered to what gRPC and probes take.

use std::fmt;
use std::sync::Arc;

use grpcio::{ChannelCredentials, ChannelCredentialsBuilder};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use super::probe::{Probe, provider};
use super::wire::certificate;
use crate::policy::limits::Violations;

/// How a client speaks TLS to the proxies. Without any option the server's certificate has to be issued, for the host
/// of the endpoints, by an authority that the system trusts.
///
/// ```
/// use threadmq::rocketmq::{Client, TlsOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pem = "";
/// # let check = |tls| Client::builder("https://10.0.0.1:8081").tls(tls);
/// // A server whose certificate is self-signed, or issued by your own authority, and names another host.
/// let tls = TlsOptions::new().root_certificates(pem).server_name("proxy.example");
/// # drop(check(tls));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "give it to `ClientBuilder::tls`"]
pub struct TlsOptions {
    roots: Option<Vec<u8>>,
    identity: Option<Identity>,
    server_name: Option<String>,
    unverified: bool,
}

impl TlsOptions {
    /// Verifies against the system's root certificates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificates, in PEM, and no longer those of the system. Each may be an authority's or, for a
    /// self-signed server, the server's own. By default the system's are read when the client is built: the bundle
    /// of the distribution, or what `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Shows this certificate to servers that ask for one: the certificate with the chain behind it, and its private
    /// key, both in PEM (PKCS #8, PKCS #1 or SEC1; not encrypted). None by default.
    pub fn client_certificate(mut self, chain_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((chain_pem.into(), key_pem.into()));
        self
    }

    /// The name that server certificates have to hold (`grpc.ssl_target_name_override`), for all endpoints. By default
    /// the host of each endpoint.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Takes whatever certificate a server shows: false by default. Connections are encrypted then, but **anybody who
    /// stands in between can read and change everything**, access keys and messages included. Meant for the
    /// self-signed certificate of a server that was just installed; better is
    /// [`root_certificates`](Self::root_certificates) with that certificate.
    ///
    /// Costs one more handshake for each new connection: the certificate is fetched first and then given to gRPC as the
    /// only trusted one. So a certificate that has expired, or that names neither a host nor an address, is refused
    /// all the same.
    pub fn danger_accept_invalid_certificates(mut self, accept: bool) -> Self {
        self.unverified = accept;
        self
    }

    /// Checks everything; what is wrong is added to the violations.
    pub(super) fn lower(&self, violations: &mut Violations) -> Option<Tls> {
        let roots = violations.take(self.lower_roots());
        let identity = match &self.identity {
            Some((chain, key)) => lower_identity(chain, key, violations).map(Some),
            None => Some(None),
        };
        if let Some(name) = &self.server_name {
            if self.unverified {
                violations.add(
                    "tls: server_name is not compared with danger_accept_invalid_certificates: leave one out".into(),
                );
            } else if let Err(fault) = check_name(name) {
                violations.add(format!("tls: server_name {fault}"));
            }
        }
        let (roots, identity) = (roots?, identity?);
        let probe = violations.take(probe(roots.as_ref()))?;
        let server_name = self.server_name.clone();
        let verify = match roots {
            Some(roots) => Verify::Roots { pem: roots.pem, server_name },
            None => Verify::Nothing,
        };
        Some(Tls { verify, identity, probe })
    }

    /// `None` if nothing is verified.
    fn lower_roots(&self) -> Result<Option<Roots>, String> {
        if self.unverified {
            return match self.roots {
                Some(_) => {
                    Err("tls: root_certificates are not asked with danger_accept_invalid_certificates: leave one \
                               out"
                    .into())
                }
                None => Ok(None),
            };
        }
        let mut store = RootCertStore::empty();
        let Some(pem) = &self.roots else {
            let found = rustls_native_certs::load_native_certs();
            let pem: String = found.certs.iter().map(|der| certificate::pem(der)).collect();
            // The system may hold some that are odd; gRPC leaves those out too.
            let (good, _) = store.add_parsable_certificates(found.certs);
            if good == 0 {
                let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(format!("tls: the system has no root certificates{why}: give root_certificates"));
            }
            return Ok(Some(Roots { pem: pem.into_bytes(), store }));
        };
        for der in certificates("root_certificates", pem)? {
            store.add(der).map_err(|error| format!("tls: root_certificates hold one that cannot be read: {error}"))?;
        }
        Ok(Some(Roots { pem: pem.clone(), store }))
    }
}

/// Keys stay out of logs.
impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("own_roots", &self.roots.is_some())
            .field("client_certificate", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .field("danger_accept_invalid_certificates", &self.unverified)
            .finish()
    }
}

struct Roots {
    pem: Vec<u8>,
    store: RootCertStore,
}

/// Certificates and key, in PEM.
type Identity = (Vec<u8>, Vec<u8>);

/// TLS options that hold.
pub(super) struct Tls {
    pub verify: Verify,
    identity: Option<Identity>,
    /// For connections of our own: to see what a server shows.
    pub probe: Arc<Probe>,
}

pub(super) enum Verify {
    Roots { pem: Vec<u8>, server_name: Option<String> },
    Nothing,
}

impl Tls {
    pub(super) fn verifies(&self) -> bool {
        matches!(self.verify, Verify::Roots { .. })
    }

    /// What a channel is made with that trusts these roots.
    pub(super) fn credentials(&self, roots: &[u8]) -> ChannelCredentials {
        let builder = ChannelCredentialsBuilder::new().root_cert(roots.to_vec());
        match &self.identity {
            Some((chain, key)) => builder.cert(chain.clone(), key.clone()).build(),
            None => builder.build(),
        }
    }
}

/// The certificates in a text of PEM, at least one.
fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        // gRPC takes texts that end at a zero byte.
        Ok(found) if !found.is_empty() && !pem.contains(&0) => Ok(found),
        Ok(_) => Err(format!("tls: {option}: no certificate in it: give PEM, with -----BEGIN CERTIFICATE-----")),
        Err(error) => Err(format!("tls: {option}: not readable as PEM: {error}")),
    }
}

fn lower_identity(chain: &[u8], key: &[u8], violations: &mut Violations) -> Option<Identity> {
    let found = violations.take(certificates("client_certificate, chain", chain));
    let advice = "give PEM, with -----BEGIN PRIVATE KEY-----, that is not encrypted";
    let read = PrivateKeyDer::from_pem_slice(key).ok().filter(|_| !key.contains(&0));
    let read = violations.take(read.ok_or(format!("tls: client_certificate, key: no private key in it: {advice}")));
    violations
        .take(CertifiedKey::from_der(found?, read?, &provider()).map_err(|error| {
            format!("tls: client_certificate: the key cannot be used with the certificate: {error}")
        }))?;
    Some((chain.to_vec(), key.to_vec()))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    if name.is_empty() {
        return Err("is empty".into());
    }
    crate::policy::host::check(name, "nothing, there is one")?;
    ServerName::try_from(name).map(|_| ()).map_err(|_| format!("{name:?} is no host name"))
}

fn probe(roots: Option<&Roots>) -> Result<Arc<Probe>, String> {
    let verifier = match roots {
        Some(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.store.clone()), provider());
            Some(verifier.build().map_err(|error| format!("tls: root_certificates: {error}"))?)
        }
        None => None,
    };
    Probe::new(verifier).map(Arc::new).map_err(|error| format!("tls: {error}"))
}
