//! Processes that applications leave behind: children, daemons, hundreds of forking processes.
//!
//! # Invariants
//!
//! - Processes in the worker's group end with the worker; others end with the server and are named
//!   in its log.
//! - The server responds meanwhile.

use rustix::process::Signal;

use super::{ASGI, FORKED, PLAIN, ProcessModel, RACK, THREADS, WatchedServer, pause, send};
use crate::support::{PATIENCE, eventually, is_alive};

fn children(watched: &WatchedServer) -> Vec<i32> {
    let lines = watched.lines("children");
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

fn group(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(2)?.parse().ok()
}

#[test]
fn children_end_with_their_worker_or_with_the_server() {
    for model in [FORKED, PLAIN, THREADS, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 1");
        let pid: i32 = watched.get("/children").text().parse().unwrap();
        let count = if name.starts_with("rack") { 3 } else { 4 };
        eventually(PATIENCE, &format!("{name}: they are there"), || {
            children(&watched).len() == count
        });
        let all = children(&watched);
        assert!(all.iter().all(|child| is_alive(*child)), "{name}");
        send(pid, Signal::KILL);
        watched.settled(1);
        eventually(PATIENCE, "those of its group are gone", || {
            let mut left = all.iter().filter(|child| is_alive(**child));
            left.all(|child| group(*child) != Some(pid))
        });
        let left = all.iter().filter(|child| is_alive(**child)).count();
        assert!(
            left == count - 2,
            "{name}: those that left the group live on until the server ends"
        );
        assert_eq!(watched.get("/").status, 200, "{name}");
        watched.signal(Signal::TERM);
        assert_eq!(
            watched.wait_exit(PATIENCE).code(),
            Some(0),
            "{name}\n{}",
            watched.log()
        );
        let count = watched.log().matches(" behind; it was ended").count();
        assert_eq!(count, left, "{name}: named in the log\n{}", watched.log());
    }
}

#[test]
fn children_of_the_code_that_is_loaded_end_with_the_server() {
    for model in [FORKED, RACK] {
        let site = model.site("processes = 2");
        site.write("boot", "leave_children");
        let watched = WatchedServer::new(&site);
        watched.wait_ready("app");
        assert_eq!(watched.get("/").status, 200, "{model:?}");
        assert_eq!(watched.restart().0, 0, "{model:?}\n{}", watched.log());
    }
}

#[test]
fn a_fork_bomb_ends_with_its_worker_and_with_the_server() {
    for model in [FORKED, RACK] {
        let ProcessModel(name, ..) = model;
        let count = if name == "rack" { 126 } else { 284 };
        let watched = model.serve("processes = 2");
        let pid: i32 = watched.get("/bomb").text().parse().unwrap();
        eventually(PATIENCE, &format!("{name}: it has gone off"), || {
            pause(super::LOOK);
            assert_eq!(watched.get("/").status, 200, "{name}: served meanwhile");
            watched.lines("children").len() >= count
        });
        send(pid, Signal::KILL);
        watched.wait_gone(pid);
        watched.settled(2);
        assert_eq!(watched.get("/").status, 200, "{name}");
        let left = |watched: &WatchedServer| {
            children(watched)
                .into_iter()
                .filter(|pid| is_alive(*pid))
                .count()
        };
        eventually(PATIENCE, &format!("{name}: its group is gone"), || {
            left(&watched) <= count / 2
        });
    }
}
