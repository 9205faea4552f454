//! The launcher as the server uses it: programs that it starts are children of the server, have
//! only what they were given, and die with the server.
//!
//! Has its own `main`, as a launcher is forked from a process of one thread.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock_sys::cgroup::{AppCgroupLimits, ServerCgroups};
use penstock_sys::isolation::AccessRules;
use penstock_sys::process::{
    self, CommandLine, Launcher, Privileges, ProcessExit, ProcessSpec, SpawnedProcess, successor,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The first argument of the process that is a server in a test.
const SERVER: &str = "as-a-server";

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() {
    if std::env::args().nth(1).as_deref() == Some(SERVER) {
        return serve();
    }
    // A descriptor that the server's parent has open, and that starting a program does not close.
    let stray = penstock_sys::file::memfd_with_content("stray", b"not for workers").unwrap();
    rustix::io::fcntl_setfd(&stray, rustix::io::FdFlags::empty()).unwrap();
    let launcher = Launcher::start(&unconfined(), || Ok(())).unwrap();
    programs_have_their_inputs(&launcher);
    programs_have_no_other_fds(&launcher, &stray);
    short_programs_differ_from_failed_starts(&launcher);
    many_descriptors_fit(&launcher);
    a_successor_leads_a_group_in_our_session();
    a_lost_launcher_is_named_in_errors(&launcher);
    a_launcher_that_ends_leaves_its_programs();
    programs_die_with_the_server();
    a_group_bounds_all_that_a_program_starts();
    println!("test result: ok");
}

/// A fork bomb, as far as a shell goes: it gives up at the first fork that fails.
const MANY: &str = "while :; do sleep 1000 & done";

fn a_group_bounds_all_that_a_program_starts() {
    let plan = AppCgroupLimits {
        name: "shop".into(),
        account: None,
        max_tasks: Some(16),
        max_memory: Some(64 << 20),
        max_cpu: Some(0.5),
        weight: 1,
    };
    let groups = ServerCgroups::make(&[plan], 1, false);
    if !may_make_groups() {
        println!("left out: {:?}", groups.missing());
        return;
    }
    assert_eq!(groups.missing(), []);
    let group = groups.find("shop").unwrap();
    assert_eq!(group.usage().tasks, Some(0));
    let privileges = Privileges {
        groups: groups.iter().cloned().collect(),
        ..unconfined()
    };
    let launcher = Launcher::start(&privileges, || Ok(())).unwrap();
    // A process that leaves its session stays in the group.
    let script = "setsid sh -c 'echo >&5; exec sleep 1000' & wait";
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let _program = shell_in(&launcher, Some("shop"), script, vec![(theirs, 5)]);
    wait(&ours);
    assert_eq!(group.usage().tasks, Some(2));
    // A process that needs more memory than the group has is killed.
    let script = "head -c 300000000 /dev/zero | tail -c 200000000 >/dev/null";
    let mut greedy = shell_in(&launcher, Some("shop"), script, Vec::new());
    wait(&greedy.exit_fd);
    assert_eq!(greedy.try_exit().unwrap(), Some(ProcessExit::Code(128 + 9)));
    let usage = group.usage();
    assert!(
        usage.has_met_memory_bound && usage.out_of_memory_kills > 0,
        "{usage:?}"
    );
    let mut bomb = shell_in(&launcher, Some("shop"), MANY, Vec::new());
    wait(&bomb.exit_fd);
    assert_ne!(bomb.try_exit().unwrap(), Some(ProcessExit::Code(0)));
    let usage = group.usage();
    // The shell itself has exited, its children have not.
    assert_eq!(usage.tasks, Some(15), "{usage:?}");
    assert!(usage.tasks_refused > 0, "{usage:?}");
    // Others are outside of the group.
    let script = "! grep 'penstock-[0-9]' /proc/self/cgroup";
    let mut free = shell_in(&launcher, None, script, Vec::new());
    wait(&free.exit_fd);
    assert_eq!(free.try_exit().unwrap(), Some(ProcessExit::Code(0)));
    launcher.stop().unwrap();
    assert_eq!(group.usage().tasks, None, "it is removed");
}

/// Whether this process may create cgroups: of version 1, as version 2 depends on other processes.
fn may_make_groups() -> bool {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    ["pids", "memory", "cpu"].into_iter().all(|controller| {
        let place = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            (controllers.split(',').any(|it| it == controller)).then_some(path)
        });
        let Some(place) = place else { return false };
        // As it is mounted whole, or in a container that sees its own part.
        [place, ""].into_iter().any(|place| {
            let name = format!(
                "/sys/fs/cgroup/{controller}{place}/of-a-test-{}",
                std::process::id()
            );
            std::fs::create_dir(&name).is_ok() && std::fs::remove_dir(&name).is_ok()
        })
    })
}

