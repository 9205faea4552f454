//! The variables that an application sees, for Python and Ruby from one table.
//!
//! Both applications respond with their environment as JSON, each byte above ASCII as the character
//! of that number.
//!
//! # Invariants
//!
//! - One header is one variable, and no header can pose as another.
//! - Variables that only a front end may set come from the front end alone.

use std::collections::BTreeMap;

use crate::rack::rack_site;
use crate::support::{RawClient, Server, Site};
use crate::wsgi::wsgi_site;

const PYTHON: &str = r#"
import json, sys

def app(environ, start):
    shown = {k: v if isinstance(v, str) else repr(v) for k, v in environ.items()}
    types = {type(k) for k in environ} | {type(v) for v in environ.values() if isinstance(v, str)}
    assert types == {str}, types
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(shown).encode()]
"#;

const RUBY: &str = r##"
require "json"

run(lambda do |env|
  shown = env.transform_values do |value|
    next value.inspect unless value.is_a?(String)
    raise "#{value.inspect} is #{value.encoding}" unless value.encoding == Encoding::BINARY || value.ascii_only?
    value.dup.force_encoding(Encoding::ISO_8859_1).encode(Encoding::UTF_8)
  end
  [200, { "Content-Type" => "application/json" }, [JSON.generate(shown)]]
end)
"##;

type Environ = BTreeMap<String, String>;

