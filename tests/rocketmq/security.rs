//! Who talks to whom: TLS, credentials, and what is said when they do not fit. Against the embedded proxy, and against
//! a real server of its own if there is one.

use std::error::Error as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use threadmq::rocketmq::{Client, ClientBuilder, Credentials, FilterExpression, Message, MessageType, TlsOptions};
use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::{Effect, Proxy, Rpc};
use threadmq::{Error, ErrorKind};

use crate::target::{INVISIBLE, PATIENCE};

/// Certificates and key in PEM.
type Pem = (String, String);

fn proxy(tls: Option<&Pem>) -> Proxy {
    let builder = Proxy::builder();
    let proxy = match tls {
        Some((certificate, key)) => builder.tls(certificate.as_str(), key.as_str()).start(),
        None => builder.start(),
    };
    let proxy = proxy.unwrap();
    proxy.create_topic("t", MessageType::Normal, 4);
    proxy
}

fn self_signed() -> Pem {
    (Proxy::SELF_SIGNED.0.to_owned(), Proxy::SELF_SIGNED.1.to_owned())
}

fn https(proxy: &Proxy) -> ClientBuilder {
    Client::builder(format!("https://{}", proxy.endpoints()))
}

fn any_certificate() -> TlsOptions {
    TlsOptions::new().danger_accept_invalid_certificates(true)
}

/// An authority, and a certificate of it for this name.
fn issued(name: &str) -> (String, Pem) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    (authority.pem(), (certificate.pem(), key.serialize_pem()))
}

fn send(client: &Client) -> Result<(), Error> {
    let producer = client.producer().topic("t").start()?;
    producer.send(Message::new("t", "x")).map_err(|error| error.into_parts().0)?;
    Ok(())
}

/// Sends and closes.
fn attempt(builder: ClientBuilder) -> Result<(), Error> {
    let client = builder.build()?;
    let sent = send(&client);
    client.close().unwrap();
    sent
}

#[test]
fn a_self_signed_server_is_taken_when_told_to() {
    let proxy = proxy(Some(&self_signed()));
    attempt(https(&proxy).tls(any_certificate())).unwrap();
    assert_eq!((proxy.stored("t").len(), proxy.streams_without_settings()), (1, 0));
    // The option alone switches TLS on, too.
    attempt(Client::builder(proxy.endpoints()).tls(any_certificate())).unwrap();
    // A name has to be looked up, and is not that of every certificate.
    let port = proxy.addr(0).port();
    attempt(Client::builder(format!("localhost:{port}")).tls(any_certificate())).unwrap();
}

#[test]
fn any_certificate_is_taken_when_told_to() {
    let (_, foreign) = issued("proxy.example");
    let (_, starred) = issued("*.proxy.example");
    let mut nameless = CertificateParams::default();
    nameless.distinguished_name.push(DnType::CommonName, "only.a.common.name");
    let key = KeyPair::generate().unwrap();
    let common = (nameless.self_signed(&key).unwrap().pem(), key.serialize_pem());
    for certificate in [foreign, starred, common] {
        let proxy = proxy(Some(&certificate));
        attempt(https(&proxy).tls(any_certificate())).unwrap();
    }
}

#[test]
fn given_roots_are_trusted() {
    let proxy_itself = proxy(Some(&self_signed()));
    attempt(https(&proxy_itself).tls(TlsOptions::new().root_certificates(Proxy::SELF_SIGNED.0))).unwrap();
    let (authority, certificate) = issued("proxy.example");
    let proxy = proxy(Some(&certificate));
    let tls = TlsOptions::new().root_certificates(authority).server_name("proxy.example");
    attempt(https(&proxy).tls(tls)).unwrap();
}

#[test]
fn an_unknown_certificate_is_refused_and_so_is_another_name() {
    let unknown = proxy(Some(&self_signed()));
    let error = attempt(https(&unknown)).unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Tls, "{shown}");
    assert!(shown.contains("certificate") && shown.contains("root_certificates"), "{shown}");

    let (authority, certificate) = issued("proxy.example");
    let proxy = proxy(Some(&certificate));
    let error = attempt(https(&proxy).tls(TlsOptions::new().root_certificates(authority))).unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Tls, "{shown}");
    assert!(shown.contains("proxy.example") && shown.contains("127.0.0.1") && shown.contains("server_name"), "{shown}");
    assert_eq!(proxy.calls(0, Rpc::QueryRoute), 0, "nothing was told to it");
}