/// Programs here have no sandbox.
fn unconfined() -> Privileges {
    Privileges {
        unconfined: vec![None],
        ..Privileges::default()
    }
}

fn shell(launcher: &Launcher, script: &str, place: Vec<(OwnedFd, i32)>) -> SpawnedProcess {
    shell_in(launcher, None, script, place)
}

fn shell_in(
    launcher: &Launcher,
    group: Option<&str>,
    script: &str,
    place: Vec<(OwnedFd, i32)>,
) -> SpawnedProcess {
    let launch = ProcessSpec {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        dir: "/".into(),
        env: vec![("GREETING".into(), "hello".into())],
        account: None,
        group: group.map(str::to_owned),
        inherited_fds: Vec::new(),
        placed_fds: place,
        sandbox: None,
        access: AccessRules::default(),
        app: "test".to_owned(),
    };
    launcher.launch(launch).unwrap()
}

fn wait(fd: &OwnedFd) {
    let limit = Timespec::try_from(TIMEOUT).unwrap();
    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "within {TIMEOUT:?}");
}

/// How it ended, and what it wrote to both outputs.
fn wait_for_output(mut started: SpawnedProcess) -> (ProcessExit, String, String) {
    wait(&started.exit_fd);
    let exit = started.try_exit().unwrap().expect("it has ended");
    let [out, err] = [started.stdout, started.stderr].map(|pipe| {
        let mut text = Vec::new();
        std::fs::File::from(pipe).read_to_end(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    });
    (exit, out, err)
}

fn programs_have_their_inputs(launcher: &Launcher) {
    let file = penstock_sys::file::memfd_with_content("t", b"placed").unwrap();
    let inherited = penstock_sys::file::memfd_with_content("t", b" inherited").unwrap();
    let inherited = rustix::io::fcntl_dupfd_cloexec(inherited, 100).unwrap();
    let number = inherited.as_raw_fd();
    let script = format!(
        "cat <&3; cat /proc/self/fd/{number}; printf \" $GREETING $PPID \"; pwd
         cut -d' ' -f5 /proc/$$/stat; echo $$; wc -c; echo oh >&2; exit 7"
    );
    let launch = ProcessSpec {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        dir: "/usr".into(),
        env: vec![("GREETING".into(), "hello".into())],
        account: None,
        group: None,
        inherited_fds: vec![inherited],
        placed_fds: vec![(file, 3)],
        sandbox: None,
        access: AccessRules::default(),
        app: "test".to_owned(),
    };
    let started = launcher.launch(launch).unwrap();
    let pid = started.pid;
    let (exit, out, err) = wait_for_output(started);
    let ours = std::process::id();
    let expected = format!("placed inherited hello {ours} /usr\n{pid}\n{pid}\n0\n");
    assert_eq!(
        (exit, &*out, &*err),
        (ProcessExit::Code(7), &*expected, "oh\n")
    );
}

fn programs_have_no_other_fds(launcher: &Launcher, stray: &OwnedFd) {
    let stray = stray.as_raw_fd();
    let script =
        format!("test ! -e /proc/$$/fd/{stray} && ls /proc/$$/fd; kill -TERM $$; sleep 60");
    let (exit, out, _) = wait_for_output(shell(launcher, &script, Vec::new()));
    assert_eq!(
        exit,
        ProcessExit::Signal(15),
        "signals have their usual effect"
    );
    assert_eq!(out, "0\n1\n2\n");
}

fn short_programs_differ_from_failed_starts(launcher: &Launcher) {
    for _ in 0..50 {
        let (exit, _, _) = wait_for_output(shell(launcher, "exit 3", Vec::new()));
        assert_eq!(exit, ProcessExit::Code(3));
    }
    let launch = |program: &str, dir: &str| ProcessSpec {
        program: program.into(),
        args: Vec::new(),
        dir: dir.into(),
        env: Vec::new(),
        account: None,
        group: None,
        inherited_fds: Vec::new(),
        placed_fds: Vec::new(),
        sandbox: None,
        access: AccessRules::default(),
        app: "test".to_owned(),
    };
    for (program, dir) in [("no-such-program-here", "/"), ("sh", "/no/such/folder")] {
        let error = launcher.launch(launch(program, dir)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{program}");
    }
    let denied = launcher.launch(launch("/etc/passwd", "/")).unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    reap_orphans();
}

/// A failed start leaves no child behind.
fn reap_orphans() {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = process::list_orphans().unwrap();
        for orphan in &left {
            process::reap_orphan(orphan.pid);
        }
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{left:?}");
    }
}

fn many_descriptors_fit(launcher: &Launcher) {
    let file = penstock_sys::file::memfd_with_content("t", b"x").unwrap();
    let place = (3..203).map(|number| (file.try_clone().unwrap(), number));
    let script = "ls /proc/$$/fd; cat /proc/$$/fd/202";
    let (exit, out, _) = wait_for_output(shell(launcher, script, place.collect()));
    assert_eq!((exit, out.lines().count()), (ProcessExit::Code(0), 203 + 1));
    assert!(out.ends_with("x"), "{out}");
}

fn a_successor_leads_a_group_in_our_session() {
    let session = own_session();
    let script = format!(
        "test -S /dev/fd/$THE_FD && \
         test \"$(cut -d' ' -f5,6 /proc/$$/stat)\" = \"$$ {session}\" && echo $0 >&2; exit 7"
    );
    let command = CommandLine {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        dir: "/".into(),
        env: Vec::new(),
    };
    let privileges = Privileges {
        successor: Some((command.clone(), "THE_FD".into())),
        ..unconfined()
    };
    let launcher = Launcher::start(&privileges, || Ok(())).unwrap();
    let follow = |command: &CommandLine| {
        let (ours, theirs) = penstock_sys::fd_packets::packet_pair().unwrap();
        let started = launcher.launch_successor(successor::SuccessorSpec {
            command: command.clone(),
            inherited_fd: ("THE_FD".into(), theirs),
        });
        started.map(|started| (started, ours))
    };
    // As it was started, and another program that is root's.
    for program in ["sh", "/bin/sh"] {
        let command = CommandLine {
            program: program.into(),
            ..command.clone()
        };
        let (mut successor, _ours) = follow(&command).unwrap();
        wait(&successor.exit_fd);
        assert_eq!(successor.try_exit().unwrap(), Some(ProcessExit::Code(7)));
        let mut text = [0; 16];
        let count = rustix::io::read(&successor.stderr, &mut text).unwrap();
        assert_eq!(text[..count], *format!("{program}\n").as_bytes());
    }
    // Any other command line is refused, with or without the rights of root.
    let other = CommandLine {
        args: vec!["-c".into(), "exit 0".into()],
        ..command
    };
    let refused = follow(&other).unwrap_err().to_string();
    assert!(refused.contains("as this one was started"), "{refused}");
    launcher.stop().unwrap();
    // The helper that refused it may have outlived the launcher.
    reap_orphans();
}

/// As the kernel reports it: 0 if the session's leader is outside of our pid namespace, which
/// getsid(2)'s wrapper does not allow for.
fn own_session() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let behind_name = &stat[stat.rfind(')').unwrap()..];
    // `) state ppid pgrp session` (proc(5)).
    behind_name.split(' ').nth(4).unwrap().to_string()
}

