//! Faults of the machine: descriptors, disks, pipes and signals fail, and the server continues to
//! serve.
//!
//! This file has the shared parts, signal storms, and limits of memory and disk. `descriptors`
//! exhausts them, `outputs` has unwritable logs and temporary files, `workers` has faults inside an
//! application.
//!
//! # Invariants
//!
//! - Every request that can be served is.
//! - The cause is logged once and not a thousand times.
//! - Nothing spins, and the server stops cleanly.

mod descriptors;
mod outputs;
mod workers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};
use crate::wsgi::serve_ready;

/// An application with a path for each kind of damage.
const APP: &str = include_str!("apps/faults.py");

/// How long to check that something does not happen.
const WATCHED: Duration = Duration::from_secs(1);

/// A site with the application, these lines in its table, and these tables before it.
fn site(app: &str, tables: &str) -> Site {
    let server = if tables.contains("[server]") {
        ""
    } else {
        "[server]\nthreads = 1\n"
    };
    let toml = format!("{server}{tables}\n[apps.app]\nentry = \"app:app\"\n{app}\n");
    Site::new().file("app.py", APP).config(&toml)
}

fn ask(client: &mut RawClient, path: &str) {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
}

fn asking(server: &Server, path: &str) -> RawClient {
    let mut client = server.connect();
    ask(&mut client, path);
    client
}

/// CPU time that a process has used so far, in clock ticks of 10 ms.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}

/// Checks that the server does next to nothing for a while.
fn expect_calm(server: &Server) {
    let (before, began) = (ticks(server.pid()), Instant::now());
    eventually(PATIENCE, "a while has passed", || began.elapsed() > WATCHED);
    let used = ticks(server.pid()) - before;
    assert!(
        used <= 20,
        "{used} of 100 ticks: it spins\n{}",
        server.log()
    );
}

fn lines_with(server: &Server, needle: &str) -> usize {
    server.log().matches(needle).count()
}

fn descriptors(pid: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_storm_of_hangups_loses_no_request_and_ends_with_the_newest_configuration() {
    let toml = |n: usize| {
        format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nthreads = 2\n[apps.app]\nentry = \"app:app\"\n\
             [[sites]]\n[[sites.routes]]\npath = \"/pages/*\"\nfiles = {{ root = \"{n}\" }}\n\
             [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n"
        )
    };
    let mut site = Site::new().file("app.py", APP).config(&toml(0));
    for n in 0..=20 {
        site = site.file(&format!("{n}/pages/n.txt"), n.to_string());
    }
    let server = serve_ready(&site);
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for path in ["/", "/pages/n.txt"] {
            let (stop, served, server) = (&stop, &served, &server);
            scope.spawn(move || {
                let mut client = server.connect();
                while !stop.load(Ordering::Relaxed) {
                    ask(&mut client, path);
                    client.expect_status(200);
                    assert_eq!(server.get(path).status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=20 {
            server.site().write("penstock.toml", toml(n));
            (0..10).for_each(|_| server.signal(Signal::HUP));
        }
        let newest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(PATIENCE, "the newest configuration", || {
                server.get("/pages/n.txt").text() == "20"
            });
        }));
        stop.store(true, Ordering::Relaxed);
        newest.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(served.into_inner() > 0);
}

#[test]
fn a_hangup_during_a_reload_is_one_more_reload() {
    const SLOW: &str = "import os, time\nopen('booting', 'w').close()\n\
                        while not os.path.exists('go-on'):\n    time.sleep(0.003)\n";
    let server = serve_ready(&site("processes = 1", ""));
    let toml = server.site().read("penstock.toml");
    server.site().write("slow.py", format!("{SLOW}{APP}"));
    let slow = toml.replace("app:app", "slow:app");
    server.site().write("penstock.toml", slow.clone());
    server.signal(Signal::HUP);
    eventually(PATIENCE, "the new code boots", || {
        server.site().dir().join("booting").exists()
    });
    let newest =
        format!("{slow}[[sites]]\n[[sites.routes]]\npath = \"/*\"\nfiles = {{ root = \"new\" }}\n");
    server.site().write("new/n.txt", "newest");
    server.site().write("penstock.toml", newest);
    (0..50).for_each(|_| server.signal(Signal::HUP));
    server.site().write("go-on", "");
    eventually(PATIENCE, "the newest configuration", || {
        server.get("/n.txt").text() == "newest"
    });
    assert!(lines_with(&server, "reload: ") <= 4, "{}", server.log());
}

/// The resident memory of a process in bytes.
fn resident(pid: i32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// The size of the largest unnamed file that a process has open.
fn nameless_bytes(pid: i32) -> u64 {
    let is_nameless = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        target.ends_with("(deleted)") && !target.contains("memfd:")
    };
    let files = descriptors(pid).into_iter().filter(is_nameless);
    let sizes = files.filter_map(|path| std::fs::metadata(path).ok().map(|m| m.len()));
    sizes.max().unwrap_or(0)
}

#[test]
fn an_endless_response_that_nobody_reads_costs_bounded_memory_and_disk() {
    if is_server_hidden() {
        return;
    }
    const SPOOL: u64 = 2 << 20;
    let limits = "[limits]\nresponse_memory = \"64KiB\"\nresponse_spool = \"2MiB\"";
    let server = serve_ready(&site("processes = 2", limits));
    let pid = server.pid();
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200);
    }
    let before = resident(pid);
    let unread = asking(&server, "/endless");
    let mut largest = 0;
    eventually(PATIENCE, "the file is full", || {
        largest = nameless_bytes(pid).max(largest);
        largest > SPOOL - (512 << 10)
    });
    expect_calm(&server);
    largest = nameless_bytes(pid).max(largest);
    assert!(largest <= SPOOL, "{largest} bytes in the file");
    let grown = resident(pid).saturating_sub(before);
    assert!(grown < 16 << 20, "grown by {grown} bytes");
    assert_eq!(server.get("/").status, 200);
    drop(unread);
    eventually(PATIENCE, "the worker is told that nobody listens", || {
        let status = server.admin_json();
        status["apps"][0]["queue"]["active"] == 0 && nameless_bytes(pid) == 0
    });
}
