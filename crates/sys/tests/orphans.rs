//! The last act of a server: no descendant of its workers outlives it.
//!
//! Alone in its process, as it ends every child of it.
//!
//! # Invariants
//! - Descendants in other groups and sessions are killed too, excepted ones stay, and a child that
//!   is waited for is no orphan.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penstock_sys::isolation::AccessRules;
use penstock_sys::process::{self, ProcessSpec, SpawnedProcess};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn shell(script: &str) -> (SpawnedProcess, u32) {
    let (numbers, theirs) = process::output_pipe().unwrap();
    let started = process::spawn_process(&ProcessSpec {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        dir: "/".into(),
        env: Vec::new(),
        account: None,
        group: None,
        inherited_fds: Vec::new(),
        placed_fds: vec![(theirs, 5)],
        sandbox: None,
        access: AccessRules::default(),
        app: "test".to_owned(),
    })
    .unwrap();
    let mut buffer = [0; 64];
    wait(&numbers, PollFlags::IN);
    let count = rustix::io::read(&numbers, &mut buffer).unwrap();
    let text = std::str::from_utf8(&buffer[..count]).unwrap();
    (started, text.trim().parse().unwrap())
}

fn wait(fd: &OwnedFd, what: PollFlags) {
    let limit = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(fd, what)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "within 10 s");
}

fn is_running(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn orphans_are_ended_except_the_kept_ones() {
    process::become_subreaper().unwrap();
    // A daemon with a child, left by a process that has exited.
    let daemon = "setsid sh -c 'sleep 1000 & echo $$ >&5; wait' & wait";
    let (mut parent, pid) = shell(daemon);
    assert_eq!(
        process::list_orphans().unwrap(),
        [],
        "it is the parent's still"
    );
    process::kill_group(parent.pid).unwrap();
    wait(&parent.exit_fd, PollFlags::IN);
    let of_daemon = |orphan: &process::Orphan| orphan.pid == pid && orphan.name == "sh";
    assert!(process::list_orphans().unwrap().iter().any(of_daemon));
    assert!(!process::reap_orphan(parent.pid), "it is waited for");
    assert!(!process::reap_orphan(pid), "it lives");
    parent.try_exit().unwrap().unwrap();

    let (keep, kept) = shell("echo $$ >&5; exec sleep 1000");
    let began = Instant::now();
    let ended = process::kill_orphans(&[kept]);
    assert!(began.elapsed() < Duration::from_secs(2), "no time-out");
    let names: Vec<_> = ended.iter().map(|orphan| orphan.name.as_str()).collect();
    // The daemon's child is a shell until its program runs.
    assert!(names.contains(&"sh") && names.len() >= 2, "{names:?}");
    assert!(!is_running(pid));
    assert_eq!(process::list_orphans().unwrap(), []);
    assert!(is_running(kept));

    process::kill_group(kept).unwrap();
    wait(&keep.exit_fd, PollFlags::IN);
    // It is not waited for any more.
    drop(keep);
    assert!(process::list_orphans().unwrap()[0].has_ended);
    assert!(process::reap_orphan(kept));
    assert!(!is_running(kept));
}
