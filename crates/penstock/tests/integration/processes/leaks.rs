//! Applications that leak descriptors and memory: descriptors are their own, memory is bounded.
//!
//! # Invariants
//!
//! - A worker without descriptors fails only requests that need one.
//! - A growing worker is replaced before it is too large, without losing a request.
//! - A worker that is too large is killed.

use super::{ASGI, FORKED, PLAIN, ProcessModel, RACK, THREADS, WatchedServer};
use crate::support::{PATIENCE, ResponseError, eventually, is_alive};

/// A body that goes through a file, so that the worker needs a descriptor for it.
const BODY: usize = 4 << 20;

fn post(watched: &WatchedServer, path: &str) -> Option<u16> {
    let mut client = watched.connect();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n"
    ));
    client.send(vec![b'x'; BODY]);
    match client.try_response(false) {
        Ok(answer) => Some(answer.status),
        Err(ResponseError::Closed | ResponseError::Truncated(_)) => None,
        Err(broken) => panic!("{broken:?}\n{}", watched.log()),
    }
}

#[test]
fn a_worker_without_descriptors_fails_what_needs_one() {
    for model in [FORKED, THREADS, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        // A body that comes in pieces needs no descriptor.
        let watched = model.serve("processes = 1\nrequest_buffering = true");
        let first = watched.settled(1);
        assert_eq!(post(&watched, "/length"), Some(200), "{name}");
        let answer = watched.ask("/descriptors").try_response(false);
        assert!(answer.is_ok(), "{name}: {answer:?}\n{}", watched.log());
        assert!(
            watched.lines("leaked")[0].contains("Too many open files"),
            "{name}"
        );
        // A request without need of one succeeds; one that needs it fails in its own time.
        assert_eq!(watched.get("/").status, 200, "{name}\n{}", watched.log());
        let answer = post(&watched, "/length");
        assert!(
            matches!(answer, Some(500..=504)),
            "{name}: {answer:?}\n{}",
            watched.log()
        );
        // By the same worker or another one.
        assert_eq!(watched.get("/").status, 200, "{name}\n{}", watched.log());
        // Others start beside it.
        assert_eq!(watched.restart().0, 0, "{name}");
        assert_ne!(watched.settled(1), first, "{name}");
        assert_eq!(post(&watched, "/length"), Some(200), "{name}");
    }
}

#[test]
fn a_worker_that_grows_is_replaced_before_it_is_too_large() {
    let limits = "processes = 2\nmax_memory = { soft = \"60MiB\", hard = \"4GiB\", samples = 1 }";
    for model in [FORKED, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve(limits);
        let old = watched.settled(2);
        watched.under_load("/", || {
            let grown = watched.get("/leak?100").text().parse().unwrap();
            assert!(old.contains(&grown), "{name}");
            eventually(PATIENCE, &format!("{name}: it is replaced"), || {
                let ready = watched.ready();
                !ready.contains(&grown) && ready.len() == 2
            });
            watched.wait_gone(grown);
        });
        let app = watched.app();
        let counters = &app["counters"];
        assert_eq!(
            counters["recycled_workers"]["memory"], 1,
            "{name}: {counters}"
        );
        assert_eq!(
            (&counters["crashed_workers"], &counters["worker_deaths"]),
            (&0.into(), &0.into()),
            "{name}"
        );
        watched.wait_log("worker replaced:");
    }
}

#[test]
fn a_worker_that_is_too_large_is_killed() {
    let limits = "processes = 2\nmax_memory = { soft = \"60MiB\", hard = \"80MiB\", samples = 1 }";
    for model in [PLAIN, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve(limits);
        let old = watched.settled(2);
        let answer = watched.get("/leak?150");
        let grown = eventually(PATIENCE, &format!("{name}: one is killed"), || {
            let gone = old.iter().find(|pid| !is_alive(**pid));
            gone.copied()
        });
        watched.wait_log(&format!("app[{grown}]: worker killed: it used "));
        // It may be detected as too large before it has responded.
        match answer.status {
            200 => assert_eq!(answer.text(), grown.to_string(), "{name}"),
            status => assert_eq!(status, 502, "{name}: {}", answer.text()),
        }
        assert_eq!(watched.get("/").status, 200, "{name}");
        assert_eq!(watched.settled(2).len(), 2, "{name}");
        let killed = &watched.app()["counters"]["killed_workers"];
        let sum: u64 = killed
            .as_object()
            .unwrap()
            .values()
            .map(|n| n.as_u64().unwrap())
            .sum();
        assert_eq!(sum, 1, "{name}: {killed}");
    }
}