#[test]
fn the_error_says_which_side_does_not_speak_tls() {
    let secure = proxy(Some(&self_signed()));
    let error = attempt(Client::builder(secure.endpoints())).unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Tls, "{shown}");
    assert!(shown.contains("speaks TLS and the client does not"), "{shown}");

    let plain = proxy(None);
    for tls in [TlsOptions::new(), any_certificate()] {
        let error = attempt(https(&plain).tls(tls)).unwrap_err();
        let shown = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Tls, "{shown}");
        assert!(shown.contains("speaks plaintext and the client TLS"), "{shown}");
    }
}

#[test]
fn all_that_is_wrong_with_tls_options_is_told_at_build() {
    let refused = |endpoints: &str, tls: TlsOptions| {
        let error = Client::builder(endpoints).tls(tls).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        error.to_string()
    };
    let (_, other) = issued("other.example");
    let tls = TlsOptions::new()
        .root_certificates("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
        .client_certificate("", "no key")
        .server_name("a b");
    let shown = refused("http://127.0.0.1:1", tls);
    for part in [
        "begin with http://",
        "root_certificates: not readable",
        "client_certificate, chain: no certificate",
        "client_certificate, key: no private key",
        "server_name has the character",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let roots = TlsOptions::new().root_certificates("nothing");
    assert!(refused("a:1", roots).contains("no certificate in it"));
    let mismatch = any_certificate().client_certificate(Proxy::SELF_SIGNED.0, other.1);
    assert!(refused("a:1", mismatch).contains("the key cannot be used with the certificate"));
    let idle = any_certificate().root_certificates(Proxy::SELF_SIGNED.0).server_name("a");
    let shown = refused("a:1", idle);
    assert!(
        shown.contains("root_certificates are not asked") && shown.contains("server_name is not compared"),
        "{shown}"
    );
    let proxied = Client::builder("a:1").tls(any_certificate()).http_proxy_from_environment(true).build();
    assert!(proxied.unwrap_err().to_string().contains("http_proxy_from_environment"));
    assert!(!format!("{:?}", TlsOptions::new().client_certificate("c", "hunter2")).contains("hunter2"));
}

#[test]
fn a_half_open_link_is_replaced_under_tls() {
    let proxy = proxy(Some(&self_signed()));
    let network = Network::start(proxy.addr(0)).unwrap();
    proxy.advertise(0, network.address());
    for tls in [any_certificate(), TlsOptions::new().root_certificates(Proxy::SELF_SIGNED.0)] {
        let client = Client::builder(network.address().to_string()).tls(tls).build().unwrap();
        let producer = client.producer().topic("t").start().unwrap();
        producer.send(Message::new("t", "before")).unwrap();
        network.half_open();
        let fault = Instant::now();
        let (tell, told) = channel();
        loop {
            let tell = tell.clone();
            producer.send_with(Message::new("t", "x"), move |result| tell.send(result.is_ok()).unwrap_or(())).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            if told.try_iter().any(|sent| sent) {
                break;
            }
            assert!(fault.elapsed() < PATIENCE, "not healed");
        }
        println!("half-open under TLS: healed after {:?}", fault.elapsed());
        assert!(fault.elapsed() < Duration::from_secs(20), "{:?}", fault.elapsed());
        assert_eq!(client.stats().recoveries, 1);
        assert_eq!(proxy.streams_without_settings(), 0, "Settings come first");
        producer.flush().ok();
        client.close().unwrap();
    }
}

#[test]
fn a_server_that_comes_back_with_another_certificate_is_taken_again() {
    let first = proxy(Some(&self_signed()));
    let network = Network::start(first.addr(0)).unwrap();
    first.advertise(0, network.address());
    let client = Client::builder(network.address().to_string()).tls(any_certificate()).build().unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    producer.send(Message::new("t", "before")).unwrap();
    let second = proxy(Some(&issued("another.example").1));
    second.advertise(0, network.address());
    network.set_upstream(second.addr(0)).unwrap();
    network.cut();
    producer.send(Message::new("t", "after")).unwrap();
    assert_eq!(second.stored("t").len(), 1);
    client.close().unwrap();
}

#[test]
fn wrong_credentials_are_refused_at_start_with_the_server_s_words() {
    let proxy = proxy(None);
    proxy.require_credentials("alice", "wonderland");
    attempt(Client::builder(proxy.endpoints()).credentials("alice", "wonderland")).unwrap();
    let wrong = |builder: ClientBuilder| {
        let error = attempt(builder).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Authentication, Some(40_100)), "{error}");
        error.to_string()
    };
    let client = || Client::builder(proxy.endpoints());
    assert!(wrong(client().credentials("alice", "queen")).contains("check signature failed"));
    assert!(wrong(client().credentials("bob", "queen")).contains("bob is not found"));
    assert!(wrong(client()).contains("username cannot be null"));
    let both = client().credentials("a", "b").credentials_provider(|| Ok(Credentials::new("a", "b")));
    assert!(both.build().unwrap_err().to_string().contains("credentials: given more than once"));
}