fn environ(client: &mut RawClient, request: &str) -> Environ {
    let bytes: Vec<u8> = request
        .chars()
        .map(|c| u8::try_from(u32::from(c)).unwrap())
        .collect();
    let answer = client.send(bytes).response();
    assert_eq!(answer.status, 200, "{request:?}: {}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

fn serve_both() -> [(&'static str, Server); 2] {
    let serve = |site: Site| {
        let server = site.serve(&[]);
        server.wait_ready("app");
        server
    };
    [
        ("wsgi", serve(wsgi_site(PYTHON))),
        ("rack", serve(rack_site(RUBY))),
    ]
}

/// The lines of a request (after its first line and Host), and their variables; `None` is absent.
type Row = (
    &'static str,
    &'static str,
    &'static [(&'static str, Option<&'static str>)],
);

const FIELDS: [Row; 21] = [
    (
        "one header",
        "X-Plain: a b",
        &[("HTTP_X_PLAIN", Some("a b"))],
    ),
    (
        "upper and lower case",
        "aCCepT: x\r\nX-a: 1",
        &[("HTTP_ACCEPT", Some("x")), ("HTTP_X_A", Some("1"))],
    ),
    (
        "repeated",
        "X-A: 1\r\nX-B: 0\r\nx-a: 2\r\nX-A: 3",
        &[("HTTP_X_A", Some("1, 2, 3")), ("HTTP_X_B", Some("0"))],
    ),
    (
        "cookies",
        "Cookie: a=1\r\nCookie: b=2",
        &[("HTTP_COOKIE", Some("a=1; b=2"))],
    ),
    ("an empty value", "X-Empty:", &[("HTTP_X_EMPTY", Some(""))]),
    (
        "blanks around a value",
        "X-A:  \t a \t ",
        &[("HTTP_X_A", Some("a"))],
    ),
    (
        "empty among repeated",
        "X-A:\r\nX-A: 1",
        &[("HTTP_X_A", Some(", 1"))],
    ),
    ("underscore", "X_Evil: 1", &[("HTTP_X_EVIL", None)]),
    (
        "underscore beside its twin",
        "X_Forwarded_For: 6.6.6.6\r\nX-Forwarded-For: 1.2.3.4",
        &[("HTTP_X_FORWARDED_FOR", Some("1.2.3.4"))],
    ),
    (
        "latin-1",
        "X-Name: caf\u{e9} \u{ff}",
        &[("HTTP_X_NAME", Some("caf\u{e9} \u{ff}"))],
    ),
    (
        "utf-8",
        "X-Name: \u{e2}\u{82}\u{ac}",
        &[("HTTP_X_NAME", Some("\u{e2}\u{82}\u{ac}"))],
    ),
    (
        "content type",
        "Content-Type: text/plain; charset=utf-8",
        &[
            ("CONTENT_TYPE", Some("text/plain; charset=utf-8")),
            ("HTTP_CONTENT_TYPE", None),
        ],
    ),
    (
        "no content",
        "Accept: */*",
        &[("CONTENT_TYPE", None), ("HTTP_CONTENT_LENGTH", None)],
    ),
    ("httpoxy", "Proxy: http://evil", &[("HTTP_PROXY", None)]),
    (
        "headers of one connection",
        "Connection: keep-alive, x\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nProxy-Connection: a",
        &[
            ("HTTP_CONNECTION", None),
            ("HTTP_KEEP_ALIVE", None),
            ("HTTP_TE", None),
            ("HTTP_UPGRADE", None),
            ("HTTP_PROXY_CONNECTION", None),
        ],
    ),
    (
        "a proxy on this machine",
        "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4",
        &[
            ("HTTP_X_FORWARDED_FOR", Some("1.2.3.4")),
            ("HTTP_X_FORWARDED_PROTO", Some("https")),
            // Not of the family that counts.
            ("HTTP_FORWARDED", None),
            ("HTTP_X_REAL_IP", Some("1.2.3.4")),
            ("REMOTE_ADDR", Some("1.2.3.4")),
            ("HTTPS", Some("on")),
        ],
    ),
    (
        "names that pose as the front end's words",
        "X-Sendfile-Type: X-Accel-Redirect\r\nX-Accel-Mapping: /=/etc/\r\nX-Sendfile: /etc/passwd",
        &[
            ("HTTP_X_SENDFILE_TYPE", None),
            ("HTTP_X_ACCEL_MAPPING", None),
            ("HTTP_X_SENDFILE", None),
        ],
    ),
    (
        "names that pose as CGI variables",
        "Script-Name: /evil\r\nRemote-User: root\r\nPath-Info: /evil\r\nRequest-Method: EVIL",
        &[
            ("SCRIPT_NAME", Some("")),
            ("HTTP_REMOTE_USER", Some("root")),
            ("REMOTE_USER", None),
            ("PATH_INFO", Some("/")),
            ("REQUEST_METHOD", Some("GET")),
        ],
    ),
    (
        "a name that programs take for another",
        "X-!#$%&'*+.^`|~1: a",
        &[("HTTP_X_!#$%&'*+.^`|~1", None)],
    ),
    (
        "authorization",
        "Authorization: Basic YTpi",
        &[("HTTP_AUTHORIZATION", Some("Basic YTpi"))],
    ),
    (
        "expectation",
        "Expect: 100-continue",
        &[("HTTP_EXPECT", None)],
    ),
];

#[test]
fn one_header_is_one_variable() {
    for (kind, server) in serve_both() {
        let mut client = server.connect();
        for (name, fields, expected) in FIELDS {
            let seen = environ(
                &mut client,
                &format!("GET / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n\r\n"),
            );
            for (key, value) in expected {
                assert_eq!(
                    seen.get(*key).map(String::as_str),
                    *value,
                    "{kind}, {name}: {key}"
                );
            }
            for (key, value) in &seen {
                let is_evil = value.contains("evil") && !key.starts_with("HTTP_");
                assert!(!is_evil, "{kind}, {name}: {key} = {value}");
            }
        }
    }
}

#[test]
fn the_request_line_becomes_path_query_and_host() {
    /// The line and Host, then path, query, URI, host, server name, server port.
    type Line = (&'static str, &'static str, [&'static str; 6]);
    const PORT: &str = "(the listener's)";
    let rows: [Line; 16] = [
        (
            "GET / HTTP/1.1",
            "a.example",
            ["/", "", "/", "a.example", "a.example", PORT],
        ),
        (
            "GET /a/b?c=d&e HTTP/1.1",
            "a:81",
            ["/a/b", "c=d&e", "/a/b?c=d&e", "a:81", "a", "81"],
        ),
        ("GET /? HTTP/1.1", "a", ["/", "", "/?", "a", "a", PORT]),
        (
            "GET /??x HTTP/1.1",
            "a",
            ["/", "?x", "/??x", "a", "a", PORT],
        ),
        (
            "GET /a%20b%41 HTTP/1.1",
            "a",
            ["/a bA", "", "/a%20b%41", "a", "a", PORT],
        ),
        (
            "GET /%e2%82%AC HTTP/1.1",
            "a",
            ["/\u{e2}\u{82}\u{ac}", "", "/%e2%82%AC", "a", "a", PORT],
        ),
        (
            "GET /%ff HTTP/1.1",
            "a",
            ["/\u{ff}", "", "/%ff", "a", "a", PORT],
        ),
        (
            "GET /100%25%32%35 HTTP/1.1",
            "a",
            ["/100%25", "", "/100%25%32%35", "a", "a", PORT],
        ),
        (
            "GET /a+b?c+d=%20 HTTP/1.1",
            "a",
            ["/a+b", "c+d=%20", "/a+b?c+d=%20", "a", "a", PORT],
        ),
        (
            "GET /a/../b/./c?../d HTTP/1.1",
            "a",
            ["/b/c", "../d", "/b/c?../d", "a", "a", PORT],
        ),
        (
            "GET /a/%2e%2E/b HTTP/1.1",
            "a",
            ["/b", "", "/b", "a", "a", PORT],
        ),
        (
            "GET //a//b%2F/c HTTP/1.1",
            "a",
            ["/a/b/c", "", "/a/b/c", "a", "a", PORT],
        ),
        (
            "GET /a//b HTTP/1.1",
            "a",
            ["/a/b", "", "/a//b", "a", "a", PORT],
        ),
        (
            "GET http://b.example:82/x?y HTTP/1.1",
            "b.example:82",
            ["/x", "y", "/x?y", "b.example:82", "b.example", "82"],
        ),
        (
            "GET /v6 HTTP/1.1",
            "[::1]:83",
            ["/v6", "", "/v6", "[::1]:83", "[::1]", "83"],
        ),
        (
            "GET /v6 HTTP/1.1",
            "[::1]",
            ["/v6", "", "/v6", "[::1]", "[::1]", PORT],
        ),
    ];
    let keys = [
        "PATH_INFO",
        "QUERY_STRING",
        "REQUEST_URI",
        "HTTP_HOST",
        "SERVER_NAME",
        "SERVER_PORT",
    ];
    for (kind, server) in serve_both() {
        let port = server.port().to_string();
        let mut client = server.connect();
        for (line, host, expected) in rows {
            let seen = environ(&mut client, &format!("{line}\r\nHost: {host}\r\n\r\n"));
            for (key, value) in keys.iter().zip(expected) {
                let value = if value == PORT { &port } else { value };
                assert_eq!(
                    seen.get(*key).map(String::as_str),
                    Some(value),
                    "{kind}, {line}: {key}"
                );
            }
            assert_eq!(seen["SERVER_PROTOCOL"], "HTTP/1.1", "{kind}, {line}");
            assert_eq!(seen["SCRIPT_NAME"], "", "{kind}, {line}");
        }
    }
}

#[test]
fn http_1_0_without_a_host_has_the_listeners_port() {
    for (kind, server) in serve_both() {
        let seen = environ(&mut server.connect(), "GET /old HTTP/1.0\r\n\r\n");
        assert_eq!(seen["SERVER_PROTOCOL"], "HTTP/1.0", "{kind}");
        assert_eq!(seen["SERVER_NAME"], "localhost", "{kind}");
        assert_eq!(seen["SERVER_PORT"], server.port().to_string(), "{kind}");
        assert_eq!(seen.get("HTTP_HOST"), None, "{kind}");
    }
}

#[test]
fn every_method_arrives_as_it_is() {
    for (kind, server) in serve_both() {
        let mut client = server.connect();
        for method in [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "get", "M-SEARCH",
        ] {
            let seen = environ(
                &mut client,
                &format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"),
            );
            assert_eq!(seen["REQUEST_METHOD"], method, "{kind}");
        }
    }
}

#[test]
fn the_length_is_the_true_one_however_the_body_came() {
    for (kind, server) in serve_both() {
        let mut client = server.connect();
        let post = |framing: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}");
        let rows: [(&str, String, Option<&str>); 3] = [
            ("length", post("Content-Length: 3\r\n\r\nabc"), Some("3")),
            (
                "chunked",
                post(
                    "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
                ),
                Some("3"),
            ),
            ("none", post("\r\n"), None),
        ];
        for (name, request, length) in rows {
            let seen = environ(&mut client, &request);
            assert_eq!(
                seen.get("CONTENT_LENGTH").map(String::as_str),
                length,
                "{kind}, {name}"
            );
            for absent in [
                "HTTP_CONTENT_LENGTH",
                "HTTP_TRANSFER_ENCODING",
                "HTTP_TRAILER",
                "HTTP_X_T",
            ] {
                assert_eq!(seen.get(absent), None, "{kind}, {name}");
            }
        }
    }
}

#[test]
fn the_rest_is_what_the_interfaces_ask_for() {
    let [(_, wsgi), (_, rack)] = serve_both();
    let line = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Start: t=1\r\n\r\n";
    let python = environ(&mut wsgi.connect(), line);
    for (key, value) in [
        ("wsgi.url_scheme", "http"),
        ("wsgi.version", "(1, 0)"),
        ("wsgi.multithread", "False"),
        ("wsgi.multiprocess", "True"),
        ("wsgi.run_once", "False"),
        ("wsgi.input_terminated", "True"),
    ] {
        assert_eq!(python[key], value, "{key}");
    }
    let ruby = environ(&mut rack.connect(), line);
    for (key, value) in [
        ("rack.url_scheme", "http"),
        ("rack.multithread", "false"),
        ("rack.multiprocess", "true"),
        ("rack.run_once", "false"),
        ("rack.hijack?", "true"),
    ] {
        assert_eq!(ruby[key], value, "{key}");
    }
    for seen in [&python, &ruby] {
        assert_eq!(seen["SERVER_SOFTWARE"], "penstock");
        assert!(seen["REMOTE_PORT"].parse::<u16>().is_ok());
        let start = &seen["HTTP_X_REQUEST_START"];
        let since: f64 = start.strip_prefix("t=").unwrap().parse().unwrap();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(
            (0.0..30.0).contains(&(now.as_secs_f64() - since)),
            "the front end's own: {start}"
        );
        let cgi = |key: &&String| !key.contains('.') && !key.starts_with("HTTP_");
        let names: Vec<&String> = seen.keys().filter(cgi).collect();
        let expected = [
            "PATH_INFO",
            "QUERY_STRING",
            "REMOTE_ADDR",
            "REMOTE_PORT",
            "REQUEST_METHOD",
            "REQUEST_URI",
            "SCRIPT_NAME",
            "SERVER_NAME",
            "SERVER_PORT",
            "SERVER_PROTOCOL",
            "SERVER_SOFTWARE",
        ];
        assert_eq!(names, expected, "and no others");
    }
}

#[test]
fn behind_a_unix_socket_there_is_no_address() {
    let site = wsgi_site(PYTHON);
    let path = site.dir().join("front.sock");
    let listen = format!("unix:{}", path.display());
    let server = site.serve(&["-l", &listen]);
    server.wait_ready("app");
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let seen = environ(&mut RawClient::connect_unix(&path), request);
    assert_eq!(
        (seen["REMOTE_ADDR"].as_str(), seen.get("REMOTE_PORT")),
        ("", None)
    );
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
    let seen = environ(&mut RawClient::connect_unix(&path), request);
    assert_eq!(
        (seen["REMOTE_ADDR"].as_str(), seen.get("REMOTE_PORT")),
        ("1.2.3.4", None)
    );
    assert_eq!(
        (seen["SERVER_NAME"].as_str(), seen["SERVER_PORT"].as_str()),
        ("a", "80")
    );
    assert_eq!(
        seen["HTTP_X_FORWARDED_FOR"], "1.2.3.4",
        "a proxy on this machine"
    );
}

#[test]
fn the_applications_own_variables_reach_its_worker() {
    const SHOWS: &str = r#"
import os
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    names = ["GREETING", "FROM_SERVER", "PENSTOCK_APP", "PENSTOCK_MULTIPROCESS"]
    return [",".join(os.environ.get(n, "-") for n in names).encode()]
"#;
    let site =
        crate::wsgi::wsgi_site_with(SHOWS, "processes = 1\nenv = { GREETING = \"h\u{e9}llo\" }");
    let server = site.serve_with(&[], &[("FROM_SERVER", "yes"), ("GREETING", "no")]);
    server.wait_ready("app");
    assert_eq!(server.get("/").text(), "h\u{e9}llo,yes,app,0");
}
