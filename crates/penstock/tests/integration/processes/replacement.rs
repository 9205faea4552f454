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
fn descriptors(house: &WatchedServer) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", house.pid()))
        .unwrap()
        .count()
}

/// Children of the server that have ended and were not reaped.
fn zombies(house: &WatchedServer) -> Vec<String> {
    let server = house.pid().to_string();
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
        let house = model.serve("processes = 2");
        assert_eq!(house.restart().0, 0, "{name}");
        house.settled(2);
        let (mut fewest, processes) = (descriptors(&house), house.leftovers().len());
        house.under_load("/", || {
            for _ in 0..times {
                let (code, _, complained) = house.restart();
                assert_eq!(code, 0, "{name}: {complained}\n{}", house.log());
            }
        });
        house.settled(2);
        eventually(PATIENCE, &format!("{name}: as few as before"), || {
            let now = descriptors(&house);
            fewest = fewest.max(now.min(fewest));
            now <= fewest && house.leftovers().len() <= processes && zombies(&house).is_empty()
        });
        assert_eq!(house.app()["generation"], times + 2, "{name}");
        assert_eq!(house.counter("crashed"), 0, "{name}");
    }
}

/// A process's priority, as `nice` counts.
fn priority(pid: i32) -> i32 {
    getpriority_process(Pid::from_raw(pid)).unwrap()
}

/// The best priority, as `nice` counts, that a process of the server may return to.
fn may_come_back_to(house: &WatchedServer) -> i32 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", house.pid())).unwrap();
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
        let house = model.serve("processes = 1");
        let server = priority(house.pid());
        let lower = match may_come_back_to(&house) <= server {
            true => (server + 10).min(19),
            false => server,
        };
        let mut loaded = vec![server.to_string()];
        assert_eq!(house.lines("priorities"), loaded, "{name}: nothing serves");
        assert_eq!(house.restart().0, 0, "{name}");
        loaded.push(lower.to_string());
        assert_eq!(house.lines("priorities"), loaded, "{name}: a restart");
        change(&house, 1);
        house.signal(Signal::HUP);
        eventually(PATIENCE, "the changed one serves", || {
            house.get("/version").text() == "1"
        });
        loaded.push(lower.to_string());
        assert_eq!(house.lines("priorities"), loaded, "{name}: a reload");
        house.settled(1);
        for pid in house.leftovers() {
            assert_eq!(priority(pid), server, "{name}: once it serves");
        }
    }
}

/// The same configuration with another version of the application in its environment.
fn change(house: &WatchedServer, version: usize) {
    let toml = house.site().read("penstock.toml");
    let (before, env) = toml.split_once("env = { ").unwrap();
    let mark = env.split([',', '}']).next().unwrap().trim_end();
    let toml = format!("{before}env = {{ {mark}, VERSION = \"{version}\" }}\n");
    house.site().write("penstock.toml", toml);
}

#[test]
fn a_storm_of_hangups_with_changed_applications_ends_with_the_last() {
    for model in [FORKED, RACK] {
        let house = model.serve("processes = 2");
        house.under_load("/", || {
            for number in 0..10 {
                change(&house, number);
                (0..5).for_each(|_| house.signal(Signal::HUP));
            }
            eventually(PATIENCE, "the last one serves", || {
                house.get("/version").text() == "9"
            });
        });
        eventually(
            PATIENCE,
            "two workers, a template, and nothing else",
            || {
                pause(LOOK);
                house.settled(2).len() == 2 && house.leftovers().len() == 3
            },
        );
    }
}

#[test]
fn restarts_and_reloads_within_each_other_are_all_answered() {
    for model in [FORKED, PLAIN, ASGI, RACK] {
        let ProcessModel(name, ..) = model;
        let house = model.serve("processes = 2");
        let before = house.settled(2);
        house.under_load("/", || {
            change(&house, 7);
            std::thread::scope(|scope| {
                let restarts = [(); 3].map(|()| scope.spawn(|| house.restart()));
                let reload = scope.spawn(|| house.verb(&["reload"]));
                let reload = reload.join().unwrap();
                assert_eq!(reload.0, 0, "{name}: {reload:?}\n{}", house.log());
                for restart in restarts {
                    let (code, said, complained) = restart.join().unwrap();
                    // A process of the application that the reload has replaced meanwhile.
                    assert!(
                        code == 0 || complained.contains("stopping"),
                        "{name}: {code} {said} {complained}\n{}",
                        house.log()
                    );
                }
            });
        });
        let after = house.settled(2);
        assert!(after.iter().all(|pid| !before.contains(pid)), "{name}");
        assert_eq!(house.counter("crashed"), 0, "{name}");
    }
}
