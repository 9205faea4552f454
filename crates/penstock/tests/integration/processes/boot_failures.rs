//! Code that cannot be loaded, under every process model: reported, retried slowly, and without
//! effect on others.
//!
//! `boot` covers error pages and status for each cause; these tests cover models, restarts and
//! counts.
//!
//! # Invariants
//!
//! - Nothing is started in a tight loop.
//! - Ready workers continue to serve.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{ASGI, FORKED, PLAIN, ProcessModel, RACK, RACK_PLAIN, WatchedServer};
use crate::support::{PATIENCE, eventually};

/// The text of the exception that `crash` raises in either language.
const CRASH: &str = "no such table: customers";

/// The causes, and their texts.
const CAUSES: [(&str, &[&str]); 3] = [
    ("crash", &[CRASH]),
    ("exit_0", &["exit code 0 before it was ready"]),
    ("hang", &["and was killed"]),
];

fn state(watched: &WatchedServer) -> String {
    watched.app()["state"].as_str().unwrap().to_owned()
}

/// Maximum boots after `time`: the delay between two is 100 ms at first, and doubles each time.
fn most_boots(time: Duration) -> usize {
    let waits = (0..7).map(|n| Duration::from_millis(100 << n));
    let mut sum = Duration::ZERO;
    let waited = waits.take_while(|wait| {
        sum += *wait;
        sum <= time
    });
    // Two workers boot together before the first failure is known.
    2 + waited.count()
}

#[test]
fn code_that_cannot_be_loaded_is_told_and_tried_again_ever_more_slowly() {
    for model in [FORKED, ASGI, RACK_PLAIN] {
        let ProcessModel(name, ..) = model;
        let site = model.site("processes = 2");
        site.write("boot", "crash");
        let began = Instant::now();
        let watched = WatchedServer::new(&site);
        eventually(PATIENCE, "it is failing", || state(&watched) == "failing");
        assert_eq!(watched.get("/").status, 503, "{name}");
        assert_eq!(watched.admin("GET", "/readyz").status, 503, "{name}");
        let report = watched.app()["boot_report"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        assert!(report.contains(CRASH), "{name}: {report}");
        watched.wait_log(CRASH);
        eventually(PATIENCE, "it is tried again", || {
            watched.lines("boots").len() >= 4
        });
        let (boots, time) = (watched.lines("boots").len(), began.elapsed());
        assert!(
            boots <= most_boots(time),
            "{name}: {boots} boots in {time:?}"
        );
        watched.boot_with("");
        eventually(PATIENCE, "it comes up", || watched.get("/").status == 200);
    }
}

#[test]
fn a_start_that_must_know_fails_with_the_traceback() {
    // As a daemon: the starting command waits until it is ready, or prints why it is not.
    for (cause, words) in CAUSES {
        let site = FORKED.site(&format!("processes = 1\n{}", patience(cause)));
        site.write("boot", cause);
        let log = site.dir().join("log").display().to_string();
        let output = site.run(&[
            "serve",
            "--daemonize",
            "--log",
            &log,
            "-l",
            "127.0.0.1:0",
            "--admin",
            "off",
        ]);
        let (_, stderr) = crate::support::texts(&output);
        let output_text = format!("{stderr}\n{}", site.read("log"));
        assert_eq!(output.status.code(), Some(1), "{cause}: {output_text}");
        for word in words {
            assert!(
                output_text.contains(word),
                "{cause}: {word:?} in {output_text}"
            );
        }
    }
}

/// The time for loading code: short if only the time is wrong.
fn patience(cause: &str) -> &'static str {
    match cause {
        "hang" => "boot_timeout = \"2s\"",
        _ => "boot_timeout = \"30s\"",
    }
}

#[test]
fn new_code_that_cannot_be_loaded_leaves_the_old_in_service() {
    let quick = [CAUSES[0], CAUSES[1]];
    let slow = [CAUSES[2]];
    for model in [FORKED, ASGI, RACK] {
        leaves_the_old_in_service(model, &quick);
    }
    for model in [PLAIN, RACK] {
        leaves_the_old_in_service(model, &slow);
    }
}

