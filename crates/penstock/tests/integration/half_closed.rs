//! Clients that close their sending side after a request still get their response, as with `nc -N`,
//! `socat` and scripts (RFC 9112 §9.6).
//!
//! # Invariants
//!
//! - The response arrives whole, whatever the handler and however late.
//! - A client that disconnects entirely frees the resources of its request.

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, find};
use crate::wsgi::serve_ready;

/// `/hold` responds, and `/stream` continues, once the file `go` exists.
const APP: &str = r#"
import os
from time import sleep as pause

def wait():
    while not os.path.exists("go"):
        pause(0.005)

def stream():
    yield b"first,"
    wait()
    yield b"second,"
    yield b"third"

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] == "/stream":
        return stream()
    if environ["PATH_INFO"] == "/hold":
        wait()
    return [environ["PATH_INFO"].encode(), b" ", environ["wsgi.input"].read()]
"#;

fn server() -> Server {
    let toml = "[apps.app]\nentry = \"app:app\"\nprocesses = 1\nthreads = 2\n\n[[sites]]\n\
                [[sites.routes]]\nfiles = { root = \"public\" }\napp = \"app\"\n";
    let site = Site::new()
        .file("app.py", APP)
        .file("public/x.txt", "a file")
        .config(toml);
    serve_ready(&site)
}

/// Sends `request` and closes the sending side.
fn ask(server: &Server, request: &str) -> RawClient {
    let mut client = server.connect();
    client.send(request).close_write();
    client
}

#[test]
fn files_and_applications_answer() {
    let server = server();
    for (request, body) in [
        ("GET /x.txt HTTP/1.0\r\n\r\n", "a file"),
        ("GET /x.txt HTTP/1.1\r\nHost: a\r\n\r\n", "a file"),
        ("GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "/a "),
        (
            "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            "/b abc",
        ),
        (
            "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "/c abc",
        ),
    ] {
        let mut client = ask(&server, request);
        assert_eq!(client.expect_status(200).text(), body, "{request:?}");
        client.expect_closed();
    }
}

#[test]
fn every_request_that_came_before_the_end_is_answered() {
    let server = server();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut client = ask(&server, &[get("/a"), get("/x.txt"), get("/b")].concat());
    for body in ["/a ", "a file", "/b "] {
        assert_eq!(client.expect_status(200).text(), body);
    }
    client.expect_closed();
}

#[test]
fn an_answer_that_comes_late_arrives_whole() {
    let server = server();
    for version in ["1.0", "1.1"] {
        let request = format!("GET /hold HTTP/{version}\r\nHost: a\r\n\r\n");
        let mut client = ask(&server, &request);
        // The first bytes of any response are sent early, to detect whether the client is still
        // connected.
        assert_eq!(client.read_some().as_deref(), Some(&b"H"[..]), "{version}");
        server.site().write("go", "");
        assert_eq!(client.expect_status(200).text(), "/hold ", "{version}");
        client.expect_closed();
        std::fs::remove_file(server.site().dir().join("go")).unwrap();
    }
}

#[test]
fn a_stream_goes_on() {
    let server = server();
    for version in ["1.0", "1.1"] {
        let mut client = server.connect();
        client.send(format!("GET /stream HTTP/{version}\r\nHost: a\r\n\r\n"));
        let mut got = Vec::new();
        while find(&got, b"first,").is_none() {
            got.extend(client.read_some().expect("the first piece"));
        }
        client.close_write();
        if version == "1.1" {
            // The next chunk's size begins with it.
            assert_eq!(client.read_some().as_deref(), Some(&b"0"[..]));
        }
        server.site().write("go", "");
        let answer = client.expect_status(200);
        assert_eq!(answer.text(), "first,second,third", "{version}");
        // No other request can come: the server does not wait for one.
        client.expect_closed();
        std::fs::remove_file(server.site().dir().join("go")).unwrap();
    }
}

#[test]
fn one_that_leaves_after_all_is_not_waited_for() {
    let server = server();
    let waiting = || {
        let status = server.admin_json();
        status["apps"][0]["queue"]["length"].as_u64().unwrap()
    };
    let mut clients: Vec<RawClient> = (0..3)
        .map(|_| ask(&server, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    eventually(PATIENCE, "one waits", || waiting() == 1);
    // Each has read all that came, so that its close is not a reset by itself.
    for client in &mut clients {
        assert_eq!(client.read_some().as_deref(), Some(&b"H"[..]));
    }
    drop(clients);
    eventually(PATIENCE, "it is noticed", || waiting() == 0);
    server.site().write("go", "");
}
