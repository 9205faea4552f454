//! The results of a trusted proxy's fields, by tables.

use penstock_http::{HeadLimits, ParseProgress, parse_head};

use super::*;

fn head(lines: &str) -> RequestHead {
    let text = format!("GET / HTTP/1.1\r\nHost: inner.test\r\n{lines}\r\n");
    match parse_head(text.as_bytes(), &HeadLimits::default()) {
        Ok(ParseProgress::Complete((head, _))) => head,
        other => panic!("a valid head: {other:?}"),
    }
}

/// Reads the fields of a proxy that is trusted by default.
fn read_unlisted(lines: &str) -> (ForwardedInfo, Vec<String>) {
    let (info, broken) = ForwardedInfo::read(&head(lines), &TrustedProxies::default());
    let name = |field: InvalidForwardedField| format!("{}: {}", field.name, field.cause);
    (info, broken.into_iter().map(name).collect())
}

fn read_by(lines: &str, field: Option<&str>) -> (ForwardedInfo, Vec<String>) {
    let networks = ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
    let trust = TrustedProxies::new(networks.into(), true).with_client_address_field(field);
    let (info, broken) = ForwardedInfo::read(&head(lines), &trust);
    (info, broken.into_iter().map(|field| field.name).collect())
}

fn client(info: &ForwardedInfo) -> Option<String> {
    let PeerAddress::Tcp(address) = info.client? else {
        return None;
    };
    Some(match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    })
}

