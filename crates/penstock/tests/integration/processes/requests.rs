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
fn beside_another(house: &WatchedServer, path: &str) -> Option<u16> {
    house.settled(2);
    let gate = format!("gate{}", path.replace(['/', '?'], "-"));
    let mut other = house.hold(&gate);
    let may_share = house.app()["threads"] != 1;
    let answer = match house.ask(path).try_response(false) {
        Ok(answer) => Some(answer.status),
        Err(ResponseError::Closed | ResponseError::Truncated(_)) => None,
        Err(broken) => panic!("{path}: {broken:?}\n{}", house.log()),
    };
    for _ in 0..5 {
        let next = house.get("/");
        // Another thread of the worker that is about to end may have been given it.
        let is_fine = next.status == 200 || (may_share && next.status == 502);
        assert!(is_fine, "{path}: {}\n{}", next.text(), house.log());
    }
    house.open(&gate);
    let held = other.response().status;
    // Where a worker has several threads, both may have been in the same one.
    let is_fine = held == 200 || (may_share && held == 502);
    assert!(is_fine, "{path}: {held}\n{}", house.log());
    answer
}

/// The same, where the worker must be replaced afterwards.
fn costs_its_worker(house: &WatchedServer, path: &str) -> Option<u16> {
    let old = house.settled(2);
    let answer = beside_another(house, path);
    eventually(PATIENCE, &format!("{path}: a worker is replaced"), || {
        let now = house.settled(2);
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
        let house = model.serve("processes = 2");
        for path in ["/leave", "/garbage", "/close"] {
            let answer = costs_its_worker(&house, path);
            assert_eq!(answer, Some(502), "{name}, {path}\n{}", house.log());
        }
        house.wait_log("unasked");
        let last = house.app()["last_failure"].as_str().unwrap().to_owned();
        assert!(last.contains("GMT: process "), "{name}: {last}");
        assert!(house.counter("worker_died") >= 1, "{name}");
    }
}

#[test]
fn one_that_asks_to_exit_or_runs_out_of_memory_fails_and_costs_nobody_else_anything() {
    for model in MODELS {
        let ProcessModel(name, ..) = model;
        let house = model.serve("processes = 2");
        for (path, error) in [("/exit", "SystemExit"), ("/oom", "MemoryError")] {
            let answer = beside_another(&house, path);
            assert!(
                matches!(answer, Some(500 | 502)),
                "{name}: {path}: {answer:?}\n{}",
                house.log()
            );
            house.settled(2);
            house.wait_log(error);
            for _ in 0..4 {
                assert_eq!(house.get("/").status, 200, "{name}: {path}");
            }
        }
    }
}

#[test]
fn a_flood_of_rubbish_on_the_outputs_holds_up_nobody() {
    for model in [FORKED, ASGI, GREENLETS, RACK, FIBERS] {
        let ProcessModel(name, ..) = model;
        let house = model.serve("processes = 2");
        let old = house.settled(2);
        assert_eq!(beside_another(&house, "/flood?20"), Some(200), "{name}");
        house.wait_log("the flood is over");
        assert_eq!(house.settled(2), old, "{name}: nobody was replaced");
        let bad = house.log().chars().filter(|c| *c == '\x1b').count();
        assert_eq!(bad, 0, "{name}: control characters in the log");
    }
}

#[test]
fn one_that_becomes_somebody_else_is_served_or_replaced_but_ends_with_the_server() {
    let is_root = rustix::process::geteuid().is_root();
    for model in [FORKED, THREADS, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let house = model.serve("processes = 2");
        for path in ["/umask", "/user"] {
            if path == "/user" && !is_root {
                continue;
            }
            let answer = beside_another(&house, path);
            assert_eq!(answer, Some(200), "{name}, {path}\n{}", house.log());
            // The changed rights affect no other request.
            for _ in 0..4 {
                assert_eq!(house.get("/").status, 200, "{name}, {path}");
            }
        }
        assert_eq!(house.restart().0, 0, "{name}\n{}", house.log());
        assert_eq!(house.settled(2).len(), 2, "{name}");
    }
}
