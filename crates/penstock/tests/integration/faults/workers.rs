//! Faults of workers other than their death: garbage in their sockets, lost outputs, daemons,
//! ignored signals.
//!
//! `worker_death` has workers that die or hang; here they send invalid frames, close descriptors,
//! leave processes that hold them, and ignore signals.
//!
//! # Invariants
//!
//! - Only the request inside the worker is lost.
//! - The worker is replaced, and the server stops in time.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{APP, ask, asking, site};
use crate::rack::rack_site;
use crate::support::{PATIENCE, RawClient, ResponseError, Server, eventually, is_alive, kill};
use crate::wsgi::serve_ready;

/// Waits until exactly `count` workers are ready; returns their process ids.
fn wait_workers(server: &Server, count: usize) -> Vec<i32> {
    eventually(PATIENCE, &format!("{count} workers are ready"), || {
        let status = server.admin_json();
        let workers = status["apps"][0]["workers"].as_array().unwrap();
        let ready = workers.iter().filter(|w| w["state"] == "ready").count();
        (ready == count && workers.len() == count).then(|| server.workers("app"))
    })
}

/// The worker that has begun a request and recorded it.
fn busy_worker(server: &Server) -> i32 {
    eventually(PATIENCE, "a worker has begun", || {
        server.site().read("begun").parse().ok()
    })
}

fn wait_replaced(server: &Server, name: &str, old: &[i32]) {
    eventually(PATIENCE, &format!("{name}: a worker is replaced"), || {
        let now = wait_workers(server, old.len());
        now.iter().filter(|pid| old.contains(pid)).count() == old.len() - 1
    });
}

/// The application finds its sockets in its command line, which forked workers have from their
/// template; `processes::requests` covers garbage from those.
const SPAWNED: &str = "processes = 2\npreload = false";

const RUBBISH: [&str; 7] = [
    "noise",
    "text",
    "too-long",
    "kind",
    "flags",
    "body-first",
    "head-lies",
];

/// Workers forked from a template, and workers that load the code themselves.
const WAYS: [&str; 2] = ["", "preload = false"];

#[test]
fn rubbish_in_a_slot_costs_its_own_request_only() {
    for way in WAYS {
        let server = serve_ready(&site(&format!("processes = 2\n{way}"), ""));
        let mut rows: Vec<String> = RUBBISH.iter().map(|row| format!("/slot?{row}")).collect();
        rows.extend(["/slot?control", "/descriptor", "/shut"].map(String::from));
        for row in rows {
            let old = wait_workers(&server, 2);
            let mut client = asking(&server, &row);
            assert_eq!(client.response().status, 502, "{row}");
            assert_eq!(server.get("/").status, 200, "{row}: the other one");
            wait_replaced(&server, &row, &old);
            ask(&mut client, "/");
            client.expect_status(200);
        }
        server.wait_log("broke the worker protocol");
    }
}

#[test]
fn a_frame_that_never_ends_is_waited_for_no_longer_than_an_answer() {
    let server = serve_ready(&site(
        &format!("{SPAWNED}\nresponse_timeout = \"400ms\""),
        "",
    ));
    let old = wait_workers(&server, 2);
    let mut client = asking(&server, "/slot?long");
    let answer = client.try_response(false);
    assert!(
        matches!(&answer, Ok(answer) if answer.status >= 500),
        "{answer:?}"
    );
    assert_eq!(server.get("/").status, 200);
    wait_replaced(&server, "long", &old);
}

#[test]
fn rubbish_on_the_control_socket_costs_that_worker_only() {
    for way in WAYS {
        let server = serve_ready(&site(&format!("processes = 2\n{way}"), ""));
        for row in RUBBISH.into_iter().chain(["control"]) {
            let old = wait_workers(&server, 2);
            let status = asking(&server, &format!("/control?{row}"))
                .response()
                .status;
            // Whether it is killed before it has responded is a race.
            assert!(matches!(status, 200 | 502), "{row}: {status}");
            // Until it is killed it may get one more request.
            wait_replaced(&server, row, &old);
            assert_eq!(server.get("/").status, 200, "{row}: the other one");
        }
        let count = server.log().matches("]: broke the worker protocol").count();
        assert_eq!(count, RUBBISH.len() + 1, "once each\n{}", server.log());
    }
}

