//! Servers with one thread, or a few, each of which serves one connection until it closes.
//!
//! Each program here accepts, serves one connection to its end, and only then accepts the next. An
//! idle connection to it must never make another request wait for a timeout.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Server, Site, eventually};

/// Responds with the method and the length of the body. `fcgi.py THREADS [SOCKET]`: on descriptor 0
/// or on that socket.
const FASTCGI: &str = r#"
import socket, struct, sys, threading, time
if len(sys.argv) > 2:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[2])
    listener.listen(64)
else:
    listener = socket.socket(fileno=0)

def record(kind, content):
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content

def serve():
    while True:
        connection, _ = listener.accept()
        file = connection.makefile("rb")
        while exchange(connection, file):
            pass
        file.close()
        connection.close()

def exchange(connection, file):
    keeps, length, params = False, 0, b""
    while head := file.read(8):
        _, kind, _, size, padding, _ = struct.unpack(">BBHHBB", head)
        content = file.read(size)
        file.read(padding)
        if kind == 1:
            keeps = content[2] & 1
        elif kind == 4:
            params += content
        elif kind == 5 and size:
            length += size
        elif kind == 5:
            if b"/slow" in params:
                time.sleep(0.05)
            body = record(6, b"Content-Type: a/b\r\n\r\n%d" % length) + record(6, b"")
            connection.sendall(body + record(3, bytes(8)))
            return keeps
    return False

for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=serve, daemon=True).start()
serve()
"#;

/// Responds with the length of the body, one connection at a time.
const HTTP: &str = r#"
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(0.05)
        body = str(len(self.rfile.read(int(self.headers.get("Content-Length", 0))))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// Far below `response_timeout` and far above the time of a response.
const PROMPT: Duration = Duration::from_secs(10);

fn serve(toml: &str) -> Server {
    let site = Site::new()
        .file("fcgi.py", FASTCGI)
        .file("server.py", HTTP)
        .config(toml);
    let server = site.serve(&[]);
    server.wait_ready("app");
    server
}

/// Requests of both kinds in turn, over connections on any event loop.
fn alternate(server: &Server, name: &str) {
    for _ in 0..4 {
        for (method, body) in [
            ("GET", ""),
            ("POST", "four"),
            ("POST", "bytes"),
            ("GET", ""),
        ] {
            let began = Instant::now();
            let length = body.len();
            let mut client = server.connect();
            client.send(format!(
                "{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
            let response = client.expect_status(200);
            assert_eq!(response.text(), length.to_string(), "{name} {method}");
            assert!(
                began.elapsed() < PROMPT,
                "{name} {method}: {:?}",
                began.elapsed()
            );
        }
    }
}

/// Concurrent clients, each with several requests.
fn crowd(server: &Server, name: &str, clients: usize) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = server.connect();
                for _ in 0..4 {
                    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
                    assert_eq!(client.expect_status(200).text(), "0", "{name}");
                }
            });
        }
    });
    assert!(
        began.elapsed() < 2 * PROMPT,
        "{name}: {:?}",
        began.elapsed()
    );
}

#[test]
fn a_fastcgi_program_of_one_connection_serves_all_methods_promptly() {
    let server = serve(
        "[server]\nthreads = 2\n[apps.app]\nkind = \"fastcgi\"\nprocesses = 1\n\
         command = [\"python3\", \"fcgi.py\", \"1\"]\n",
    );
    alternate(&server, "fastcgi");
    crowd(&server, "fastcgi", 6);
    let connects = server.admin_json()["upstreams"][0]["servers"][0]["connects"].clone();
    assert!(
        connects.as_u64().unwrap() < 40,
        "{connects}: its connection is kept"
    );
}

#[test]
fn an_http_server_of_one_thread_serves_all_methods_promptly() {
    let server = serve(
        "[server]\nthreads = 2\n[apps.app]\nkind = \"command\"\nprocesses = 1\nthreads = 8\n\
         command = [\"python3\", \"server.py\", \"{port}\"]\n",
    );
    alternate(&server, "http");
    // More requests than it can serve: those behind an idle connection wait a moment, not for ever.
    crowd(&server, "http", 6);
    alternate(&server, "http, afterwards");
}

#[test]
fn fastcgi_processes_fewer_than_clients_need_no_setting() {
    let site = Site::new().file("fcgi.py", FASTCGI).config(
        "[server]\nthreads = 2\n[upstreams.php]\nprotocol = \"fastcgi\"\n\
         servers = [\"unix:php.sock\"]\n",
    );
    let mut program = Command::new("python3");
    program
        .args(["fcgi.py", "4", "php.sock"])
        .current_dir(site.dir());
    let _program = ChildProgram(program.spawn().unwrap());
    eventually(PATIENCE, "it listens", || {
        UnixStream::connect(site.dir().join("php.sock")).is_ok()
    });
    let server = site.serve(&[]);
    crowd(&server, "four processes", 12);
    alternate(&server, "four processes");
    crowd(&server, "four processes, again", 12);
}

/// Ended with the test.
struct ChildProgram(Child);

impl Drop for ChildProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
