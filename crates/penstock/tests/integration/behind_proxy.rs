//! Forwarding fields of a trusted proxy apply to the request everywhere, and the prefix that the
//! proxy has stripped is restored.
//!
//! The tests connect from loopback. Unless the file lists it, only its client address and scheme
//! are trusted.
//!
//! # Invariants
//!
//! - Nothing of an untrusted peer is trusted.

use crate::support::{Origin, PATIENCE, Response, Script, Server, Site, eventually};
use crate::wsgi::serve_ready;

const APP: &str = r#"
from wsgiref.util import request_uri

KEYS = ["wsgi.url_scheme", "HTTPS", "SERVER_NAME", "SERVER_PORT", "REMOTE_ADDR", "SCRIPT_NAME", "PATH_INFO"]

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return ["|".join([request_uri(environ)] + [environ.get(key, "-") for key in KEYS]).encode()]
"#;

/// The fields of a proxy for a client at 203.0.113.9, which made up the first address.
const SAID: &str = "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\
                    X-Forwarded-Host: shop.test\r\nX-Forwarded-Prefix: /outer\r\n";

/// The operator trusts the proxies on this machine.
const LISTED: &str = "trusted_proxies = [\"127.0.0.1\"]";

fn ask(server: &Server, target: &str, lines: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: inner.test\r\n{lines}Connection: close\r\n\r\n"
    ));
    client.response()
}

fn app_site(server: &str) -> Site {
    let toml = format!(
        "[server]\nthreads = 1\n{server}\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n\
         [[sites]]\n[[sites.routes]]\npath = \"/shop/*\"\nrewrite = {{ strip_prefix = \"/shop\" }}\n\
         app = \"app\"\n[[sites.routes]]\napp = \"app\"\n"
    );
    Site::new().file("app.py", APP).config(&toml)
}

#[test]
fn an_application_sees_the_request_that_its_client_made() {
    let server = serve_ready(&app_site(LISTED));
    let port = server.port();
    for (target, lines, expected) in [
        (
            "/a",
            SAID,
            "https://shop.test/outer/a|https|on|shop.test|443|203.0.113.9|/outer|/a".to_owned(),
        ),
        (
            "/shop/a",
            SAID,
            "https://shop.test/outer/shop/a|https|on|shop.test|443|203.0.113.9|/outer/shop|/a"
                .to_owned(),
        ),
        (
            "/shop/a%20b?c",
            "",
            format!("http://inner.test/shop/a%20b?c|http|-|inner.test|{port}|127.0.0.1|/shop|/a b"),
        ),
        (
            "/a",
            "X-Forwarded-For: 203.0.113.9, garbage\r\n",
            format!("http://inner.test/a|http|-|inner.test|{port}|127.0.0.1||/a"),
        ),
        (
            "/a",
            "Forwarded: for=\"[2001:db8::1]:9\";proto=https\r\n",
            "https://inner.test/a|https|on|inner.test|443|2001:db8::1||/a".to_owned(),
        ),
    ] {
        assert_eq!(
            ask(&server, target, lines).text(),
            expected,
            "{target} {lines}"
        );
    }
    server.wait_log("x-forwarded-for of proxy 127.0.0.1 ignored");
}

/// nginx's default configuration forwards these fields as its client made them up.
#[test]
fn a_proxy_that_nobody_listed_says_address_and_scheme() {
    let server = serve_ready(&app_site(""));
    let expected = "https://inner.test/shop/a|https|on|inner.test|443|203.0.113.9|/shop|/a";
    let port = "X-Forwarded-Port: 8443\r\n";
    assert_eq!(
        ask(&server, "/shop/a", &format!("{SAID}{port}")).text(),
        expected
    );
    for name in ["host", "prefix", "port"] {
        server.wait_log(&format!(
            "x-forwarded-{name} of proxy 127.0.0.1 ignored: it counts only from proxies that \
             server.trusted_proxies lists"
        ));
    }
    let standard = "Forwarded: for=\", for=203.0.113.9;proto=https;host=evil.test\r\n";
    assert_eq!(ask(&server, "/shop/a", standard).text(), expected);
}