#[test]
fn the_rightmost_untrusted_address_is_the_client() {
    for (lines, expected) in [
        ("X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
        (
            "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n",
            "203.0.113.9",
        ),
        (
            "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 10.0.0.1\r\n",
            "203.0.113.9",
        ),
        (
            "X-Forwarded-For: 198.51.100.1\r\nx-forwarded-for: 203.0.113.9,10.0.0.1\r\n",
            "203.0.113.9",
        ),
        ("X-Forwarded-For: 10.0.0.2, 10.0.0.1\r\n", "10.0.0.2"),
        ("X-Forwarded-For: garbage, 203.0.113.9\r\n", "203.0.113.9"),
        (
            "X-Forwarded-For: 203.0.113.9, , 10.0.0.1,\r\n",
            "203.0.113.9",
        ),
        ("X-Forwarded-For: 203.0.113.9:4711\r\n", "203.0.113.9:4711"),
        (
            "X-Forwarded-For: [2001:db8::1]:443\r\n",
            "[2001:db8::1]:443",
        ),
        ("X-Forwarded-For: [2001:db8::1]\r\n", "2001:db8::1"),
        ("X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
        ("X-Forwarded-For: ::ffff:203.0.113.9\r\n", "203.0.113.9"),
        (
            "X-Forwarded-For: 203.0.113.9, ::ffff:10.0.0.1\r\n",
            "203.0.113.9",
        ),
        ("X-Real-IP: 203.0.113.9\r\n", "203.0.113.9"),
        (
            "X-Real-IP: 198.51.100.1\r\nX-Forwarded-For: 203.0.113.9\r\n",
            "203.0.113.9",
        ),
        ("Forwarded: for=203.0.113.9\r\n", "203.0.113.9"),
        (
            "Forwarded: For=\"[2001:db8::1]:4711\"\r\n",
            "[2001:db8::1]:4711",
        ),
        ("Forwarded: for=\"203.0.113.9:_x\"\r\n", "203.0.113.9"),
        (
            "Forwarded: for=198.51.100.1, for=203.0.113.9;proto=https,for=10.0.0.1\r\n",
            "203.0.113.9",
        ),
    ] {
        let (info, broken) = read_by(lines, None);
        assert_eq!(client(&info).as_deref(), Some(expected), "{lines}");
        assert!(broken.is_empty(), "{lines}: {broken:?}");
    }
}

#[test]
fn an_invalid_field_is_ignored() {
    for (lines, field) in [
        ("X-Forwarded-For: garbage\r\n", "x-forwarded-for"),
        (
            "X-Forwarded-For: 203.0.113.9, garbage\r\n",
            "x-forwarded-for",
        ),
        (
            "X-Forwarded-For: 203.0.113.9, 10.0.0.1:x\r\n",
            "x-forwarded-for",
        ),
        ("X-Forwarded-For: 203.0.113.9:99999\r\n", "x-forwarded-for"),
        (
            "X-Forwarded-For: 203.0.113.9 198.51.100.1\r\n",
            "x-forwarded-for",
        ),
        ("X-Forwarded-For: 1.2.3.4.5\r\n", "x-forwarded-for"),
        ("X-Real-IP: a.test\r\n", "x-real-ip"),
        ("X-Forwarded-Proto: ftp\r\n", "x-forwarded-proto"),
        ("X-Forwarded-Host: a.test/b\r\n", "x-forwarded-host"),
        ("X-Forwarded-Host: u@a.test\r\n", "x-forwarded-host"),
        ("X-Forwarded-Port: 0\r\n", "x-forwarded-port"),
        ("X-Forwarded-Port: 80x\r\n", "x-forwarded-port"),
        ("X-Forwarded-Ssl: maybe\r\n", "x-forwarded-ssl"),
        ("X-Forwarded-Prefix: //evil.test\r\n", "x-forwarded-prefix"),
        (
            "X-Forwarded-Prefix: /a\r\nX-Forwarded-Prefix: /b\r\n",
            "x-forwarded-prefix",
        ),
        ("Forwarded: for=\"203.0.113.9\r\n", "forwarded"),
        (
            "Forwarded: for=203.0.113.9;for=198.51.100.1\r\n",
            "forwarded",
        ),
        ("Forwarded: 203.0.113.9\r\n", "forwarded"),
        ("Forwarded: for=garbage;proto=https\r\n", "forwarded"),
    ] {
        let (info, broken) = read_by(lines, None);
        assert_eq!(info, ForwardedInfo::default(), "{lines}");
        assert_eq!(broken, [field], "{lines}");
    }
}

#[test]
fn client_bytes_cannot_hide_what_a_proxy_adds() {
    let proxy = "for=203.0.113.9;proto=https";
    for clients in [
        "for=\"",
        "for=\"x",
        "for=\"198.51.100.1",
        "\"",
        "\\",
        "for=\"a\\",
        "for=\"a\\\"",
        "for=a\"b",
        "for=1.2.3.4;for=5.6.7.8",
        "garbage",
        ",,",
        "for=\"a\", \"",
        ";",
    ] {
        for (lines, what) in [
            (format!("Forwarded: {clients}, {proxy}\r\n"), "one line"),
            (format!("Forwarded: {clients},{proxy}\r\n"), "no blank"),
            (
                format!("Forwarded: {clients}\r\nForwarded: {proxy}\r\n"),
                "a line of its own",
            ),
            (
                format!("Forwarded: {clients}, {proxy}, for=10.0.0.1;proto=http\r\n"),
                "two proxies",
            ),
        ] {
            let (info, broken) = read_by(&lines, None);
            assert_eq!(
                client(&info).as_deref(),
                Some("203.0.113.9"),
                "{what}: {lines}"
            );
            assert_eq!(info.scheme, Some("https"), "{what}: {lines}");
            assert_eq!(info.source, AddressSource::Forwarded, "{what}: {lines}");
            assert!(broken.is_empty(), "{what}: {lines} {broken:?}");
        }
        let list = format!("X-Forwarded-For: {clients}, 203.0.113.9\r\n");
        assert_eq!(
            client(&read_by(&list, None).0).as_deref(),
            Some("203.0.113.9")
        );
    }
}

#[test]
fn quoted_values_are_not_split() {
    // A proxy may copy its client's text into quotes.
    for element in [
        "host=\"a, for=198.51.100.1\";for=203.0.113.9",
        "for=203.0.113.9;by=\"_a, for=198.51.100.1;proto=http\"",
        "host=\"a\\\", for=198.51.100.1\";for=203.0.113.9",
        "for=\"203.0.113.9\";by=\"x, for=\";secret=\"y\"",
    ] {
        let (info, broken) = read_by(&format!("Forwarded: for=\", {element}\r\n"), None);
        assert_eq!(client(&info).as_deref(), Some("203.0.113.9"), "{element}");
        assert!(broken.iter().all(|name| name == "forwarded"), "{broken:?}");
    }
}

/// The proxy's element is read, whatever a client sends and a proxy copies into quotes.
#[test]
fn client_text_never_changes_what_a_proxy_adds() {
    const PIECES: [&str; 14] = [
        "\"",
        "\\",
        ",",
        ";",
        "=",
        " ",
        "for=",
        "by=",
        "proto=http",
        "198.51.100.1",
        "a",
        "[",
        "\\\"",
        "=\"",
    ];
    // SplitMix64: the same texts each time.
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % below as u64).unwrap()
    };
    for _ in 0..20_000 {
        let mut text = |most: usize| -> String {
            let count = next(most + 1);
            (0..count).map(|_| PIECES[next(PIECES.len())]).collect()
        };
        let (sent, copied) = (text(8), text(6));
        let quoted = copied.replace('\\', "\\\\").replace('"', "\\\"");
        for element in [
            format!("for=203.0.113.9;secret=\"{quoted}\""),
            format!("secret=\"{quoted}\";for=\"203.0.113.9:7\";proto=https"),
        ] {
            let lines = format!("Forwarded: {sent}, {element}\r\n");
            let (info, _) = read_by(&lines, None);
            let address = client(&info).unwrap_or_default();
            assert_eq!(address.trim_end_matches(":7"), "203.0.113.9", "{lines}");
        }
    }
}