/// What a provider gives, which tests change, and how often it was asked.
#[derive(Clone, Default)]
struct Vault {
    secret: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn rotate(&self, secret: &str) {
        *self.secret.lock().unwrap() = secret.to_owned();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn provide(&self, builder: ClientBuilder, life: Option<Duration>) -> ClientBuilder {
        let vault = self.clone();
        builder.credentials_provider(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            assert!(std::thread::current().name().unwrap().starts_with("tmq-credentials"));
            let credentials = Credentials::new("alice", vault.secret.lock().unwrap().as_str());
            Ok(match life {
                Some(life) => credentials.expires_at(SystemTime::now() + life),
                None => credentials,
            })
        })
    }
}

#[test]
fn credentials_that_rotate_go_on_working() {
    let proxy = proxy(None);
    let vault = Vault::default();
    vault.rotate("one");
    proxy.require_credentials("alice", "one");
    let client = vault.provide(Client::builder(proxy.endpoints()), None).build().unwrap();
    assert_eq!(vault.asked(), 0, "nobody has called yet");
    let producer = client.producer().topic("t").start().unwrap();
    let consumer = client
        .simple_consumer("g")
        .subscribe("t", FilterExpression::all())
        .await_duration(Duration::from_secs(5))
        .start()
        .unwrap();
    producer.send(Message::new("t", "1")).unwrap();
    assert_eq!(vault.asked(), 1);
    rotate(&proxy, &vault, "two");
    let receipt = producer.send(Message::new("t", "2")).unwrap();
    assert_eq!(receipt.attempts(), 1, "the refused call is made again, and counts once");
    assert_eq!(vault.asked(), 2);
    // A stream of answers, and an open stream that is opened again.
    rotate(&proxy, &vault, "three");
    let mut received = 0;
    let until = Instant::now() + PATIENCE;
    while received < 2 {
        assert!(Instant::now() < until);
        for message in consumer.receive(8, INVISIBLE).unwrap() {
            consumer.ack(&message).unwrap();
            received += 1;
        }
    }
    assert_eq!(vault.asked(), 3);
    rotate(&proxy, &vault, "four");
    proxy.end_streams();
    while proxy.streams(0) < 2 {
        assert!(Instant::now() < until, "both streams are opened again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(vault.asked(), 4);
    client.close().unwrap();
}

/// Both sides change, when the provider may be asked again.
fn rotate(proxy: &Proxy, vault: &Vault, secret: &str) {
    std::thread::sleep(Duration::from_millis(3_500));
    vault.rotate(secret);
    proxy.require_credentials("alice", secret);
}

#[test]
fn credentials_are_renewed_before_they_expire() {
    let proxy = proxy(None);
    let vault = Vault::default();
    vault.rotate("one");
    proxy.require_credentials("alice", "one");
    let client = vault.provide(Client::builder(proxy.endpoints()), Some(Duration::from_secs(4))).build().unwrap();
    let producer = client.producer().topic("t").start().unwrap();
    let until = Instant::now() + PATIENCE;
    while vault.asked() < 2 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    producer.send(Message::new("t", "x")).unwrap();
    client.close().unwrap();
}

#[test]
fn credentials_that_stay_wrong_are_an_error_and_no_hang() {
    let proxy = proxy(None);
    let vault = Vault::default();
    vault.rotate("wrong");
    proxy.require_credentials("alice", "right");
    let error = attempt(vault.provide(Client::builder(proxy.endpoints()), None)).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Authentication, Some(40_100)), "{error}");
    assert!(vault.asked() <= 2, "{}", vault.asked());
}

