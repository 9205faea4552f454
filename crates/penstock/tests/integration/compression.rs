//! Responses that are compressed while they are sent: of applications, of an upstream behind a
//! cache, of files; checked with the decoders of the codings.

use std::io::{Read as _, Write as _};

use crate::support::{
    Origin, PATIENCE, RawClient, ReceivedRequest, Response, Script, Server, Site, Step, eventually,
};

const WSGI: &str = r#"
import json

ROWS = json.dumps([{"id": n, "name": f"user {n}"} for n in range(200)]).encode()

def app(environ, start):
    path = environ["PATH_INFO"]
    if path == "/wsgi/echo":
        body = environ["wsgi.input"].read()
        text = f"{environ.get('HTTP_CONTENT_ENCODING')} {body.hex()}".encode()
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]
    fields = [("Content-Type", "application/json"), ("ETag", '"v1"'), ("Vary", "Cookie")]
    if path == "/wsgi/no-transform":
        fields.append(("Cache-Control", "no-transform"))
    if path == "/wsgi/coded":
        fields.append(("Content-Encoding", "x-own"))
    if path == "/wsgi/missing":
        start("404 Not Found", fields)
        return [ROWS]
    if environ.get("HTTP_IF_NONE_MATCH", "").removeprefix("W/") == '"v1"':
        start("304 Not Modified", fields)
        return []
    if path == "/wsgi/streamed":
        start("200 OK", fields)
        return (ROWS[at:at + 100] for at in range(0, len(ROWS), 100))
    start("200 OK", fields + [("Content-Length", str(len(ROWS)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [ROWS]
"#;

const ASGI: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    kinds = {
        "/asgi/events": [(b"content-type", b"text/event-stream")],
        "/asgi/unbuffered": [(b"content-type", b"text/html"), (b"x-accel-buffering", b"no")],
        "/asgi/paused": [(b"content-type", b"text/html")],
    }
    fields = kinds[scope["path"]]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass
"#;

fn toml(origin: &Origin) -> String {
    format!(
        r#"
[server]
threads = 1
admin = "127.0.0.1:0"
listen = ["127.0.0.1:0"]
[apps.wsgi]
entry = "wsgi_app:app"
kind = "wsgi"
processes = 1
[apps.asgi]
entry = "asgi_app:app"
kind = "asgi"
processes = 1
[upstreams.u]
servers = ["{}"]
[caches.store]
max_size = "16MiB"
[[sites]]
compress = true
[[sites.routes]]
path = "/wsgi/*"
app = "wsgi"
[[sites.routes]]
path = "/asgi/*"
app = "asgi"
[[sites.routes]]
path = "/cached/*"
upstream = "u"
cache = ["store"]
[[sites.routes]]
path = "/gzip/*"
upstream = "u"
compress = ["gzip"]
[[sites.routes]]
path = "/held/*"
upstream = "u"
grip = true
[[sites.routes]]
path = "/off/*"
upstream = "u"
compress = false
[[sites.routes]]
path = "/*"
files = {{ root = "public" }}
"#,
        origin.address()
    )
}

/// Lines that compress well.
fn lines(len: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut number = 0;
    while text.len() < len {
        text.extend_from_slice(format!("line {number} of many\n").as_bytes());
        number += 1;
    }
    text.truncate(len);
    text
}

/// Answers with lines that may be kept, and confirms its entity tag.
fn origin() -> Origin {
    Origin::start(|seen: &ReceivedRequest| {
        if seen.target == "/held/stream" {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                        Grip-Hold: stream\r\nGrip-Channel: news\r\nContent-Length: 2000\r\n\r\n";
            let event = [b": ".as_slice(), &[b'o'; 1996], b"\n\n"].concat();
            return Script::raw([head.as_bytes(), &event].concat()).keep();
        }
        if seen.target == "/held/tunnel" {
            let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: lines\r\n\
                        Connection: Upgrade\r\n\r\n";
            return Script::early().send(head).then(Step::Echo);
        }
        let fresh = match seen.target.starts_with("/cached/stale") {
            true => "max-age=0, must-revalidate",
            false => "max-age=600",
        };
        let fields =
            format!("Content-Type: text/plain\r\nCache-Control: {fresh}\r\nETag: \"v1\"\r\n");
        if seen.field("if-none-match").is_some() {
            return Script::raw(format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n")).keep();
        }
        let body = lines(5000);
        let head = format!(
            "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n",
            body.len()
        );
        Script::raw([head.as_bytes(), &body].concat()).keep()
    })
}

fn serve(origin: &Origin) -> Server {
    let site = Site::new()
        .file("wsgi_app.py", WSGI)
        .file("asgi_app.py", ASGI)
        .file("public/large.txt", lines(3 << 20))
        .file("public/small.txt", lines(5000))
        .file("public/made.txt", lines(5000))
        .file("public/made.txt.gz", "made before")
        .config(&toml(origin));
    let server = site.serve(&[]);
    server.wait_all_ready(&["wsgi", "asgi"]);
    eventually(PATIENCE, "the cache is in use", || {
        server.admin_json()["caches"][0]["state"] == "working"
    });
    server
}

fn ask(server: &Server, method: &str, path: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
    ));
    match method {
        "HEAD" => client.expect_head(200),
        _ => client.response(),
    }
}

fn get(server: &Server, path: &str, accepts: &str) -> Response {
    ask(
        server,
        "GET",
        path,
        &format!("Accept-Encoding: {accepts}\r\n"),
    )
}

/// The body of a response, by its `Content-Encoding`.
fn decoded(response: &Response) -> Vec<u8> {
    let bytes = response.body.as_slice();
    let mut text = Vec::new();
    match response.header("content-encoding") {
        None => text.extend_from_slice(bytes),
        Some("gzip") => {
            flate2::read::GzDecoder::new(bytes)
                .read_to_end(&mut text)
                .unwrap();
        }
        Some("br") => {
            brotli::Decompressor::new(bytes, 4096)
                .read_to_end(&mut text)
                .unwrap();
        }
        Some("zstd") => text = zstd::stream::decode_all(bytes).unwrap(),
        Some(other) => panic!("no decoder for {other}"),
    }
    text
}

fn varies(response: &Response) -> Vec<&str> {
    let all = response.headers.iter();
    all.filter(|(name, _)| name.eq_ignore_ascii_case("vary"))
        .map(|(_, value)| value.as_str())
        .collect()
}

#[test]
fn responses_of_an_application_have_the_coding_that_the_client_prefers() {
    let origin = origin();
    let server = serve(&origin);
    let plain = ask(&server, "GET", "/wsgi/rows", "");
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.header("etag"), Some("\"v1\""));
    assert_eq!(varies(&plain), ["Cookie, Accept-Encoding"]);
    for path in ["/wsgi/rows", "/wsgi/streamed", "/wsgi/missing"] {
        for (accepts, expected) in [
            ("gzip", Some("gzip")),
            ("gzip, deflate, br", Some("br")),
            ("gzip, deflate, br, zstd", Some("zstd")),
            ("gzip, zstd;q=0.5", Some("gzip")),
            ("deflate", None),
            ("gzip;q=0", None),
            ("*;q=0", None),
        ] {
            let response = get(&server, path, accepts);
            let coding = response.header("content-encoding");
            assert_eq!(coding, expected, "{path} {accepts}");
            assert_eq!(varies(&response), ["Cookie, Accept-Encoding"], "{path}");
            assert_eq!(decoded(&response), plain.body, "{path} {accepts}");
            if expected.is_some() {
                assert_eq!(response.header("etag"), Some("W/\"v1\""), "{path}");
                let length = plain.body.len() / 2;
                assert!(response.body.len() < length, "{path} {accepts}");
            }
        }
    }
    // HEAD has the header of GET.
    let head = ask(&server, "HEAD", "/wsgi/rows", "Accept-Encoding: gzip\r\n");
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    assert_eq!(head.header("content-length"), None);
    assert_eq!(varies(&head), ["Cookie, Accept-Encoding"]);
    let known = "Accept-Encoding: gzip\r\nIf-None-Match: W/\"v1\"\r\n";
    let unchanged = ask(&server, "GET", "/wsgi/rows", known);
    assert_eq!(
        (unchanged.status, unchanged.header("etag")),
        (304, Some("W/\"v1\""))
    );
}

#[test]
fn some_responses_stay_as_they_are() {
    let origin = origin();
    let server = serve(&origin);
    for (path, fields, coding) in [
        ("/wsgi/no-transform", "", None),
        ("/wsgi/coded", "", Some("x-own")),
        ("/wsgi/rows", "Range: bytes=0-9\r\n", None),
        ("/wsgi/rows", "Cache-Control: no-transform\r\n", None),
        ("/off/lines", "", None),
        (
            "/wsgi/rows",
            "Sec-Fetch-Site: cross-site\r\nCookie: session=1\r\n",
            None,
        ),
        ("/wsgi/rows", "Sec-Fetch-Site: cross-site\r\n", Some("gzip")),
        ("/wsgi/rows", "Cookie: session=1\r\n", Some("gzip")),
        ("/gzip/lines", "", Some("gzip")),
    ] {
        let fields = format!("Accept-Encoding: gzip, br, zstd\r\n{fields}");
        let fields = fields.replace("gzip, br, zstd", "gzip");
        let response = ask(&server, "GET", path, &fields);
        assert_eq!(
            response.header("content-encoding"),
            coding,
            "{path} {fields}"
        );
    }
    let off = get(&server, "/off/lines", "gzip");
    assert_eq!(varies(&off), Vec::<&str>::new());
    let gzip_only = get(&server, "/gzip/lines", "br, zstd");
    assert_eq!(gzip_only.header("content-encoding"), None);
}

#[test]
fn request_bodies_are_never_decoded() {
    let origin = origin();
    let server = serve(&origin);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&lines(3000)).unwrap();
    let body = encoder.finish().unwrap();
    let mut client = server.connect();
    client.send(format!(
        "POST /wsgi/echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    let seen = client.expect_status(200).text();
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(seen, format!("gzip {hex}"));
}

/// Reads until what has come of a chunked body in gzip decodes to `expected`.
fn await_decoded(client: &mut RawClient, expected: &[u8]) {
    let mut bytes = Vec::new();
    loop {
        let piece = client.read_some().expect("the body ended early");
        bytes.extend_from_slice(&piece);
        if decoded_so_far(&bytes).is_some_and(|text| text == expected) {
            return;
        }
    }
}

/// What a decoder has of a response that goes on.
fn decoded_so_far(raw: &[u8]) -> Option<Vec<u8>> {
    let head_end = raw.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&raw[..head_end]).to_ascii_lowercase();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    assert!(!head.contains("x-accel"), "{head}");
    let mut rest = &raw[head_end..];
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + size)?;
        decoder.write_all(chunk).unwrap();
        rest = rest.get(end + 2 + size + 2..).unwrap_or_default();
    }
    decoder.flush().unwrap();
    Some(decoder.get_ref().clone())
}

