//! Workers that die, hang or misbehave: at most the request inside is lost, and nothing is left
//! behind.
//!
//! Workers are killed idle, at work and under load; they exit, stop responding, write garbage and
//! leave children.
//!
//! # Invariants
//!
//! - Other requests are served, and a new worker starts soon.
//! - No process is left after the server's end, however it ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rack::rack_site;
use crate::support::{PATIENCE, RawClient, ResponseError, Server, eventually, is_alive, kill};
use crate::wsgi::{serve_ready, wsgi_site, wsgi_site_with};

const APP: &str = r#"
import os, signal, subprocess, sys, threading
from time import sleep as pause

def note(pid):
    with open("children", "a") as file:
        file.write(f"{pid}\n")

def begin():
    with open("begun.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("begun.new", "begun")

def until_go():
    while not os.path.exists("go"):
        pause(0.005)

def ticking():
    yield b"begun\n"
    while not os.path.exists("go"):
        yield b"tick\n"
        pause(0.02)
    yield b"done\n"

def app(environ, start):
    path = environ["PATH_INFO"]
    write = start("200 OK", [("Content-Type", "text/plain")])
    if path == "/hold":
        begin()
        until_go()
    elif path == "/ticking":
        return ticking()
    elif path == "/stuck":
        begin()
        threading.Event().wait()
    elif path == "/exit":
        os._exit(0)
    elif path == "/segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif path == "/mid-exit":
        write(b"begun")
        os._exit(0)
    elif path == "/close-all":
        os.closerange(3, 256)
    elif path == "/rubbish":
        os.write(1, b"\x00\xff\xfe \x1b[31m no end of line " + b"x" * 100000 + b"\r\n\n\n%s{}\n")
        os.write(2, b"\xff" * 20000 + b"\nlast words\n")
        print("printed")
    elif path == "/children":
        note(subprocess.Popen(["sleep", "1000"]).pid)
        child = os.fork()
        if child == 0:
            threading.Event().wait()
        note(child)
    elif path == "/fork-and-die":
        child = os.fork()
        if child == 0:
            threading.Event().wait()
        note(child)
        os._exit(1)
    return [str(os.getpid()).encode()]
"#;

fn ask(server: &Server, path: &str) -> RawClient {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

fn app_status(server: &Server) -> serde_json::Value {
    server.admin_json()["apps"][0].clone()
}

fn counter(server: &Server, key: &str) -> u64 {
    app_status(server)["counters"][key].as_u64().unwrap()
}

fn wait_in_progress(server: &Server, count: u64) {
    eventually(PATIENCE, &format!("{count} in progress"), || {
        app_status(server)["queue"]["active"].as_u64() == Some(count)
    });
}

/// Waits until exactly `count` workers are ready; returns their process ids.
fn wait_workers(server: &Server, count: usize) -> Vec<i32> {
    eventually(PATIENCE, &format!("{count} workers are ready"), || {
        let status = app_status(server);
        let workers = status["workers"].as_array().unwrap();
        let ready = workers.iter().filter(|w| w["state"] == "ready").count();
        (ready == count && workers.len() == count).then(|| server.workers("app"))
    })
}

/// The worker that has begun `/hold` or `/stuck`: the status page only knows that it has the
/// request.
fn busy_worker(server: &Server) -> i32 {
    eventually(PATIENCE, "a worker has begun", || {
        server.site().read("begun").parse().ok()
    })
}

fn wait_gone(pid: i32) {
    eventually(PATIENCE, &format!("process {pid} is gone"), || {
        !is_alive(pid)
    });
}

fn children(server: &Server) -> Vec<i32> {
    server
        .site()
        .read("children")
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

#[test]
fn a_worker_killed_while_idle_costs_no_request() {
    let server = serve_ready(&wsgi_site(APP));
    let old = server.workers("app");
    kill(old[0], Signal::KILL);
    // At once: the server may not have noticed yet, and the request may be on its way to the dead
    // worker.
    let answer = server.get("/");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_ne!(answer.text(), old[0].to_string());
    assert_eq!(
        (
            counter(&server, "worker_deaths"),
            counter(&server, "crashed_workers")
        ),
        (0, 1)
    );
    server.wait_log("worker was killed by signal 9 unasked");
}

#[test]
fn an_application_whose_only_worker_keeps_crashing_makes_others_wait_and_not_fail() {
    let server = serve_ready(&wsgi_site(APP));
    assert_eq!(server.workers("app").len(), 1, "one process");
    for round in 0..3 {
        let crashed = ask(&server, "/exit").expect_status(502);
        assert!(
            crashed.text().contains("worker ended"),
            "{round}: {}",
            crashed.text()
        );
        let answer = server.get("/");
        assert_eq!(answer.status, 200, "{round}: {}", answer.text());
    }
}

#[test]
fn a_worker_killed_at_work_costs_its_own_request_only() {
    let server = serve_ready(&wsgi_site(APP));
    let mut inside = ask(&server, "/hold");
    let pid = busy_worker(&server);
    let behind: Vec<RawClient> = (0..3).map(|_| ask(&server, "/")).collect();
    eventually(PATIENCE, "they wait", || {
        app_status(&server)["queue"]["length"] == 3
    });
    kill(pid, Signal::KILL);
    let lost = inside.expect_status(502).text();
    assert!(
        lost.contains("worker ended while it worked on this request"),
        "{lost}"
    );
    for mut client in behind {
        assert_ne!(client.expect_status(200).text(), pid.to_string());
    }
    assert_eq!(
        (
            counter(&server, "worker_deaths"),
            counter(&server, "crashed_workers")
        ),
        (1, 1)
    );
    assert_eq!(
        server.metric("penstock_app_requests_worker_died_total{app=\"app\"}"),
        Some(1.0)
    );
    // Its connection outlives it.
    inside
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
}

struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn workers_killed_again_and_again_under_load_cost_one_request_each() {
    const KILLS: usize = 6;
    let server = serve_ready(&wsgi_site_with(APP, "processes = 3"));
    let (stop, done, lost) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !stop.load(Ordering::Relaxed) {
                    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                    match client.response().status {
                        200 => done.fetch_add(1, Ordering::Relaxed),
                        502 => lost.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other}: {}", server.log()),
                    };
                }
            });
        }
        // The clients stop also if a round fails.
        let _stop = StopOnDrop(&stop);
        for round in 0..KILLS {
            let workers = wait_workers(&server, 3);
            kill(workers[round % 3], Signal::KILL);
            wait_gone(workers[round % 3]);
            let before = done.load(Ordering::Relaxed);
            eventually(PATIENCE, "requests go on", || {
                done.load(Ordering::Relaxed) > before + 20
            });
        }
        wait_workers(&server, 3);
    });
    let lost = lost.load(Ordering::Relaxed);
    assert!(
        lost <= KILLS,
        "{lost} requests lost for {KILLS} workers killed"
    );
    assert_eq!(counter(&server, "crashed_workers"), KILLS as u64);
}

