//! The table of variables: names and values for an application behind FastCGI, SCGI or uwsgi, and
//! the same in AJP's packet, decoded.

use std::path::PathBuf;

use penstock_config::{ForwardedHeaders, HostHeader, Protocol};
use penstock_exchange::field_policy::TrustedHeaders;

use super::*;
use crate::testing::{
    CLIENT_ADDRESS, PROXY_ADDRESS, build_request_from, client_with_certificate, request,
    request_at, upstream_config,
};

const SERVER: &str = "10.0.0.5:9000";

/// Collects the variables and checks that each comes once.
#[derive(Default)]
struct VariableMap(BTreeMap<String, String>);

impl VariableWriter for VariableMap {
    fn push_variable(&mut self, name: &[u8], value: &[u8]) {
        let text = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|&byte| char::from(byte))
                .collect::<String>()
        };
        let before = self.0.insert(text(name), text(value));
        assert_eq!(before, None, "{} comes twice", text(name));
    }
}

fn fastcgi() -> config::Upstream {
    upstream_config(Protocol::FastCgi)
}

fn php(index: Option<&str>) -> config::Upstream {
    let mut config = fastcgi();
    config.root = Some(PathBuf::from("/srv/www/"));
    config.index = index.map(str::to_owned);
    config
}

fn variables_of(
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
) -> BTreeMap<String, String> {
    let mut table = VariableMap::default();
    encode_variables(&mut table, config, request, framing, SERVER);
    let start = table.0.get("HTTP_X_REQUEST_START").unwrap();
    assert!(start.starts_with("t=") && start.len() == "t=1700000000.042".len());
    table.0
}

/// The variables of these fields of an untrusted client.
fn variables_of_fields(fields: &str) -> BTreeMap<String, String> {
    let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
    variables_of(&fastcgi(), &request(&head), RequestBodyFraming::None)
}

fn check(row: &str, table: &BTreeMap<String, String>, expected: &[(&str, Option<&str>)]) {
    for (name, value) in expected {
        assert_eq!(
            table.get(*name).map(String::as_str),
            *value,
            "{row}: {name}"
        );
    }
}