#[test]
fn what_is_killed_while_it_loads_the_code_is_started_again() {
    let code = format!(
        "import os\nwith open('boots', 'a') as boots:\n    boots.write(f'{{os.getpid()}}\\n')\n\
         import time\nwhile not os.path.exists('go-on'):\n    time.sleep(0.003)\n{APP}"
    );
    for way in WAYS {
        let site = site(&format!("processes = 1\n{way}"), "").file("app.py", &code);
        let server = site.serve(&[]);
        let boot = |number: usize| {
            eventually(PATIENCE, "the code is loaded", || {
                let boots = server.site().read("boots");
                let line = boots.split_inclusive('\n').nth(number)?;
                line.strip_suffix('\n')?.parse::<i32>().ok()
            })
        };
        for number in 0..3 {
            kill(boot(number), Signal::KILL);
        }
        let survivor = boot(3);
        server.wait_log("ended with SIGKILL before it was ready");
        server.site().write("go-on", "");
        server.wait_ready("app");
        let app = server.admin_json()["apps"][0].clone();
        let kind = if way.is_empty() {
            "templates"
        } else {
            "workers"
        };
        assert_eq!(app[kind][0]["pid"], survivor, "{way}");
        let worker = app["workers"][0]["pid"].to_string();
        assert!(server.get("/").text().starts_with(&format!("{worker} ")));
        assert_eq!(server.site().read("boots").lines().count(), 4, "{way}");
    }
}

#[test]
fn a_worker_without_outputs_serves_on() {
    for path in ["/close-output", "/close-streams"] {
        let server = serve_ready(&site("processes = 1", ""));
        let first = server.get(path).text();
        for (path, status) in [
            ("/", 200),
            ("/raise", 500),
            ("/forge-status", 502),
            ("/", 200),
        ] {
            assert_eq!(server.get(path).status, status, "{path}");
        }
        assert_eq!(server.get("/").text(), first, "{path}: the same worker");
        let began = Instant::now();
        server.signal(Signal::TERM);
        let ended = server.wait_exit(PATIENCE);
        assert!(ended.code() == Some(0) && began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_ruby_worker_without_outputs_serves_on() {
    let server = serve_ready(&rack_site(
        "run ->(env) {\n\
           if env['PATH_INFO'] == '/close'\n    $stdout.close\n    $stderr.close\n  end\n\
           raise 'on purpose' if env['PATH_INFO'] == '/raise'\n\
           [200, {}, [Process.pid.to_s]]\n}",
    ));
    let pid = server.get("/close").text();
    assert_eq!(server.get("/raise").status, 500);
    assert_eq!(server.get("/").text(), pid);
}

/// A process that left its worker's session; ended with the test.
struct DaemonProcess(i32);

impl DaemonProcess {
    fn of(server: &Server) -> Self {
        let path = "daemon";
        assert_eq!(server.get("/daemon").status, 200);
        let pid = server.site().read(path).parse().unwrap();
        std::fs::remove_file(server.site().dir().join(path)).unwrap();
        Self(pid)
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if is_alive(self.0) {
            let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::KILL);
        }
    }
}

#[test]
fn a_daemon_that_keeps_a_workers_sockets_does_not_hide_its_end() {
    let server = serve_ready(&site("processes = 1", ""));
    let at_work = DaemonProcess::of(&server);
    let mut inside = asking(&server, "/hold");
    let pid = busy_worker(&server);
    let mut behind = asking(&server, "/");
    let began = Instant::now();
    kill(pid, Signal::KILL);
    inside.expect_status(502);
    behind.expect_status(200);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "not at the response_timeout"
    );
    // The same while it is idle: at most one request was sent to the dead worker.
    let idle = DaemonProcess::of(&server);
    kill(wait_workers(&server, 1)[0], Signal::KILL);
    let lost = (0..20).filter(|_| server.get("/").status != 200).count();
    assert!(
        lost <= 1 && began.elapsed() < Duration::from_secs(8),
        "{lost} lost after {:?}",
        began.elapsed()
    );
    // And at the end, which ends them too.
    let last = DaemonProcess::of(&server);
    drop((inside, behind));
    let began = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "it stops in time");
    let is_left = |daemon: &DaemonProcess| is_alive(daemon.0);
    assert!(![at_work, idle, last].iter().any(is_left));
}

#[test]
fn a_worker_that_ignores_the_signal_to_end_is_killed() {
    let limits = "[server]\nthreads = 1\nshutdown_timeout = \"300ms\"";
    let server = serve_ready(&site("processes = 1\nstop_timeout = \"300ms\"", limits));
    let mut inside = asking(&server, "/stubborn");
    let pid = busy_worker(&server);
    server.signal(Signal::TERM);
    let answer = inside.try_response(false);
    let is_clean = matches!(&answer, Ok(answer) if answer.status < 500);
    assert!(!is_clean, "{answer:?}");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(!is_alive(pid));
}

#[test]
fn a_worker_stopped_inside_a_streamed_response_is_killed_and_the_response_cut() {
    let server = serve_ready(&site("processes = 1\nresponse_timeout = \"400ms\"", ""));
    let pid = wait_workers(&server, 1)[0];
    let mut client: RawClient = asking(&server, "/ticking");
    client.read_some();
    kill(pid, Signal::STOP);
    let cut = client.try_response(false);
    assert!(
        matches!(cut, Err(ResponseError::Truncated(_))),
        "never a clean end: {cut:?}"
    );
    eventually(PATIENCE, "it is gone", || !is_alive(pid));
    assert_eq!(server.get("/").status, 200);
}
