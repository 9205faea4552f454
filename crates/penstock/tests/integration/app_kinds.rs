//! Whether an application is WSGI or ASGI is decided by the object in its module; its source is
//! only a first guess.
//!
//! # Invariants
//!
//! - A wrong guess is corrected before a request is answered, with one log line.
//! - A wrong explicit kind (`kind`, `--kind`) is a boot error that names the right one, never an
//!   error of each request.

use crate::support::{PATIENCE, Server, Site, eventually, texts};
use crate::wsgi::{serve_ready, wsgi_site, wsgi_site_with};

/// ASGI without a sign in its source: an alias of an object with an `async` call.
const ASGI: &str = r#"
class Site:
    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError("none")
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"asgi"})

site = Site()
app = site
"#;

/// WSGI that looks like ASGI.
const WSGI: &str = r#"
from functools import partial

def FastAPI():
    return partial(serve, {})

def serve(settings, environ, start_response):
    start_response("200 OK", [])
    return [b"wsgi"]

app = FastAPI()
"#;

/// The code is loaded by a template, or by each worker.
const WAYS: [&str; 2] = ["", "preload = false"];

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn kind(server: &Server) -> String {
    let kind = server.admin_json()["apps"][0]["kind"].clone();
    kind.as_str().unwrap_or_default().to_owned()
}

fn check_served(server: &Server, kind_found: &str, corrections: usize) {
    for _ in 0..3 {
        let answer = server.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (200, kind_found));
    }
    assert_eq!(kind(server), kind_found);
    let count = server.log().matches("as its source looks").count();
    assert_eq!(count, corrections, "{}", server.log());
    let line = format!("app app: {kind_found}, 2 processes");
    assert!(
        server.announced().iter().any(|said| said.contains(&line)),
        "{:?}",
        server.announced()
    );
}

#[test]
fn a_wrong_guess_is_corrected_by_what_was_loaded() {
    for way in WAYS {
        let lines = format!("processes = 2\n{way}");
        for (code, found) in [(ASGI, "asgi"), (WSGI, "wsgi")] {
            let server = serve_ready(&wsgi_site_with(code, &lines));
            check_served(&server, found, 1);
        }
    }
}

#[test]
fn what_is_said_is_not_looked_for() {
    for way in WAYS {
        for (code, found) in [(ASGI, "asgi"), (WSGI, "wsgi")] {
            let lines = format!("processes = 2\nkind = \"{found}\"\n{way}");
            let server = serve_ready(&wsgi_site_with(code, &lines));
            check_served(&server, found, 0);
        }
    }
}

#[test]
fn requests_and_websockets_wait_until_the_kind_is_known() {
    let slow = format!(
        "import os\nfrom time import sleep as pause\nwhile not os.path.exists(\"go\"):\n    pause(0.005)\n{ASGI}"
    );
    for way in WAYS {
        let site = wsgi_site_with(&slow, &format!("processes = 1\n{way}"));
        let server = site.serve(&[]);
        let (mut plain, mut socket) = (server.connect(), server.connect());
        plain.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        socket.send(UPGRADE);
        eventually(PATIENCE, "both wait", || {
            server.admin_json()["apps"][0]["queue"]["length"] == 2
        });
        server.site().write("go", "");
        assert_eq!(plain.expect_status(200).text(), "asgi");
        socket.expect_head(101);
    }
}

#[test]
fn a_kind_that_is_said_and_wrong_is_an_error_of_the_boot() {
    for way in WAYS {
        for (code, said, right) in [(ASGI, "wsgi", "asgi"), (WSGI, "asgi", "wsgi")] {
            let lines = format!("processes = 1\nkind = \"{said}\"\n{way}");
            let server = wsgi_site_with(code, &lines).serve(&[]);
            server.wait_log("does not start yet; see the log");
            server.wait_log(&format!("say kind = \"{right}\" (--kind {right})"));
            assert_eq!(server.get("/").status, 503);
        }
    }
}

#[test]
fn the_command_line_says_the_kind() {
    let bare = || Site::new().file("app.py", ASGI);
    let server = bare().serve(&["app:app", "--processes", "2", "--kind", "asgi"]);
    eventually(PATIENCE, "it serves", || server.get("/").status == 200);
    assert_eq!(kind(&server), "asgi");
    assert!(!server.log().contains("as its source looks"));
    let server = bare().serve(&["app:app", "--kind", "wsgi"]);
    server.wait_log("say kind = \"asgi\" (--kind asgi)");
    for (arguments, words) in [
        (["--kind", "wsgy"], "expected wsgi, asgi or rack"),
        (
            ["--kind", "rack"],
            "is of kind \"wsgi\", and --kind cannot make it one of another language",
        ),
    ] {
        let base = ["serve", "app:app", "-l", "127.0.0.1:0", "--admin", "off"];
        let output = bare().run(&[base.as_slice(), &arguments].concat());
        let (_, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn code_that_changes_its_kind_is_given_up_and_the_old_serves_on() {
    let server = serve_ready(&wsgi_site(WSGI));
    server.site().write("app.py", ASGI);
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["restart", "app", "--admin", &admin]);
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("app:app is an ASGI application"),
        "{errors}"
    );
    assert_eq!(server.get("/").text(), "wsgi");
}

#[test]
fn a_factory_and_a_module_alone_are_served() {
    let factory = "def create_app(name=\"x\"):\n    import site_code\n    return site_code.app\n";
    let rows = [
        ("app:create_app", factory),
        ("app:create_app()", factory),
        ("app:create_app('y')", factory),
        ("app", factory),
        ("app", "import site_code\nshop = site_code.site\n"),
    ];
    for (target, code) in rows {
        let site = Site::new().file("app.py", code).file("site_code.py", ASGI);
        let server = site.serve(&[target, "--processes", "1"]);
        eventually(PATIENCE, "it serves", || server.get("/").status == 200);
        assert_eq!(server.get("/").text(), "asgi", "{target}");
    }
}
