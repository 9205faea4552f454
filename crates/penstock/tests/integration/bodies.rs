//! Request bodies: complete before the application starts, bounded, and never read as requests.
//!
//! By length or in chunks, in memory or in an unnamed file; refused when too large; skipped, or cut
//! off by closing the connection, when the body is not wanted.

use std::time::Duration;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};

fn serve(site: Site) -> Server {
    let server = site.serve(&[]);
    server.wait_ready("site");
    server
}

fn server() -> Server {
    serve(Site::with_app().config("[apps.site]\nprocesses = 1\n"))
}

fn small_limits() -> Server {
    let limits = "[limits]\nbody_bytes = 1000\nbody_memory = 100\n[apps.site]\nprocesses = 1\n";
    serve(Site::with_app().config(limits))
}

#[test]
fn the_application_gets_the_content_and_nothing_of_its_framing() {
    let server = server();
    let md5 = "5d41402abc4b2a76b9719d911017c592"; // of "hello"
    let mut client = server.connect();
    for (name, lines) in [
        ("length", "Content-Length: 5\r\n\r\nhello"),
        (
            "one chunk",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "chunks",
            "Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n3\r\nell\r\n1\r\no\r\n0\r\n\r\n",
        ),
        (
            "leading zeros",
            "Transfer-Encoding: chunked\r\n\r\n0005\r\nhello\r\n000\r\n\r\n",
        ),
        (
            "extensions",
            "Transfer-Encoding: chunked\r\n\r\n5;a;b=c;d=\"e f\"\r\nhello\r\n0;x\r\n\r\n",
        ),
        (
            "trailers",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\n",
        ),
    ] {
        client.send(format!("PUT /body HTTP/1.1\r\nHost: a\r\n{lines}"));
        assert_eq!(
            client.expect_status(200).text(),
            format!("PUT /body 5 {md5}"),
            "{name}"
        );
    }
    client.send("POST /none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert!(
        client
            .expect_status(200)
            .text()
            .starts_with("POST /none 0 ")
    );
}

#[test]
fn a_body_that_comes_byte_by_byte_is_the_same_body() {
    let server = server();
    let mut client = server.connect();
    let request = "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\nX: y\r\n\r\n";
    for byte in request.as_bytes() {
        client.send([*byte]);
    }
    assert!(
        client
            .expect_status(200)
            .text()
            .ends_with("5d41402abc4b2a76b9719d911017c592")
    );
}

#[test]
fn the_application_hears_of_a_request_when_its_body_is_complete() {
    let server = server();
    let mut client = server.connect();
    client.send("POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell");
    // The only worker is free for others meanwhile.
    assert_eq!(server.get("/other").status, 200);
    assert_eq!(server.site().seen(), ["GET /other 0"]);
    client.send("o").expect_status(200);
    assert_eq!(server.site().seen(), ["GET /other 0", "POST /late 5"]);
}