#[test]
fn applications_and_servers_get_no_field_that_does_not_count() {
    const FIELDS: &str = r#"
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    found = [key for key in environ if "FORWARDED" in key or "REAL" in key]
    return ["|".join(sorted(f"{key[5:]}={environ[key]}" for key in found)).encode()]
"#;
    let origin = Origin::named("origin");
    let lines = "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-Host: evil.test\r\nX-Forwarded-Port: 8443\r\n\
                 X-Forwarded-Prefix: /evil\r\nX-Real-IP: 198.51.100.1\r\n\
                 X-Forwarded-Ssl: off\r\nForwarded: for=198.51.100.1;host=evil.test\r\n";
    let toml = format!(
        "[apps.app]\nentry = \"app:app\"\nprocesses = 1\n[upstreams.b]\nservers = [\"{}\"]\n\
         [[sites]]\n[[sites.routes]]\npath = \"/b\"\nupstream = \"b\"\n[[sites.routes]]\napp = \"app\"\n",
        origin.address()
    );
    let server = serve_ready(&Site::new().file("app.py", FIELDS).config(&toml));
    assert_eq!(
        ask(&server, "/a", lines).text(),
        "X_FORWARDED_FOR=203.0.113.9|X_FORWARDED_PROTO=https|X_FORWARDED_SSL=on|X_REAL_IP=203.0.113.9"
    );
    assert_eq!(ask(&server, "/b", lines).status, 200);
    let seen = origin.last();
    for (name, expected) in [
        ("x-forwarded-for", Some("203.0.113.9, 127.0.0.1")),
        ("x-forwarded-proto", Some("https")),
        ("x-forwarded-host", Some("inner.test")),
        ("x-forwarded-ssl", Some("on")),
        ("x-real-ip", Some("203.0.113.9")),
        ("x-forwarded-port", None),
        ("x-forwarded-prefix", None),
        ("forwarded", None),
    ] {
        assert_eq!(seen.field(name).as_deref(), expected, "{name}");
    }
}

#[test]
fn a_stranger_is_believed_nothing() {
    let server = serve_ready(&app_site("trusted_proxies = [\"192.0.2.1\"]"));
    let port = server.port();
    let more = "X-Real-IP: 203.0.113.9\r\nForwarded: for=203.0.113.9;proto=https\r\n";
    for lines in [SAID, more] {
        let expected = format!("http://inner.test/a|http|-|inner.test|{port}|127.0.0.1||/a");
        assert_eq!(ask(&server, "/a", lines).text(), expected, "{lines}");
    }
}

#[test]
fn only_the_field_that_is_set_names_the_client() {
    let server = serve_ready(&app_site("client_address = \"CF-Connecting-IP\""));
    let lines = "X-Forwarded-For: 198.51.100.1\r\nCF-Connecting-IP: 203.0.113.9\r\n";
    let seen = ask(&server, "/a", lines).text();
    assert!(seen.contains("|203.0.113.9|"), "{seen}");
}

#[test]
fn the_access_log_has_the_client_and_the_peer() {
    for (format, client) in [
        ("combined", "203.0.113.9 - - ["),
        ("json", "\"client\":\"203.0.113.9\""),
    ] {
        let toml = format!(
            "[server]\naccess_log = {{ path = \"access.log\", format = \"{format}\" }}\n\
             [[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
        );
        let server = Site::new().file("public/x", "x").config(&toml).serve(&[]);
        assert_eq!(ask(&server, "/x", SAID).status, 200);
        // The second one comes from memory.
        assert_eq!(ask(&server, "/x", SAID).status, 200);
        let log = eventually(PATIENCE, "two lines in the access log", || {
            let log = server.site().read("access.log");
            (log.lines().count() == 2).then_some(log)
        });
        for line in log.lines() {
            assert!(line.contains(client), "{line}");
            assert_eq!(
                line.contains("\"peer\":\"127.0.0.1\""),
                format == "json",
                "{line}"
            );
        }
    }
}

