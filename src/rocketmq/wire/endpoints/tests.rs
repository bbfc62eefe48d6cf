use super::*;
use proptest::prelude::*;

fn endpoints(text: &str) -> Endpoints {
    AccessPoint::parse(text).unwrap_or_else(|error| panic!("{error}")).endpoints
}

fn sent(scheme: pb::AddressScheme, addresses: &[(&str, i32)]) -> pb::Endpoints {
    let address = |&(host, port): &(&str, i32)| pb::Address { host: host.into(), port, ..Default::default() };
    pb::Endpoints { scheme: scheme.into(), addresses: addresses.iter().map(address).collect(), ..Default::default() }
}

#[test]
fn reads_what_users_write() {
    for (text, scheme, shown, tls) in [
        ("127.0.0.1:8081", Scheme::Ipv4, "127.0.0.1:8081", None),
        ("10.0.0.2:8081;10.0.0.1:65535", Scheme::Ipv4, "10.0.0.1:65535;10.0.0.2:8081", None),
        ("10.0.0.1:1;10.0.0.1:1", Scheme::Ipv4, "10.0.0.1:1", None),
        ("[::1]:8081", Scheme::Ipv6, "[::1]:8081", None),
        ("[2001:DB8:0::2]:1;[::1]:2", Scheme::Ipv6, "[2001:db8::2]:1;[::1]:2", None),
        ("Proxy.example.com:8081", Scheme::DomainName, "proxy.example.com:8081", None),
        ("proxy_0.ns.svc.:80", Scheme::DomainName, "proxy_0.ns.svc.:80", None),
        ("localhost:1", Scheme::DomainName, "localhost:1", None),
        ("http://localhost:8081", Scheme::DomainName, "localhost:8081", Some(false)),
        ("HTTPS://proxy:443/", Scheme::DomainName, "proxy:443", Some(true)),
        ("http://10.0.0.1:1;10.0.0.2:2", Scheme::Ipv4, "10.0.0.1:1;10.0.0.2:2", Some(false)),
    ] {
        let point = AccessPoint::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((point.endpoints.scheme(), point.endpoints.to_string().as_str(), point.tls), (scheme, shown, tls));
        assert_eq!(endpoints(shown), point.endpoints);
        assert_eq!(Endpoints::from_proto(&point.endpoints.to_proto()).unwrap(), point.endpoints);
    }
}

#[test]
fn every_malformed_form_is_told_by_the_wrong_part() {
    for (text, part) in [
        ("", "\"\" have no address"),
        ("http://", "\"http://\" have no address"),
        ("https:///", "\"https:///\" have no address"),
        ("localhost", "no port in \"localhost\": write the proxy's gRPC port, 8081"),
        ("10.0.0.1", "no port in \"10.0.0.1\""),
        ("[::1]", "no port in \"[::1]\""),
        ("10.0.0.1:1;10.0.0.2", "no port in \"10.0.0.2\""),
        ("a:", "port \"\" in \"a:\""),
        ("a:0", "port \"0\""),
        ("a:65536", "port \"65536\""),
        ("a:+1", "port \"+1\""),
        ("a:http", "port \"http\""),
        (":8081", "empty host in \":8081\""),
        ("a:1;;b:2", "empty item in \"a:1;;b:2\""),
        ("a:1;", "extra semicolon"),
        (";", "extra semicolon"),
        ("a:1,b:2", "more than one colon in \"a:1,b:2\""),
        ("a,b:2", "',' in the host \"a,b\": separate hosts with semicolons"),
        ("::1:8081", "more than one colon in \"::1:8081\": write an IPv6 address in brackets"),
        ("[::1:8081", "no closing bracket in \"[::1:8081\""),
        ("[]:1", "\"\" in brackets"),
        ("[localhost]:1", "\"localhost\" in brackets"),
        ("[fe80::1%eth0]:1", "\"fe80::1%eth0\" in brackets"),
        ("[::1]8081", "\"8081\" after the bracket in \"[::1]8081\""),
        ("[::1]:", "port \"\""),
        ("256.0.0.1:1", "\"256.0.0.1\", which is not an IPv4 address"),
        ("10.1:1", "\"10.1\", which is not an IPv4 address"),
        ("a..b:1", "\"a..b\""),
        ("bücher:1", "xn--"),
        ("10.0.0.1:1;proxy:1", "\"10.0.0.1:1\" and \"proxy:1\" are not of one kind"),
        ("10.0.0.1:1;[::1]:1", "not of one kind"),
        ("a:1;b:1", "\"a:1;b:1\" are several names"),
        ("grpc://a:1", "unknown prefix \"grpc\""),
        ("ipv4:10.0.0.1:1", "more than one colon"),
        ("://a:1", "unknown prefix \"\""),
        ("http://a:1;http://b:1", "second prefix in \"a:1;http://b:1\""),
        ("a:1/x", "path or query \"/x\""),
        ("a:1/", "path or query \"/\""),
        ("http://a:1//", "path or query \"/\""),
        ("a:1?x", "path or query \"?x\""),
        ("a:1; b:2", "space"),
        ("a:1\n", "\"a:1\\n\""),
    ] {
        let error = AccessPoint::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        assert!(error.to_string().contains(part), "{text}: {error}");
        assert!(error.to_string().starts_with("endpoints "), "{error}");
    }
}

#[test]
fn user_information_is_not_repeated() {
    let error = AccessPoint::parse("http://me:hunter2@proxy:8081").unwrap_err();
    assert!(error.to_string().contains('@') && !format!("{error:?}").contains("hunter2"), "{error}");
}