#[test]
fn a_worker_that_ends_itself_costs_its_own_request_only() {
    let server = serve_ready(&wsgi_site_with(APP, "processes = 2"));
    for path in ["/exit", "/segv", "/close-all"] {
        let workers = wait_workers(&server, 2);
        let mut client = ask(&server, path);
        assert_eq!(client.response().status, 502, "{path}");
        assert_eq!(server.get("/").status, 200, "{path}: the other one");
        eventually(
            PATIENCE,
            &format!("{path}: one of {workers:?} is replaced"),
            || {
                let left = wait_workers(&server, 2);
                left.iter().filter(|pid| workers.contains(pid)).count() == 1
            },
        );
    }
    let mut client = ask(&server, "/mid-exit");
    let cut = client.try_response(false);
    assert!(
        matches!(cut, Err(ResponseError::Truncated(_))),
        "never a clean end: {cut:?}"
    );
}

#[test]
fn a_ruby_worker_that_ends_itself_costs_its_own_request_only() {
    let server = serve_ready(&rack_site(
        "run ->(env) { exit!(0) if env['PATH_INFO'] == '/exit'; [200, {}, [Process.pid.to_s]] }",
    ));
    let old = server.get("/").text();
    assert_eq!(server.get("/exit").status, 502);
    let answer = server.get("/");
    assert_eq!(answer.status, 200);
    assert_ne!(answer.text(), old);
}