/// The client is in the PROXY protocol header; the peer is the balancer that sent it.
#[test]
fn the_access_log_has_the_balancer_of_a_client() {
    let toml = "[server]\nlisten = [{ address = \"127.0.0.1:0\", proxy_protocol = true }]\n\
                access_log = { path = \"access.log\", format = \"json\" }\n\
                [[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n";
    let server = Site::new().file("public/x", "x").config(toml).serve(&[]);
    let header = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 443\r\n";
    let local = "PROXY UNKNOWN\r\n";
    let said = "X-Forwarded-For: 198.51.100.1\r\n";
    let whole = format!("GET /x HTTP/1.1\r\nHost: a\r\n{said}Connection: close\r\n\r\n");
    let broken = "GET /x HTTP/1.1\r\nHost a\r\n\r\n";
    let rows = [
        (header, whole.as_str(), 200, "203.0.113.9"),
        (header, broken, 400, "203.0.113.9"),
        // No trusted peer confirms the fields of a client without an address.
        (local, &whole, 200, "127.0.0.1"),
    ];
    for (at, (header, request, status, expected)) in rows.into_iter().enumerate() {
        let mut client = server.connect();
        client.send(format!("{header}{request}"));
        client.expect_status(status);
        let line = eventually(PATIENCE, "a line in the access log", || {
            let log = server.site().read("access.log");
            log.lines().nth(at).map(str::to_owned)
        });
        for part in [
            format!("\"client\":\"{expected}\""),
            "\"peer\":\"127.0.0.1\"".to_owned(),
        ] {
            assert!(line.contains(&part), "{part}: {line}");
        }
    }
}

