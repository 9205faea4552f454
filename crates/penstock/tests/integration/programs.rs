//! Programs that serve by themselves (`kind = "command"`): one that stops responding is replaced.

use std::time::Duration;

use crate::support::{PATIENCE, Server, Site, eventually, is_alive};

/// Responds to one request at a time with its process id; `/hang` does not end, and it ignores
/// SIGTERM.
const PROGRAM: &str = r#"
import os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hang":
            with open("hung", "w") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(3600)
        body = f"{os.getpid()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

fn ready(server: &Server) -> Vec<i64> {
    let app = server.admin_json()["apps"][0].clone();
    let workers = app["workers"].as_array().unwrap().iter();
    let ready = workers.filter(|worker| worker["state"] == "ready");
    ready.filter_map(|worker| worker["pid"].as_i64()).collect()
}

#[test]
fn a_program_that_answers_nothing_any_more_is_replaced() {
    let toml = "[server]\nthreads = 1\n[apps.app]\nkind = \"command\"\n\
                command = [\"python3\", \"program.py\", \"{port}\"]\nprocesses = 2\n\
                response_timeout = \"2s\"\nupstream = { retry = { attempts = 1 } }\nstop_timeout = \"300ms\"\n";
    let server = Site::new()
        .file("program.py", PROGRAM)
        .config(toml)
        .serve(&[]);
    server.wait_ready("app");
    eventually(PATIENCE, "both serve", || ready(&server).len() == 2);
    assert_eq!(server.get("/hang").status, 504);
    let hung: i32 = server.site().read("hung").trim().parse().unwrap();
    eventually(PATIENCE, "it is gone", || !is_alive(hung));
    eventually(PATIENCE, "two others serve", || {
        let now = ready(&server);
        now.len() == 2 && !now.contains(&i64::from(hung))
    });
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200, "{}", server.log());
    }
    let counters = server.admin_json()["apps"][0]["counters"].clone();
    assert_eq!(counters["recycled_workers"]["stuck"], 1);
    assert!(server.log().contains("a request does not end"));
    server.signal(rustix::process::Signal::TERM);
    let began = std::time::Instant::now();
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10));
}
