//! Responses that name another resource to send: `X-Accel-Redirect`, `X-Sendfile`.
//!
//! The origin decides and the file handler sends, with its validators and ranges, while the
//! origin's slot is free.
//!
//! # Invariants
//!
//! - Clients can use neither field.
//! - No file outside of the configured directories is sent.

use super::ProxySetup;
use crate::support::{Origin, ReceivedRequest, Response, Script, Server, Site, head_of, page};

const FIELDS: &str = "Content-Type: application/pdf\r\nContent-Disposition: attachment\r\n\
                      Set-Cookie: seen=1\r\nX-Private: no\r\n";

/// Responds with this field (`NAME: VALUE`) for the target's query, and plainly to anything else.
fn saying(name: &'static str) -> Origin {
    Origin::start(
        move |seen: &ReceivedRequest| match seen.target.split_once('?') {
            Some((_, value)) => {
                let fields = format!("{FIELDS}{name}: {value}\r\n");
                let head =
                    head_of("200 OK", &fields, 7).replacen("Content-Type: text/plain\r\n", "", 1);
                Script::raw(format!("{head}ignored")).keep()
            }
            None => page(seen, "plain"),
        },
    )
}

/// A site with files, an internal route to them, and another upstream path.
fn serve(origin: &Origin, upstream: &str) -> Server {
    let site = Site::new()
        .file("private/a.txt", "the private file")
        .file("private/deep/b c.txt", "deep")
        .file("outside.txt", "outside");
    let root = site.dir().display().to_string();
    let upstream = upstream.replace("{root}", &root);
    let internal = "[[sites.routes]]\npath = \"/protected/*\"\ninternal = true\n\
                    rewrite = { strip_prefix = \"/protected\" }\nfiles = { root = \"private\" }\n";
    let toml = ProxySetup::new([origin]).upstream(&upstream).toml();
    // The internal route is more specific and comes first.
    let toml = toml.replacen("[[sites]]\n", &format!("[[sites]]\n{internal}"), 1);
    site.config(&toml).serve(&[])
}

fn ask_with(server: &Server, target: &str, lines: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    client.response()
}

#[test]
fn a_redirect_sends_the_file_and_keeps_the_origins_words_about_it() {
    let origin = saying("X-Accel-Redirect");
    let server = serve(&origin, "max_active = 1\nsendfile = true");
    let answer = server.get("/get?/protected/a.txt");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "the private file")
    );
    assert_eq!(answer.header("content-type"), Some("application/pdf"));
    assert_eq!(answer.header("content-disposition"), Some("attachment"));
    assert_eq!(answer.header("set-cookie"), Some("seen=1"));
    assert_eq!(answer.header("content-length"), Some("16"));
    assert_eq!(
        (
            answer.header("x-private"),
            answer.header("x-accel-redirect")
        ),
        (None, None)
    );
    let tag = answer
        .header("etag")
        .expect("the file's validator")
        .to_owned();
    let same = ask_with(
        &server,
        "/get?/protected/a.txt",
        &format!("If-None-Match: {tag}\r\n"),
    );
    assert_eq!((same.status, same.body.len()), (304, 0));
    let part = ask_with(&server, "/get?/protected/a.txt", "Range: bytes=4-10\r\n");
    assert_eq!((part.status, part.text().as_str()), (206, "private"));
    assert_eq!(server.get("/get?/protected/deep/b%20c.txt").text(), "deep");
    let mut head = server.connect();
    head.send("HEAD /get?/protected/a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(head.expect_head(200).header("content-length"), Some("16"));
}

#[test]
fn an_internal_route_is_closed_to_clients() {
    let origin = Origin::named("origin");
    let server = serve(&origin, "sendfile = true");
    for target in [
        "/protected/a.txt",
        "/protected/",
        "//protected/a.txt",
        "/x/../protected/a.txt",
    ] {
        let answer = server.get(target);
        assert!(!answer.text().contains("private file"), "{target}");
    }
    let answer = ask_with(&server, "/plain", "X-Accel-Redirect: /protected/a.txt\r\n");
    assert_eq!(answer.text(), "origin");
}

#[test]
fn a_redirect_to_nothing_or_in_a_circle_ends() {
    let origin = saying("X-Accel-Redirect");
    let server = serve(&origin, "sendfile = true");
    assert_eq!(server.get("/get?/protected/missing.txt").status, 404);
    for target in [
        "/get?/protected/../outside.txt",
        "/get?/protected/%2e%2e/outside.txt",
        "/get?//evil.test/",
    ] {
        let answer = server.get(target);
        assert!(!answer.text().contains("outside"), "{target}");
        assert_ne!(answer.text(), "ignored", "{target}");
    }
    // Not a path: the body that came with it was not meant to be sent.
    assert_eq!(server.get("/get?protected").status, 502);
    server.wait_log("X-Accel-Redirect");
    // To another path of the same origin: requested again, by GET and without a query.
    assert_eq!(server.get("/get?/other").text(), "plain");
    let circle =
        Origin::start(|_| Script::raw(head_of("200 OK", "X-Accel-Redirect: /again\r\n", 0)).keep());
    let server = serve(&circle, "sendfile = true");
    assert_eq!(server.get("/").status, 500);
    assert!(circle.requests().len() <= 12);
    server.wait_log("500 GET /");
}

#[test]
fn a_post_is_redirected_as_a_get() {
    let origin = saying("X-Accel-Redirect");
    let server = serve(&origin, "sendfile = true");
    let mut client = server.connect();
    client.send(super::post("/get?/protected/a.txt", b"body"));
    assert_eq!(client.expect_status(200).text(), "the private file");
    super::ask(&mut client, "/plain");
    assert_eq!(client.expect_status(200).text(), "plain");
}

#[test]
fn sendfile_sends_what_lies_below_its_root() {
    let origin = saying("X-Sendfile");
    let server = serve(&origin, "sendfile = [\"{root}/private\"]");
    let root = server.site().dir().display().to_string();
    let answer = server.get(&format!("/get?{root}/private/a.txt"));
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "the private file")
    );
    assert_eq!(answer.header("content-type"), Some("application/pdf"));
    assert_eq!(answer.header("x-sendfile"), None);
    let part = ask_with(
        &server,
        &format!("/get?{root}/private/a.txt"),
        "Range: bytes=4-10\r\n",
    );
    assert_eq!((part.status, part.text().as_str()), (206, "private"));
    for target in [
        format!("{root}/outside.txt"),
        format!("{root}/private/../outside.txt"),
        "/etc/passwd".to_owned(),
        "private/a.txt".to_owned(),
        format!("{root}/private/missing.txt"),
    ] {
        let answer = server.get(&format!("/get?{target}"));
        assert!(answer.status >= 400, "{target}: {}", answer.text());
    }
}

#[test]
fn sendfile_means_nothing_where_no_folder_was_given() {
    let origin = saying("X-Sendfile");
    for upstream in ["", "sendfile = true", "sendfile = false"] {
        let server = serve(&origin, upstream);
        let answer = server.get("/get?/etc/hostname");
        assert_eq!((answer.status, answer.text().as_str()), (200, "ignored"));
        assert_eq!(answer.header("x-sendfile"), None);
    }
}
