//! The wall clock is set while requests are in progress: dates follow, and no timeout is affected.
//!
//! A library between the server (and its workers) and the C library shifts their wall clock by the
//! seconds in a file.
//!
//! # Invariants
//!
//! - No timeout, age or deadline uses the wall clock.

use std::process::Command;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually};

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int done = real(id, at);
  const char *path = getenv("TEST_CLOCK_JUMP");
  if (done == 0 && path && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    char text[32] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      if (read(fd, text, sizeof text - 1) > 0) at->tv_sec += atol(text);
      close(fd);
    }
  }
  return done;
}
"#;

/// Responds with its clock and its process id; `/hold` once the file `go` exists.
const APP: &str = r#"
import os
from time import sleep as pause, time

def app(environ, start):
    if environ["PATH_INFO"] == "/hold":
        while not os.path.exists("go"):
            pause(0.01)
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{int(time())} {os.getpid()}".encode()]
"#;

const TOML: &str = "[server]\nthreads = 1\n[limits]\nidle_timeout = \"60s\"\n\
                    [apps.app]\nprocesses = 2\nmax_age = \"1h\"\nresponse_timeout = \"60s\"\n";

/// A server with a clock that [`jump`] moves.
fn serve() -> Server {
    let site = Site::new()
        .file("app.py", APP)
        .file("jump.c", SHIM)
        .config(TOML);
    site.write("jump", "0");
    let (library, offset) = (site.dir().join("jump.so"), site.dir().join("jump"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    let done = compiler.arg(site.dir().join("jump.c")).arg("-ldl").output();
    let done = done.expect("a C compiler, which building Penstock takes too");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let (library, offset) = (library.display().to_string(), offset.display().to_string());
    let server = site.serve_with(
        &[],
        &[("LD_PRELOAD", &library), ("TEST_CLOCK_JUMP", &offset)],
    );
    server.wait_ready("app");
    server
}

/// The response on a kept connection: the day of the `Date`, the application's clock.
fn ask(kept: &mut RawClient) -> (String, i64) {
    kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = kept.expect_status(200);
    let day = answer.header("date").unwrap()[..16].to_owned();
    let text = answer.text();
    let clock = text.split(' ').next().unwrap();
    (day, clock.parse().unwrap())
}

#[test]
fn a_clock_that_jumps_changes_dates_and_nothing_else() {
    let server = serve();
    let workers = server.workers("app");
    let mut held = server.connect();
    held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut idle = server.connect();
    let mut kept = server.connect();
    let (mut day, mut clock) = ask(&mut kept);
    for offset in ["86400", "-86400", "0", "315360000", "-315360000", "0"] {
        server.site().write("jump", offset);
        let (next_day, next_clock) = eventually(PATIENCE, "dates follow", || {
            let next = ask(&mut kept);
            (next.0 != day).then_some(next)
        });
        assert!(
            (next_clock - clock).abs() > 80_000,
            "the application's, too"
        );
        (day, clock) = (next_day, next_clock);
        assert_eq!(server.get("/").status, 200);
    }
    // Open connections stay open, and active requests continue.
    ask(&mut idle);
    server.site().write("go", "");
    held.expect_status(200);
    assert_eq!(server.workers("app"), workers, "{}", server.log());
    let counters = server.admin_json()["apps"][0]["counters"].clone();
    for name in [
        "timed_out_requests",
        "queue_timeouts",
        "crashed_workers",
        "worker_deaths",
    ] {
        assert_eq!(counters[name], 0, "{name}");
    }
    assert_eq!(counters["recycled_workers"]["age"], 0);
}
