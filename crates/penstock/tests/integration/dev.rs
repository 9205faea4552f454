//! Development mode: saved files take effect by themselves, error pages have details, requests are
//! shown; none of it without `--dev`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{PATIENCE, RawClient, Response, Server, Site, eventually};

/// Responds with its version; `/boom` raises.
fn code(version: &str) -> String {
    format!(
        r#"
import helper

def app(environ, start):
    if environ["PATH_INFO"] == "/boom":
        secret_of_a_local = "<i>"
        helper.fail(secret_of_a_local)
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"{version}"]
"#
    )
}

const HELPER: &str = r#"
def fail(what):
    raise LookupError("no " + what)
"#;

const TOML: &str = r#"
[apps.app]
env = { GREETING = "hello-there", DB_PASSWORD = "hush-hush" }
"#;

fn site() -> Site {
    Site::new()
        .file("app.py", code("one"))
        .file("helper.py", HELPER)
        .config(TOML)
}

fn serve(site: &Site, arguments: &[&str]) -> Server {
    let server = site.serve(arguments);
    server.wait_ready("app");
    server
}

fn boom(server: &Server, accept: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "GET /boom HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nCookie: id=s3ssion\r\nX-Seen: by-all\r\n\r\n"
    ));
    client.response()
}

/// Texts that only a developer may see.
const INSIDE: [&str; 8] = [
    "LookupError",
    "Traceback",
    "helper.py",
    "def fail(what):",
    "secret_of_a_local",
    "hello-there",
    "by-all",
    "Environment",
];

#[test]
fn an_error_explains_itself_to_a_developer() {
    let server = serve(&site(), &["--dev"]);
    let html = boom(&server, "text/html");
    assert_eq!(html.status, 500);
    let html = html.text();
    for words in INSIDE.iter().chain(&[
        "<strong>application raised LookupError</strong>",
        "<title>LookupError: no &lt;i&gt; (500 Internal Server Error)</title>",
        "<details><summary>Traceback</summary>",
        "LookupError: no &lt;i&gt;",
        "<details open><summary>helper.py, line 3</summary>",
        "&gt;    3      raise LookupError(&quot;no &quot; + what)",
        "<details open><summary>app.py, line 7</summary>",
        "<h2>Output</h2>",
        "DB_PASSWORD=(masked)",
        "<h2>Request</h2>\n<pre>GET /boom",
        "(masked, 10 bytes)",
    ]) {
        assert!(html.contains(words), "{words}: {html}");
    }
    assert!(!html.contains("hush-hush") && !html.contains("s3ssion"));
    let plain = boom(&server, "text/plain").text();
    assert!(plain.contains("\n== helper.py, line 3 ==\n"), "{plain}");
}

#[test]
fn without_development_an_error_says_nothing() {
    let server = serve(&site(), &["--processes", "1"]);
    for accept in ["text/html", "text/plain"] {
        let page = boom(&server, accept);
        assert_eq!(page.status, 500);
        let page = page.text();
        for words in INSIDE
            .iter()
            .chain(&["hush-hush", "s3ssion", "<h2>Request", "== Request"])
        {
            assert!(!page.contains(words), "{words}: {page}");
        }
    }
    assert!(
        !server
            .announced()
            .iter()
            .any(|line| line.starts_with("GET "))
    );
}

#[test]
fn code_that_does_not_boot_shows_its_traceback() {
    let site = site().file("helper.py", "import nothing_of_this_name\n");
    let server = site.serve(&["--dev"]);
    eventually(PATIENCE, "the page of the failure", || {
        let page = server.get("/").text();
        page.contains("ModuleNotFoundError") && page.contains("== helper.py, line 1 ==")
    });
    site.write("helper.py", HELPER);
    eventually(PATIENCE, "the repaired code", || {
        server.get("/").text() == "one"
    });
}

/// A page; `/policy` has a policy, `/stream` streams, `/data` is no page, `/boom` raises.
const PAGES: &str = r#"
API_KEY = "k3y-in-source"

def app(environ, start):
    path = environ["PATH_INFO"]
    fields = [("Content-Type", "text/html; charset=utf-8"), ("ETag", '"a"')]
    if path == "/policy":
        fields.append(("Content-Security-Policy", "default-src 'self'"))
    if path == "/data":
        fields = [("Content-Type", "application/json")]
    if path == "/boom":
        api_key = "k3y-in-source"
        raise LookupError("postgres://shop:hunter2@db/shop")
    start("200 OK", fields)
    if path == "/stream":
        return (piece for piece in (b"<p>one</p>", b"<p>two</p>"))
    return [b"<p>page</p>"]
"#;

#[test]
fn secrets_in_source_and_messages_are_masked() {
    let server = serve(&Site::new().file("app.py", PAGES).config(TOML), &["--dev"]);
    for accept in ["text/html", "text/plain"] {
        let page = boom(&server, accept).text();
        for secret in ["k3y-in-source", "hunter2"] {
            assert!(!page.contains(secret), "{secret}: {page}");
        }
        assert!(
            page.contains("LookupError: postgres://(masked)@db/shop"),
            "{page}"
        );
        assert!(page.contains("raise LookupError("), "{page}");
    }
}

