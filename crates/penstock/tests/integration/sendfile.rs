//! Applications in workers that name a file instead of sending it: `X-Accel-Redirect`,
//! `X-Sendfile`.
//!
//! As for upstreams (`proxy::accel`), and for every kind of worker.
//!
//! # Invariants
//!
//! - The worker is free before the client has the file.
//! - Clients see none of the fields, and no file outside of the configured directories is sent.

use crate::support::{PATIENCE, Response, Server, Site, eventually};

/// `/NAME?VALUE` responds with that field, and a body that must not be sent. `/raw?VALUE` decodes
/// the value, and puts the bytes after `/protected/` into `X-Accel-Redirect`.
const WSGI: &str = r#"
from urllib.parse import unquote_to_bytes

def asked(name, query):
    if name == "raw":
        return "X-Accel-Redirect", b"/protected/" + unquote_to_bytes(query)
    return name, query.encode()

def app(environ, start):
    name, value = asked(environ["PATH_INFO"][1:], environ["QUERY_STRING"])
    value = value.decode("latin-1")
    fields = [("Content-Type", "application/pdf"), ("Set-Cookie", "seen=1"), ("ETag", "\"first\"")]
    start("200 OK", fields + ([(name, value)] if value else []))
    return [b"ign", b"ored"]

async def tasks(scope, receive, send):
    if scope["type"] != "http":
        return
    name, value = asked(scope["path"][1:], scope["query_string"].decode())
    name = name.encode()
    fields = [(b"content-type", b"application/pdf"), (b"set-cookie", b"seen=1"), (b"etag", b'"first"')]
    fields += [(name, value)] if value else []
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"ign", "more_body": True})
    await send({"type": "http.response.body", "body": b"ored"})
"#;

const RACK: &str = r#"
run(lambda do |env|
  fields = { "content-type" => "application/pdf", "set-cookie" => "seen=1", "etag" => '"first"' }
  name, value = env["PATH_INFO"].delete_prefix("/").downcase, env["QUERY_STRING"]
  if name == "raw"
    name, value = "x-accel-redirect", "/protected/" + value.b.gsub(/%(..)/) { $1.hex.chr }
  end
  fields[name] = value unless value.empty?
  [200, fields, %w[ign ored]]
end)
"#;

/// Percent-encodes every byte, for a query that an application decodes.
fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn serve(app: &str) -> Server {
    let site = Site::new()
        .file("app.py", WSGI)
        .file("config.ru", RACK)
        .file("private/a.txt", "the private file")
        .file("private/b c.txt", "with a blank")
        .file("private/gr\u{fc}n.txt", "with an umlaut")
        .file("private/50%.txt", "with a percent sign")
        .file("private/no#1.txt", "with a number sign")
        .file("private/what?.txt", "with a question mark")
        .file("outside.txt", "outside");
    let toml = format!(
        "[apps.site]\nprocesses = 1\nsendfile = [\"private\"]\n{app}\n\n[[sites]]\n\
         [[sites.routes]]\npath = \"/protected/*\"\ninternal = true\n\
         rewrite = {{ strip_prefix = \"/protected\" }}\nfiles = {{ root = \"private\" }}\n\
         [[sites.routes]]\napp = \"site\"\n"
    );
    let server = site.config(&toml).serve(&[]);
    server.wait_ready("site");
    server
}

fn check_file(answer: &Response, what: &str) {
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "the private file"),
        "{what}"
    );
    assert_eq!(answer.header("content-type"), Some("application/pdf"));
    assert_eq!(answer.header("set-cookie"), Some("seen=1"));
    assert_eq!(answer.header("content-length"), Some("16"));
    let of_the_file = answer.header("etag").is_some_and(|tag| tag != "\"first\"");
    assert!(of_the_file, "{what}: its own validator");
    for name in ["x-sendfile", "x-accel-redirect"] {
        assert_eq!(answer.header(name), None, "{what}");
    }
}

#[test]
fn a_file_that_an_application_names_is_sent_in_its_place() {
    for (name, app) in [
        ("wsgi", "entry = \"app:app\""),
        ("asgi", "entry = \"app:tasks\"\nkind = \"asgi\""),
        ("rack", "entry = \"config.ru\"\nkind = \"rack\""),
    ] {
        let server = serve(app);
        let file = server.site().dir().join("private/a.txt");
        let file = file.display();
        for path in [
            format!("/X-Sendfile?{file}"),
            "/X-Accel-Redirect?/protected/a.txt".to_owned(),
        ] {
            check_file(&server.get(&path), &format!("{name}, {path}"));
        }
        for (value, expected) in [
            ("b c.txt", "with a blank"),
            ("b%20c.txt", "with a blank"),
            ("gr\u{fc}n.txt", "with an umlaut"),
            ("gr%C3%BCn.txt", "with an umlaut"),
            ("50%.txt", "with a percent sign"),
            ("50%25.txt", "with a percent sign"),
            ("no#1.txt", "with a number sign"),
            ("what%3F.txt", "with a question mark"),
        ] {
            let answer = server.get(&format!("/raw?{}", percent_encoded(value)));
            assert_eq!(answer.text(), expected, "{name}, {value}");
        }
        // Ranges and HEAD apply to the file.
        let mut client = server.connect();
        let fields = "Host: a\r\nRange: bytes=4-10\r\n\r\n";
        client.send(format!("GET /X-Sendfile?{file} HTTP/1.1\r\n{fields}"));
        assert_eq!(client.expect_status(206).text(), "private", "{name}");
        client.send(format!(
            "HEAD /X-Sendfile?{file} HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        let head = client.expect_head(200);
        assert_eq!(head.header("content-length"), Some("16"), "{name}");
        for path in [
            format!(
                "/X-Sendfile?{}",
                server.site().dir().join("outside.txt").display()
            ),
            "/X-Sendfile?/etc/passwd".to_owned(),
            "/X-Accel-Redirect?protected/a.txt".to_owned(),
        ] {
            let answer = server.get(&path);
            assert_eq!(answer.status, 502, "{name}, {path}: {}", answer.text());
        }
        // Clients cannot request it, and the application continues.
        assert_eq!(server.get("/protected/a.txt?").text(), "ignored", "{name}");
        assert_eq!(server.get("/").text(), "ignored", "{name}");
        eventually(PATIENCE, "the worker is at rest", || {
            server.admin_json()["apps"][0]["queue"]["active"] == 0
        });
        assert_eq!(
            server.admin_json()["apps"][0]["counters"]["crashed_workers"],
            0,
            "{name}"
        );
    }
}