#[test]
fn targets_that_grpc_dials() {
    assert_eq!(endpoints("10.0.0.1:1").target(7), "ipv4:10.0.0.1:1");
    let three = endpoints("10.0.0.1:1;10.0.0.2:2;10.0.0.3:3");
    assert_eq!(three.target(0), "ipv4:10.0.0.1:1,10.0.0.2:2,10.0.0.3:3");
    assert_eq!(three.target(2), "ipv4:10.0.0.3:3,10.0.0.1:1,10.0.0.2:2");
    assert_eq!(three.target(3), three.target(0));
    assert_eq!(three.target(usize::MAX), three.target(usize::MAX % 3));
    assert_eq!(endpoints("[::1]:1;[::2]:2").target(1), "ipv6:[::2]:2,[::1]:1");
    assert_eq!(endpoints("https://Proxy:443").target(5), "dns:proxy:443");
    assert_eq!(
        (three.alone(1).target(0), three.alone(5).target(3)),
        ("ipv4:10.0.0.2:2".into(), "ipv4:10.0.0.3:3".into())
    );
    let names = Endpoints::from_proto(&sent(pb::AddressScheme::DOMAIN_NAME, &[("a", 1), ("b", 2)])).unwrap();
    assert_eq!([names.target(0), names.target(1)], ["dns:a:1", "dns:b:2"]);
}

#[test]
fn reads_what_servers_send() {
    use pb::AddressScheme::{ADDRESS_SCHEME_UNSPECIFIED, DOMAIN_NAME, IPv4, IPv6};
    for (scheme, addresses, shown) in [
        (IPv4, &[("10.0.0.2", 1), ("10.0.0.1", 1), ("10.0.0.2", 1)][..], "10.0.0.1:1;10.0.0.2:1"),
        (IPv6, &[("::1", 1)], "[::1]:1"),
        (IPv6, &[("[0:0::1]", 1)], "[::1]:1"),
        (DOMAIN_NAME, &[("Broker-a", 8081)], "broker-a:8081"),
        // Servers have been seen to say one thing and send another.
        (DOMAIN_NAME, &[("10.0.0.1", 8081)], "10.0.0.1:8081"),
        (IPv4, &[("broker-a", 8081)], "broker-a:8081"),
        (ADDRESS_SCHEME_UNSPECIFIED, &[("::1", 8081)], "[::1]:8081"),
    ] {
        assert_eq!(Endpoints::from_proto(&sent(scheme, addresses)).unwrap().to_string(), shown);
    }
    let other_order = sent(IPv4, &[("10.0.0.1", 1), ("10.0.0.2", 1)]);
    assert_eq!(Endpoints::from_proto(&other_order).unwrap(), endpoints("10.0.0.2:1;10.0.0.1:1"));
}

#[test]
fn what_no_server_should_send_is_an_error() {
    use pb::AddressScheme::{DOMAIN_NAME, IPv4};
    for (addresses, part) in [
        (&[][..], "no address"),
        (&[("a", 0)], "port 0"),
        (&[("a", -1)], "port -1"),
        (&[("a", 65_536)], "port 65536"),
        (&[("", 1)], "\"\""),
        (&[("a b", 1)], "\"a b\""),
        (&[("a:1", 1)], "\"a:1\""),
        (&[("[a]", 1)], "\"[a]\""),
        (&[("10.0.0.1", 1), ("a", 1)], "not of one kind"),
        (&[("10.0.0.1", 1), ("::1", 1)], "not of one kind"),
    ] {
        for scheme in [IPv4, DOMAIN_NAME] {
            let error = Endpoints::from_proto(&sent(scheme, addresses)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn a_name_server_s_port_is_hinted_at() {
    for (address, what) in [("10.0.0.1:9876", "name server"), ("10.0.0.1:8080", "remoting"), ("[::1]:10911", "broker")]
    {
        let hint = endpoints(address).hint();
        assert!(
            hint.contains(&format!("{address} looks like")) && hint.contains(what) && hint.contains("8081"),
            "{hint}"
        );
    }
    let hint = endpoints("10.0.0.1:8081").hint();
    assert!(hint.contains("8081") && hint.contains("9876") && !hint.contains("looks like"), "{hint}");
}

proptest! {
    #[test]
    fn any_text_may_come(text in "\\PC*", tail in "(https?://)?[-a-z0-9:.;,/@%\\[\\]?#é \\n]{0,40}") {
        let _ = AccessPoint::parse(&text);
        if let Ok(point) = AccessPoint::parse(&tail) {
            let again = AccessPoint::parse(&point.endpoints.to_string()).unwrap();
            prop_assert_eq!(again.endpoints, point.endpoints);
        }
    }

    #[test]
    fn any_endpoints_may_be_sent(
        scheme: i32,
        hosts in proptest::collection::vec(("\\PC{0,6}|[a-f0-9:.\\[\\]]{0,12}|10\\.0\\.0\\.[0-9]{1,3}", -1..70_000_i32), 0..5),
        first: usize,
    ) {
        let mut sent = sent(pb::AddressScheme::IPv4, &[]);
        sent.scheme = protobuf::EnumOrUnknown::from_i32(scheme);
        for (host, port) in hosts {
            sent.addresses.push(pb::Address { host, port, ..Default::default() });
        }
        if let Ok(endpoints) = Endpoints::from_proto(&sent) {
            prop_assert!(!endpoints.addresses().is_empty());
            prop_assert!(endpoints.target(first).starts_with(['i', 'd']));
            prop_assert_eq!(Endpoints::from_proto(&endpoints.to_proto()).unwrap(), endpoints);
        }
    }
}
