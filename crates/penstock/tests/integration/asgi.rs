//! The interface of ASGI in the contract of all interfaces, and the promises of ASGI alone.
//!
//! One application (`APP`) has a path for each thing that ASGI 3.0 allows or forbids.

use crate::contract::{AllowedResponse, Interface, RefusedResponse, text};
use crate::support::{Server, Site};

const APP: &str = include_str!("apps/asgi.py");

pub(crate) const ASGI: Interface = Interface {
    name: "asgi",
    site: |lines| {
        let app = "[apps.app]\nentry = \"app:app\"\nkind = \"asgi\"";
        let toml = format!("[server]\nthreads = 1\n\n{app}\n{lines}\n");
        Site::new().file("app.py", APP).config(&toml)
    },
    two_at_once: "max_concurrent = 2",
    allowed,
    cookies: "/cookies",
    refused: REFUSED,
    secrets: &["X-Evil", "x-never", "deliberate", "Traceback"],
    cut: &[
        "/mid-raise",
        "/mid-return",
        "/mid-start",
        "/mid-text",
        "/mid-short",
        "/mid-long",
        "/mid-exit",
    ],
    also_allowed: |server| {
        assert_eq!(server.get("/latin").header("x-name"), Some("caf\u{e9}"));
        assert_eq!(server.get("/empty").header("content-length"), Some("0"));
    },
    also_refused: |_| {},
    also_cut,
};

fn allowed() -> Vec<AllowedResponse> {
    let large = "y".repeat(3_000_000);
    let rows = [
        ("/", 200, "hello"),
        ("/empty", 200, ""),
        ("/defaults", 200, ""),
        ("/chunks", 200, "abc"),
        ("/views", 200, "abc"),
        ("/declared", 200, "abc"),
        ("/large", 200, &large),
        ("/no-content", 204, ""),
        ("/not-modified", 304, ""),
        ("/cookies", 200, "x"),
        ("/latin", 200, "x"),
        ("/hop", 200, "x"),
        ("/raise-late", 200, "whole"),
    ];
    rows.map(|(path, status, body)| (path, status, body.into()))
        .into()
}

const REFUSED: &[RefusedResponse] = &[
    ("/raise", 500, "ValueError: deliberate"),
    ("/raise-after-start", 500, "ValueError: deliberate"),
    ("/nowhere", 500, "KeyError: 'do_nowhere'"),
    ("/return", 502, "no response"),
    ("/start-only", 502, "no response"),
    ("/body-first", 502, "before 'http.response.start'"),
    ("/start-twice", 502, "after 'http.response.start'"),
    ("/text", 502, "a body of str, not bytes"),
    ("/number", 502, "a body of int, not bytes"),
    ("/status-text", 502, "a status of '200 OK'"),
    ("/status-interim", 502, "status"),
    ("/status-large", 502, "a status of 999"),
    ("/header-text", 502, "bad headers"),
    ("/header-one", 502, "bad headers"),
    ("/value-inject", 502, "a control character"),
    ("/value-newline", 502, "a control character"),
    ("/name-colon", 502, "response head"),
    ("/length-minus", 502, "response Content-Length `-1`"),
    (
        "/length-none",
        502,
        "response body of 0 bytes, Content-Length 10",
    ),
];

fn also_cut(server: &Server) {
    server.wait_log("the application returned before its response was complete");
    let all = "/mid-raise /mid-return /mid-start /mid-text /mid-short /mid-long /mid-exit";
    assert_eq!(text(server, "/closed"), all);
}