#[test]
fn a_provider_that_fails_or_panics_is_an_error_of_the_client() {
    let proxy = proxy(None);
    let chain = |error: &Error| {
        let mut all = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            all.push(cause.to_string());
            source = cause.source();
        }
        all.join(" <- ")
    };
    let failing = Client::builder(proxy.endpoints()).credentials_provider(|| Err("the vault is locked".into()));
    let error = attempt(failing).unwrap_err();
    let shown = chain(&error);
    assert_eq!(error.kind(), ErrorKind::Authentication, "{shown}");
    assert!(shown.contains("provider") && shown.contains("the vault is locked"), "{shown}");

    let client = Client::builder(proxy.endpoints()).credentials_provider(|| panic!("planted")).build().unwrap();
    let shown = chain(&client.producer().topic("t").start().unwrap_err());
    assert!(shown.contains("planted"), "{shown}");
    let producer = client.producer().send_timeout(Duration::from_millis(500)).start().unwrap();
    let error = Error::from(producer.send(Message::new("t", "x")).unwrap_err());
    let shown = chain(&error);
    assert_eq!(error.kind(), ErrorKind::Timeout, "{shown}");
    assert_eq!(proxy.calls(0, Rpc::QueryRoute), 0, "nothing goes out unsigned");
    client.close().unwrap();
}

#[test]
fn a_provider_that_hangs_holds_nothing_up() {
    let proxy = proxy(None);
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let client = Client::builder(proxy.endpoints())
        .request_timeout(Duration::from_millis(300))
        .credentials_provider(move || {
            let _ = released.lock().unwrap().recv_timeout(PATIENCE);
            Ok(Credentials::new("a", "b"))
        })
        .build()
        .unwrap();
    let producer = client.producer().send_timeout(Duration::from_millis(500)).start().unwrap();
    let called = Instant::now();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let waited = called.elapsed();
    assert!(waited >= Duration::from_millis(500) && waited < Duration::from_secs(10), "{waited:?}");
    client.close().unwrap();
    drop(release);
}

#[test]
fn dead_addresses_are_passed_over() {
    let proxy = proxy(Some(&self_signed()));
    let port = proxy.addr(0).port();
    // Addresses are sorted, and the first channel begins with the first of them: the dead one is tried first.
    for dead in ["127.0.0.1:1;127.0.0.1:2", "127.0.0.0:1"] {
        for tls in [any_certificate(), TlsOptions::new().root_certificates(Proxy::SELF_SIGNED.0)] {
            attempt(Client::builder(format!("127.0.0.1:{port};{dead}")).tls(tls)).unwrap();
        }
    }
}

#[test]
fn no_call_is_made_where_there_is_no_connection() {
    let proxy = proxy(None);
    let network = Network::start(proxy.addr(0)).unwrap();
    proxy.advertise(0, network.address());
    let client = Client::builder(network.address().to_string()).build().unwrap();
    let producer = client.producer().topic("t").send_timeout(Duration::from_millis(800)).start().unwrap();
    network.refuse();
    network.cut();
    // The first finds out; those behind it are told that nothing of them left.
    let _ = producer.send(Message::new("t", "x"));
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Timeout, threadmq::Delivery::NotSent), "{error}");
    assert_eq!(error.error().attempts(), 0);
    client.close().unwrap();
}

#[test]
fn every_call_has_a_deadline() {
    let proxy = proxy(None);
    proxy.on(Rpc::QueryRoute).then(Effect::Lost);
    let client = Client::builder(proxy.endpoints()).request_timeout(Duration::from_millis(100)).build().unwrap();
    let error = client.producer().topic("t").start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.code(), Some(4), "gRPC's own: {error}");
    client.close().unwrap();
}

