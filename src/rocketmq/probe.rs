//! A look at a server over a connection of our own: does it speak TLS, and which certificate does it show? Blocks, so
//! it runs on threads that may.
//!
//! Two want to know: a channel that takes any certificate, which has to be told that very one; and an error text, because
//! gRPC does not say what the other side speaks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use super::engine::event::Fault;
use super::wire::certificate::Names;
use super::wire::endpoints::Address;

/// What probes of a client take along.
pub(super) struct Probe {
    config: Arc<ClientConfig>,
    /// Says why gRPC refuses a certificate. Nothing is verified without it.
    verifier: Option<Arc<WebPkiServerVerifier>>,
}

/// A server that was reached, and what it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub server: SocketAddr,
    /// Its certificate.
    pub der: Vec<u8>,
    /// A name that it holds: that of the host, if it can be.
    pub expected: String,
}

/// What a server speaks.
enum Speech {
    Tls(Vec<CertificateDer<'static>>),
    /// Something else.
    NotTls,
}

/// The primitives, given explicitly: the process-wide default is the program's.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Probe {
    /// A probe never shows a client certificate: it does not know whom it talks to.
    pub(super) fn new(verifier: Option<Arc<WebPkiServerVerifier>>) -> Result<Self, Error> {
        let provider = provider();
        let any = AnyCertificate(Arc::clone(&provider));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(any))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config), verifier })
    }

    /// The certificate of the first of these that speaks TLS, beginning at the place `first`.
    pub(super) fn fetch(&self, addresses: &[Address], first: usize, limit: Duration) -> Result<Shown, Fault> {
        let until = Instant::now() + limit;
        let mut fault = Fault::NoConnection;
        let count = addresses.len();
        let places = (0..count).map(|step| first.wrapping_add(step).checked_rem(count).unwrap_or(0));
        for (tried, address) in places.filter_map(|place| addresses.get(place)).enumerate() {
            // A fair share of what is left, so that a dead one does not use up the time of those behind it.
            let shares = u32::try_from(count.saturating_sub(tried)).unwrap_or(u32::MAX).max(1);
            let share = Instant::now() + until.saturating_duration_since(Instant::now()) / shares;
            let Ok(servers) = resolve(address) else { continue };
            for server in servers {
                match self.speech(server, &address.host, share) {
                    Ok(Speech::Tls(chain)) => match named(server, &chain, &address.host) {
                        Ok(shown) => return Ok(shown),
                        Err(found) => fault = found,
                    },
                    Ok(Speech::NotTls) => fault = Fault::PeerSpeaksPlaintext { peer: address.to_string() },
                    Err(error) => log::debug!("{server} shows no certificate: {error}"),
                }
            }
        }
        Err(fault)
    }

    /// Why a channel that speaks TLS, or does not, has no connection to any of these; `None` if it is not about TLS.
    /// `reason` is what gRPC said.
    pub(super) fn diagnose(
        &self,
        addresses: &[Address],
        server_name: Option<&str>,
        tls: bool,
        reason: &str,
        limit: Duration,
    ) -> Option<Fault> {
        let until = Instant::now() + limit;
        let mut found = None;
        for address in addresses {
            let peer = address.to_string();
            for server in resolve(address).unwrap_or_default() {
                found = match (self.speech(server, &address.host, until), tls) {
                    (Ok(Speech::Tls(chain)), true) => {
                        let judged = self.judge(&chain, server_name.unwrap_or(&address.host));
                        let reason = judged.unwrap_or_else(|| reason.to_owned());
                        Some(Fault::Tls { peer: peer.clone(), reason })
                    }
                    // Some servers speak both at one port.
                    (Ok(Speech::Tls(_)), false) if speaks_plaintext(server, until) => None,
                    (Ok(Speech::Tls(_)), false) => Some(Fault::PeerSpeaksTls { peer: peer.clone() }),
                    (_, true) if speaks_plaintext(server, until) => {
                        Some(Fault::PeerSpeaksPlaintext { peer: peer.clone() })
                    }
                    _ => None,
                }
                .or(found);
            }
        }
        found
    }

    /// What is wrong with a certificate, and what would help.
    fn judge(&self, chain: &[CertificateDer<'static>], host: &str) -> Option<String> {
        let (verifier, (end, between)) = (self.verifier.as_ref()?, chain.split_first()?);
        let names = Names::of(end)?;
        if !names.hold(host) {
            return Some(format!(
                "its certificate is for {names} and not for {host}: give the right one as server_name"
            ));
        }
        match verifier.verify_server_cert(end, between, &server_name(host)?, &[], UnixTime::now()).err()? {
            // Rarer ones among them are about what an authority may do.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_)) => {
                Some("its certificate is not issued by a trusted authority: give that with root_certificates".into())
            }
            error => Some(error.to_string()),
        }
    }

    fn speech(&self, server: SocketAddr, host: &str, until: Instant) -> io::Result<Speech> {
        let name = server_name(host).unwrap_or(ServerName::IpAddress(server.ip().into()));
        let mut tls = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let mut link = connect(server, until)?;
        while tls.is_handshaking() && tls.peer_certificates().is_none() {
            limit(&link, until)?;
            if tls.wants_write() {
                tls.write_tls(&mut link)?;
            } else if tls.read_tls(&mut link)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            } else if let Err(error) = tls.process_new_packets() {
                match error {
                    Error::InvalidMessage(_) => return Ok(Speech::NotTls),
                    error => return Err(io::Error::other(error)),
                }
            }
        }
        let chain = tls.peer_certificates().unwrap_or_default().iter().map(|der| der.clone().into_owned()).collect();
        tls.send_close_notify();
        let _ = tls.write_tls(&mut link);
        Ok(Speech::Tls(chain))
    }
}

