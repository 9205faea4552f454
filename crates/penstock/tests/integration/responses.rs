//! Framing of responses, and the server's own responses.
//!
//! One write where it fits, exact lengths, chunks if the length is unknown, the end of the
//! connection for clients without chunks, no body where it is forbidden; pipelined requests get
//! responses in order.

use crate::support::{APP, RawClient, Response, Server, Site, find, get};

fn server() -> Server {
    let server = Site::with_app()
        .file("public/a.txt", "file")
        .serve(&["--processes", "1"]);
    server.wait_ready("site");
    server
}

fn names(response: &Response) -> Vec<&str> {
    response
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect()
}

#[test]
fn a_small_answer_is_one_write() {
    let server = server();
    for path in ["/a.txt", "/app", "/%zz"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let first = client.read_some().unwrap();
        client.received.clear();
        let end = find(&first, b"\r\n\r\n").unwrap() + 4;
        assert!(
            first.len() > end,
            "{path}: the body came apart from its head"
        );
    }
}

#[test]
fn every_answer_is_dated_once_and_says_its_length() {
    let server = server();
    for path in ["/a.txt", "/app", "/status/404"] {
        let response = server.get(path);
        let date = response.header("date").unwrap();
        assert!(date.ends_with(" GMT") && date.len() == 29, "{date}");
        let count = |name| {
            names(&response)
                .iter()
                .filter(|n| n.eq_ignore_ascii_case(name))
                .count()
        };
        assert_eq!((count("date"), count("content-length")), (1, 1), "{path}");
        assert_eq!(count("server"), 0, "{path} names its server");
    }
}

#[test]
fn a_date_of_the_application_is_kept() {
    let app = "def app(environ, start_response):\n\
               \x20   date = 'Sun, 06 Nov 1994 08:49:37 GMT'\n\
               \x20   start_response('200 OK', [('Date', date), ('Content-Length', '2')])\n\
               \x20   return [b'ok']\n";
    let server = Site::new().file("app.py", app).serve(&["--processes", "1"]);
    server.wait_ready("site");
    let response = server.get("/");
    let dates: Vec<_> = response
        .headers
        .iter()
        .filter(|(name, _)| name == "Date")
        .collect();
    assert_eq!(dates.len(), 1);
    assert_eq!(dates[0].1, "Sun, 06 Nov 1994 08:49:37 GMT");
}

#[test]
fn an_answer_to_head_has_no_body_and_keeps_the_connection() {
    let server = server();
    let mut client = server.connect();
    for (path, length) in [
        ("/a.txt", Some("4")),
        ("/app", None),
        ("/status/404", None),
        ("/chunks", None),
    ] {
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let status = if path == "/status/404" { 404 } else { 200 };
        let head = client.expect_head(status);
        if length.is_some() {
            assert_eq!(head.header("content-length"), length, "{path}");
        }
        // If a byte of a body had come, it would be read as the next status line.
        client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.expect_status(200).text(), "file", "{path}");
    }
}

