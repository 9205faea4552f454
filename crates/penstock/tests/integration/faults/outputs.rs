//! Outputs that cannot be written: logs, standard streams, temporary files.
//!
//! Disks are full or gone, pipes are full or closed, and clients and applications try to inject log
//! lines.
//!
//! # Invariants
//!
//! - No request waits for a log.
//! - A body that cannot be stored is refused or aborted, with its cause in the log.
//! - No log line can be forged.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{ask, site};
use crate::support::{PATIENCE, RawClient, ResponseError, Site, eventually, kill};
use crate::wsgi::serve_ready;

fn post(client: &mut RawClient, length: usize) -> &mut RawClient {
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    ));
    // The response may come before the body is sent.
    let _ = client.try_send(vec![b'x'; length]);
    client
}

#[test]
fn an_access_log_that_cannot_be_written_stops_nothing() {
    for (name, path) in [
        ("a full disk", "/dev/full"),
        ("no folder", "logs/access.log"),
    ] {
        let log = format!("[server]\nthreads = 1\naccess_log = {{ path = \"{path}\" }}");
        let server = serve_ready(&site("processes = 1", &log));
        let logs = server.site().dir().join("logs");
        let is_gone = std::fs::remove_dir_all(&logs).is_ok();
        assert_eq!(is_gone, path.starts_with("logs"), "{name}");
        let mut client = server.connect();
        for _ in 0..50 {
            ask(&mut client, "/");
            client.expect_status(200);
        }
        server.signal(Signal::HUP);
        server.wait_log("reload: done");
        assert_eq!(server.get("/").status, 200, "{name}");
        if is_gone {
            eventually(PATIENCE, "a reload opens it anew", || {
                server.site().read(path).contains("GET / HTTP/1.1")
            });
        }
    }
}

/// A server with outputs of the test's choice, reached by a Unix socket.
struct RawOutputServer {
    child: Child,
    site: Site,
}

impl RawOutputServer {
    /// Starts `program`, which becomes the server, with these outputs.
    fn start(site: Site, mut command: Command, stdout: Stdio, stderr: Stdio) -> Self {
        command
            .args(["serve", "-l", "unix:http.sock", "--admin", "off"])
            .current_dir(site.dir())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr);
        let child = command.spawn().unwrap();
        let bare = Self { child, site };
        let path = bare.site.dir().join("http.sock");
        eventually(PATIENCE, "it listens", || {
            std::os::unix::net::UnixStream::connect(&path).is_ok()
        });
        bare
    }

    fn connect(&self) -> RawClient {
        RawClient::connect_unix(&self.site.dir().join("http.sock"))
    }

    fn asking(&self, path: &str) -> RawClient {
        let mut client = self.connect();
        ask(&mut client, path);
        client
    }

    fn get(&self, path: &str) -> u16 {
        self.asking(path).response().status
    }

    /// Stops it, which must be quick and clean.
    fn stop(&mut self) {
        kill(self.child.id() as i32, Signal::TERM);
        let ended = eventually(PATIENCE, "the server ends", || {
            self.child.try_wait().unwrap()
        });
        assert_eq!(ended.code(), Some(0));
    }
}

impl Drop for RawOutputServer {
    fn drop(&mut self) {
        // Reaped here at the latest, so its number cannot be reused before.
        if self.child.try_wait().unwrap().is_none() {
            let group = Pid::from_raw(self.child.id() as i32).unwrap();
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log\n{}---", self.site.read("log.txt"));
        }
    }
}

fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
}

/// A full pipe without a reader.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (unread, mut pipe) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    while pipe.write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&pipe, false).unwrap();
    (unread, pipe)
}