#[test]
fn elements_right_of_an_invalid_one_count() {
    for (lines, expected, field) in [
        (
            "Forwarded: for=\"x, for=10.0.0.2, for=10.0.0.1\r\n",
            "10.0.0.2",
            "forwarded",
        ),
        (
            "X-Forwarded-For: garbage, 10.0.0.2, 10.0.0.1\r\n",
            "10.0.0.2",
            "x-forwarded-for",
        ),
    ] {
        let (info, broken) = read_by(lines, None);
        assert_eq!(client(&info).as_deref(), Some(expected), "{lines}");
        assert_eq!(broken, [field], "{lines}");
        assert_eq!(info.source, AddressSource::Other, "{lines}");
    }
}

#[test]
fn host_port_and_prefix_count_only_of_listed_proxies() {
    let also = "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n";
    let cause = "it counts only from proxies that server.trusted_proxies lists";
    for (lines, field) in [
        ("X-Forwarded-Host: evil.test\r\n", Some("x-forwarded-host")),
        ("X-Forwarded-Host: INNER.test\r\n", None),
        ("X-Forwarded-Port: 8443\r\n", Some("x-forwarded-port")),
        ("X-Forwarded-Port: 443\r\n", None),
        ("X-Forwarded-Prefix: /evil\r\n", Some("x-forwarded-prefix")),
        ("X-Forwarded-Prefix: /\r\n", None),
    ] {
        let (info, broken) = read_unlisted(&format!("{also}{lines}"));
        let expected = ForwardedInfo {
            client: info.client,
            scheme: Some("https"),
            source: AddressSource::XForwardedFor,
            ..ForwardedInfo::default()
        };
        assert_eq!(info, expected, "{lines}");
        assert_eq!(client(&info).as_deref(), Some("203.0.113.9"), "{lines}");
        let field = field.map(|field| format!("{field}: {cause}"));
        assert_eq!(broken, field.into_iter().collect::<Vec<_>>(), "{lines}");
    }
    let (info, broken) = read_unlisted("Forwarded: for=203.0.113.9;host=evil.test\r\n");
    assert_eq!((info.host, broken.len()), (None, 1));
    assert!(client(&ForwardedInfo { host: None, ..info }).is_some());
}

#[test]
fn fields_of_rules_override_those_of_the_peer() {
    let lines = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-Host: shop.test\r\nX-Forwarded-Prefix: /shop\r\n";
    let names = ["X-Forwarded-Proto", "x-forwarded-host"].map(str::to_owned);
    let (ours, none) = (TrustedHeaders::new(names), TrustedHeaders::default());
    let trust = TrustedProxies::default();
    for (vouched, is_trusted, expected, host, scheme) in [
        (&ours, false, None, Some("shop.test"), Some("https")),
        (
            &ours,
            true,
            Some("192.0.2.1"),
            Some("shop.test"),
            Some("https"),
        ),
        (&none, false, None, None, None),
        (&none, true, Some("192.0.2.1"), None, Some("https")),
    ] {
        let head = head(lines);
        let (info, _) =
            ForwardedInfo::read_with_trusted_headers(&head, &head, &trust, is_trusted, vouched);
        let found = (info.host.as_deref(), info.scheme);
        assert_eq!(
            client(&info).as_deref(),
            expected,
            "{vouched:?} {is_trusted}"
        );
        assert_eq!(found, (host, scheme), "{vouched:?} {is_trusted}");
        assert!(info.mount.is_root());
    }
}