#[test]
fn nothing_of_an_open_stream_stays_in_the_encoder() {
    let origin = origin();
    let server = serve(&origin);
    for path in ["/asgi/events", "/asgi/unbuffered", "/asgi/paused"] {
        let mut client = server.connect();
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
        ));
        await_decoded(&mut client, b"data: first\n\n");
    }
    eventually(PATIENCE, "encoders are given back", || {
        server.admin_json()["compression"]["memory_bytes"] == 0
    });
}

#[test]
fn held_streams_and_tunnels_are_not_touched() {
    let origin = origin();
    let server = serve(&origin);
    let mut held = server.connect();
    held.send("GET /held/stream HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let text = read_until(&mut held, "ooo\n\n");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let mut tunnel = server.connect();
    tunnel.send(
        "GET /held/tunnel HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\
         Connection: Upgrade\r\nUpgrade: lines\r\n\r\n",
    );
    let head = read_until(&mut tunnel, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    tunnel.send("hello");
    let echoed = read_until(&mut tunnel, "hello");
    for text in [text, head, echoed] {
        assert!(
            !text.to_ascii_lowercase().contains("content-encoding"),
            "{text}"
        );
    }
    let counts = &server.admin_json()["compression"];
    assert_eq!(
        (&counts["gzip"], &counts["skipped"]),
        (&0.into(), &0.into())
    );
}

/// Reads text until it ends so.
fn read_until(client: &mut RawClient, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let piece = client.read_some().expect("the connection ended early");
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    text
}

#[test]
fn a_cache_stores_a_variant_for_each_coding() {
    let origin = origin();
    let server = serve(&origin);
    let body = lines(5000);
    for _ in 0..2 {
        for accepts in ["gzip", "br", "zstd", "identity"] {
            let path = "/cached/lines";
            let response = get(&server, path, accepts);
            assert_eq!(decoded(&response), body, "{accepts}");
            let coding = response.header("content-encoding").unwrap_or("identity");
            assert_eq!(coding, accepts);
            eventually(PATIENCE, "it is stored", || {
                let again = get(&server, path, accepts);
                again.header("age").is_some() && decoded(&again) == body
            });
        }
    }
    assert_eq!(origin.requests().len(), 4);
    // Encoders of another version would give other bytes: a part of these fits no other.
    let fields = "Accept-Encoding: gzip\r\nRange: bytes=5-14\r\n";
    let part = ask(&server, "GET", "/cached/lines", fields);
    assert_eq!((part.status, decoded(&part)), (200, body));
    // Only what the encoders made was counted, not what the cache sent.
    let counts = &server.admin_json()["compression"];
    assert_eq!((&counts["gzip"], &counts["br"]), (&1.into(), &1.into()));
    assert_eq!(counts["input_bytes"], 15_000);
    assert_eq!(
        server.metric("penstock_compressed_responses_total{coding=\"zstd\"}"),
        Some(1.0)
    );
}

#[test]
fn an_uncompressed_response_for_one_request_is_stored_for_its_like_alone() {
    let origin = origin();
    let server = serve(&origin);
    let path = "/cached/lines";
    for fields in [
        "Sec-Fetch-Site: cross-site\r\nCookie: session=1\r\n",
        "Cache-Control: no-transform\r\n",
    ] {
        let fields = format!("Accept-Encoding: gzip\r\n{fields}");
        let response = ask(&server, "GET", path, &fields);
        assert_eq!(response.header("content-encoding"), None, "{fields}");
    }
    let others = get(&server, path, "gzip");
    assert_eq!(others.header("content-encoding"), Some("gzip"));
    assert_eq!(decoded(&others), lines(5000));
}

#[test]
fn a_cache_confirms_a_compressed_response_with_its_origin() {
    let origin = origin();
    let server = serve(&origin);
    let path = "/cached/stale";
    let first = get(&server, path, "gzip");
    assert_eq!(first.header("etag"), Some("W/\"v1\""));
    eventually(PATIENCE, "the origin confirms it", || {
        let again = get(&server, path, "gzip");
        assert_eq!(decoded(&again), lines(5000));
        assert_eq!(again.header("content-encoding"), Some("gzip"));
        origin.last().field("if-none-match").as_deref() == Some("W/\"v1\"")
    });
    let counts = &server.admin_json()["cached_routes"][0]["counters"];
    assert!(counts["revalidated"].as_u64() > Some(0), "{counts}");
}

#[test]
fn answers_of_rules_and_files_of_an_application_are_compressed() {
    let app = r#"
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain"), ("X-Sendfile", environ["site"] + "/a.txt")])
    return []
"#;
    let text = String::from_utf8(lines(5000)).unwrap();
    let site = Site::new().file("private/a.txt", &text);
    let private = site.dir().join("private");
    let app = app.replace(
        "environ[\"site\"]",
        &format!("{:?}", private.to_str().unwrap()),
    );
    let toml = format!(
        "[server]\nthreads = 1\n[apps.site]\nentry = \"site_app:app\"\nkind = \"wsgi\"\n\
         processes = 1\nsendfile = [\"private\"]\n[[sites]]\ncompress = [\"gzip\"]\n\
         [[sites.routes]]\npath = \"/fixed\"\nrespond = {{ body = {text:?} }}\n\
         [[sites.routes]]\napp = \"site\"\n"
    );
    let server = site.file("site_app.py", app).config(&toml).serve(&[]);
    server.wait_ready("site");
    for path in ["/fixed", "/sent"] {
        let response = get(&server, path, "gzip");
        assert_eq!(response.header("content-encoding"), Some("gzip"), "{path}");
        assert_eq!(decoded(&response), text.as_bytes(), "{path}");
        let whole = get(&server, path, "identity");
        assert_eq!(
            (whole.header("content-encoding"), varies(&whole)),
            (None, vec!["Accept-Encoding"])
        );
    }
}

#[test]
fn files_are_compressed_where_they_have_no_variant() {
    let origin = origin();
    let server = serve(&origin);
    // Larger than `files` compresses.
    let large = get(&server, "/large.txt", "gzip");
    assert_eq!(large.header("content-encoding"), Some("gzip"));
    assert_eq!(large.header("accept-ranges"), Some("none"));
    assert!(large.header("etag").unwrap().starts_with("W/"));
    assert_eq!(varies(&large), ["Accept-Encoding"]);
    assert!(decoded(&large) == lines(3 << 20));
    let head = ask(&server, "HEAD", "/large.txt", "Accept-Encoding: gzip\r\n");
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    assert_eq!(head.header("content-length"), None);
    let fields = "Accept-Encoding: gzip\r\nRange: bytes=5-14\r\n";
    let part = ask(&server, "GET", "/large.txt", fields);
    assert_eq!(part.status, 206);
    assert_eq!(part.header("content-encoding"), None);
    assert_eq!(part.body, &lines(3 << 20)[5..15]);
    assert_eq!(varies(&part), ["Accept-Encoding"]);
    let tag = large.header("etag").unwrap();
    let fields = format!("Accept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n");
    let unchanged = ask(&server, "GET", "/large.txt", &fields);
    assert_eq!(
        (unchanged.status, unchanged.header("etag")),
        (304, Some(tag))
    );
    let whole = get(&server, "/large.txt", "identity");
    assert_eq!(varies(&whole), ["Accept-Encoding"]);
    assert!(whole.body == lines(3 << 20));
    // Its own.
    let made = get(&server, "/made.txt", "gzip");
    assert_eq!(made.header("content-encoding"), Some("gzip"));
    assert_eq!(made.body, b"made before");
    assert_eq!(varies(&made), ["Accept-Encoding"]);
    assert!(made.header("etag").unwrap().starts_with('"'));
}