/// Run by the test below in a process of its own, whose environment names a proxy.
#[test]
fn child_that_sends_with_a_proxy_in_its_environment() {
    let Ok(endpoints) = std::env::var("THREADMQ_TEST_ENDPOINTS") else { return };
    let follow = std::env::var("THREADMQ_TEST_FOLLOW").is_ok();
    attempt(Client::builder(endpoints).http_proxy_from_environment(follow)).unwrap();
}

#[test]
fn an_http_proxy_of_the_environment_is_followed_only_when_asked_for() {
    let broker = proxy(None);
    let detour = TcpListener::bind("127.0.0.1:0").unwrap();
    let child = |follow: bool| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "security::child_that_sends_with_a_proxy_in_its_environment"])
            .env("THREADMQ_TEST_ENDPOINTS", broker.endpoints())
            .env("http_proxy", format!("http://{}", detour.local_addr().unwrap()))
            .env_remove("no_proxy")
            .env_remove("no_grpc_proxy");
        if follow {
            command.env("THREADMQ_TEST_FOLLOW", "1");
        }
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    assert!(child(false).wait().unwrap().success(), "it goes straight to the server");
    assert_eq!(broker.stored("t").len(), 1);
    let mut asked = child(true);
    let (mut link, _) = detour.accept().unwrap();
    let mut line = [0; 7];
    std::io::Read::read_exact(&mut link, &mut line).unwrap();
    assert_eq!(&line, b"CONNECT");
    asked.kill().unwrap();
    asked.wait().unwrap();
    assert_eq!(broker.stored("t").len(), 1);
}

#[test]
fn a_certificate_that_grpc_refuses_all_the_same_is_an_error_that_says_so() {
    let mut expired = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    expired.not_before = rcgen::date_time_ymd(2001, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2002, 1, 1);
    let key = KeyPair::generate().unwrap();
    let expired = (expired.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let proxy = proxy(Some(&expired));
    let error = attempt(https(&proxy).tls(any_certificate())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    assert!(error.to_string().contains("CERTIFICATE_VERIFY_FAILED"), "{error}");
}

#[test]
fn certificates_of_one_name_serve_several_addresses() {
    let (authority, certificate) = issued("proxy.example");
    let proxy = proxy(Some(&certificate));
    let endpoints = format!("https://127.0.0.1:1;{}", proxy.endpoints());
    let tls = TlsOptions::new().root_certificates(authority).server_name("proxy.example");
    attempt(Client::builder(endpoints).tls(tls)).unwrap();
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_is_given_up_soon() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::builder(silent.local_addr().unwrap().to_string());
    let client = client.request_timeout(Duration::from_secs(20)).build().unwrap();
    let started = Instant::now();
    let error = client.producer().topic("t").start().unwrap_err();
    // An attempt to connect has 3 s; gRPC's own limit is 20 s, as long as a call may take here.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}: {error}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
    client.close().unwrap();
}

#[test]
fn a_client_certificate_is_shown_to_servers_that_ask() {
    let (client_authority, identity) = issued("a.client");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    let config = asks_for_certificates(&client_authority, &self_signed());
    let server = std::thread::spawn(move || {
        while let Ok((mut link, _)) = listener.accept() {
            let mut tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let shaken = tls.complete_io(&mut link);
            let shown = tls.peer_certificates().and_then(|chain| chain.first()).map(|der| der.to_vec());
            if tell.send((shaken.is_ok(), shown)).is_err() {
                return;
            }
        }
    });
    let tls = TlsOptions::new().root_certificates(Proxy::SELF_SIGNED.0);
    let tls = tls.client_certificate(identity.0.as_str(), identity.1.as_str());
    let client = Client::builder(address.to_string()).tls(tls).request_timeout(Duration::from_millis(200)).build();
    let client = client.unwrap();
    // It never comes to a call.
    client.producer().topic("t").start().unwrap_err();
    let expected = CertificateDer::from_pem_slice(identity.0.as_bytes()).unwrap().to_vec();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (true, Some(expected)));
    client.close().unwrap();
    drop(told);
    drop(std::net::TcpStream::connect(address).unwrap());
    server.join().unwrap();
}

fn asks_for_certificates(authority: &str, (certificate, key): &Pem) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}