/// A proxy passes on fields that it does not set. A rule must not make them count.
#[test]
fn rules_do_not_change_which_fields_are_read() {
    let proto = "X-Forwarded-Proto: https\r\n";
    let made_up = "Forwarded: for=192.0.2.66;proto=http\r\n";
    for (sent, removed, set, expected, scheme) in [
        (format!("{proto}{made_up}"), "", proto, None, Some("https")),
        (
            format!("X-Forwarded-For: 203.0.113.9\r\n{made_up}"),
            "X-Forwarded-For: 203.0.113.9\r\n",
            "",
            None,
            None,
        ),
        (
            "X-Forwarded-For: 203.0.113.9\r\nX-Real-IP: 192.0.2.66\r\n".to_owned(),
            "X-Forwarded-For: 203.0.113.9\r\n",
            "",
            None,
            None,
        ),
        (
            "X-Forwarded-Proto: http\r\nX-Forwarded-Ssl: on\r\n".to_owned(),
            "X-Forwarded-Proto: http\r\n",
            "",
            None,
            None,
        ),
        (
            "X-Forwarded-Proto: http\r\nX-Forwarded-Ssl: on\r\n".to_owned(),
            "X-Forwarded-Proto: http\r\n",
            "X-Forwarded-Proto: ?\r\n",
            None,
            None,
        ),
        // The proxy's fields of the family that is read still count beside a rule's.
        (
            made_up.to_owned(),
            "",
            proto,
            Some("192.0.2.66"),
            Some("https"),
        ),
        (
            format!("X-Forwarded-For: 203.0.113.9\r\n{proto}"),
            proto,
            "X-Forwarded-Proto: http\r\n",
            Some("203.0.113.9"),
            Some("http"),
        ),
        (
            "X-Forwarded-For: 203.0.113.9\r\n".to_owned(),
            "",
            "Forwarded: for=192.0.2.9;proto=https\r\n",
            Some("192.0.2.9"),
            Some("https"),
        ),
    ] {
        let kept = sent.replace(removed, "");
        let kept = if removed.is_empty() { &sent } else { &kept };
        let (sent, made) = (head(&sent), head(&format!("{kept}{set}")));
        let name = set.split(':').next().filter(|name| !name.is_empty());
        let vouched = TrustedHeaders::new(name.map(str::to_owned));
        let trust = TrustedProxies::default();
        let (info, _) =
            ForwardedInfo::read_with_trusted_headers(&made, &sent, &trust, true, &vouched);
        let row = format!("{sent:?} {removed:?} {set:?}");
        assert_eq!(client(&info).as_deref(), expected, "{row}");
        assert_eq!(info.scheme, scheme, "{row}");
    }
}

#[test]
fn a_proxy_that_hides_its_client_tells_the_rest() {
    for lines in [
        "X-Forwarded-For: unknown\r\nX-Forwarded-Proto: https\r\n",
        "Forwarded: for=unknown;proto=https\r\n",
        "Forwarded: for=_secret;proto=https\r\n",
        "Forwarded: proto=https\r\n",
    ] {
        let (info, broken) = read_by(lines, None);
        assert_eq!((info.client, info.scheme), (None, Some("https")), "{lines}");
        assert!(broken.is_empty(), "{lines}");
    }
}

#[test]
fn only_the_field_that_is_set_names_the_client() {
    let all = "X-Forwarded-For: 192.0.2.1\r\nX-Real-IP: 192.0.2.2\r\nForwarded: for=192.0.2.3;proto=http\r\n\
               CF-Connecting-IP: 192.0.2.4\r\nX-Forwarded-Proto: https\r\n";
    for (field, expected, scheme) in [
        (None, Some("192.0.2.1"), "https"),
        (Some("X-Forwarded-For"), Some("192.0.2.1"), "https"),
        (Some("x-real-ip"), Some("192.0.2.2"), "https"),
        (Some("forwarded"), Some("192.0.2.3"), "http"),
        (Some("CF-Connecting-IP"), Some("192.0.2.4"), "https"),
        (Some("True-Client-IP"), None, "https"),
    ] {
        let (info, _) = read_by(all, field);
        assert_eq!(client(&info).as_deref(), expected, "{field:?}");
        assert_eq!(info.scheme, Some(scheme), "{field:?}");
    }
}

