//! The server runs with the configured user, group and permissions, and files that these cannot use
//! are named at the start.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::Signal;

use super::{APP, DetachedServer, activated};
use crate::support::{PATIENCE, RawClient, Site, eventually, is_alive, kill, texts};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn check_enters_the_folders_as_the_user_that_will_serve() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
        return;
    }
    let toml = "[server]\nuser = \"12345:12346\"\nlisten = [\"127.0.0.1:0\"]\nadmin = \"off\"\n\
                [apps.site]\ndir = \"closed\"\nkind = \"wsgi\"\nentry = \"app:app\"\n";
    let site = Site::new()
        .config(toml)
        .file("closed/app.py", "app = print\n");
    let closed = site.dir().join("closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = site.run(&["check"]);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let words = "apps.site: `12345:12346` cannot enter ";
    assert!(stderr.contains(words), "{stderr}");
}

/// The real, effective, saved and file-system user and group of a process.
fn who_is(pid: i32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |start: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(start));
        found
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    ["Uid:", "Gid:", "Groups:"].map(line).to_vec()
}

#[test]
fn it_serves_as_whom_it_is_told_to() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
        return;
    }
    let toml = format!(
        "[server]\nuser = \"12345:12346\"\numask = \"027\"\nmax_open_files = 700\nlisten = \"PLACE\"\n{APP}"
    );
    let site = Site::with_app().file("public/a.txt", "file");
    let open = |folder: &Path| {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(site.dir());
    open(site.dir().parent().unwrap());
    site.write(
        "penstock.toml",
        toml.replace("\"PLACE\"", "[\"127.0.0.1:0\", \"unix:front.sock\"]"),
    );
    // A file that root opened stays writable for the configured user.
    let ready_file = std::fs::File::create(site.dir().join("ready.txt")).unwrap();
    ready_file
        .set_permissions(std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let toml = site.dir().join("penstock.toml");
    std::fs::set_permissions(&toml, std::fs::Permissions::from_mode(0o644)).unwrap();
    let flags = rustix::io::fcntl_getfd(&ready_file).unwrap() - rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(&ready_file, flags).unwrap();
    let server = site.serve(&["--ready-fd", &ready_file.as_raw_fd().to_string()]);
    drop(ready_file);
    server.wait_ready("site");
    eventually(PATIENCE, "readiness is written", || {
        site.read("ready.txt") == "ready\n"
    });
    let all = "12345 12345 12345 12345";
    let group = "12346 12346 12346 12346";
    for pid in [vec![server.pid()], server.workers("site")].concat() {
        assert_eq!(who_is(pid), [all, group, "12346"], "process {pid}");
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        assert!(files.unwrap().contains(" 700 "), "{limits}");
    }
    assert_eq!(server.get("/x").status, 200);
    let about = |name: &str| std::fs::metadata(site.dir().join(name)).unwrap();
    assert_eq!(about("front.sock").uid(), 12345);
    assert_eq!(
        (about("seen.txt").uid(), about("seen.txt").mode() & 0o777),
        (12345, 0o640)
    );
    // Its successor has the same user, and cannot get more.
    server.signal(Signal::USR2);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    let successor = server.admin_json()["pid"].as_i64().unwrap();
    let successor = DetachedServer(i32::try_from(successor).unwrap());
    assert_eq!(who_is(successor.0), [all, group, "12346"]);
    kill(successor.0, Signal::TERM);
    eventually(PATIENCE, "the successor ends", || !is_alive(successor.0));
}

#[test]
fn a_socket_that_was_passed_stays_whose_it_is() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
        return;
    }
    let toml = format!("[server]\nuser = \"12345:12346\"\nadmin = \"unix:admin.sock\"\n{APP}");
    let site = Site::with_app().config(&toml);
    for folder in [site.dir().parent().unwrap(), site.dir()] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let front = site.dir().join("front.sock");
    let socket = std::os::unix::net::UnixListener::bind(&front).unwrap();
    let listen = format!("unix:{}", front.display());
    let (owners, output) = std::thread::scope(|scope| {
        let (site, socket) = (&site, &socket);
        let running = scope.spawn(|| activated(site, &["-l", &listen], &[socket]));
        // In the socket's queue until it is served.
        let mut client = RawClient::connect_unix(&front);
        client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.expect_status(200);
        let owner = |path: &Path| std::fs::metadata(path).unwrap().uid();
        let owners = (owner(&front), owner(&site.dir().join("admin.sock")));
        let stopped = site.run(&["stop", "--admin", "unix:admin.sock"]);
        assert_eq!(stopped.status.code(), Some(0));
        (owners, running.join().unwrap())
    });
    assert_eq!(
        owners,
        (0, 0),
        "one was passed, the other changes the server"
    );
    assert_eq!(output.status.code(), Some(0), "{:?}", texts(&output));
}

#[test]
fn what_whom_it_becomes_cannot_use_is_named() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another");
        return;
    }
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let site = Site::with_app();
    site.write(
        "penstock.toml",
        format!("[server]\nkeep_alive_drain = \"100ms\"\nuser = \"12345:12346\"\n{APP}"),
    );
    set(site.dir().parent().unwrap(), 0o777);
    set(site.dir(), 0o777);
    set(&site.dir().join("penstock.toml"), 0o600);
    let server = site.serve(&[]);
    server
        .wait_log("penstock.toml: Permission denied (os error 13). Reloads and upgrades will fail");
    server.wait_ready("site");
    server.signal(Signal::TERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    drop(server);
    let site = Site::with_app();
    site.write(
        "penstock.toml",
        format!("[server]\nadmin = \"off\"\nuser = \"12345:12346\"\n{APP}"),
    );
    set(site.dir(), 0o700);
    let output = site.run(&["serve", "-l", "127.0.0.1:0"]);
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let folder = site.dir().display().to_string();
    assert!(
        stderr.contains(&folder) && stderr.contains("cannot enter"),
        "{stderr}"
    );
}

#[test]
fn whom_it_cannot_be_is_an_error() {
    let serve = |server: &str| {
        let site = Site::with_app().config(&format!("[server]\nadmin = \"off\"\n{server}\n{APP}"));
        let output = site.run(&["serve", "-l", "127.0.0.1:0"]);
        (output.status.code(), texts(&output).1)
    };
    let (code, stderr) = serve("user = \"no-such-user\"");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("there is no user `no-such-user`"),
        "{stderr}"
    );
    if is_root() {
        let (code, stderr) = serve("user = \"12345:12345\"\naccess_log = \"/root/no/a.log\"");
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("/root/no/a.log"), "{stderr}");
    } else {
        let (code, stderr) = serve("user = \"root\"");
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("only root can become `root`"), "{stderr}");
    }
}