fn a_launcher_that_ends_leaves_its_programs() {
    let launcher = Launcher::start(&unconfined(), || Ok(())).unwrap();
    let mut program = shell(&launcher, "exec sleep 1000", Vec::new());
    launcher.stop().unwrap();
    let orphans = process::list_orphans().unwrap();
    assert_eq!(orphans, [], "it is gone, and the program is no orphan");
    assert!(program.try_exit().unwrap().is_none());
    program.handle().kill().unwrap();
    assert_eq!(wait_for_output(program).0, ProcessExit::Signal(9));
}

fn a_lost_launcher_is_named_in_errors(launcher: &Launcher) {
    let pid = rustix::process::Pid::from_raw(launcher.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    for _ in 0..2 {
        let launch = ProcessSpec {
            program: "sh".into(),
            args: Vec::new(),
            dir: "/".into(),
            env: Vec::new(),
            account: None,
            group: None,
            inherited_fds: Vec::new(),
            placed_fds: Vec::new(),
            sandbox: None,
            access: AccessRules::default(),
            app: "test".to_owned(),
        };
        let error = launcher.launch(launch).unwrap_err().to_string();
        assert!(
            error.contains("the launcher") && error.contains("restart"),
            "{error}"
        );
    }
}

/// The server of the next test: it starts a program, prints both pids, and waits to be killed.
fn serve() {
    let launcher = Launcher::start(&unconfined(), || Ok(())).unwrap();
    let program = shell(
        &launcher,
        "trap '' TERM HUP INT; exec sleep 1000",
        Vec::new(),
    );
    println!("{} {}", launcher.pid(), program.pid);
    let mut end = String::new();
    std::io::stdin().read_line(&mut end).unwrap();
}

fn programs_die_with_the_server() {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .arg(SERVER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    for pid in line.split_whitespace() {
        while is_running(pid) {
            assert!(Instant::now() < deadline, "{pid} outlives its server");
            std::thread::yield_now();
        }
    }
}

/// Whether the process exists and has not ended: here it may stay unreaped.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}