#[test]
fn scheme_host_and_port_are_those_of_the_client_that_was_picked() {
    for (lines, scheme, host, port) in [
        ("X-Forwarded-Proto: https\r\n", Some("https"), None, None),
        ("X-Forwarded-Proto: WSS\r\n", Some("https"), None, None),
        ("X-Forwarded-Scheme: https\r\n", Some("https"), None, None),
        ("X-Forwarded-Ssl: on\r\n", Some("https"), None, None),
        (
            "X-Forwarded-Proto: http\r\nX-Forwarded-Ssl: on\r\n",
            Some("http"),
            None,
            None,
        ),
        (
            "X-Forwarded-Proto: https,https\r\n",
            Some("https"),
            None,
            None,
        ),
        (
            "X-Forwarded-For: 203.0.113.9, 10.0.0.1\r\nX-Forwarded-Proto: https, http\r\n",
            Some("https"),
            None,
            None,
        ),
        (
            "X-Forwarded-For: 10.0.0.9, 203.0.113.9\r\nX-Forwarded-Proto: https, http\r\n",
            Some("http"),
            None,
            None,
        ),
        // A list of another length: the last proxy's element counts, never one left of it.
        (
            "X-Forwarded-Proto: https, http\r\n",
            Some("http"),
            None,
            None,
        ),
        (
            "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Host: evil.test, shop.test\r\n\
             X-Forwarded-Proto: gopher, http, https\r\nX-Forwarded-Port: 1, 2, 3, 443\r\n",
            Some("https"),
            Some("shop.test"),
            Some(443),
        ),
        (
            "X-Forwarded-For: 198.51.100.1, 198.51.100.2, 203.0.113.9, 10.0.0.1\r\n\
             X-Forwarded-Proto: http, https, https\r\nX-Forwarded-Host: shop.test\r\n",
            Some("https"),
            Some("shop.test"),
            None,
        ),
        (
            "X-Forwarded-Host: shop.test:8443\r\nX-Forwarded-Port: 443\r\n",
            None,
            Some("shop.test:8443"),
            Some(443),
        ),
        (
            "Forwarded: for=203.0.113.9;proto=https;host=\"shop.test:8443\", for=10.0.0.1;proto=http\r\n",
            Some("https"),
            Some("shop.test:8443"),
            None,
        ),
        (
            "X-Forwarded-Proto: https\r\nForwarded: for=192.0.2.1;proto=http;host=evil.test\r\n",
            Some("https"),
            None,
            None,
        ),
    ] {
        let (info, broken) = read_by(lines, None);
        let found = (info.scheme, info.host.as_deref(), info.port);
        assert_eq!(found, (scheme, host, port), "{lines}");
        assert!(broken.is_empty(), "{lines}: {broken:?}");
    }
}

#[test]
fn lists_of_other_lengths_are_ignored() {
    let lines = "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 10.0.0.1\r\n\
                 X-Forwarded-Host: evil.test, inner.test\r\nX-Forwarded-Proto: https, http\r\n";
    let (info, broken) = read_by(lines, None);
    assert_eq!(client(&info).as_deref(), Some("203.0.113.9"));
    assert_eq!((info.host, info.scheme), (None, None));
    assert_eq!(broken, ["x-forwarded-proto", "x-forwarded-host"]);
}

#[test]
fn a_head_without_such_fields_is_not_read() {
    let trust = TrustedProxies::default().with_client_address_field(Some("CF-Connecting-IP"));
    for (lines, expected) in [
        ("Accept: */*\r\nX-Thing-Or-Other: 1\r\nFrom: a\r\n", false),
        ("X-Forwarded-Proto: https\r\n", true),
        ("X-FORWARDED-PREFIX: /a\r\n", true),
        ("x-real-ip: 192.0.2.1\r\n", true),
        ("Forwarded: for=a\r\n", true),
        ("cf-connecting-ip: 192.0.2.1\r\n", true),
    ] {
        assert_eq!(
            ForwardedInfo::has_forwarding_fields(&head(lines), &trust),
            expected,
            "{lines}"
        );
    }
}