#[test]
fn redirects_to_folders_stay_where_the_client_is() {
    let toml = format!(
        "[server]\n{LISTED}\n[[sites]]\n[[sites.routes]]\npath = \"/docs/*\"\n\
         rewrite = {{ strip_prefix = \"/docs\" }}\nfiles = {{ root = \"public\" }}\n\
         [[sites.routes]]\npath = \"/own/*\"\nrewrite = {{ strip_prefix = \"/own\" }}\n\
         request_headers = {{ remove = [\"X-Forwarded-Prefix\"] }}\nfiles = {{ root = \"public\" }}\n\
         [[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
    );
    let site = Site::new().file("public/sub/index.html", "").config(&toml);
    let server = site.file("public/evil.test/index.html", "").serve(&[]);
    for (target, lines, expected) in [
        ("/sub", "", "/sub/"),
        ("/sub?a=1&b=%20", "", "/sub/?a=1&b=%20"),
        ("/docs/sub?a", "", "/docs/sub/?a"),
        ("/docs", "", "/docs/"),
        ("/docs?a", "", "/docs/?a"),
        ("/docs", SAID, "/outer/docs/"),
        ("/docs/sub", SAID, "/outer/docs/sub/"),
        // A rule does not make the proxy's fields trusted.
        ("/own", SAID, "/own/"),
        ("/own/sub", SAID, "/own/sub/"),
        ("//evil.test", "", "/evil.test/"),
        ("/docs//evil.test", "", "/docs/evil.test/"),
        (
            "/docs/%2fevil.test",
            "X-Forwarded-Prefix: //evil.test\r\n",
            "",
        ),
        ("//docs", "X-Forwarded-Prefix: //evil.test\r\n", "/docs/"),
    ] {
        let answer = ask(&server, target, lines);
        let found = answer.header("location").unwrap_or_default();
        assert_eq!(found, expected, "{target} {lines}");
        assert_eq!(
            answer.status,
            if expected.is_empty() { 404 } else { 301 },
            "{target}"
        );
    }
    let mut client = server.connect();
    client.send("POST /docs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.expect_status(308).header("location"), Some("/docs/"));
}

#[test]
fn paths_of_a_stripped_upstream_are_put_right() {
    let origin = Origin::start(|_| {
        Script::raw(
            "HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Location: /cart\r\n\
             Set-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n",
        )
        .keep()
    });
    let address = origin.address();
    let toml = format!(
        "[server]\n{LISTED}\n[upstreams.b]\nservers = [\"{address}\"]\nsticky = \"srv\"\n\
         [[sites]]\n[[sites.routes]]\npath = \"/shop/*\"\n\
         rewrite = {{ strip_prefix = \"/shop\" }}\nupstream = \"b\"\n[[sites.routes]]\n\
         path = \"/raw/*\"\nrewrite = {{ strip_prefix = \"/raw\", response_paths = false }}\n\
         upstream = \"b\"\n"
    );
    let server = Site::new().config(&toml).serve(&[]);
    for (target, lines, location, cookie, prefix) in [
        ("/shop/cart", "", "/shop/login", "a=1; Path=/shop", "/shop"),
        (
            "/shop/cart",
            SAID,
            "/outer/shop/login",
            "a=1; Path=/outer/shop",
            "/outer/shop",
        ),
        ("/raw/cart", "", "/login", "a=1; Path=/", "/raw"),
    ] {
        let answer = ask(&server, target, lines);
        assert_eq!(answer.header("location"), Some(location), "{target}");
        assert_eq!(answer.header("set-cookie"), Some(cookie), "{target}");
        // Penstock's own cookie applies to every route.
        let mut cookies = answer.headers.iter().map(|(_, value)| value);
        let sticky = cookies.find(|value| value.starts_with("srv="));
        let sticky = sticky.expect("a sticky cookie");
        assert!(sticky.contains("; Path=/; "), "{target}: {sticky}");
        let seen = origin.last();
        assert_eq!(seen.line(), "GET /cart");
        assert_eq!(
            seen.field("x-forwarded-prefix").as_deref(),
            Some(prefix),
            "{target}"
        );
    }
}

/// A rule of the route is trusted: it applies to the request from there on.
#[test]
fn rules_about_a_proxys_fields_count() {
    let route = |path: &str, rules: &str| {
        format!(
            "[[sites.routes]]\npath = \"{path}\"\nrequest_headers = {{ {rules} }}\napp = \"app\"\n"
        )
    };
    let routes = [
        route(
            "/removed/*",
            "remove = [\"X-Forwarded-Host\", \"X-Forwarded-Prefix\"]",
        ),
        route(
            "/set/*",
            "set = { X-Forwarded-Proto = \"https\", X-Forwarded-Host = \"shop.test\" }",
        ),
        route("/client/*", "set = { X-Real-IP = \"192.0.2.9\" }"),
    ]
    .concat();
    for (list, proxy) in [
        (LISTED, "203.0.113.9"),
        ("trusted_proxies = []", "127.0.0.1"),
    ] {
        let toml = format!(
            "[server]\nthreads = 1\n{list}\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n\
             [[sites]]\n{routes}"
        );
        let server = serve_ready(&Site::new().file("app.py", APP).config(&toml));
        let port = server.port();
        let is_listed = list == LISTED;
        let (scheme, https, own_port) = match is_listed {
            true => ("https", "on", "443".to_owned()),
            false => ("http", "-", port.to_string()),
        };
        let outer = if is_listed { "/outer" } else { "" };
        for (path, lines, expected) in [
            (
                "/removed/a",
                SAID,
                format!(
                    "{scheme}://inner.test/removed/a|{scheme}|{https}|inner.test|{own_port}|{proxy}||/removed/a"
                ),
            ),
            (
                "/set/a",
                "X-Forwarded-Host: evil.test\r\nX-Forwarded-Proto: http\r\n",
                "https://shop.test/set/a|https|on|shop.test|443|127.0.0.1||/set/a".to_owned(),
            ),
            (
                "/set/a",
                SAID,
                format!(
                    "https://shop.test{outer}/set/a|https|on|shop.test|443|{proxy}|{outer}|/set/a"
                ),
            ),
            (
                "/client/a",
                "X-Real-IP: 198.51.100.1\r\n",
                format!("http://inner.test/client/a|http|-|inner.test|{port}|192.0.2.9||/client/a"),
            ),
        ] {
            assert_eq!(
                ask(&server, path, lines).text(),
                expected,
                "{list} {path} {lines}"
            );
        }
    }
}

/// A proxy's fields for one client never change another client's page.
#[test]
fn a_cached_page_is_for_those_who_asked_the_same() {
    let app = APP.replace(
        "(\"Content-Type\", \"text/plain\")",
        "(\"Content-Type\", \"text/plain\"), (\"Cache-Control\", \"max-age=600\")",
    );
    let toml = format!(
        "[server]\nthreads = 1\n{LISTED}\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n\
         [caches.m]\nmax_size = \"16MiB\"\n\
         [[sites]]\n[[sites.routes]]\nrewrite = {{ strip_prefix = \"/shop\" }}\n\
         app = \"app\"\ncache = [\"m\"]\n"
    );
    let server = serve_ready(&Site::new().file("app.py", &app).config(&toml));
    let rows = [
        ("/a", "", "http://inner.test/a|"),
        ("/shop/a", "", "http://inner.test/shop/a|"),
        (
            "/a",
            "X-Forwarded-Proto: https\r\n",
            "https://inner.test/a|",
        ),
        (
            "/a",
            "X-Forwarded-Host: shop.test\r\n",
            "http://shop.test/a|",
        ),
        (
            "/a",
            "X-Forwarded-Prefix: /outer\r\n",
            "http://inner.test/outer/a|",
        ),
        (
            "/a",
            "Forwarded: for=192.0.2.1;host=b.test;proto=https\r\n",
            "https://b.test/a|",
        ),
    ];
    for round in 0..2 {
        for (path, lines, expected) in rows {
            let answer = ask(&server, path, lines);
            let text = answer.text();
            assert!(text.starts_with(expected), "{round} {path} {lines}: {text}");
            assert_eq!(answer.header("age").is_some(), round == 1, "{path} {lines}");
        }
    }
}

/// Also from the cache, which knows no server.
#[test]
fn no_redirect_leads_to_the_servers_own_address() {
    let origin = Origin::start(|seen| {
        let own = seen.field("x-own").unwrap_or_default();
        Script::raw(format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{own}/login?a\r\nCache-Control: max-age=600\r\n\
             Content-Length: 0\r\n\r\n"
        ))
        .keep()
    });
    let address = origin.address();
    let toml = format!(
        "[upstreams.b]\nservers = [\"{address}\"]\n\
         [caches.m]\nmax_size = \"16MiB\"\n\
         [[sites]]\n[[sites.routes]]\nrewrite = {{ strip_prefix = \"/shop\" }}\n\
         request_headers = {{ set = {{ X-Own = \"{address}\" }} }}\nupstream = \"b\"\ncache = [\"m\"]\n"
    );
    let server = Site::new().config(&toml).serve(&[]);
    for (target, expected) in [
        ("/shop/cart", "/shop/login?a"),
        ("/shop/cart", "/shop/login?a"),
        // Not below the stripped prefix.
        ("/cart", "/login?a"),
        ("/cart", "/login?a"),
    ] {
        let answer = ask(&server, target, "");
        assert_eq!(
            (answer.status, answer.header("location")),
            (302, Some(expected)),
            "{target}"
        );
    }
    assert_eq!(origin.requests().len(), 2, "the others came from the cache");
}