#[test]
fn pages_of_old_code_have_a_bar_until_new_code_serves() {
    const BAR: &str = "The code that was saved does not start: <code>NameError";
    let site = Site::new()
        .file("app.py", PAGES)
        .config("[apps.app]\nprocesses = 1\n");
    let server = serve(&site, &["--dev"]);
    let get = |path: &str| server.get(path);
    assert_eq!(get("/").text(), "<p>page</p>");
    site.write("app.py", format!("broken\n{PAGES}"));
    server.wait_log("the new version is given up");
    eventually(PATIENCE, "the bar", || get("/").text().contains(BAR));
    let page = get("/");
    assert!(
        page.text().starts_with("<p>page</p>\n<dialog open"),
        "{}",
        page.text()
    );
    assert_eq!(page.header("etag"), None);
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let streamed = get("/stream").text();
    assert!(
        streamed.starts_with("<p>one</p><p>two</p>\n<dialog"),
        "{streamed}"
    );
    let bound = get("/policy").text();
    assert!(bound.contains(BAR) && !bound.contains("<script"), "{bound}");
    assert_eq!(get("/data").text(), "<p>page</p>");
    let mut client = server.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.expect_head(200);
    assert_eq!(head.header("etag"), Some("\"a\""));
    // A page asks whether other code serves, and none of it is in the log.
    let state = |client: &mut RawClient| {
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nPenstock-Dev: state\r\nContent-Length: 0\r\n\r\n");
        client.response().text()
    };
    let mut client = server.connect();
    assert_eq!(state(&mut client), r#"{"mark":"1","serves":true}"#);
    site.write("app.py", PAGES);
    eventually(PATIENCE, "the repaired code", || {
        state(&mut client) == r#"{"mark":"3","serves":true}"#
    });
    assert_eq!(get("/").text(), "<p>page</p>");
    let is_told = |line: &String| line.starts_with("POST ");
    assert!(!server.announced().iter().any(is_told), "{}", server.log());
}

#[test]
fn a_saved_file_takes_effect_without_a_failed_request() {
    let site = site();
    let server = serve(&site, &["--dev"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut answered = 0;
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(server.get("/").status, 200);
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        for version in ["two", "three", "four"] {
            site.write("app.py", code(version));
            eventually(PATIENCE, version, || server.get("/").text() == version);
        }
        done.store(true, Ordering::Relaxed);
        assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
    });
    server.wait_log("generation 4 serves");
    // Code that cannot start is rejected and reported.
    site.write("app.py", "import helper\nbroken = (\n");
    server.wait_log("SyntaxError");
    assert_eq!(server.get("/").text(), "four");
}

#[test]
fn files_in_new_folders_count() {
    let site = Site::new().file(
        "app.py",
        r#"
import pathlib

place = pathlib.Path("lib/deep/new.py")
TEXT = place.read_bytes() if place.exists() else b"none"

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [TEXT]
"#,
    );
    let server = site.serve(&["--dev"]);
    eventually(PATIENCE, "the code", || server.get("/").text() == "none");
    for text in ["first = 1", "second = 2"] {
        site.write("lib/deep/new.py", text);
        eventually(PATIENCE, text, || server.get("/").text() == text);
    }
}

#[test]
fn a_saved_configuration_is_reloaded() {
    let site = site();
    let server = serve(&site, &["--dev"]);
    site.write("penstock.toml", format!("{TOML}threads = 2\n"));
    server.wait_log("reload: application app replaced");
    site.write("penstock.toml", "[apps.app]\nthread = 2\n");
    server.wait_log("penstock.toml:2:1: unknown key `thread`");
    assert_eq!(server.get("/").text(), "one");
}

#[test]
fn a_log_beside_the_code_restarts_nothing() {
    let code = |version: &str| {
        format!(
            "import time\n\
             def app(environ, start):\n\
             \x20   if environ['PATH_INFO'] == '/later': time.sleep(1.5)\n\
             \x20   start('200 OK', [])\n\
             \x20   return [b'{version}']\n"
        )
    };
    let site = Site::new().file("app.py", code("one")).config(TOML);
    let server = serve(&site, &["--dev", "--log", "server.txt"]);
    site.write("app.py", code("two"));
    eventually(PATIENCE, "two", || server.get("/").text() == "two");
    // The restart is in the log, and the log's change is a file change: enough time for the next
    // one.
    assert_eq!(server.get("/later").text(), "two");
    let log = site.read("server.txt");
    assert_eq!(log.matches("files have changed").count(), 1, "{log}");
}

#[test]
fn a_reload_that_hangs_keeps_nobody_from_the_newest_code() {
    let site = site().file(
        "other/app.py",
        "import time\nopen('boots.tmp', 'w').close()\ntime.sleep(1000)\ndef app(environ, start): pass\n",
    );
    let server = serve(&site, &["--dev"]);
    let route = "[[sites]]\n[[sites.routes]]\npath = \"/other/*\"\napp = \"other\"\n\
                 [[sites.routes]]\napp = \"app\"\n";
    let other = "[apps.other]\ndir = \"other\"\nprocesses = 1\n";
    site.write("penstock.toml", format!("{TOML}{other}{route}"));
    eventually(PATIENCE, "the other boots", || {
        site.dir().join("other/boots.tmp").exists()
    });
    site.write("app.py", code("two"));
    eventually(PATIENCE, "the newest code", || {
        server.get("/").text() == "two"
    });
    assert!(!server.log().contains("reload: "), "it is under way");
}

#[test]
fn requests_are_shown_to_the_person_at_the_terminal() {
    let server = serve(&site(), &["--dev"]);
    let mut client: RawClient = server.connect();
    client.send("GET /cart?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.expect_status(200);
    let line = eventually(PATIENCE, "the line", || {
        let lines = server.announced();
        lines.into_iter().find(|line| line.starts_with("GET /cart"))
    });
    let rest = line.strip_prefix("GET /cart?x=1 200 3 B ").expect(&line);
    assert!(
        rest.contains(" ms (queue ") && rest.contains(", app "),
        "{line}"
    );
    // Not a terminal: no colours.
    assert!(!line.contains('\u{1b}'), "{line:?}");
}