#[test]
fn a_large_body_waits_in_a_file_without_a_name() {
    if is_server_hidden() {
        return;
    }
    let toml = "[limits]\nbody_memory = \"8KiB\"\ntemp_dir = \"tmp\"\n[apps.site]\nprocesses = 1\n";
    let server = serve(Site::with_app().file("tmp/keep", "").config(toml));
    let body: Vec<u8> = (0..4_000_000u32).map(|n| (n % 251) as u8).collect();
    let names = || {
        std::fs::read_dir(server.site().dir().join("tmp"))
            .unwrap()
            .count()
    };
    for chunked in [false, true] {
        let mut client = server.connect();
        if chunked {
            client.send("POST /large HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(format!("{:x}\r\n", body.len()));
        } else {
            let length = body.len();
            client.send(format!(
                "POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
            ));
        }
        client.send(&body[..2_000_000]);
        eventually(PATIENCE, "the body is in a file", || {
            nameless_files(server.pid()) == 1
        });
        assert_eq!(names(), 1, "only what was there before has a name");
        client.send(&body[2_000_000..]);
        if chunked {
            client.send("\r\n0\r\n\r\n");
        }
        // The digest of these bytes, computed elsewhere.
        let expected = "POST /large 4000000 48a1d5607222e36f4ae37dd8c0827018";
        assert_eq!(client.expect_status(200).text(), expected);
        eventually(PATIENCE, "the file is gone", || {
            nameless_files(server.pid()) == 0
        });
    }
}

#[test]
fn a_client_that_leaves_within_its_body_leaves_no_file() {
    if is_server_hidden() {
        return;
    }
    let toml = "[limits]\nbody_memory = 0\n[apps.site]\nprocesses = 1\n";
    let server = serve(Site::with_app().config(toml));
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.send(vec![b'x'; 500_000]);
    eventually(PATIENCE, "the body is in a file", || {
        nameless_files(server.pid()) == 1
    });
    drop(client);
    eventually(PATIENCE, "the file is gone", || {
        nameless_files(server.pid()) == 0
    });
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn a_declared_body_that_is_too_large_is_refused_before_it_comes() {
    let server = small_limits();
    for expect in ["", "Expect: 100-continue\r\n"] {
        let mut client = server.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n{expect}\r\n"
        ));
        let response = client.response();
        assert_eq!(response.status, 413, "{expect}");
        assert_eq!(response.header("connection"), Some("close"));
        client.expect_closed();
    }
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n");
    client.expect_status(413);
    assert_eq!(server.site().seen(), [""; 0]);
    let mut client = server.connect();
    client.send("POST /most HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    client.send([b'x'; 1000]).expect_status(200);
}

#[test]
fn a_chunked_body_is_refused_where_it_grows_too_large() {
    let server = small_limits();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..10 {
        client.send(format!("64\r\n{}\r\n", "x".repeat(100)));
    }
    client.send("1\r\nx\r\n");
    client.expect_status(413);
    client.expect_closed();
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn an_early_answer_is_not_lost_while_the_body_still_comes() {
    let server = small_limits();
    for _ in 0..5 {
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
        // Sent without reading the response, as simple clients do.
        let _ = client.try_send(vec![b'x'; 3_000_000]);
        client.expect_status(413);
        client.expect_closed();
    }
}

#[test]
fn a_request_behind_a_body_is_answered_behind_it() {
    let server = server();
    for body in [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let mut client = server.connect();
        let first = format!("POST /first HTTP/1.1\r\nHost: a\r\n{body}");
        client.send(format!(
            "{first}{first}GET /last HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        for expected in ["POST /first 5 ", "POST /first 5 ", "GET /last 0 "] {
            let text = client.expect_status(200).text();
            assert!(text.starts_with(expected), "{text}");
        }
    }
}

#[test]
fn a_body_is_never_read_as_a_request() {
    let site = Site::with_app()
        .file("public/a.txt", "file")
        .config("[limits]\nbody_bytes = 1000\n[apps.site]\nprocesses = 1\n");
    let server = serve(site);
    let inner = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = inner.len();
    let framings = [
        format!("Content-Length: {length}\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{inner}\r\n0\r\n\r\n"),
    ];
    for start in [
        "GET /a.txt",
        "HEAD /a.txt",
        "POST /a.txt",
        "GET /app",
        "HEAD /app",
        "OPTIONS *",
        "TRACE /",
        "DELETE /status/304",
        "GET /status/204",
        "POST /%zz",
    ] {
        for framing in &framings {
            let mut client = server.connect();
            client.send(format!(
                "{start} HTTP/1.1\r\nHost: a\r\n{framing}GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            ));
            // Kept or closed, there is at most a response to the next request.
            let all = String::from_utf8_lossy(&client.read_to_end()).into_owned();
            assert!(all.matches("HTTP/1.1 ").count() <= 2, "{start}: {all}");
            assert!(!all.contains("GET /smuggled"), "{start}: {all}");
        }
    }
    let seen = server.site().seen();
    assert!(
        !seen.iter().any(|line| line.contains("smuggled")),
        "{seen:?}"
    );
}

#[test]
fn a_body_that_comes_later_than_the_answer_ends_the_connection() {
    let server = serve(Site::with_app().file("public/a.txt", "file"));
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n");
    let response = client.expect_status(200);
    assert_eq!(response.text(), "file");
    assert_eq!(
        response.header("connection"),
        Some("close"),
        "its body is still to come"
    );
    let _ = client.try_send("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
    client.expect_closed();
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn many_bodies_at_once_do_not_mix() {
    let server = serve(
        Site::with_app().config("[limits]\nbody_memory = 1000\n[apps.site]\nprocesses = 2\n"),
    );
    let mut clients: Vec<RawClient> = (0..20).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let length = 100 * (number + 1);
        client.send(format!(
            "POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
    }
    for _ in 0..100 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(vec![b'x'; number + 1]);
        }
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.patience(Duration::from_secs(20));
        let text = client.expect_status(200).text();
        assert!(
            text.starts_with(&format!("POST /{number} {} ", 100 * (number + 1))),
            "{text}"
        );
    }
}

/// Unnamed files that the process has open.
fn nameless_files(pid: i32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let target = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    let targets = files.filter_map(|entry| target(entry.ok()?));
    // A memfd has no name either, but is not a temporary file.
    targets
        .filter(|path| {
            let path = path.to_string_lossy();
            path.ends_with(" (deleted)") && !path.starts_with("/memfd:")
        })
        .count()
}

#[test]
fn a_route_has_a_bound_of_its_own() {
    let routes = "[apps.site]\nprocesses = 1\n[[sites]]\n\
                  [[sites.routes]]\npath = \"/large/*\"\nmax_body_size = 2000\napp = \"site\"\n\
                  [[sites.routes]]\npath = \"/small/*\"\nmax_body_size = 10\napp = \"site\"\n\
                  [[sites.routes]]\napp = \"site\"\n";
    let server = serve(Site::with_app().config(&format!("[limits]\nbody_bytes = 1000\n{routes}")));
    for (path, length, status) in [
        ("/large/a", 2000, 200),
        ("/large/a", 2001, 413),
        ("/small/a", 10, 200),
        ("/small/a", 11, 413),
        ("/a", 1000, 200),
        ("/a", 1001, 413),
    ] {
        let body = "x".repeat(length);
        for framed in [
            format!("Content-Length: {length}\r\n\r\n{body}"),
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ] {
            let mut client = server.connect();
            client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framed}"));
            client.expect_status(status);
        }
    }
    server.wait_log("request body over max_body_size of its route (2000 bytes)");
    server.wait_log("request body over limits.body_bytes (1000 bytes)");
}
