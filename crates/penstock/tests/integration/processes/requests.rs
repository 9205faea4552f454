//! What an application may do to itself in a request: it costs that request, or that worker.
//!
//! It exits, closes its sockets, writes garbage to all its descriptors, floods its outputs, changes
//! its user.
//!
//! # Invariants
//!
//! - A request in the other worker completes, and the next ones are served.
//! - A lost worker is replaced.

use super::{
    ASGI, FIBERS, FORKED, GREENLETS, PLAIN, ProcessModel, RACK, RACK_THREADS, THREADS,
    WatchedServer,
};
use crate::support::{PATIENCE, ResponseError, eventually};

/// Requests `path` during a request in the other worker, or at least another thread; returns the
/// status, if there was a response.
fn beside_another(watched: &WatchedServer, path: &str) -> Option<u16> {
    watched.settled(2);
    let gate = format!("gate{}", path.replace(['/', '?'], "-"));
    let mut other = watched.hold(&gate);
    let may_share = watched.app()["threads"] != 1;
    let answer = match watched.ask(path).try_response(false) {
        Ok(answer) => Some(answer.status),
        Err(ResponseError::Closed | ResponseError::Truncated(_)) => None,
        Err(broken) => panic!("{path}: {broken:?}\n{}", watched.log()),
    };
    for _ in 0..5 {
        let next = watched.get("/");
        // Another thread of the worker that is about to end may have been given it.
        let is_fine = next.status == 200 || (may_share && next.status == 502);
        assert!(is_fine, "{path}: {}\n{}", next.text(), watched.log());
    }
    watched.open(&gate);
    let held = other.response().status;
    // Where a worker has several threads, both may have been in the same one.
    let is_fine = held == 200 || (may_share && held == 502);
    assert!(is_fine, "{path}: {held}\n{}", watched.log());
    answer
}

/// The same, where the worker must be replaced afterwards.
fn costs_its_worker(watched: &WatchedServer, path: &str) -> Option<u16> {
    let old = watched.settled(2);
    let answer = beside_another(watched, path);
    eventually(PATIENCE, &format!("{path}: a worker is replaced"), || {
        let now = watched.settled(2);
        now.iter().filter(|pid| old.contains(pid)).count() == 1
    });
    answer
}

const MODELS: [ProcessModel; 8] = [
    FORKED,
    PLAIN,
    THREADS,
    ASGI,
    GREENLETS,
    RACK,
    RACK_THREADS,
    FIBERS,
];

#[test]
fn one_that_ends_or_spoils_its_worker_costs_nobody_else_anything() {
    for model in MODELS {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        for path in ["/leave", "/garbage", "/close"] {
            let answer = costs_its_worker(&watched, path);
            assert_eq!(answer, Some(502), "{name}, {path}\n{}", watched.log());
        }
        watched.wait_log("unasked");
        let last = watched.app()["last_failure"].as_str().unwrap().to_owned();
        assert!(last.contains("GMT: process "), "{name}: {last}");
        assert!(watched.counter("worker_deaths") >= 1, "{name}");
    }
}

#[test]
fn one_that_asks_to_exit_or_runs_out_of_memory_fails_and_costs_nobody_else_anything() {
    for model in MODELS {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        for (path, error) in [("/exit", "SystemExit"), ("/oom", "MemoryError")] {
            let answer = beside_another(&watched, path);
            assert!(
                matches!(answer, Some(500 | 502)),
                "{name}: {path}: {answer:?}\n{}",
                watched.log()
            );
            watched.settled(2);
            watched.wait_log(error);
            for _ in 0..4 {
                assert_eq!(watched.get("/").status, 200, "{name}: {path}");
            }
        }
    }
}

#[test]
fn a_flood_of_rubbish_on_the_outputs_holds_up_nobody() {
    for model in [FORKED, ASGI, GREENLETS, RACK, FIBERS] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        let old = watched.settled(2);
        assert_eq!(beside_another(&watched, "/flood?20"), Some(200), "{name}");
        watched.wait_log("the flood is over");
        assert_eq!(watched.settled(2), old, "{name}: no worker was replaced");
        let bad = watched.log().chars().filter(|c| *c == '\x1b').count();
        assert_eq!(bad, 0, "{name}: control characters in the log");
    }
}

#[test]
fn one_that_becomes_somebody_else_is_served_or_replaced_but_ends_with_the_server() {
    let is_root = rustix::process::geteuid().is_root();
    for model in [FORKED, THREADS, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        for path in ["/umask", "/user"] {
            if path == "/user" && !is_root {
                continue;
            }
            let answer = beside_another(&watched, path);
            assert_eq!(answer, Some(200), "{name}, {path}\n{}", watched.log());
            // The changed rights affect no other request.
            for _ in 0..4 {
                assert_eq!(watched.get("/").status, 200, "{name}, {path}");
            }
        }
        assert_eq!(watched.restart().0, 0, "{name}\n{}", watched.log());
        assert_eq!(watched.settled(2).len(), 2, "{name}");
    }
}
