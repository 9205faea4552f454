//! Limits on the files and ports of an application (`isolation = { ... }`): it can access what it
//! needs and what is listed, nothing else, and a reload changes the limits.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::{PATIENCE, Server, Site, eventually, kernel_parts, texts};

/// A WSGI application that reads and writes on request.
const APP: &str = r#"
import os, socket, subprocess, sys, tempfile

def read(path):
    return open(path).read()

def write(path):
    open(path, "w").write("x")
    return "written"

def run(path):
    return subprocess.check_output([sys.executable, "-c", f"print(open('{path}').read())"]).decode()

def connect(port):
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10):
        return "connected"

def mptcp(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as other:
        other.connect(("127.0.0.1", int(port)))
        return "connected"

def fast_open(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        other.sendto(b"x", 0x20000000, ("127.0.0.1", int(port)))
        return "connected"

def link(argument):
    target, name = argument.split()
    os.makedirs(os.path.dirname(name), exist_ok=True)
    os.symlink(target, name)
    return "linked"

def end(_):
    os._exit(0)

def temporary(_):
    with tempfile.NamedTemporaryFile() as file:
        return file.name

def app(environ, start_response):
    start_response("200 OK", [])
    action, _, argument = environ["HTTP_ATTEMPT"].partition(" ")
    try:
        text = globals()[action](argument)
    except OSError as error:
        text = f"refused: {error}"
    except subprocess.CalledProcessError:
        text = "refused: to the program"
    return [text.encode()]
"#;

/// A program that is its own server, on a port or a socket.
const PROGRAM: &str = r#"
import http.server, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self):
        return "client"
    def do_GET(self):
        try:
            body = open("../secret.txt").read().encode()
        except OSError as error:
            body = f"refused: {error.strerror}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
place = sys.argv[1]
if place.isdigit():
    http.server.HTTPServer(("127.0.0.1", int(place)), Handler).serve_forever()
socketserver.UnixStreamServer(place, Handler).serve_forever()
"#;

const TOML: &str = r#"
[apps.limited]
dir = "limited"
entry = "app:app"
kind = "wsgi"
processes = 1
isolation = { write_paths = ["limited/var"], connect_ports = ["PORT"] }
[apps.port]
dir = "program"
kind = "command"
command = "python3 program.py {port}"
processes = 1
isolation = { read_paths = [], connect_ports = [], bind_ports = [] }
[apps.socket]
dir = "program"
kind = "command"
command = "python3 program.py {socket}"
processes = 1
isolation = { read_paths = [], connect_ports = [], bind_ports = [] }
[[sites]]
[[sites.routes]]
path = "/port"
app = "port"
[[sites.routes]]
path = "/socket"
app = "socket"
[[sites.routes]]
app = "limited"
"#;

/// Whether the kernel lacks limits on ports, or on files.
fn is_left_out() -> bool {
    let parts = kernel_parts();
    let is_left_out = parts.landlock < 4;
    if is_left_out {
        eprintln!("left out: {parts:?}");
    }
    is_left_out
}

fn ask(server: &Server, attempt: &str) -> String {
    let mut client = server.connect();
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nAttempt: {attempt}\r\n\r\n"
    ));
    client.response().text()
}

