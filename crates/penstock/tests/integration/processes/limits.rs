//! Limits on a worker's life, under load: it is replaced without a failed request.

use super::{ASGI, FIBERS, FORKED, GREENLETS, ProcessModel, RACK, THREADS};
use crate::support::{PATIENCE, eventually};

#[test]
fn workers_are_replaced_after_their_requests_without_an_error() {
    for model in [FORKED, THREADS, ASGI, GREENLETS, RACK, FIBERS] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2\nmax_requests = 100");
        let old = watched.settled(2);
        watched.under_load("/", || {
            eventually(PATIENCE, &format!("{name}: six are replaced"), || {
                watched.app()["counters"]["recycled_workers"]["requests"]
                    .as_u64()
                    .unwrap()
                    >= 6
            });
        });
        assert!(watched.settled(2).iter().all(|pid| !old.contains(pid)));
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
        assert_eq!(watched.counter("worker_deaths"), 0, "{name}");
    }
}

#[test]
fn workers_are_replaced_at_their_age_without_an_error() {
    for model in [FORKED, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2\nmax_age = \"1s\"");
        let old = watched.settled(2);
        watched.under_load("/", || {
            eventually(PATIENCE, &format!("{name}: both are replaced"), || {
                let ready = watched.ready();
                ready.len() >= 2 && ready.iter().all(|pid| !old.contains(pid))
            });
        });
        assert!(
            watched.app()["counters"]["recycled_workers"]["age"]
                .as_u64()
                .unwrap()
                >= 2,
            "{name}"
        );
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
    }
}

#[test]
fn workers_come_with_the_load_and_go_when_they_are_idle() {
    for model in [FORKED, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve(
            "processes = { min = 1, max = 3 }\nscale = { up_after = \"20ms\", idle_timeout = \"500ms\" }",
        );
        let first = watched.settled(1)[0];
        let mut held: Vec<_> = (0..3).map(|_| watched.ask("/hold?gate")).collect();
        assert_eq!(watched.settled(3).len(), 3, "{name}");
        watched.open("gate");
        for client in &mut held {
            client.expect_status(200);
        }
        let left = watched.settled(1);
        assert!(super::is_alive(left[0]), "{name}: {first} before");
        assert_eq!(watched.get("/").status, 200, "{name}");
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
        assert!(watched.app()["last_scaling"].is_string(), "{name}");
    }
}

#[test]
fn threads_come_for_what_waits_and_processes_for_what_computes() {
    for model in [FORKED, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve(
            "processes = { min = 1, max = 2 }\nthreads = { min = 1, max = 4 }\n\
             scale = { up_after = \"20ms\", idle_timeout = \"2s\" }",
        );
        let first = watched.settled(1);
        let threads = |count: u64| {
            eventually(PATIENCE, &format!("{name}: {count} threads"), || {
                let app = watched.app();
                let slots = app["queue"]["slots"].as_u64().unwrap();
                app["threads"] == count && slots == count
            });
        };
        threads(1);
        let mut held: Vec<_> = (0..4).map(|_| watched.ask("/hold?gate")).collect();
        threads(4);
        assert_eq!(watched.settled(1), first, "{name}: no other process");
        watched.open("gate");
        for client in &mut held {
            client.expect_status(200);
        }
        threads(1);
        // Only one of the two has it.
        if name == FORKED.0 {
            watched.under_load("/burn", || {
                assert_eq!(watched.settled(2).len(), 2, "{name}");
            });
        }
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
    }
}

#[test]
fn reactors_come_when_those_that_serve_are_busy() {
    let watched = ASGI.serve("processes = { min = 1, max = 2 }");
    watched.settled(1);
    watched.under_load("/burn", || {
        watched.settled(2);
    });
    let why = watched.app()["last_scaling"].as_str().unwrap().to_owned();
    assert_eq!(why, "from 1 to 2: it was busy for 5s");
}
