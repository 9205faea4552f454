//! The interface of Rack in the contract of all interfaces, and the promises of the Rack SPEC alone.
//!
//! Needs `ruby` with Rack, and fails with a note without them. `APP` has a path for each thing that
//! the SPEC allows or forbids.

use crate::contract::{
    AllowedResponse, Interface, RefusedResponse, ThreadedInterface, expect_lines, text,
};
use crate::support::{Server, Site};

/// A site with `config.ru` and one worker process on one loop.
pub(crate) fn rack_site(code: &str) -> Site {
    rack_site_with(code, "processes = 1")
}

pub(crate) fn rack_site_with(code: &str, app: &str) -> Site {
    require_rack();
    let toml = format!("[server]\nthreads = 1\n\n[apps.app]\nentry = \"config.ru\"\n{app}\n");
    Site::new().file("config.ru", code).config(&toml)
}

/// These tests are about Ruby: without it they fail, and say why.
fn require_rack() {
    let found = std::process::Command::new("ruby")
        .args(["-e", "require 'rack'"])
        .output();
    let there = found.is_ok_and(|output| output.status.success());
    assert!(
        there,
        "the tests of Rack applications need ruby and the gem rack (apt: ruby-rack)"
    );
}

const APP: &str = include_str!("apps/rack.ru");

pub(crate) const RACK: ThreadedInterface = ThreadedInterface {
    interface: Interface {
        name: "rack",
        site: |lines| rack_site_with(APP, lines),
        two_at_once: "threads = 2",
        allowed,
        cookies: "/cookies",
        refused: REFUSED,
        secrets: &["X-Evil", "deliberate", "config.ru"],
        cut: &[
            "/mid-raise",
            "/mid-number",
            "/mid-short",
            "/mid-long",
            "/mid-call",
            "/mid-exit",
        ],
        also_allowed,
        also_refused: |server| assert!(text(server, "/closed").contains("/raise-each")),
        also_cut: |server| {
            let closed = "/mid-raise /mid-number /mid-short /mid-long /mid-exit";
            assert_eq!(text(server, "/closed"), closed);
        },
    },
    validated_site: || rack_site(LINTED),
    complaints: &["LintError"],
    multithread: "true",
    also_valid: |_| {},
    also_bodies: |client| {
        expect_lines(client, "/rewind", |last| {
            format!("[[\"one\\n\", \"tw\"], [\"one\\n\", \"two\\n\", \"{last}\"], \"\", nil]")
        });
    },
};

fn allowed() -> Vec<AllowedResponse> {
    let large = "y".repeat(3_000_000);
    let rows: [(&str, u16, &[u8]); 21] = [
        ("/", 200, b"hello"),
        ("/empty-array", 200, b""),
        ("/array", 200, b"abc"),
        ("/encodings", 200, b"caf\xc3\xa9\xe9x\0"),
        ("/each", 200, b"abc"),
        ("/each-empty", 200, b""),
        ("/declared", 200, b"abc"),
        ("/to-ary", 200, b"abc"),
        ("/enumerator", 200, b"abc"),
        ("/status-string", 201, b"made"),
        ("/large", 200, large.as_bytes()),
        ("/no-content", 204, b""),
        ("/not-modified", 304, b""),
        ("/cookies", 200, b"x"),
        ("/hop", 200, b"x"),
        ("/rack-header", 200, b"x"),
        ("/to-path", 200, APP.as_bytes()),
        ("/to-path-length", 200, &APP.as_bytes()[..7]),
        ("/to-path-missing", 200, APP.as_bytes()),
        ("/call", 200, b"abc"),
        ("/errors", 200, b""),
    ];
    rows.map(|(path, status, body)| (path, status, body.into()))
        .into()
}

fn also_allowed(server: &Server) {
    let closed = text(server, "/closed");
    for (what, times) in [
        ("/each", 2),
        ("/each-empty", 2),
        ("/declared", 2),
        ("to_ary", 2),
        ("to_path", 6),
    ] {
        let count = closed.split(' ').filter(|c| *c == what).count();
        assert_eq!(count, times, "{what}: {closed}");
    }
    server.wait_log("said to rack.errors");
}

const REFUSED: &[RefusedResponse] = &[
    ("/raise", 500, "deliberate (ArgumentError)"),
    ("/raise-each", 500, "deliberate (ArgumentError)"),
    ("/throw", 500, "UncaughtThrowError"),
    ("/no-memory", 500, "NoMemoryError"),
    ("/nil", 502, "the application returned NilClass"),
    ("/two", 502, "the application returned Array"),
    ("/body-nil", 502, "a body of NilClass"),
    ("/body-number", 502, "the body holds Integer"),
    ("/each-number", 502, "the body holds Integer"),
    ("/status-word", 502, "status \"ok\""),
    ("/status-interim", 502, "status 100"),
    ("/status-large", 502, "status 999"),
    ("/headers-nil", 502, "bad headers"),
    ("/name-number", 502, "bad headers"),
    ("/value-return", 502, "a control character"),
    ("/value-return-only", 502, "a control character"),
    ("/name-newline", 502, "a control character"),
];

const LINTED: &str = r##"
# Lint of Rack 2.2 parses URIs and leaves loading that to the server's own libraries.
require "uri"
use Rack::Lint
run(lambda do |env|
  body = env["rack.input"].read
  env["rack.errors"].puts("seen")
  parts = env["PATH_INFO"] == "/none" ? [] : [env["REQUEST_METHOD"], ":", body]
  bodies = { "/stream" => parts.each, "/none" => parts }
  [200, { "Content-Type" => "text/plain" }, bodies.fetch(env["PATH_INFO"], parts)]
end)
"##;