#[test]
fn an_application_has_what_it_is_left_and_a_reload_changes_it() {
    if is_left_out() {
        return;
    }
    let [open, closed] = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [open, closed] = [&open, &closed].map(|it| it.local_addr().unwrap().port());
    let toml = TOML.replace("PORT", &open.to_string());
    let site = Site::new()
        .file("limited/app.py", APP)
        .file("limited/own.txt", "its own")
        .file("limited/var/file", "")
        .file("program/program.py", PROGRAM)
        .file("secret.txt", "not for it")
        .config(&toml);
    let dir = site.dir().display().to_string();
    let server = site.serve(&[]);
    server.wait_all_ready(&["limited", "port", "socket"]);
    for (attempt, expected) in [
        (format!("read {dir}/limited/own.txt"), "its own"),
        (format!("run {dir}/limited/own.txt"), "its own\n"),
        (format!("write {dir}/limited/var/new"), "written"),
        ("write /dev/null".to_owned(), "written"),
        (format!("connect {open}"), "connected"),
    ] {
        assert_eq!(ask(&server, &attempt), expected, "{attempt}");
    }
    let temporary = ask(&server, "temporary x");
    assert!(
        temporary.starts_with(&format!("{dir}/limited/var/")),
        "{temporary}"
    );
    for attempt in [
        format!("read {dir}/secret.txt"),
        format!("read {dir}/penstock.toml"),
        format!("run {dir}/secret.txt"),
        format!("write {dir}/limited/new.py"),
        "write /tmp/penstock-test-of-limits".to_owned(),
        format!("connect {closed}"),
        format!("mptcp {closed}"),
        format!("fast_open {closed}"),
    ] {
        let text = ask(&server, &attempt);
        assert!(text.starts_with("refused: "), "{attempt}: {text}");
    }
    for path in ["/port", "/socket"] {
        assert_eq!(
            server.get(path).text(),
            "refused: Permission denied",
            "{path}"
        );
    }
    let before = server.workers("limited");
    let named = "isolation = { read_paths = [\"secret.txt\"], write_paths";
    site.write(
        "penstock.toml",
        site.read("penstock.toml")
            .replace("isolation = { write_paths", named),
    );
    let control = format!("unix:{}", server.control_path().display());
    let output = site.run(&["reload", "--admin", &control]);
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
    eventually(PATIENCE, "other workers", || {
        server.workers("limited") != before
    });
    let attempt = format!("read {dir}/secret.txt");
    eventually(PATIENCE, "it is open", || {
        ask(&server, &attempt) == "not for it"
    });
}

/// It may write to the directory that may hold its interpreter, which contains a readable path.
const WIDENING: &str = r#"
[apps.widening]
dir = "widening"
entry = "app:app"
kind = "wsgi"
processes = 1
isolation = { read_paths = ["widening/more"], write_paths = ["widening"] }
[[sites]]
[[sites.routes]]
app = "widening"
"#;

#[test]
fn an_application_does_not_widen_its_limits_by_links() {
    if is_left_out() {
        return;
    }
    let site = Site::new()
        .file("widening/app.py", APP)
        .file("python/lib/secret.txt", "not for it")
        .file("python/bin/other", "")
        .config(WIDENING);
    let dir = site.dir().display().to_string();
    let python = ["/usr/local/bin/python3", "/usr/bin/python3"];
    let python = python
        .into_iter()
        .find(|it| Path::new(it).exists())
        .unwrap();
    symlink(python, site.dir().join("python/bin/python")).unwrap();
    let server = site.serve(&[]);
    server.wait_all_ready(&["widening"]);
    let attempt = format!("read {dir}/python/lib/secret.txt");
    assert!(ask(&server, &attempt).starts_with("refused: "));
    for (target, name) in [
        ("python/lib", "more"),
        ("python/bin/python", ".venv/bin/python"),
    ] {
        let link = format!("link {dir}/{target} {dir}/widening/{name}");
        assert_eq!(ask(&server, &link), "linked");
    }
    let before = server.workers("widening");
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nAttempt: end x\r\n\r\n");
    assert_eq!(client.response().status, 502);
    eventually(PATIENCE, "another worker", || {
        let workers = server.workers("widening");
        workers != before && !workers.is_empty()
    });
    server.wait_all_ready(&["widening"]);
    let text = ask(&server, &attempt);
    assert!(text.starts_with("refused: "), "{text}");
    // A reload checks again, and reports the error.
    let control = format!("unix:{}", server.control_path().display());
    let output = site.run(&["reload", "--admin", &control]);
    let said = texts(&output);
    assert!(format!("{said:?}").contains("could replace it"), "{said:?}");
    assert!(ask(&server, &attempt).starts_with("refused: "));
}