#[test]
fn a_standard_error_that_nobody_reads_stops_nothing() {
    let (unread, stderr) = full_pipe();
    let mut server = RawOutputServer::start(
        site("processes = 1", ""),
        binary(),
        Stdio::null(),
        stderr.into(),
    );
    let (sum, began) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.connect();
                for _ in 0..20 {
                    ask(&mut client, "/talk");
                    client.expect_status(200);
                    ask(&mut client, "/raise");
                    client.expect_status(500);
                    sum.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(sum.into_inner() == 80 && began.elapsed() < PATIENCE);
    server.stop();
    drop(unread);
}

#[test]
fn outputs_that_are_closed_stop_nothing() {
    let (gone, output) = std::io::pipe().unwrap();
    drop(gone);
    let broken = || Stdio::from(output.try_clone().unwrap());
    let mut closed = Command::new("sh");
    closed.args([
        "-c",
        "exec \"$0\" \"$@\" >&- 2>&-",
        env!("CARGO_BIN_EXE_penstock"),
    ]);
    for (name, command) in [("readers that left", binary()), ("none at all", closed)] {
        let log = "[server]\nthreads = 1\naccess_log = { path = \"stderr\" }";
        let mut server =
            RawOutputServer::start(site("processes = 1", log), command, broken(), broken());
        for path in ["/", "/talk", "/raise", "/"] {
            let status = if path == "/raise" { 500 } else { 200 };
            assert_eq!(server.get(path), status, "{name}: {path}");
        }
        server.stop();
    }
}

#[test]
fn a_standard_output_that_nobody_reads_does_not_hold_up_the_start_or_the_stop() {
    let (unread, stdout) = full_pipe();
    let log = "[server]\nthreads = 1\naccess_log = { path = \"stdout\" }";
    let site = site("processes = 1\npreload = false", log);
    let stderr = File::create(site.dir().join("log.txt")).unwrap();
    let mut server = RawOutputServer::start(site, binary(), stdout.into(), stderr.into());
    assert_eq!(server.get("/"), 200);
    // Supervision continues too.
    assert_eq!(server.get("/shut"), 502);
    assert_eq!(server.get("/"), 200);
    server.stop();
    drop(unread);
}

/// A server with a missing directory for temporary files.
fn without_a_temporary_folder() -> RawOutputServer {
    let bare = start_with_temp(site_with_temp(), binary());
    std::fs::remove_dir_all(bare.site.dir().join("temp")).unwrap();
    bare
}

/// A server with 64 KiB for temporary files on disk, and more by its configuration. `None` where
/// such a mount is not allowed.
fn with_a_small_temporary_disk() -> Option<RawOutputServer> {
    let site = site_with_temp();
    let command = site.binary_with_mounts("mount -t tmpfs -o size=64k none temp")?;
    Some(start_with_temp(site, command))
}

fn site_with_temp() -> Site {
    let limits = "[limits]\ntemp_dir = \"temp\"\ntemp_bytes = \"1GiB\"\n\
                  body_memory = \"16KiB\"\nresponse_memory = \"16KiB\"";
    site("processes = 1", limits).file("temp/x", "")
}

fn start_with_temp(site: Site, command: Command) -> RawOutputServer {
    let stderr = File::create(site.dir().join("log.txt")).unwrap();
    RawOutputServer::start(site, command, Stdio::null(), stderr.into())
}

#[test]
fn what_cannot_be_put_in_a_temporary_file_is_refused_with_its_cause() {
    let mut server = without_a_temporary_folder();
    let cause = "cannot use a temporary file: No such file or directory";
    let small = post(&mut server.connect(), 10_000).response();
    assert_eq!(small.status, 200);
    let large = post(&mut server.connect(), 3_000_000).response();
    assert_eq!(large.status, 500);
    let log = || server.site.read("log.txt");
    eventually(PATIENCE, cause, || {
        log().contains(&format!(": 500 POST /: {cause}"))
    });
    // The client does not read: data beyond memory is lost, and the client must see that.
    let mut slow = server.asking("/large");
    slow.patience(Duration::from_millis(50));
    eventually(PATIENCE, "it is given up", || {
        if log().contains(&format!("GET /large: response cut: {cause}")) {
            return true;
        }
        // If the socket took more than memory, only a client that reads some makes progress.
        let _ = slow.read_some();
        false
    });
    slow.patience(PATIENCE);
    let cut = slow.try_response(false);
    assert!(
        matches!(cut, Err(ResponseError::Truncated(_))),
        "never a clean end"
    );
    let after = post(&mut server.connect(), 10_000).response();
    assert_eq!(
        (after.status, after.text()),
        (200, small.text()),
        "the same worker goes on"
    );
    server.stop();
}

#[test]
fn a_full_disk_makes_workers_wait_and_refuses_bodies() {
    let Some(mut server) = with_a_small_temporary_disk() else {
        return;
    };
    let small = post(&mut server.connect(), 10_000).response();
    assert_eq!(small.status, 200);
    let large = post(&mut server.connect(), 3_000_000).response();
    assert_eq!(large.status, 503);
    assert!(large.header("retry-after").is_some());
    let log = || server.site.read("log.txt");
    let cause = "503 POST /: request body: no temporary file for it: limits.temp_dir: ";
    eventually(PATIENCE, cause, || {
        log().contains(cause) && log().contains("No space left on device")
    });
    // The worker waits for its client, which gets all of it.
    let mut slow = server.asking("/large");
    let cause = "1 responses wait for their clients: limits.temp_dir: ";
    eventually(PATIENCE, cause, || log().contains(cause));
    assert!(slow.expect_status(200).body.len() > 1 << 20);
    let after = post(&mut server.connect(), 10_000).response();
    assert_eq!((after.status, after.text()), (200, small.text()));
    server.stop();
}

/// Whether a log line was begun by the server, or continues one.
fn is_honest(line: &str) -> bool {
    let is_stamp = |text: &str| {
        text.as_bytes()
            .iter()
            .zip(b"0000-00-00T00:00:00.000Z ")
            .all(|(byte, like)| match like {
                b'0' => byte.is_ascii_digit(),
                other => byte == other,
            })
    };
    let level = |text: &str| {
        let (word, _) = text.split_once(' ').unwrap_or_default();
        ["error", "warn", "info"].contains(&word)
    };
    line.starts_with("    ") || (line.len() > 25 && is_stamp(line) && level(&line[25..]))
}

#[test]
fn nobody_can_forge_a_line_of_a_log() {
    for format in ["combined", "json"] {
        let log = format!(
            "[server]\nthreads = 1\naccess_log = {{ path = \"access.log\", format = \"{format}\" }}"
        );
        let server = serve_ready(&site("processes = 1", &log));
        let agent = "a\" 200 \\\" \u{9b}2J \u{85}b\u{2028}c";
        let mut asked = 0;
        for (path, status) in [
            ("/forge?%0d%0a%22", 500),
            ("/forge-status", 502),
            ("/%c2%9b2J%22", 200),
            ("/%0d%0a%1b%5b2J", 400),
        ] {
            let mut client = server.connect();
            client.send(format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\nReferer: {agent}\r\n\r\n"
            ));
            client.expect_status(status);
            asked += 1;
        }
        let access = eventually(PATIENCE, "the access log is written", || {
            let text = server.site().read("access.log");
            (text.matches('\n').count() >= asked).then_some(text)
        });
        assert_eq!(access.lines().count(), asked, "{access}");
        assert!(
            !access.contains(|c: char| c.is_control() && c != '\n'),
            "{access:?}"
        );
        server
            .wait_log("500 GET /forge")
            .wait_log("502 GET /forge-status");
        let announced = server.announced().len();
        for line in server.log().lines().skip(announced) {
            assert!(is_honest(line), "{line:?}");
            assert!(
                !line.contains(|c: char| c.is_control() && c != '\t'),
                "{line:?}"
            );
        }
    }
}