#[test]
fn no_answer_in_time_costs_that_worker_and_nobody_else() {
    let server = serve_ready(&wsgi_site_with(
        APP,
        "processes = 2\nresponse_timeout = \"400ms\"",
    ));
    let workers = wait_workers(&server, 2);
    let began = Instant::now();
    let mut stuck = ask(&server, "/stuck");
    let pid = busy_worker(&server);
    for _ in 0..20 {
        assert_eq!(server.get("/").status, 200, "the other one serves on");
    }
    stuck.expect_status(504);
    assert!(
        began.elapsed() >= Duration::from_millis(400),
        "not before its time"
    );
    wait_gone(pid);
    let left = wait_workers(&server, 2);
    let other = workers.iter().find(|w| **w != pid).unwrap();
    assert!(left.contains(other), "{workers:?}, {pid} killed, {left:?}");
    assert_eq!(
        (
            counter(&server, "timed_out_requests"),
            counter(&server, "worker_deaths")
        ),
        (1, 0)
    );
    server.wait_log("worker killed:");
}

#[test]
fn a_worker_that_is_stopped_is_killed_in_the_end() {
    let server = serve_ready(&wsgi_site_with(
        APP,
        "processes = 1\nresponse_timeout = \"300ms\"",
    ));
    let pid = server.workers("app")[0];
    kill(pid, Signal::STOP);
    assert_eq!(server.get("/").status, 504);
    wait_gone(pid);
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn a_stuck_request_does_not_kill_its_neighbours_in_other_threads() {
    let app = "processes = 1\nthreads = 4\nresponse_timeout = \"500ms\"";
    let server = serve_ready(&wsgi_site_with(APP, app));
    let pid = server.workers("app")[0];
    // They continue to produce output, so their own timeout restarts with each piece.
    let mut neighbours: Vec<RawClient> = (0..2).map(|_| ask(&server, "/ticking")).collect();
    wait_in_progress(&server, 2);
    let mut stuck = ask(&server, "/stuck");
    stuck.expect_status(504);
    assert!(is_alive(pid), "not before its neighbours have finished");
    server.site().write("go", "");
    for neighbour in &mut neighbours {
        assert!(neighbour.expect_status(200).text().ends_with("done\n"));
    }
    wait_gone(pid);
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn what_a_worker_writes_goes_to_the_log_and_disturbs_nothing() {
    let server = serve_ready(&wsgi_site(APP));
    let pid = server.get("/").text();
    for _ in 0..3 {
        assert_eq!(server.get("/rubbish").text(), pid);
    }
    server
        .wait_log("last words")
        .wait_log("printed")
        .wait_log("no end of line xxxx");
    assert_eq!(server.get("/").text(), pid);
}

#[test]
fn children_of_a_worker_end_with_it() {
    let server = serve_ready(&wsgi_site(APP));
    server.get("/children");
    let first = children(&server);
    assert!(first.len() == 2 && first.iter().all(|pid| is_alive(*pid)));
    kill(server.workers("app")[0], Signal::KILL);
    first.into_iter().for_each(wait_gone);
    // And with the server's own end.
    assert_eq!(server.get("/children").status, 200);
    let second = children(&server);
    let (site, workers) = (server.site().clone(), server.workers("app"));
    drop(server);
    let all: Vec<i32> = second.into_iter().chain(workers).collect();
    assert!(all.len() == 5 && !site.read("children").is_empty());
    all.into_iter().for_each(wait_gone);
}

#[test]
fn a_child_that_keeps_the_sockets_open_does_not_hide_the_end_of_its_worker() {
    let server = serve_ready(&wsgi_site(APP));
    let began = Instant::now();
    let mut client = ask(&server, "/fork-and-die");
    client.expect_status(502);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "not at the response_timeout"
    );
    children(&server).into_iter().for_each(wait_gone);
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn workers_die_with_a_server_that_is_killed() {
    let server = serve_ready(&wsgi_site_with(APP, "processes = 2\nthreads = 2"));
    let mut busy = ask(&server, "/hold");
    busy_worker(&server);
    let workers = wait_workers(&server, 2);
    server.signal(Signal::KILL);
    server.wait_exit(PATIENCE);
    workers.into_iter().for_each(wait_gone);
    busy.expect_closed();
}
