//! Repeated replacement, and everything at once: nothing accumulates, and no request fails.
//!
//! # Invariants
//!
//! - After any number of restarts there are as many processes and descriptors as before, and no
//!   zombie.
//! - The command that asked for a restart is answered when it is done.

use rustix::process::{Pid, Signal, getpriority_process};

use super::{
    ASGI, FIBERS, FORKED, GREENLETS, LOOK, PLAIN, ProcessModel, RACK, WatchedServer, pause,
};
use crate::support::{PATIENCE, eventually, is_server_hidden};

/// Open descriptors of the server, without those of connections that are about to end.
fn descriptors(watched: &WatchedServer) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", watched.pid()))
        .unwrap()
        .count()
}

/// Children of the server that have ended and were not reaped.
fn zombies(watched: &WatchedServer) -> Vec<String> {
    let server = watched.pid().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let tail: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        if tail.first() == Some(&"Z") && tail.get(1) == Some(&server.as_str()) {
            found.push(stat);
        }
    }
    found
}

#[test]
fn twenty_restarts_in_a_row_leave_nothing_behind() {
    if is_server_hidden() {
        return;
    }
    for model in [FORKED, ASGI, GREENLETS, RACK, FIBERS] {
        let ProcessModel(name, ..) = model;
        let times = if name == "forked" { 20 } else { 5 };
        let watched = model.serve("processes = 2");
        assert_eq!(watched.restart().0, 0, "{name}");
        watched.settled(2);
        let (mut fewest, processes) = (descriptors(&watched), watched.leftovers().len());
        watched.under_load("/", || {
            for _ in 0..times {
                let (code, _, stderr) = watched.restart();
                assert_eq!(code, 0, "{name}: {stderr}\n{}", watched.log());
            }
        });
        watched.settled(2);
        eventually(PATIENCE, &format!("{name}: as few as before"), || {
            let now = descriptors(&watched);
            fewest = fewest.max(now.min(fewest));
            now <= fewest && watched.leftovers().len() <= processes && zombies(&watched).is_empty()
        });
        assert_eq!(watched.app()["generation"], times + 2, "{name}");
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
    }
}

/// A process's priority, as `nice` counts.
fn priority(pid: i32) -> i32 {
    getpriority_process(Pid::from_raw(pid)).unwrap()
}

/// The best priority, as `nice` counts, that a process of the server may return to.
fn may_come_back_to(watched: &WatchedServer) -> i32 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", watched.pid())).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max nice priority"));
    let soft = line.unwrap().split_whitespace().next().unwrap();
    soft.parse().map_or(-20, |limit: i32| 20 - limit)
}

#[test]
fn what_is_loaded_beside_what_serves_goes_last_until_it_is_loaded() {
    if is_server_hidden() {
        return;
    }
    for model in [FORKED, PLAIN, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 1");
        let server = priority(watched.pid());
        let lower = match may_come_back_to(&watched) <= server {
            true => (server + 10).min(19),
            false => server,
        };
        let mut loaded = vec![server.to_string()];
        assert_eq!(
            watched.lines("priorities"),
            loaded,
            "{name}: nothing serves"
        );
        assert_eq!(watched.restart().0, 0, "{name}");
        loaded.push(lower.to_string());
        assert_eq!(watched.lines("priorities"), loaded, "{name}: a restart");
        change(&watched, 1);
        watched.signal(Signal::HUP);
        eventually(PATIENCE, "the changed one serves", || {
            watched.get("/version").text() == "1"
        });
        loaded.push(lower.to_string());
        assert_eq!(watched.lines("priorities"), loaded, "{name}: a reload");
        watched.settled(1);
        for pid in watched.leftovers() {
            assert_eq!(priority(pid), server, "{name}: once it serves");
        }
    }
}

/// The same configuration with another version of the application in its environment.
fn change(watched: &WatchedServer, version: usize) {
    let toml = watched.site().read("penstock.toml");
    let (before, env) = toml.split_once("env = { ").unwrap();
    let mark = env.split([',', '}']).next().unwrap().trim_end();
    let toml = format!("{before}env = {{ {mark}, VERSION = \"{version}\" }}\n");
    watched.site().write("penstock.toml", toml);
}

#[test]
fn a_storm_of_hangups_with_changed_applications_ends_with_the_last() {
    for model in [FORKED, RACK] {
        let watched = model.serve("processes = 2");
        watched.under_load("/", || {
            for number in 0..10 {
                change(&watched, number);
                (0..5).for_each(|_| watched.signal(Signal::HUP));
            }
            eventually(PATIENCE, "the last one serves", || {
                watched.get("/version").text() == "9"
            });
        });
        eventually(
            PATIENCE,
            "two workers, a template, and nothing else",
            || {
                pause(LOOK);
                watched.settled(2).len() == 2 && watched.leftovers().len() == 3
            },
        );
    }
}

#[test]
fn restarts_and_reloads_within_each_other_are_all_answered() {
    for model in [FORKED, PLAIN, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let watched = model.serve("processes = 2");
        let before = watched.settled(2);
        watched.under_load("/", || {
            change(&watched, 7);
            std::thread::scope(|scope| {
                let restarts = [(); 3].map(|()| scope.spawn(|| watched.restart()));
                let reload = scope.spawn(|| watched.verb(&["reload"]));
                let reload = reload.join().unwrap();
                assert_eq!(reload.0, 0, "{name}: {reload:?}\n{}", watched.log());
                for restart in restarts {
                    let (code, stdout, stderr) = restart.join().unwrap();
                    // A process of the application that the reload has replaced meanwhile.
                    assert!(
                        code == 0 || stderr.contains("stopping"),
                        "{name}: {code} {stdout} {stderr}\n{}",
                        watched.log()
                    );
                }
            });
        });
        let after = watched.settled(2);
        assert!(after.iter().all(|pid| !before.contains(pid)), "{name}");
        assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
    }
}
