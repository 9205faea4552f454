//! Processes that are killed from outside, at every moment of their lives: idle, in a request,
//! while loading, right after the fork; templates too; and the server itself.
//!
//! # Invariants
//!
//! - At most the request inside is lost, and the process is replaced.
//! - No process survives a killed server.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{
    ASGI, FORKED, PLAIN, ProcessModel, RACK, RACK_PLAIN, RACK_THREADS, THREADS, WatchedServer, end,
    send,
};
use crate::support::{PATIENCE, eventually};

#[test]
fn a_worker_killed_idle_or_in_a_request_costs_that_request_only() {
    for model in [FORKED, THREADS, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        let old = watched.settled(2);
        send(old[0], Signal::KILL);
        // At once: the server may not have noticed yet.
        assert_eq!(watched.get("/").status, 200, "{name}\n{}", watched.log());
        let old = watched.settled(2);
        let mut inside = watched.hold("gate");
        let busy: i32 = watched.lines("begun")[0].parse().unwrap();
        assert!(old.contains(&busy), "{name}");
        send(busy, Signal::KILL);
        inside.expect_status(502);
        for _ in 0..5 {
            assert_eq!(watched.get("/").status, 200, "{name}");
        }
        let new = watched.settled(2);
        assert!(!new.contains(&busy), "{name}");
        assert_eq!(watched.counter("crashed_workers"), 2, "{name}");
        watched.wait_log("unasked; replaced");
    }
}

#[test]
fn a_template_that_is_killed_costs_nothing_and_comes_back_when_it_is_needed() {
    for model in [FORKED, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        let old = watched.settled(2);
        let template = watched.template();
        watched.under_load("/", || {
            send(template, Signal::KILL);
            watched.wait_log("the template ended with SIGKILL unasked");
        });
        assert_eq!(watched.settled(2), old, "{name}: those that serve stay");
        // The code is loaded anew now.
        send(old[0], Signal::KILL);
        let fresh = eventually(PATIENCE, "a worker is replaced", || {
            let now = watched.settled(2);
            now.into_iter().find(|pid| !old.contains(pid))
        });
        assert_ne!(watched.template(), template, "{name}");
        assert_eq!(watched.restart().0, 0, "{name}");
        assert!(!watched.settled(2).contains(&fresh), "{name}");
    }
}

#[test]
fn whatever_is_killed_while_it_loads_is_started_again() {
    for model in [FORKED, PLAIN, RACK] {
        let ProcessModel(name, ..) = model;
        let site = model.site("processes = 1");
        site.write("boot", "slow");
        let watched = WatchedServer::new(&site);
        for number in 0..3 {
            let pid = eventually(PATIENCE, "it boots", || {
                watched.lines("booting").get(number)?.parse().ok()
            });
            send(pid, Signal::KILL);
        }
        watched.wait_log("SIGKILL before it was ready");
        watched.open("go");
        watched.wait_ready("app");
        assert_eq!(watched.get("/").status, 200, "{name}");
    }
}

#[test]
fn workers_killed_as_soon_as_they_are_forked_are_forked_again() {
    for model in [FORKED, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        let template = watched.template();
        let mut known = watched.settled(2);
        send(known[0], Signal::KILL);
        // Every process that appears is killed at first sight, in whatever state.
        let mut killed = 0;
        eventually(PATIENCE, "five were killed", || {
            for pid in watched.leftovers() {
                if pid != template && !known.contains(&pid) {
                    known.push(pid);
                    end(pid);
                    killed += 1;
                }
            }
            killed >= 5
        });
        watched.settled(2);
        assert_eq!(watched.get("/").status, 200, "{name}");
    }
}

#[test]
fn a_worker_that_dies_again_and_again_is_replaced_at_a_bounded_rate() {
    for model in [FORKED, RACK_PLAIN] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 1");
        let (began, before) = (Instant::now(), watched.counter("started_workers"));
        eventually(PATIENCE, "some time has passed", || {
            watched.ready().into_iter().for_each(end);
            began.elapsed() > Duration::from_secs(2)
        });
        // The first is replaced at once, the second after 100 ms, which then doubles up to half a
        // second.
        let most = 5 + began.elapsed().as_secs() * 2;
        let started = watched.counter("started_workers") - before;
        assert!(
            started <= most,
            "{name}: {started} started\n{}",
            watched.log()
        );
        assert_eq!(watched.settled(1).len(), 1, "{name}");
        assert_eq!(watched.get("/").status, 200, "{name}");
    }
}

#[test]
fn no_process_survives_a_server_that_is_killed() {
    let rows = [
        (FORKED, "", "/stuck"),
        (FORKED, "", "/user"),
        (PLAIN, "", "/stuck"),
        (THREADS, "", "/stuck"),
        (THREADS, "", "/user"),
        (ASGI, "", "/stuck"),
        (ASGI, "", "/user"),
        (RACK, "", "/stuck"),
        (RACK, "", "/user"),
        (RACK_THREADS, "", "/stuck"),
        (FORKED, "hang_at_exit", "/"),
        (RACK, "hang_at_exit", "/"),
    ];
    for (model, boot, path) in rows {
        let site = model.site("processes = 2");
        site.write("boot", boot);
        let watched = WatchedServer::new(&site);
        watched.wait_ready("app");
        // One is in a request, or the kernel has cleared its parent-death signal, as the user has
        // changed; the other is idle.
        let mut client = watched.ask(path);
        match path {
            "/stuck" => eventually(PATIENCE, "it is in the request", || {
                watched.app()["queue"]["active"] == 1
            }),
            "/user" if !rustix::process::geteuid().is_root() => continue,
            _ => drop(client.expect_status(200)),
        }
        watched.signal(Signal::KILL);
        watched.wait_exit(Duration::from_secs(5));
        watched.expect_nothing_left();
    }
}

#[test]
fn what_is_being_loaded_does_not_survive_a_server_that_is_killed() {
    for model in [FORKED, PLAIN, RACK] {
        let site = model.site("processes = 2");
        site.write("boot", "hang");
        let watched = WatchedServer::new(&site);
        eventually(PATIENCE, "it boots", || {
            !watched.lines("booting").is_empty()
        });
        watched.signal(Signal::KILL);
        watched.wait_exit(Duration::from_secs(5));
        watched.expect_nothing_left();
    }
}
