//! Static files through the whole server: found first, passed on when they are not there, never more
//! than what the root holds.
//!
//! The rules themselves are tested in `penstock-files`; here it is shown that configuration, routes,
//! edge and application keep them together.

use crate::support::{APP, PATIENCE, Server, Site, eventually, get};

const SECRET: &str = "the secret";

/// `public/` beside the application and a secret.
fn server() -> Server {
    let site = Site::new()
        .file("app.py", APP)
        .file("secret.txt", SECRET)
        .file("public/index.html", "<h1>index</h1>")
        .file("public/a.txt", "0123456789")
        .file("public/sub/index.html", "sub")
        .file("public/sp ace.txt", "space")
        .file("public/.env", SECRET)
        .file("public/.git/config", SECRET)
        .file("public/big.bin", big());
    let public = site.dir().join("public");
    std::os::unix::fs::symlink("../secret.txt", public.join("link.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", public.join("inside.txt")).unwrap();
    std::os::unix::fs::symlink("/etc", public.join("etc")).unwrap();
    let server = site.serve(&["--processes", "1"]);
    server.wait_ready("site");
    server
}

fn big() -> Vec<u8> {
    (0..5_000_000u32).map(|n| (n % 249) as u8).collect()
}

#[test]
fn a_file_comes_before_the_application_and_the_rest_falls_through() {
    let server = server();
    for (path, body) in [
        ("/", "<h1>index</h1>"),
        ("/a.txt", "0123456789"),
        ("/a.txt?query", "0123456789"),
        ("/x/../a.txt", "0123456789"),
        ("/%61.txt", "0123456789"),
        ("/sub/", "sub"),
        ("/sp%20ace.txt", "space"),
        ("/inside.txt", "0123456789"),
    ] {
        assert_eq!(server.get(path).text(), body, "{path}");
    }
    assert_eq!(server.site().seen(), [""; 0]);
    for path in ["/b.txt", "/a.txt/", "/a.txt/x", "/A.TXT"] {
        assert!(
            server
                .get(path)
                .text()
                .starts_with(&format!("GET {path} 0 ")),
            "{path}"
        );
    }
    let mut client = server.connect();
    client.send("POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert!(
        client
            .expect_status(200)
            .text()
            .starts_with("POST /a.txt 2 ")
    );
}

#[test]
fn nothing_hidden_or_outside_is_given_out() {
    let server = server();
    for path in [
        "/.env",
        "/.git/config",
        "/%2eenv",
        "/sub/../.env",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/sub/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "/..;/secret.txt",
        "/%252e%252e/secret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/.../secret.txt",
        "//secret.txt",
        "/link.txt",
        "/etc/passwd",
        "/public/../../secret.txt",
        "/secret.txt",
        "/a.txt%00.html",
        "/a.txt%20",
        "//etc/passwd",
        "/app.py",
        "/penstock.toml",
    ] {
        let response = server.get(path);
        let text = response.text();
        assert!(
            !text.contains(SECRET) && !text.contains("root:"),
            "{path}: {text}"
        );
        // Refused, or passed on to the application, which tells so.
        assert!(
            response.status == 400 || text.starts_with("GET "),
            "{path}: {text}"
        );
    }
}

#[test]
fn the_rules_of_conditions_and_ranges_hold() {
    let server = server();
    let first = server.get("/a.txt");
    let (tag, modified) = (
        first.header("etag").unwrap(),
        first.header("last-modified").unwrap(),
    );
    let mut client = server.connect();
    for (name, lines, status, body) in [
        ("none match", format!("If-None-Match: {tag}"), 304, ""),
        (
            "another tag",
            "If-None-Match: \"x\"".into(),
            200,
            "0123456789",
        ),
        (
            "modified since",
            format!("If-Modified-Since: {modified}"),
            304,
            "",
        ),
        (
            "match fails",
            "If-Match: \"x\"".into(),
            412,
            "412 Precondition Failed",
        ),
        ("range", "Range: bytes=2-4".into(), 206, "234"),
        ("suffix", "Range: bytes=-3".into(), 206, "789"),
        (
            "range of this file",
            format!("Range: bytes=0-0\r\nIf-Range: {tag}"),
            206,
            "0",
        ),
        (
            "range of another",
            "Range: bytes=0-0\r\nIf-Range: \"x\"".into(),
            200,
            "0123456789",
        ),
        ("behind the end", "Range: bytes=10-".into(), 416, "416"),
        ("no range", "Range: lines=1-2".into(), 200, "0123456789"),
        (
            "1,000 ranges",
            format!("Range: bytes={}", ["0-0"; 1000].join(",")),
            200,
            "0123456789",
        ),
    ] {
        client.send(format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.status, status, "{name}");
        if matches!(status, 200 | 206 | 304) {
            assert_eq!(response.text(), body, "{name}");
            assert_eq!(response.header("etag"), Some(tag), "{name}");
        }
        let range = response.header("content-range");
        assert_eq!(
            range.is_some(),
            matches!(status, 206 | 416),
            "{name}: {range:?}"
        );
    }
    client.send("HEAD /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_head(200).header("content-length"), Some("10"));
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn a_large_file_arrives_whole_and_in_parts() {
    let server = server();
    let big = big();
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.expect_status(200).body == big);
    }
    client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=1000000-3999999\r\n\r\n");
    assert!(client.expect_status(206).body == big[1_000_000..4_000_000]);
}

#[test]
fn a_folder_is_asked_for_with_a_slash() {
    let server = server();
    let response = server.get("/sub?x=1");
    assert!(matches!(response.status, 301 | 308), "{}", response.line);
    assert_eq!(response.header("location"), Some("/sub/?x=1"));
    // Nobody is sent to another host by two slashes.
    let elsewhere = server.get("//sub");
    let location = elsewhere.header("location").unwrap_or("/");
    assert!(!location.starts_with("//"), "{location}");
}

#[test]
fn without_an_application_there_is_an_end() {
    let server = Site::new()
        .file("index.html", "x")
        .file("a.txt", "a")
        .serve(&[]);
    assert_eq!(server.get("/none").status, 404);
    let mut client = server.connect();
    client.send("DELETE /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_status(405).header("allow"), Some("GET, HEAD"));
}

#[test]
fn places_are_tried_in_the_order_of_the_configuration() {
    let toml = "[[sites]]\n[[sites.routes]]\npath = \"/app/*\"\n\
                files = { root = \"www\", try = [\"{path}\", \"{path}.html\", \"/fallback.html\"] }\n\
                [[sites.routes]]\nfiles = { root = \"other\" }\n";
    let server = Site::new()
        .file("www/app/page.html", "page")
        .file("www/fallback.html", "fallback")
        .file("other/x.txt", "other")
        .config(toml)
        .serve(&[]);
    for (path, status, body) in [
        ("/app/page.html", 200, "page"),
        ("/app/page", 200, "page"),
        ("/app/anything/else", 200, "fallback"),
        ("/x.txt", 200, "other"),
        ("/fallback.html", 404, ""),
    ] {
        let response = get(server.port(), path);
        assert_eq!(response.status, status, "{path}");
        assert!(
            response.text().starts_with(body),
            "{path}: {}",
            response.text()
        );
    }
}

#[test]
fn a_changed_file_is_seen_soon_and_a_removed_one_is_gone() {
    let server = server();
    assert_eq!(server.get("/a.txt").text(), "0123456789");
    server.site().write("public/a.txt", "changed");
    eventually(PATIENCE, "the new file", || {
        server.get("/a.txt").text() == "changed"
    });
    std::fs::remove_file(server.site().dir().join("public/a.txt")).unwrap();
    eventually(PATIENCE, "the application", || {
        server.get("/a.txt").text().starts_with("GET /a.txt")
    });
}

#[test]
fn a_pipe_in_the_root_holds_up_nobody() {
    let server = server();
    let pipe = server.site().dir().join("public/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let response = server.get("/pipe");
    assert!(
        response.status == 403 || response.text().starts_with("GET /pipe "),
        "{}",
        response.line
    );
    assert_eq!(server.get("/a.txt").status, 200);
}