fn named(server: SocketAddr, chain: &[CertificateDer<'static>], host: &str) -> Result<Shown, Fault> {
    let refuse = |reason: &str| Fault::Tls { peer: server.to_string(), reason: reason.to_owned() };
    let der = chain.first().ok_or_else(|| refuse("it shows no certificate"))?.to_vec();
    let names = Names::of(&der).ok_or_else(|| refuse("its certificate cannot be read"))?;
    let expected = names.expected(host).ok_or_else(|| refuse("its certificate names no host"))?;
    Ok(Shown { server, der, expected })
}

/// Whether it answers HTTP/2 without TLS.
fn speaks_plaintext(server: SocketAddr, until: Instant) -> bool {
    /// The preface of a client, and empty SETTINGS.
    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let ask = || -> io::Result<bool> {
        let mut link = connect(server, until)?;
        link.write_all(HELLO)?;
        let mut header = [0; 9];
        let mut read = 0;
        while let Some(rest) = header.get_mut(read..).filter(|rest| !rest.is_empty()) {
            limit(&link, until)?;
            match link.read(rest)? {
                0 => return Ok(false),
                more => read += more,
            }
        }
        let [_, _, _, kind, flags, stream @ ..] = header;
        Ok(kind == SETTINGS && flags == 0 && stream == [0; 4])
    };
    ask().unwrap_or(false)
}

fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    Ok((address.host.as_str(), address.port).to_socket_addrs()?.collect())
}

fn server_name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).ok()
}

fn connect(server: SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let link = TcpStream::connect_timeout(&server, left(until)?)?;
    limit(&link, until)?;
    Ok(link)
}

/// No single read or write lasts longer than `until`.
fn limit(link: &TcpStream, until: Instant) -> io::Result<()> {
    let left = Some(left(until)?);
    link.set_read_timeout(left)?;
    link.set_write_timeout(left)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Takes every certificate: no message goes over a probe's connection. What a channel trusts is gRPC's to check.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn fetch(listeners: &[&TcpListener], limit: Duration) -> (Result<Shown, Fault>, Duration) {
        let addresses: Vec<Address> = listeners
            .iter()
            .map(|listener| Address { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() })
            .collect();
        let started = Instant::now();
        (Probe::new(None).unwrap().fetch(&addresses, 0, limit), started.elapsed())
    }

    #[test]
    fn servers_that_say_nothing_are_given_up_in_time() {
        let [one, two] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (found, took) = fetch(&[&one, &two], Duration::from_millis(400));
        assert_eq!(found, Err(Fault::NoConnection));
        assert!(took >= Duration::from_millis(390) && took < Duration::from_secs(20), "{took:?}");
        // Both had their share.
        for listener in [one, two] {
            listener.set_nonblocking(true).unwrap();
            listener.accept().unwrap();
        }
    }

    #[test]
    fn what_is_no_tls_is_said_so_and_one_that_trickles_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.try_clone().unwrap();
        let talk = std::thread::spawn(move || {
            let (mut link, _) = server.accept().unwrap();
            link.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // The head of a record of TLS that never gets whole.
            let (mut link, _) = server.accept().unwrap();
            link.write_all(&[0x16, 3, 3, 0x10, 0]).unwrap();
            while link.write_all(&[2]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let (found, _) = fetch(&[&listener], Duration::from_secs(60));
        let peer = listener.local_addr().unwrap().to_string();
        assert_eq!(found, Err(Fault::PeerSpeaksPlaintext { peer }));
        let (found, took) = fetch(&[&listener], Duration::from_millis(300));
        assert_eq!(found, Err(Fault::NoConnection));
        assert!(took < Duration::from_secs(20), "{took:?}");
        talk.join().unwrap();
    }

    #[test]
    fn a_name_without_an_address_is_no_connection() {
        let probe = Probe::new(None).unwrap();
        let address = Address { host: "nowhere.invalid".into(), port: 1 };
        assert_eq!(probe.fetch(&[address], 3, Duration::from_secs(1)), Err(Fault::NoConnection));
        assert_eq!(probe.fetch(&[], 3, Duration::from_secs(1)), Err(Fault::NoConnection));
    }
}
