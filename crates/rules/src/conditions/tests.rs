//! Tables as the configuration reads them, against requests.

use std::path::Path;

use penstock_config::{Config, parse};
use penstock_exchange::ClientCertificate;
use penstock_http::{HeadLimits, ParseProgress, parse_head};

use super::*;

static LISTENER: ListenerInfo = ListenerInfo {
    scheme: "http",
    address: None,
    name: String::new(),
    proxy_protocol: false,
    has_tls: false,
};

fn head(text: &str) -> RequestHead {
    match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is whole: {text:?}"),
    }
}

fn config(table: &str) -> Config {
    let text = format!(
        "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n\
         [conditions.office]\nclient = [\"10.0.0.0/8\", \"192.0.2.7\"]\n\
         [conditions.beta]\ncookie = {{ group = \"beta\" }}\n\
         [[sites]]\n[[sites.routes]]\npath = \"/*\"\nupstream = \"a\"\nmatch = {table}\n"
    );
    parse(&text, Path::new("penstock.toml")).unwrap_or_else(|error| panic!("{table}: {error}"))
}

/// Whether a request, given by its request line and fields, fulfils a table.
fn matches(table: &str, request: &str) -> bool {
    matches_with(table, request, |facts| facts)
}

fn matches_with(
    table: &str,
    request: &str,
    change: impl for<'a> Fn(RequestFacts<'a>) -> RequestFacts<'a>,
) -> bool {
    let config = config(table);
    let named = ConditionSet::compile(&config.conditions).unwrap();
    let table = &config.sites[0].routes[0].conditions;
    let compiled = RequestConditions::compile(table, &named).unwrap();
    let lines: Vec<&str> = request.lines().map(str::trim).collect();
    let head = head(&format!(
        "{}\r\nHost: www.example.com:8080\r\n\r\n",
        lines.join("\r\n")
    ));
    let facts = RequestFacts {
        head: &head,
        client: PeerAddress::Tcp("192.0.2.7:1234".parse().unwrap()),
        scheme: "http",
        listener: &LISTENER,
        tls: None,
    };
    let path = head.target_path_query().split('?').next().unwrap();
    compiled.match_request(&change(facts), path.as_bytes())
}

