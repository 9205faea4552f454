//! The interface of WSGI in the contract of all interfaces, and the promises of PEP 3333 alone.
//!
//! One application (`APP`) has a path for each thing that PEP 3333 allows or forbids.

use crate::contract::{
    AllowedResponse, Interface, RefusedResponse, ThreadedInterface, expect_lines, request, text,
};
use crate::support::{RawClient, Server, Site};

/// A site with `app.py` and one worker process on one loop.
pub(crate) fn wsgi_site(code: &str) -> Site {
    wsgi_site_with(code, "processes = 1")
}

/// A site with `app.py` and these lines in its `[apps.app]`.
pub(crate) fn wsgi_site_with(code: &str, app: &str) -> Site {
    let toml = format!("[server]\nthreads = 1\n\n[apps.app]\nentry = \"app:app\"\n{app}\n");
    Site::new().file("app.py", code).config(&toml)
}

/// Starts it and waits until its application is ready.
pub(crate) fn serve_ready(site: &Site) -> Server {
    let server = site.serve(&[]);
    server.wait_ready("app");
    server
}

const APP: &str = include_str!("apps/wsgi.py");

pub(crate) const WSGI: ThreadedInterface = ThreadedInterface {
    interface: Interface {
        name: "wsgi",
        site: |lines| wsgi_site_with(APP, lines),
        two_at_once: "threads = 2",
        allowed,
        cookies: "/repeated",
        refused: REFUSED,
        secrets: &["X-Evil", "X-Never", "deliberate", "Traceback"],
        cut: &[
            "/mid-raise",
            "/mid-text",
            "/mid-short",
            "/mid-long",
            "/mid-exc-info",
            "/mid-exit",
        ],
        also_allowed,
        also_refused: |server| assert!(text(server, "/closed").contains("/raise-first")),
        also_cut,
    },
    validated_site: || wsgi_site(VALIDATED),
    complaints: &["AssertionError", "Iterator garbage collected", "Traceback"],
    multithread: "True",
    also_valid,
    also_bodies,
};

fn allowed() -> Vec<AllowedResponse> {
    let rest_of_file = &APP[1..];
    let (large, memory) = ("y".repeat(3_000_000), "z".repeat(20_000));
    let rows = [
        ("/", 200, "hello"),
        ("/empty-list", 200, ""),
        ("/empty-chunks", 200, ""),
        ("/tuple", 200, "ab"),
        ("/many", 200, "abc"),
        ("/generator", 200, "abc"),
        ("/declared", 200, "abc"),
        ("/late-start", 200, "late"),
        ("/large", 200, &large),
        ("/no-content", 204, ""),
        ("/not-modified", 304, ""),
        ("/repeated", 200, "x"),
        ("/latin", 200, "x"),
        ("/hop", 200, "x"),
        ("/write", 200, "one,two,three"),
        ("/write-only", 200, "abc"),
        ("/exc-info", 503, "sorry"),
        ("/file", 200, rest_of_file),
        ("/file-length", 200, &rest_of_file[..9]),
        ("/file-memory", 200, &memory),
        ("/file-temp", 200, "temporary"),
        ("/echo", 200, "None:"),
        ("/errors", 200, ""),
    ];
    rows.map(|(path, status, body)| (path, status, body.into()))
        .into()
}

fn also_allowed(server: &Server) {
    let answer = server.get("/latin");
    assert_eq!(answer.header("x-name"), Some("caf\u{e9}"));
    let answer = server.get("/exc-info");
    assert_eq!(
        (answer.header("x-first"), answer.header("x-second")),
        (None, Some("2"))
    );
    let answer = server.get("/empty-list");
    assert_eq!(answer.header("content-length"), Some("0"));
    server.wait_log("said to wsgi.errors");
}

const REFUSED: &[RefusedResponse] = &[
    ("/raise", 500, "ValueError: deliberate"),
    ("/raise-after-start", 500, "ValueError: deliberate"),
    ("/raise-first", 500, "ValueError: deliberate"),
    ("/nowhere", 500, "KeyError: 'do_nowhere'"),
    ("/interrupt", 500, "KeyboardInterrupt"),
    ("/no-start", 502, "start_response was not called"),
    ("/none", 502, "a NoneType was returned"),
    ("/text", 502, "the body holds str"),
    ("/text-list", 502, "the body holds str"),
    ("/number", 502, "a int was returned"),
    ("/status-number", 502, "bad status or headers"),
    ("/status-empty", 502, "status"),
    ("/status-interim", 502, "status"),
    ("/status-large", 502, "status"),
    ("/status-inject", 502, "a control character"),
    ("/headers-tuple", 502, "headers are no list"),
    ("/headers-lists", 502, "a header is no tuple of two"),
    ("/value-number", 502, "bad status or headers"),
    ("/value-inject", 502, "a control character"),
    ("/value-newline", 502, "a control character"),
    ("/value-split", 502, "a control character"),
    ("/value-wide", 502, "bad status or headers"),
    ("/name-colon", 502, "response head"),
    ("/start-twice", 502, "start_response called twice"),
    ("/length-minus", 502, "response Content-Length `-1`"),
    (
        "/length-none",
        502,
        "response body of 0 bytes, Content-Length 10",
    ),
    ("/file-short", 502, "Content-Length 10000000"),
];

fn also_cut(server: &Server) {
    // All declared bytes had arrived when the application continued.
    let mut client = server.connect();
    client.send(request("GET", "/mid-long-last"));
    if let Ok(answer) = client.try_response(false) {
        assert_eq!(answer.body, b"begun");
    }
    server
        .wait_log("more body than Content-Length")
        .wait_log("ValueError: deliberate");
    let closed = text(server, "/closed");
    assert_eq!(
        closed,
        "/mid-raise /mid-text /mid-short /mid-long /mid-long-last"
    );
}

const VALIDATED: &str = r#"
import wsgiref.validate

def inner(environ, start):
    path = environ["PATH_INFO"]
    size = int(environ.get("CONTENT_LENGTH") or 0)
    stream = environ["wsgi.input"]
    body = stream.read(size) + stream.read(1)
    environ["wsgi.errors"].write("seen\n")
    write = start("200 OK", [("Content-Type", "text/plain")])
    if path == "/write":
        write(b"written,")
    if path == "/none":
        return []
    parts = [environ["REQUEST_METHOD"].encode(), b":", b"", body]
    if path == "/stream":
        return (chunk for chunk in parts)
    return parts

app = wsgiref.validate.validator(inner)
"#;

fn also_valid(client: &mut RawClient) {
    let answer = client.send(request("GET", "/write")).expect_status(200);
    assert_eq!(answer.text(), "written,GET:");
    client.send(request("HEAD", "/")).expect_head(200);
    client.send(request("GET", "/")).expect_status(200);
}

fn also_bodies(client: &mut RawClient) {
    // PEP 3333 allows both for an empty body: empty or missing.
    for framing in [
        "Content-Length: 0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        client.send(format!("POST /echo HTTP/1.1\r\nHost: a\r\n{framing}"));
        let answer = client.expect_status(200).text();
        assert!(["0:", "None:"].contains(&&*answer), "{framing}: {answer}");
    }
    expect_lines(client, "/lines", |last| {
        format!("(b'one\\n', b'tw', [b'o\\n', b'{last}'], b'', [])")
    });
}