#[test]
fn a_request_has_these_variables_and_no_others() {
    let head = "POST /a%20b/x.php/e%2Ff?q=%20 HTTP/1.1\r\nHost: a.test:81\r\n\
                Content-Type: text/plain\r\nContent-Length: 7\r\nAccept: x\r\nConnection: close\r\n\r\n";
    let request = request(head);
    let mut table = variables_of(
        &php(Some("index.php")),
        &request,
        RequestBodyFraming::Length(7),
    );
    table.remove("HTTP_X_REQUEST_START");
    let expected = [
        ("CONTENT_LENGTH", "7"),
        ("CONTENT_TYPE", "text/plain"),
        ("DOCUMENT_ROOT", "/srv/www"),
        ("DOCUMENT_URI", "/a b/x.php/e/f"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("HTTP_ACCEPT", "x"),
        ("HTTP_HOST", "a.test:81"),
        ("HTTP_X_FORWARDED_FOR", "192.0.2.7"),
        ("HTTP_X_FORWARDED_HOST", "a.test:81"),
        ("HTTP_X_FORWARDED_PROTO", "http"),
        ("PATH_INFO", "/e/f"),
        ("QUERY_STRING", "q=%20"),
        ("REDIRECT_STATUS", "200"),
        ("REMOTE_ADDR", "192.0.2.7"),
        ("REMOTE_PORT", "50000"),
        ("REQUEST_METHOD", "POST"),
        ("REQUEST_SCHEME", "http"),
        ("REQUEST_URI", "/a%20b/x.php/e%2Ff?q=%20"),
        ("SCRIPT_FILENAME", "/srv/www/a b/x.php"),
        ("SCRIPT_NAME", "/a b/x.php"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("SERVER_NAME", "a.test"),
        ("SERVER_PORT", "81"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SERVER_SOFTWARE", "penstock"),
    ];
    let expected: BTreeMap<_, _> = expected
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(table, expected);
}

#[test]
fn a_path_means_a_script_where_there_is_a_folder_of_them() {
    let index = Some("index.php");
    for (row, config, path, name, info, file) in [
        (
            "script",
            php(index),
            "/b/x.php",
            "/b/x.php",
            "",
            Some("/srv/www/b/x.php"),
        ),
        (
            "front controller",
            php(index),
            "/post/1",
            "/index.php",
            "",
            Some("/srv/www/index.php"),
        ),
        (
            "its root",
            php(index),
            "/",
            "/index.php",
            "",
            Some("/srv/www/index.php"),
        ),
        (
            "encoded dots",
            php(index),
            "/a/%2e%2e/x.php",
            "/x.php",
            "",
            Some("/srv/www/x.php"),
        ),
        (
            "encoded name",
            php(index),
            "/x%2ephp",
            "/x.php",
            "",
            Some("/srv/www/x.php"),
        ),
        (
            "no front controller",
            php(None),
            "/post/1",
            "",
            "/post/1",
            None,
        ),
        ("no folder", fastcgi(), "/x.php/y", "", "/x.php/y", None),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let table = variables_of(&config, &request(&head), RequestBodyFraming::None);
        check(
            row,
            &table,
            &[
                ("SCRIPT_NAME", Some(name)),
                ("PATH_INFO", Some(info).filter(|info| !info.is_empty())),
                ("SCRIPT_FILENAME", file),
                ("DOCUMENT_ROOT", config.root.as_ref().map(|_| "/srv/www")),
                ("REQUEST_URI", Some(path)),
                ("QUERY_STRING", Some("")),
                ("CONTENT_LENGTH", None),
                ("HTTPS", None),
            ],
        );
    }
}

#[test]
fn a_clients_field_is_one_variable_or_none() {
    for (row, fields, name, value) in [
        ("any case", "x-ThInG: v\r\n", "HTTP_X_THING", Some("v")),
        (
            "repeated",
            "A: 1\r\nB: 2\r\na: 3\r\n",
            "HTTP_A",
            Some("1, 3"),
        ),
        (
            "cookies",
            "Cookie: a=1\r\nCookie: b=2\r\n",
            "HTTP_COOKIE",
            Some("a=1; b=2"),
        ),
        ("type", "Content-Type: a/b\r\n", "CONTENT_TYPE", Some("a/b")),
        (
            "no twin of the type",
            "Content-Type: a/b\r\n",
            "HTTP_CONTENT_TYPE",
            None,
        ),
        (
            "no twin of the length",
            "Content-Length: 0\r\n",
            "HTTP_CONTENT_LENGTH",
            None,
        ),
        (
            "other bytes than ascii",
            "A: caf\u{e9}\r\n",
            "HTTP_A",
            Some("caf\u{c3}\u{a9}"),
        ),
        (
            "password",
            "Authorization: Basic x\r\n",
            "HTTP_AUTHORIZATION",
            Some("Basic x"),
        ),
        ("via", "Via: 1.1 a\r\n", "HTTP_VIA", Some("1.1 a")),
        ("httpoxy", "Proxy: http://evil\r\n", "HTTP_PROXY", None),
        (
            "underscore",
            "X_Forwarded_For: 9\r\n",
            "HTTP_X_FORWARDED_FOR",
            Some("192.0.2.7"),
        ),
        ("dot", "X.Real.IP: 9\r\n", "HTTP_X.REAL.IP", None),
        (
            "spoofed address",
            "X-Forwarded-For: 9\r\n",
            "HTTP_X_FORWARDED_FOR",
            Some("192.0.2.7"),
        ),
        (
            "spoofed scheme",
            "X-Forwarded-Proto: https\r\n",
            "HTTP_X_FORWARDED_PROTO",
            Some("http"),
        ),
        (
            "spoofed element",
            "Forwarded: for=9\r\n",
            "HTTP_FORWARDED",
            None,
        ),
        (
            "spoofed real ip",
            "X-Real-IP: 9\r\n",
            "HTTP_X_REAL_IP",
            None,
        ),
        (
            "spoofed server variable",
            "Remote-User: root\r\n",
            "REMOTE_USER",
            None,
        ),
        (
            "mapping",
            "X-Accel-Mapping: /=/\r\n",
            "HTTP_X_ACCEL_MAPPING",
            None,
        ),
        (
            "forged words of the hub",
            "Grip-Sig: forged\r\n",
            "HTTP_GRIP_SIG",
            None,
        ),
        (
            "hop by hop",
            "Connection: keep-alive\r\n",
            "HTTP_CONNECTION",
            None,
        ),
        (
            "keep-alive",
            "Keep-Alive: max=5\r\n",
            "HTTP_KEEP_ALIVE",
            None,
        ),
        ("upgrade", "Upgrade: websocket\r\n", "HTTP_UPGRADE", None),
        (
            "named as of the hop",
            "Connection: X-Hop\r\nX-Hop: 1\r\n",
            "HTTP_X_HOP",
            None,
        ),
        (
            "expectation",
            "Expect: 100-continue\r\n",
            "HTTP_EXPECT",
            None,
        ),
    ] {
        check(row, &variables_of_fields(fields), &[(name, value)]);
    }
}

#[test]
fn every_protocol_gets_the_same_client_address() {
    let forwarding = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n\
                X-Forwarded-Proto: https\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 192.0.2.1\r\n\
                X-Forwarded-Prefix: /a\r\n\
                Forwarded: for=192.0.2.1\r\n";
    let is_of_client = |name: &str| name.contains("FORWARDED") || name == "HTTP_X_REAL_IP";
    let mut seen = 0;
    for peer in [CLIENT_ADDRESS, PROXY_ADDRESS, "[2001:db8::7]:5", "unix"] {
        for form in [
            ForwardedHeaders::XForwarded,
            ForwardedHeaders::Rfc7239,
            ForwardedHeaders::Both,
            ForwardedHeaders::Off,
        ] {
            let mut config = fastcgi();
            config.forwarded = form;
            let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{forwarding}\r\n");
            let request = build_request_from(&head, peer);
            let mut http = Vec::new();
            request_head::encode_request_head(
                &mut http,
                &config,
                &request,
                RequestBodyFraming::None,
                SERVER,
            );
            let mut expected = BTreeMap::new();
            for line in String::from_utf8(http).unwrap().lines() {
                let (name, value) = line.split_once(": ").unwrap_or_default();
                let name = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
                if is_of_client(&name) {
                    assert_eq!(expected.insert(name, value.to_owned()), None);
                }
            }
            let mut table = variables_of(&config, &request, RequestBodyFraming::None);
            table.retain(|name, _| is_of_client(name));
            assert_eq!(table, expected, "{peer} {form:?}");
            seen += table.len();
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn a_trusted_proxy_defines_client_scheme_and_host() {
    let head = "GET /x.php/a?b HTTP/1.1\r\nHost: inner.test:81\r\nX-Forwarded-For: 203.0.113.9\r\n\
                X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.test\r\n\
                X-Forwarded-Prefix: /shop\r\n\r\n";
    check(
        "proxy",
        &variables_of(
            &php(Some("index.php")),
            &build_request_from(head, PROXY_ADDRESS),
            RequestBodyFraming::None,
        ),
        &[
            ("REQUEST_SCHEME", Some("https")),
            ("HTTPS", Some("on")),
            ("HTTP_HOST", Some("shop.test")),
            ("SERVER_NAME", Some("shop.test")),
            ("SERVER_PORT", Some("443")),
            ("REMOTE_ADDR", Some("203.0.113.9")),
            ("REMOTE_PORT", None),
            ("REQUEST_URI", Some("/shop/x.php/a?b")),
            ("SCRIPT_NAME", Some("/shop/x.php")),
            ("SCRIPT_FILENAME", Some("/srv/www/x.php")),
            ("PATH_INFO", Some("/a")),
        ],
    );
    check(
        "stranger",
        &variables_of(
            &php(Some("index.php")),
            &request(head),
            RequestBodyFraming::None,
        ),
        &[
            ("REQUEST_SCHEME", Some("http")),
            ("HTTPS", None),
            ("HTTP_HOST", Some("inner.test:81")),
            ("SERVER_PORT", Some("81")),
            ("REMOTE_ADDR", Some("192.0.2.7")),
            ("SCRIPT_NAME", Some("/x.php")),
        ],
    );
    let mut out = Vec::new();
    let config = upstream_config(Protocol::Ajp);
    encode_ajp_request(
        &mut out,
        &config,
        &build_request_from(head, PROXY_ADDRESS),
        RequestBodyFraming::None,
        SERVER,
    )
    .unwrap();
    for text in ["203.0.113.9", "shop.test"] {
        assert!(
            memchr::memmem::find(&out, text.as_bytes()).is_some(),
            "{text}"
        );
    }
}

#[test]
fn a_field_set_by_a_rule_replaces_our_variable() {
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 9\r\n\
                X-Forwarded-For: 1\r\nX-Forwarded-For: 2\r\nX-Request-Start: t=1000000000.000\r\n\
                X-User: a\r\nConnection: X-User\r\nX_Secret: 1\r\n\r\n";
    let names = [
        "x-forwarded-proto",
        "X-Real-IP",
        "X-Forwarded-For",
        "X-Request-Start",
        "X-User",
        "X_Secret",
    ];
    let mut request = request(head);
    request.trusted_headers = TrustedHeaders::new(names.map(str::to_owned));
    check(
        "rules",
        &variables_of(&fastcgi(), &request, RequestBodyFraming::None),
        &[
            ("HTTP_X_FORWARDED_PROTO", Some("https")),
            ("HTTP_X_FORWARDED_HOST", Some("a.test")),
            ("HTTP_X_FORWARDED_FOR", Some("1, 2")),
            ("HTTP_X_REAL_IP", Some("9")),
            ("HTTP_X_REQUEST_START", Some("t=1000000000.000")),
            ("HTTP_X_USER", Some("a")),
            ("HTTP_CONNECTION", None),
            // It would be the variable of `X-Secret`.
            ("HTTP_X_SECRET", None),
        ],
    );
    let mut out = Vec::new();
    let config = upstream_config(Protocol::Ajp);
    encode_ajp_request(
        &mut out,
        &config,
        &request,
        RequestBodyFraming::None,
        SERVER,
    )
    .unwrap();
    for (text, count) in [
        ("https", 1),
        ("X-Forwarded-Proto", 1),
        ("X-Real-IP", 1),
        ("X-Request-Start", 1),
        ("192.0.2.7", 1),
    ] {
        let found = memchr::memmem::find_iter(&out, text).count();
        assert_eq!(found, count, "{text}");
    }
}

#[test]
fn params_go_over_everything_but_the_length() {
    let mut config = php(Some("index.php"));
    for (name, value) in [
        ("SERVER_NAME", "fixed.test"),
        ("HTTP_ACCEPT", "*/*"),
        ("HTTP_X_FORWARDED_FOR", ""),
        ("APP_ENV", "live"),
        ("CONTENT_LENGTH", "99"),
    ] {
        config.params.insert(name.to_owned(), value.to_owned());
    }
    let head = "POST / HTTP/1.1\r\nHost: a.test\r\nAccept: x\r\nContent-Length: 3\r\n\r\n";
    check(
        "with a body",
        &variables_of(&config, &request(head), RequestBodyFraming::Length(3)),
        &[
            ("SERVER_NAME", Some("fixed.test")),
            ("HTTP_ACCEPT", Some("*/*")),
            ("HTTP_X_FORWARDED_FOR", Some("")),
            ("APP_ENV", Some("live")),
            ("CONTENT_LENGTH", Some("3")),
            ("HTTP_HOST", Some("a.test")),
        ],
    );
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let table = variables_of(&config, &request(head), RequestBodyFraming::None);
    check(
        "without",
        &table,
        &[("CONTENT_LENGTH", None), ("APP_ENV", Some("live"))],
    );
}

#[test]
fn the_host_is_the_one_that_is_configured() {
    for (host, expected, name, port) in [
        (HostHeader::Client, "a.test", "a.test", "8080"),
        (HostHeader::Server, SERVER, "10.0.0.5", "9000"),
        (
            HostHeader::Custom("b.test:1".to_owned()),
            "b.test:1",
            "b.test",
            "1",
        ),
    ] {
        let mut config = fastcgi();
        config.host = host;
        let head = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
        check(
            expected,
            &variables_of(&config, &request(head), RequestBodyFraming::None),
            &[
                ("HTTP_HOST", Some(expected)),
                ("SERVER_NAME", Some(name)),
                ("SERVER_PORT", Some(port)),
                ("HTTP_X_FORWARDED_HOST", Some("a.test")),
            ],
        );
    }
}

#[test]
fn both_addresses_of_the_connection_are_set_if_known() {
    let old = "GET / HTTP/1.0\r\n\r\n";
    let mapped = PeerAddress::Tcp("[::ffff:192.0.2.7]:5".parse().unwrap());
    let at = |peer, scheme, listens: Option<&str>| {
        let listens = listens.map(|address| address.parse().unwrap());
        variables_of(
            &fastcgi(),
            &request_at(old, peer, scheme, listens),
            RequestBodyFraming::None,
        )
    };
    check(
        "unix",
        &at(PeerAddress::Unix, "http", None),
        &[
            ("REMOTE_ADDR", Some("")),
            ("REMOTE_PORT", None),
            ("SERVER_ADDR", None),
            ("SERVER_NAME", Some("localhost")),
            ("SERVER_PORT", Some("80")),
            ("SERVER_PROTOCOL", Some("HTTP/1.0")),
            ("HTTP_HOST", None),
        ],
    );
    check(
        "all addresses",
        &at(mapped, "http", Some("[::]:8080")),
        &[
            ("REMOTE_ADDR", Some("192.0.2.7")),
            ("SERVER_ADDR", None),
            ("SERVER_PORT", Some("8080")),
        ],
    );
    check(
        "tls",
        &at(mapped, "https", Some("[::1]:443")),
        &[
            ("HTTPS", Some("on")),
            ("REQUEST_SCHEME", Some("https")),
            ("SERVER_ADDR", Some("::1")),
            ("SERVER_PORT", Some("443")),
        ],
    );
}

/// Decodes a FORWARD_REQUEST.
struct Packet<'a>(&'a [u8]);

impl Packet<'_> {
    fn number(&mut self) -> u16 {
        let (number, rest) = self.0.split_first_chunk::<2>().unwrap();
        self.0 = rest;
        u16::from_be_bytes(*number)
    }

    fn byte(&mut self) -> u8 {
        let (&byte, rest) = self.0.split_first().unwrap();
        self.0 = rest;
        byte
    }

    fn text(&mut self) -> Option<String> {
        let len = self.number();
        (len != 0xffff).then(|| {
            let (text, rest) = self.0.split_at(usize::from(len));
            self.0 = rest.strip_prefix(b"\0").unwrap();
            String::from_utf8(text.to_vec()).unwrap()
        })
    }

    /// The fields; those with a code as `#` and its last byte.
    fn fields(&mut self) -> Vec<String> {
        let count = self.number();
        let fields = (0..count).map(|_| {
            let name = match self.0[0] {
                0xa0 => format!("#{}", self.number() & 0xff),
                _ => self.text().unwrap(),
            };
            format!("{name}: {}", self.text().unwrap())
        });
        fields.collect()
    }
}

fn ajp_of(
    config: &config::Upstream,
    head: &str,
    peer: &str,
    framing: RequestBodyFraming,
) -> Vec<u8> {
    let mut out = Vec::new();
    encode_ajp_request(
        &mut out,
        config,
        &build_request_from(head, peer),
        framing,
        SERVER,
    )
    .unwrap();
    assert_eq!(out[..2], [0x12, 0x34]);
    assert_eq!(
        usize::from(u16::from_be_bytes([out[2], out[3]])),
        out.len() - 4
    );
    out.split_off(4)
}

#[test]
fn an_ajp_packet_has_the_same_values() {
    let mut config = upstream_config(Protocol::Ajp);
    config.secret = Some("s3".into());
    let head = "POST /a%20b;j=1?q=1 HTTP/1.1\r\nHost: a.test:81\r\nCookie: a=1\r\nCookie: b=2\r\n\
                X-Forwarded-For: 9.9.9.9\r\nConnection: X-Hop\r\nX-Hop: 1\r\nProxy: evil\r\n\
                A_B: 1\r\nContent-Length: 5\r\n\r\n";
    let bytes = ajp_of(&config, head, CLIENT_ADDRESS, RequestBodyFraming::Length(5));
    let mut packet = Packet(&bytes);
    assert_eq!((packet.byte(), packet.byte()), (2, 4));
    let mut texts = || packet.text();
    assert_eq!(texts().as_deref(), Some("HTTP/1.1"));
    assert_eq!(texts().as_deref(), Some("/a%20b;j=1"));
    assert_eq!(texts().as_deref(), Some("192.0.2.7"));
    assert_eq!(texts(), None);
    assert_eq!(texts().as_deref(), Some("a.test"));
    assert_eq!((packet.number(), packet.byte()), (81, 0));
    let mut fields = packet.fields();
    fields.retain(|field| !field.starts_with("X-Request-Start: t="));
    let expected = [
        "#11: a.test:81",
        "#9: a=1",
        "#9: b=2",
        "A_B: 1",
        "X-Forwarded-For: 192.0.2.7",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: a.test:81",
        "#8: 5",
    ];
    assert_eq!(fields, expected);
    assert_eq!((packet.byte(), packet.text().as_deref()), (5, Some("q=1")));
    assert_eq!(
        (packet.byte(), packet.text().as_deref()),
        (0x0c, Some("s3"))
    );
    assert_eq!(
        (packet.byte(), packet.text().as_deref()),
        (0x0a, Some("AJP_REMOTE_PORT"))
    );
    assert_eq!(
        (packet.text().as_deref(), packet.0),
        (Some("50000"), &[0xff][..])
    );
}

#[test]
fn an_ajp_packet_always_has_the_body_length() {
    let config = upstream_config(Protocol::Ajp);
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let bytes = ajp_of(&config, head, "unix", RequestBodyFraming::None);
    let length = b"\xa0\x08\0\x010\0";
    assert!(bytes.windows(length.len()).any(|piece| piece == length));
}

#[test]
fn a_packet_that_is_too_small_for_a_head_is_not_sent() {
    let head = format!(
        "GET / HTTP/1.1\r\nHost: a.test\r\nA: {}\r\n\r\n",
        "x".repeat(9000)
    );
    let mut out = b"before".to_vec();
    let config = upstream_config(Protocol::Ajp);
    let done = encode_ajp_request(
        &mut out,
        &config,
        &request(&head),
        RequestBodyFraming::None,
        SERVER,
    );
    assert_eq!(done, Err(EncodeError::TooLarge));
    assert_eq!(out, b"before");
}

#[test]
fn a_session_of_tls_gives_variables_and_no_fields() {
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\nX-Client-Cert: forged\r\n\r\n";
    let mut with_tls = request(head);
    with_tls.client_state = client_with_certificate();
    let table = variables_of(&fastcgi(), &with_tls, RequestBodyFraming::None);
    for (key, value) in [
        ("SSL_PROTOCOL", Some("TLSv1.3")),
        ("SSL_CIPHER", Some("AES_128_GCM_SHA256")),
        ("SSL_TLS_SNI", Some("a.test")),
        ("SSL_CLIENT_VERIFY", Some("SUCCESS")),
        ("SSL_CLIENT_S_DN", Some("CN=anna")),
        ("SSL_CLIENT_FINGERPRINT", Some("ab12")),
        ("HTTP_X_CLIENT_CERT", None),
        ("HTTP_X_CLIENT_CERT_VERIFY", None),
    ] {
        assert_eq!(table.get(key).map(String::as_str), value, "{key}");
    }
    let plain = variables_of(&fastcgi(), &request(head), RequestBodyFraming::None);
    let is_of_tls = |key: &&String| key.starts_with("SSL_") || key.contains("CERT");
    assert_eq!(plain.keys().find(is_of_tls), None);
}