#[test]
fn statuses_without_a_body_have_none_whatever_the_application_gives() {
    let server = server();
    let mut client = server.connect();
    for status in [204, 304] {
        client.send(format!("GET /status/{status} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.expect_status(status);
        assert_eq!(response.header("transfer-encoding"), None, "{status}");
        if status == 204 {
            assert_eq!(response.header("content-length"), None, "{status}");
        }
        client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.expect_status(200).text(), "file", "{status}");
    }
}

#[test]
fn a_body_of_unknown_length_is_chunked() {
    let server = server();
    let mut client = server.connect();
    let expected = format!("one{}three", "two".repeat(5000));
    for _ in 0..2 {
        client.send("GET /chunks HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.expect_status(200);
        assert_eq!(response.header("transfer-encoding"), Some("chunked"));
        assert_eq!(response.header("content-length"), None);
        assert_eq!(response.text(), expected);
    }
}

#[test]
fn a_piece_goes_out_before_the_next_one_is_there() {
    let server = server();
    let mut client = server.connect();
    client.send("GET /stream/more HTTP/1.1\r\nHost: a\r\n\r\n");
    while find(&client.received, b"first").is_none() {
        assert!(client.read_some().is_some_and(|bytes| !bytes.is_empty()));
    }
    server.site().write("more", "");
    assert_eq!(client.expect_status(200).text(), "firstlast");
}

#[test]
fn http_1_0_gets_no_chunks_and_no_kept_connection_unasked() {
    let server = server();
    let mut client = server.connect();
    client.send("GET /chunks HTTP/1.0\r\n\r\n");
    let response = client.expect_status(200);
    assert_eq!(response.header("transfer-encoding"), None);
    assert_eq!(response.header("connection"), Some("close"));
    assert_eq!(response.body.len(), 3 + 15_000 + 5);
    client.expect_closed();

    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.0\r\n\r\n");
    assert_eq!(client.expect_status(200).text(), "file");
    client.expect_closed();
}

#[test]
fn http_1_0_keeps_the_connection_when_asked_and_possible() {
    let server = server();
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = client.expect_status(200);
        assert_eq!(response.header("connection"), Some("keep-alive"));
        assert_eq!(response.text(), "file");
    }
    client.send("GET /chunks HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(
        client.expect_status(200).header("connection"),
        Some("close")
    );
    client.expect_closed();
}

#[test]
fn the_connection_is_kept_until_the_client_says_close() {
    let server = server();
    let mut client = server.connect();
    for path in ["/a.txt", "/app", "/status/500", "/a.txt"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response().header("connection"), None, "{path}");
    }
    client.send("GET /app HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n");
    assert_eq!(
        client.expect_status(200).header("connection"),
        Some("close")
    );
    client.expect_closed();
    assert_eq!(server.admin_json()["traffic"]["accepted"], 1);
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    let server = server();
    let mut client = server.connect();
    let mut all = String::new();
    for number in 0..100 {
        // The application takes longer than the file after it.
        let path = if number % 2 == 0 {
            format!("/{number}")
        } else {
            "/a.txt".to_owned()
        };
        all.push_str(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    client.send(&all);
    for number in 0..100 {
        let text = client.expect_status(200).text();
        let expected = format!("GET /{number} 0 ");
        assert!(
            if number % 2 == 0 {
                text.starts_with(&expected)
            } else {
                text == "file"
            },
            "{text}"
        );
    }
}

#[test]
fn nothing_behind_a_request_that_closes_is_answered() {
    let server = server();
    let mut client = server.connect();
    client.send(
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n\
         GET /behind HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    client.expect_status(200);
    client.expect_closed();
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn answers_a_client_that_has_closed_its_side_already() {
    let server = server();
    let mut client = server.connect();
    client
        .send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n")
        .close_write();
    client.expect_status(200);
    client.expect_closed();
}

#[test]
fn a_large_answer_arrives_whole() {
    let server = server();
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.expect_status(200);
        assert_eq!(response.header("content-length"), Some("8388608"));
        assert!(
            response
                .body
                .chunks(16)
                .all(|piece| piece == b"0123456789abcdef")
        );
    }
}

#[test]
fn answers_for_the_server_as_a_whole() {
    let server = server();
    for (name, request, status) in [
        ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 204),
        ("TRACE", "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (
            "CONNECT",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            501,
        ),
    ] {
        let mut client = server.connect();
        client.send(request);
        let response = client.response();
        assert_eq!(response.status, status, "{name}");
        assert_eq!(response.header("allow").is_some(), status != 501, "{name}");
    }
    assert_eq!(server.site().seen(), [""; 0]);
    let mut client = server.connect();
    client.send("OPTIONS /path HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        client
            .expect_status(200)
            .text()
            .starts_with("OPTIONS /path 0 ")
    );
}

#[test]
fn bytes_behind_connect_are_no_tunnel_and_no_request() {
    let server = server();
    let mut client = server.connect();
    client.send(
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\nGET /tunnel HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    client.expect_status(501);
    client.expect_closed();
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn invites_a_body_when_it_is_wanted() {
    let server = server();
    let mut client = server.connect();
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.response().status, 100);
    assert_eq!(server.site().seen(), [""; 0]);
    client.send("hello");
    assert!(client.expect_status(200).text().starts_with("POST /x 5 "));
    client.send(
        "POST /z HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-CONTINUE\r\n\r\n",
    );
    assert_eq!(client.response().status, 100);
    client.send("5\r\nhello\r\n0\r\n\r\n");
    assert!(client.expect_status(200).text().starts_with("POST /z 5 "));
    // A client without a body, or with HTTP/1.0, does not wait for it.
    client
        .send("GET /n HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n")
        .expect_status(200);
    client.send(
        "POST /o HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\
         Expect: 100-continue\r\n\r\nhello",
    );
    assert!(client.expect_status(200).text().starts_with("POST /o 5 "));
    // A body sent with the head needs no invitation.
    client.send(
        "POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\nhello",
    );
    assert!(client.expect_status(200).text().starts_with("POST /y 5 "));
}

#[test]
fn does_not_invite_a_body_that_is_refused() {
    let site = Site::new().file("index.html", "x").config(
        "[limits]\nbody_bytes = 4\n[[sites]]\nhosts = [\"a\"]\n\
         [[sites.routes]]\nfiles = { root = \".\" }\n",
    );
    let server = site.serve(&[]);
    for (name, lines, status) in [
        (
            "a file takes no POST",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n",
            405,
        ),
        (
            "unknown host",
            "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 4\r\n",
            421,
        ),
    ] {
        let mut client = server.connect();
        client.send(format!("{lines}Expect: 100-continue\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.status, status, "{name}");
        assert_eq!(
            response.header("connection"),
            Some("close"),
            "{name}: its body may come yet"
        );
        client.expect_closed();
    }
}

#[test]
fn an_absolute_target_names_the_host() {
    let site = Site::new()
        .file("a/index.html", "A")
        .file("b/index.html", "B")
        .config(
            "[[sites]]\nhosts = [\"a.example\"]\nroutes = [{ files = { root = \"a\" } }]\n\
         [[sites]]\nhosts = [\"b.example\"]\nroutes = [{ files = { root = \"b\" } }]\n",
        );
    let server = site.serve(&[]);
    for (request, body) in [
        (
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "A",
        ),
        ("GET http://b.example HTTP/1.0\r\n\r\n", "B"),
        ("GET / HTTP/1.1\r\nHost: B.example:81\r\n\r\n", "B"),
    ] {
        let mut client = server.connect();
        client.send(request);
        assert_eq!(client.expect_status(200).text(), body, "{request}");
    }
    let mut client = server.connect();
    client
        .send("GET / HTTP/1.1\r\nHost: c.example\r\n\r\n")
        .expect_status(421);
}

#[test]
fn a_unix_socket_is_a_listener_like_any_other() {
    let site = Site::with_app();
    let path = site.dir().join("web.sock");
    let address = format!("unix:{}", path.display());
    let server = site.serve(&["-l", &address, "-l", "127.0.0.1:0", "--processes", "1"]);
    server.wait_ready("site");
    assert!(
        server.log().contains(&format!("listening {address}")),
        "{}",
        server.log()
    );
    let mut client = RawClient::connect_unix(&path);
    for _ in 0..2 {
        client.send("GET /unix HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.expect_status(200).text().starts_with("GET /unix 0 "));
    }
    assert_eq!(get(server.port(), "/tcp").status, 200);
    drop((client, server));
    assert!(!path.exists(), "the socket was left behind");
}

#[test]
fn every_loop_serves() {
    let toml = "[server]\nthreads = 4\n[apps.site]\nprocesses = 2\n";
    let server = Site::new().file("app.py", APP).config(toml).serve(&[]);
    server.wait_ready("site");
    // The kernel spreads connections over the loops; this many reach all of them.
    let mut clients: Vec<RawClient> = (0..64).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut clients {
        client.expect_status(200);
    }
    assert_eq!(server.admin_json()["event_loops"], 4);
    assert_eq!(server.site().seen().len(), 64);
}

#[test]
fn a_head_leaves_with_what_has_come_of_its_body() {
    const ASGI: &str = r#"
import asyncio
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass
"#;
    const WSGI: &str = r#"
import time
def app(environ, start):
    start("200 OK", [("X-Accel-Buffering", "no")])
    yield b"first"
    # Goes on until the client has left.
    while True:
        time.sleep(0.01)
        yield b""
"#;
    let toml = "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\nthreads = 2\n\
                [apps.asgi]\nentry = \"streaming_asgi:app\"\nkind = \"asgi\"\nprocesses = 1\n\
                [apps.wsgi]\nentry = \"streaming_wsgi:app\"\nkind = \"wsgi\"\nprocesses = 1\n\
                [[sites]]\n[[sites.routes]]\npath = \"/asgi\"\napp = \"asgi\"\n\
                [[sites.routes]]\npath = \"/wsgi\"\napp = \"wsgi\"\n";
    let site = Site::new()
        .file("streaming_asgi.py", ASGI)
        .file("streaming_wsgi.py", WSGI)
        .config(toml);
    let server = site.serve(&[]);
    server.wait_all_ready(&["asgi", "wsgi"]);
    for path in ["/asgi", "/wsgi"] {
        // Connections land on both loops, and workers are on one.
        for number in 0..16 {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let piece = client.read_some().unwrap();
            let text = String::from_utf8_lossy(&piece);
            assert!(
                text.contains("\r\n\r\n5\r\nfirst\r\n"),
                "{path} {number}: {text}"
            );
        }
    }
}