/// The clients of one proxy are distinguished, and their cookies match the scheme that they use.
#[test]
fn stickiness_is_by_the_client_behind_a_proxy() {
    const PIDS: &str = r#"
import os

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"#;
    let site = |sticky: &str| {
        let toml = format!(
            "[server]\nthreads = 1\n[apps.app]\nentry = \"app:app\"\nprocesses = 3\n\
             sticky = \"{sticky}\"\n[[sites]]\n[[sites.routes]]\napp = \"app\"\n"
        );
        Site::new().file("app.py", PIDS).config(&toml)
    };
    let server = serve_ready(&site("client_ip"));
    let pid_of = |client: usize, standard: bool| {
        let lines = match standard {
            true => format!("Forwarded: for=203.0.113.{client};proto=https\r\n"),
            false => format!("X-Forwarded-For: 198.51.100.{client}, 203.0.113.{client}\r\n"),
        };
        ask(&server, "/", &lines).text()
    };
    let first: Vec<String> = (1..=24).map(|client| pid_of(client, false)).collect();
    let mut pids = first.clone();
    pids.sort_unstable();
    pids.dedup();
    assert!(
        pids.len() > 1,
        "24 clients at one process of three: {pids:?}"
    );
    for round in 0..3 {
        for (at, expected) in first.iter().enumerate() {
            assert_eq!(&pid_of(at + 1, round == 1), expected, "client {at}");
        }
    }

    let of_app = serve_ready(&site("cookie"));
    let origin = Origin::named("origin");
    let toml = format!(
        "[upstreams.b]\nservers = [\"{}\"]\nsticky = \"srv\"\n[[sites]]\n[[sites.routes]]\n\
         upstream = \"b\"\n",
        origin.address()
    );
    let of_upstream = Site::new().config(&toml).serve(&[]);
    for (lines, is_secure) in [
        ("", false),
        ("X-Forwarded-Proto: https\r\n", true),
        ("Forwarded: for=203.0.113.9;proto=https\r\n", true),
    ] {
        for server in [&of_app, &of_upstream] {
            let answer = ask(server, "/", lines);
            let cookie = answer.header("set-cookie").expect("a cookie");
            assert_eq!(cookie.ends_with("; Secure"), is_secure, "{lines}: {cookie}");
        }
    }
}