fn leaves_the_old_in_service(model: ProcessModel, causes: &[(&str, &[&str])]) {
    let ProcessModel(name, ..) = model;
    let watched = model.serve(&format!("processes = 2\n{}", patience(causes[0].0)));
    let old = watched.settled(2);
    watched.under_load("/", || {
        for (cause, words) in causes {
            watched.boot_with(cause);
            let (code, stdout, stderr) = watched.restart();
            assert_eq!((code, stdout.as_str()), (1, ""), "{name}: {cause}");
            for word in *words {
                let is_told = stderr.contains(word);
                assert!(is_told, "{name}, {cause}: {word:?} in {stderr}");
            }
            let app = watched.app();
            let error = app["restart_error"].as_str().unwrap_or("");
            assert!(error.contains(words[0]), "{name}, {cause}: {error}");
            assert_eq!(app["state"], "ready", "{name}, {cause}");
        }
    });
    assert_eq!(
        watched.settled(2),
        old,
        "{name}: the same workers all along"
    );
    assert_eq!(watched.counter("crashed_workers"), 0, "{name}");
    watched.boot_with("");
    let (code, _, stderr) = watched.restart();
    assert_eq!(code, 0, "{name}: {stderr}");
    assert_eq!(watched.app()["restart_error"], serde_json::Value::Null);
    assert!(watched.settled(2).iter().all(|pid| !old.contains(pid)));
}

#[test]
fn a_stop_while_the_code_is_loaded_leaves_nothing() {
    for model in [FORKED, PLAIN, ASGI, RACK] {
        let site = model.site("processes = 2");
        site.write("boot", "slow");
        let watched = WatchedServer::new(&site);
        eventually(PATIENCE, "it boots", || {
            !watched.lines("booting").is_empty()
        });
        let began = Instant::now();
        watched.signal(Signal::TERM);
        assert_eq!(
            watched.wait_exit(PATIENCE).code(),
            Some(0),
            "{}",
            watched.log()
        );
        assert!(began.elapsed() < Duration::from_secs(5), "{model:?}");
    }
}

#[test]
fn a_stop_during_a_restart_leaves_nothing() {
    for model in [FORKED, RACK_PLAIN] {
        let watched = model.serve("processes = 2");
        watched.boot_with("hang");
        std::thread::scope(|scope| {
            let restart = scope.spawn(|| watched.restart());
            eventually(PATIENCE, "it boots", || {
                !watched.lines("booting").is_empty()
            });
            watched.signal(Signal::TERM);
            let (code, _, stderr) = restart.join().unwrap();
            assert!(code != 0 && !stderr.is_empty(), "{code} {stderr}");
        });
        assert_eq!(
            watched.wait_exit(PATIENCE).code(),
            Some(0),
            "{}",
            watched.log()
        );
    }
}

#[test]
fn where_no_process_can_be_had_it_is_told_and_had_later() {
    // Ruby itself retries a refused fork every second, up to ten times.
    let site = FORKED.site("processes = 2");
    site.write("boot", "no_forks");
    let watched = WatchedServer::new(&site);
    eventually(PATIENCE, "it is failing", || state(&watched) == "failing");
    assert_eq!(watched.get("/").status, 503);
    let report = watched.app()["boot_report"]
        .as_str()
        .unwrap_or("")
        .to_owned();
    assert!(report.contains("not forked"), "{report}");
    watched.boot_with("");
    eventually(PATIENCE, "it comes up", || watched.get("/").status == 200);
    // Also with ready workers: those stay.
    let old = watched.settled(2);
    watched.boot_with("no_forks");
    let (code, _, stderr) = watched.restart();
    assert!(code == 1 && stderr.contains("not forked"), "{stderr}");
    assert_eq!(watched.settled(2), old);
}