#[test]
fn each_key_must_hold_and_of_a_list_one_item() {
    let get = "GET /a/b.php?x=1&y=a%20b&x=2 HTTP/1.1
        X-Beta: 1
        X-Two: a
        X-Two: b
        Cookie: sid=7; group=beta
        Cookie: late=1";
    for (table, expected) in [
        (r#"{ method = ["GET"] }"#, true),
        (r#"{ method = ["POST", "GET"] }"#, true),
        (r#"{ method = ["POST"] }"#, false),
        (r#"{ host = ["*.example.com"] }"#, true),
        (r#"{ host = ["example.com"] }"#, false),
        (r#"{ path = ["/x", "*.php"] }"#, true),
        (r#"{ path = ["/x/*"] }"#, false),
        (r#"{ header = { x-beta = "1" } }"#, true),
        (r#"{ header = { X-Beta = "2" } }"#, false),
        (r#"{ header = { X-Beta = "*" } }"#, true),
        (r#"{ header = { X-None = "*" } }"#, false),
        (r#"{ header = { X-Two = "b" } }"#, true),
        (r#"{ header = { X-Two = "b", X-Beta = "0" } }"#, false),
        (r#"{ header = { X-Two = "~^[ab]$" } }"#, true),
        (r#"{ query = { x = "2" } }"#, true),
        (r#"{ query = { y = "a b" } }"#, true),
        (r#"{ query = { z = "*" } }"#, false),
        (r#"{ cookie = { group = "b*" } }"#, true),
        (r#"{ cookie = { late = "1" } }"#, true),
        (r#"{ cookie = { group = "sid" } }"#, false),
        (r#"{ client = ["192.0.2.0/24"] }"#, true),
        (r#"{ client = ["10.0.0.0/8", "unix"] }"#, false),
        (r#"{ scheme = "http" }"#, true),
        (r#"{ scheme = "https" }"#, false),
        (r#"{ protocol = ["HTTP/1.1"] }"#, true),
        (r#"{ protocol = ["HTTP/1.0"] }"#, false),
        (r#"{ method = ["GET"], scheme = "https" }"#, false),
        (r#"{ client_certificate = false }"#, true),
        (r#"{ client_certificate = true }"#, false),
        (r#"{ not = { method = ["POST"] } }"#, true),
        (r#"{ not = { method = ["GET"], scheme = "https" } }"#, true),
        (r#"{ not = { method = ["GET"], scheme = "http" } }"#, false),
        (r#"{ named = ["office", "beta"] }"#, true),
        (r#"["office"]"#, true),
        (r#"["office", "!beta"]"#, false),
        (r#"{ not = { named = ["beta"] } }"#, false),
    ] {
        assert_eq!(matches(table, get), expected, "{table}");
    }
}

#[test]
fn a_listener_is_the_one_of_the_connection_whatever_the_host_says() {
    let request = "GET / HTTP/1.1
        X-Forwarded-Host: a:8081";
    for (listener, name, expected) in [
        ("127.0.0.1:8081", "http://127.0.0.1:8081", true),
        ("127.0.0.1:8081", "https://127.0.0.1:8081", true),
        ("127.0.0.1:8081", "http://*:8081", false),
        ("127.0.0.1:8081", "http://127.0.0.1:8080", false),
        ("localhost:8081", "http://127.0.0.1:8081", true),
        (":8080", "http://*:8080", true),
        (":8080", "http://*:8081", false),
        (":8080", "http://127.0.0.1:8080", false),
        ("[::1]:8080", "http://[::1]:8080", true),
        ("unix:/run/a.sock", "unix:/run/a.sock", true),
        ("unix:/run/a.sock", "unix:/run/b.sock", false),
        // Port 0 is any port that the kernel has chosen.
        ("127.0.0.1:0", "http://127.0.0.1:40123", true),
        ("127.0.0.1:0", "http://127.0.0.2:40123", false),
        (":0", "http://*:40123", true),
        (":0", "http://127.0.0.1:40123", false),
    ] {
        let config = parse(
            &format!(
                "[server]\nlisten = [\"{listener}\"]\n[upstreams.a]\nservers = \
                 [\"127.0.0.1:1\"]\n[[sites]]\n[[sites.routes]]\nupstream = \"a\"\nmatch = \
                 {{ listener = [\"{listener}\"] }}\n"
            ),
            Path::new("penstock.toml"),
        );
        let config = config.unwrap_or_else(|error| panic!("{listener}: {error}"));
        let table = &config.sites[0].routes[0].conditions;
        let compiled = RequestConditions::compile(table, &ConditionSet::default()).unwrap();
        let info = ListenerInfo {
            name: name.to_owned(),
            ..LISTENER.clone()
        };
        let lines: Vec<&str> = request.lines().map(str::trim).collect();
        let head = head(&format!("{}\r\nHost: a:8081\r\n\r\n", lines.join("\r\n")));
        let facts = RequestFacts {
            head: &head,
            client: PeerAddress::Unix,
            scheme: "http",
            listener: &info,
            tls: None,
        };
        let found = compiled.match_request(&facts, b"/");
        assert_eq!(found, expected, "{listener} {name}");
    }
}

#[test]
fn a_client_on_a_unix_socket_is_in_no_network() {
    let request = "GET / HTTP/1.0";
    for (table, expected) in [
        (r#"{ client = ["0.0.0.0/0", "::/0"] }"#, false),
        (r#"{ client = ["unix"] }"#, true),
        (r#"{ protocol = ["HTTP/1.0"] }"#, true),
    ] {
        let on_unix = matches_with(table, request, |facts| RequestFacts {
            client: PeerAddress::Unix,
            ..facts
        });
        assert_eq!(on_unix, expected, "{table}");
    }
}

#[test]
fn certificates_count_once_they_are_verified() {
    let fingerprint = "ab".repeat(32);
    let certificate = ClientCertificate {
        subject: "CN=anna".into(),
        issuer: "CN=ca".into(),
        serial: "01".into(),
        fingerprint: fingerprint.as_str().into(),
    };
    let verified = TlsInfo {
        client: ClientVerification::Verified(Box::new(certificate)),
        ..TlsInfo::default()
    };
    let anonymous = TlsInfo {
        client: ClientVerification::NotSent,
        ..TlsInfo::default()
    };
    let colons = ["AB"; 32].join(":");
    for (table, of_verified, of_anonymous) in [
        ("{ client_certificate = true }".to_owned(), true, false),
        ("{ client_certificate = false }".to_owned(), false, true),
        (
            format!("{{ client_fingerprint = [\"{fingerprint}\"] }}"),
            true,
            false,
        ),
        (
            format!("{{ client_fingerprint = [\"{colons}\"] }}"),
            true,
            false,
        ),
        (
            format!("{{ client_fingerprint = [\"{}\"] }}", "cd".repeat(32)),
            false,
            false,
        ),
        (r#"{ scheme = "https" }"#.to_owned(), true, true),
    ] {
        for (tls, expected) in [(&verified, of_verified), (&anonymous, of_anonymous)] {
            let head = head("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let config = config(&table);
            let table = &config.sites[0].routes[0].conditions;
            let compiled = RequestConditions::compile(table, &ConditionSet::default()).unwrap();
            let facts = RequestFacts {
                head: &head,
                client: PeerAddress::Unix,
                scheme: "https",
                listener: &LISTENER,
                tls: Some(tls),
            };
            assert_eq!(compiled.match_request(&facts, b"/"), expected, "{table:?}");
        }
    }
}
