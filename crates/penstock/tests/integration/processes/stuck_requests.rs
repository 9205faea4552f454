//! Requests that do not end: aborted at their timeout, with the stack in the log.
//!
//! # Invariants
//!
//! - Only the stuck worker is killed, and its other threads finish their requests.
//! - A worker that ignores signals is killed too.

use std::time::{Duration, Instant};

use super::{
    ASGI, FIBERS, FORKED, GREENLETS, PLAIN, ProcessModel, RACK, RACK_THREADS, THREADS,
    WatchedServer,
};
use crate::support::{PATIENCE, eventually};

/// Waits until the worker that has begun last is replaced.
fn replaced(watched: &WatchedServer) {
    let stuck: i32 = watched.lines("begun").last().unwrap().parse().unwrap();
    watched.wait_gone(stuck);
    watched.settled(2);
}

#[test]
fn a_stuck_request_is_cut_with_its_stack_in_the_log() {
    for (model, frame) in [
        (FORKED, "in stuck"),
        (PLAIN, "in stuck"),
        (ASGI, "in stuck"),
        (RACK, "config.ru"),
    ] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2\nresponse_timeout = \"500ms\"");
        let old = watched.settled(2);
        let began = Instant::now();
        let mut client = watched.ask("/stuck");
        eventually(PATIENCE, "it has begun", || {
            !watched.lines("begun").is_empty()
        });
        // The other worker continues to serve.
        for _ in 0..5 {
            assert_eq!(watched.get("/").status, 200, "{name}");
        }
        client.expect_status(504);
        assert!(began.elapsed() >= Duration::from_millis(500), "{name}");
        watched.wait_log(frame);
        replaced(&watched);
        let left = watched.ready();
        assert_eq!(
            left.iter().filter(|pid| old.contains(pid)).count(),
            1,
            "{name}: the other is the same"
        );
        assert_eq!(watched.counter("timed_out_requests"), 1, "{name}");
        watched.wait_log("worker killed:");
    }
}

#[test]
fn a_request_that_waits_for_ever_in_a_reactor_costs_no_worker() {
    for (model, path, frame) in [
        (ASGI, "/wait", "in wait_for_ever"),
        (GREENLETS, "/stuck", "in stuck"),
        (FIBERS, "/stuck", "config.ru"),
    ] {
        let ProcessModel(name, ..) = model;
        let watched =
            model.serve("processes = 1\nresponse_timeout = \"2s\"\nstop_timeout = \"500ms\"");
        let old = watched.settled(1);
        let mut client = watched.ask(path);
        eventually(PATIENCE, "it has begun", || {
            !watched.lines("begun").is_empty()
        });
        assert_eq!(
            watched.get("/").text(),
            old[0].to_string(),
            "{name}: beside it"
        );
        client.expect_status(504);
        watched.wait_log(frame);
        assert_eq!(
            watched.get("/").text(),
            old[0].to_string(),
            "{name}: it goes on"
        );
        assert_eq!(watched.counter("timed_out_requests"), 1, "{name}");
    }
}

#[test]
fn neighbours_of_a_stuck_request_in_other_threads_finish() {
    for model in [THREADS, RACK_THREADS] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 1\nresponse_timeout = \"1s\"");
        let pid = watched.settled(1)[0];
        let mut stuck = watched.ask("/stuck");
        eventually(PATIENCE, "it has begun", || {
            !watched.lines("begun").is_empty()
        });
        // It began later, so its own time is not over when the stuck one's is.
        pause_until(&watched, Duration::from_millis(700));
        let mut neighbour = watched.hold("gate");
        stuck.expect_status(504);
        watched.wait_log("hread");
        watched.open("gate");
        let answer = neighbour.response();
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.text(), pid.to_string(), "{name}: in that process");
        watched.wait_gone(pid);
        assert_eq!(watched.get("/").status, 200, "{name}");
    }
}

/// Sends other requests until the first one has this age.
fn pause_until(watched: &WatchedServer, age: Duration) {
    let began = Instant::now();
    eventually(PATIENCE, "some time has passed", || {
        assert_eq!(watched.get("/").status, 200);
        began.elapsed() > age
    });
}

#[test]
fn a_worker_that_hears_no_signal_is_killed_all_the_same() {
    for model in [FORKED, THREADS, ASGI] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2\nresponse_timeout = \"400ms\"");
        let mut deaf = watched.ask("/deaf");
        eventually(PATIENCE, "it has begun", || {
            !watched.lines("begun").is_empty()
        });
        assert_eq!(watched.get("/").status, 200, "{name}");
        deaf.expect_status(504);
        replaced(&watched);
        assert_eq!(watched.get("/").status, 200, "{name}");
    }
}

#[test]
fn one_that_never_finishes_its_end_is_killed() {
    for model in [FORKED, PLAIN, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let site = model.site("processes = 2\nstop_timeout = \"700ms\"");
        site.write("boot", "hang_at_exit");
        let watched = WatchedServer::new(&site);
        watched.wait_ready("app");
        let old = watched.settled(2);
        let (code, _, stderr) = watched.restart();
        assert_eq!(code, 0, "{name}: {stderr}");
        old.iter().for_each(|pid| watched.wait_gone(*pid));
        assert!(
            !watched.lines("ending").is_empty(),
            "{name}: it was asked to"
        );
        let began = Instant::now();
        watched.signal(rustix::process::Signal::TERM);
        assert_eq!(watched.wait_exit(PATIENCE).code(), Some(0), "{name}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(6), "{name}: {took:?}");
    }
}

#[test]
fn one_that_ignores_signals_and_its_children_is_replaced_like_others() {
    for model in [FORKED, PLAIN, RACK] {
        let ProcessModel(name, ..) = model;
        let site = model.site("processes = 2\nstop_timeout = \"700ms\"");
        site.write("boot", "no_signals");
        let watched = WatchedServer::new(&site);
        watched.wait_ready("app");
        let old = watched.settled(2);
        let (code, _, stderr) = watched.restart();
        assert_eq!(code, 0, "{name}: {stderr}");
        let new = watched.settled(2);
        assert!(new.iter().all(|pid| !old.contains(pid)), "{name}");
    }
}
