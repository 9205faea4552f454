//! Support for all integration tests: a site in a temporary directory, a server, a client of raw
//! bytes.
//!
//! `Site` makes the directory, `Site::serve` starts the real binary in it and reads its ports from
//! its output, `client::RawClient` sends exact bytes and reads responses strictly.
//!
//! # Invariants
//!
//! - Nothing waits without a deadline.
//! - A dropped server must exit with code 0 on SIGTERM.
//! - No process is left, whatever happens.
//! - A failed test shows the server's log.

mod client;
mod load;
mod origin;
mod redis;
mod tls;
mod tls_front;

use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub(crate) use client::{RawClient, Response, ResponseError, find, get};
pub(crate) use load::{ClientLoad, LoadClient};
pub(crate) use origin::{
    Address, Origin, ReceivedRequest, ReservedPort, Script, Step, head_of, last_page, page,
};
pub(crate) use redis::Redis;
pub(crate) use tls::{TestAuthority, TestCertificate, TlsClient, TlsSession, is_resumed};
pub(crate) use tls_front::TlsFront;

/// The time limit of everything that a test does not measure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// The interval of checks of a condition.
const POLL: Duration = Duration::from_millis(3);

/// Waits until `probe` returns a value (`Some` or `true`); panics after `within`, naming `what`.
pub(crate) fn eventually<O: ProbeOutcome>(
    within: Duration,
    what: &str,
    mut probe: impl FnMut() -> O,
) -> O::Value {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = probe().outcome() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Whether this runs under `scripts/hardened`, where the documented unit takes away something that
/// a test needs; prints a note.
pub(crate) fn is_left_out(why: &str) -> bool {
    let is_hardened = std::env::var_os("PENSTOCK_HARDENED").is_some();
    if is_hardened {
        eprintln!("left out under the hardened unit: {why}");
    }
    is_hardened
}

/// The same for a test that reads its server's /proc files as root: `ProtectProc=invisible` hides
/// them.
pub(crate) fn is_server_hidden() -> bool {
    is_left_out("the server's processes are not in /proc")
}

/// The kernel's support for sandboxes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelParts {
    /// The version of Landlock's interface: 4 has ports, 6 has scopes.
    pub(crate) landlock: i32,
    /// Whether refused calls can be reported.
    pub(crate) has_notifications: bool,
}

/// Asks the kernel itself, so that a test is skipped only for a missing feature, never because of
/// the tested code.
pub(crate) fn kernel_parts() -> KernelParts {
    // `landlock_create_ruleset` for its version, and `seccomp` for the sizes of its messages.
    const PROBE: &str = r#"
import ctypes, platform
call = ctypes.CDLL(None).syscall
seccomp = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), -1)
print(call(444, None, 0, 1), call(seccomp, 3, 0, ctypes.create_string_buffer(6)))
"#;
    let output = Command::new("python3")
        .args(["-c", PROBE])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<i32> = text
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let [landlock, sizes] = numbers[..] else {
        panic!("not an answer: {text}");
    };
    let has_notifications = sizes == 0;
    KernelParts {
        landlock,
        has_notifications,
    }
}

/// The result of a probe of [`eventually`].
pub(crate) trait ProbeOutcome {
    /// The value once it is available.
    type Value;
    /// `None` until it is available.
    fn outcome(self) -> Option<Self::Value>;
}

impl ProbeOutcome for bool {
    type Value = ();
    fn outcome(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> ProbeOutcome for Option<T> {
    type Value = T;
    fn outcome(self) -> Self {
        self
    }
}

/// An application that echoes requests, and records in `seen.txt` every request that reached it.
///
/// `/gate/NAME` responds once the file NAME exists; `/chunks` sends three pieces of unknown length,
/// `/stream/NAME` a first piece, and a last one once NAME exists; `/big` 8 MiB, `/huge` 64 MiB;
/// `/status/CODE` that status with a body nevertheless; anything else `METHOD PATH LENGTH MD5`.
pub(crate) const APP: &str = r#"
import hashlib
import os
import time


def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.003)


def stream(name):
    yield b'first'
    wait_for(name)
    yield b'last'


def app(environ, start_response):
    method, path = environ['REQUEST_METHOD'], environ['PATH_INFO']
    body = environ['wsgi.input'].read()
    with open('seen.txt', 'a') as seen:
        seen.write(f'{method} {path} {len(body)}\n')
    status, headers = '200 OK', [('Content-Type', 'text/plain')]
    pieces = [f'{method} {path} {len(body)} {hashlib.md5(body).hexdigest()}'.encode()]
    if path.startswith('/gate/'):
        wait_for(path[6:])
        pieces = [b'open']
    elif path.startswith('/stream/'):
        pieces = stream(path[8:])
    elif path == '/chunks':
        pieces = (piece for piece in (b'one', b'', b'two' * 5000, b'three'))
    elif path == '/big':
        pieces = [b'0123456789abcdef' * (512 << 10)]
    elif path == '/huge':
        pieces = (b'0123456789abcdef' * (64 << 10) for _ in range(64))
    elif path.startswith('/status/'):
        status = path[8:] + ' Word'
    start_response(status, headers)
    return pieces
"#;

/// A directory named `site` (so an application is found in it), removed with its last user.
/// Processes that still work in it are ended then: a daemon or a successor is no child of the test.
#[derive(Clone)]
pub(crate) struct Site {
    dir: Arc<TempDir>,
}

struct TempDir(PathBuf);

impl TempDir {
    /// The processes that work in this directory.
    fn remaining_processes(&self) -> Vec<Pid> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_inside = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir.starts_with(&self.0))
        };
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers
            .filter(is_inside)
            .filter_map(Pid::from_raw)
            .collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // Again, as they may have started others.
        while let strays = self.remaining_processes()
            && !strays.is_empty()
            && Instant::now() < deadline
        {
            for stray in strays {
                let _ = kill_process(stray, Signal::KILL);
            }
            std::thread::sleep(POLL);
        }
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap_or(&self.0));
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name).join("site");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir_all(dir.with_file_name("run")).unwrap();
        Self {
            dir: Arc::new(TempDir(dir.canonicalize().unwrap())),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// The directory of its servers' control sockets.
    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.dir().with_file_name("run")
    }

    /// Writes a file, with its directories; also to change one while a server runs.
    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.write(path, content);
        self
    }

    /// The same by reference. The file is replaced whole, as an editor or a deployment does.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.dir().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new~");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// The text of a file, empty if it does not exist.
    pub(crate) fn read(&self, path: &str) -> String {
        let bytes = std::fs::read(self.dir().join(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A site with [`APP`] as `app.py`.
    pub(crate) fn with_app() -> Self {
        Self::new().file("app.py", APP)
    }

    /// The requests that reached [`APP`] so far, `METHOD PATH LENGTH` each.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.read("seen.txt").lines().map(str::to_owned).collect()
    }

    /// Writes `penstock.toml`.
    pub(crate) fn config(self, toml: &str) -> Self {
        self.file("penstock.toml", toml)
    }

    /// Starts `penstock serve` with `arguments` in this directory and waits until it listens (not
    /// until its applications are ready). Uses free ports unless the arguments or `penstock.toml`
    /// name addresses. Unless `penstock.toml` says otherwise, the end does not wait for idle
    /// clients.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.serve_with(arguments, &[])
    }

    /// [`Site::serve`] with variables added to the server's environment.
    pub(crate) fn serve_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> Server {
        let mut command = self.command("serve");
        command.envs(env.iter().copied());
        self.serve_by(command, arguments)
    }

    /// [`Site::serve`] on a simulated other kernel: `how` is one of `filter.py`'s.
    pub(crate) fn serve_filtered(&self, how: &str, arguments: &[&str]) -> Server {
        self.serve_by(self.filtered(how), arguments)
    }

    /// The exit code and the errors of a server that cannot start within a filter of system calls.
    pub(crate) fn fail_filtered(&self, how: &str) -> (Option<i32>, String) {
        let mut command = self.filtered(how);
        command.args(["-l", "127.0.0.1:0"]);
        let output = command.output().unwrap();
        (output.status.code(), texts(&output).1)
    }

    fn filtered(&self, how: &str) -> Command {
        self.write("filter.py", include_str!("support/filter.py"));
        let mut command = Command::new("python3");
        command
            .args(["filter.py", how, env!("CARGO_BIN_EXE_penstock"), "serve"])
            .env("RUNTIME_DIRECTORY", self.runtime_dir())
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// [`Site::serve`] of a server that a shell starts after `script`.
    pub(crate) fn serve_after(&self, script: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{script}\nexec \"$0\" \"$@\"")])
            .args([env!("CARGO_BIN_EXE_penstock"), "serve"])
            .env("RUNTIME_DIRECTORY", self.runtime_dir())
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .process_group(0);
        self.serve_by(command, arguments)
    }

    /// [`Site::serve`] within the mounts of [`Site::binary_with_mounts`].
    pub(crate) fn serve_with_mounts(&self, script: &str, arguments: &[&str]) -> Option<Server> {
        let mut command = self.binary_with_mounts(script)?;
        command.arg("serve");
        Some(self.serve_by(command, arguments))
    }

    /// The binary with its own mounts, which `script` makes in the site's directory and which end
    /// with it. `None`, with a note, where that is not allowed.
    pub(crate) fn binary_with_mounts(&self, script: &str) -> Option<Command> {
        self.binary_within(&["--user", "--map-root-user", "--mount"], script)
    }

    /// [`Site::serve_with_mounts`] by root itself, which can become any user there.
    pub(crate) fn serve_with_mounts_of_root(
        &self,
        script: &str,
        arguments: &[&str],
    ) -> Option<Server> {
        let mut command = self.binary_within(&["--mount"], script)?;
        command.arg("serve");
        Some(self.serve_by(command, arguments))
    }

    fn binary_within(&self, namespaces: &[&str], script: &str) -> Option<Command> {
        let within = |script: &str| {
            let mut command = Command::new("unshare");
            command
                .args(namespaces)
                .args(["sh", "-c", script])
                .env("RUNTIME_DIRECTORY", self.runtime_dir())
                .current_dir(self.dir())
                .stdin(Stdio::null())
                .process_group(0);
            command
        };
        let probe = within(script).output();
        if !probe.is_ok_and(|output| output.status.success()) {
            eprintln!("left out: `{script}` is not allowed here");
            return None;
        }
        let mut command = within(&format!("{script} && exec \"$0\" \"$@\""));
        command.arg(env!("CARGO_BIN_EXE_penstock"));
        Some(command)
    }

    /// Starts `penstock work` with `arguments` in this directory, for a front end elsewhere; its
    /// applications are ready some time later.
    pub(crate) fn work(&self, arguments: &[&str]) -> Server {
        self.shorten_drain();
        let mut command = self.command("work");
        command.args(arguments);
        Server::spawn(self.clone(), command)
    }

    /// Starts a server with `command`, which ends in `penstock serve`.
    fn serve_by(&self, mut command: Command, arguments: &[&str]) -> Server {
        self.shorten_drain();
        let toml = self.read("penstock.toml");
        let has = |flags: &[&str], key: &str| {
            arguments
                .iter()
                .any(|a| flags.iter().any(|f| a.starts_with(f)))
                || toml.lines().any(|line| line.trim_start().starts_with(key))
        };
        command.args(arguments);
        let addresses = ["-l", "--listen", "--host", "-p", "--port", "-b", "--bind"];
        if !has(&addresses, "listen") {
            command.args(["-l", "127.0.0.1:0"]);
        }
        if !has(&["--admin"], "admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        let admin_off = arguments.contains(&"off") || toml.contains("admin = \"off\"");
        let server = Server::spawn(self.clone(), command);
        let line = if admin_off { "listening " } else { "status " };
        eventually(PATIENCE, "the server prints where it listens", || {
            if let Some(status) = server.exited() {
                panic!("the server ended at its start: {status}\n{}", server.log());
            }
            server.announced().iter().any(|l| l.starts_with(line))
        });
        server
    }

    /// Clients that a test has left open would delay each end by `server.keep_alive_drain`.
    fn shorten_drain(&self) {
        const KEY: &str = "keep_alive_drain = \"100ms\"";
        let toml = self.read("penstock.toml");
        if toml.is_empty() || toml.contains("keep_alive_drain") {
            return;
        }
        let quick = match toml.contains("[server]\n") {
            true => toml.replacen("[server]\n", &format!("[server]\n{KEY}\n"), 1),
            false => format!("[server]\n{KEY}\n{toml}"),
        };
        self.write("penstock.toml", quick);
    }

    /// Runs a verb to its end in this directory.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments[0]);
        command
            .args(&arguments[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read_err = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            text
        });
        let read_out = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = out.read_to_end(&mut text);
            text
        });
        let group = pid_of(&child);
        let ended = wait_for(&mut child, PATIENCE);
        let _ = kill_process_group(group, Signal::KILL);
        let status = ended.unwrap_or_else(|| panic!("penstock {arguments:?} does not end"));
        Output {
            status,
            stdout: read_out.join().unwrap(),
            stderr: read_err.join().unwrap(),
        }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
        command
            .arg(verb)
            .env("RUNTIME_DIRECTORY", self.runtime_dir())
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }
}

/// Standard output and standard error of a process as text.
pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A running server. On drop it is stopped and must exit with code 0.
pub(crate) struct Server {
    site: Site,
    child: Mutex<Child>,
    stdout: Lines,
    stderr: Lines,
    /// Whether the test judged the exit itself.
    seen_exit: AtomicBool,
}

type Lines = Arc<Mutex<Vec<String>>>;

impl Server {
    fn spawn(site: Site, mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Self {
            site,
            child: Mutex::new(child),
            stdout,
            stderr,
            seen_exit: false.into(),
        }
    }

    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// The port of the first listener.
    pub(crate) fn port(&self) -> u16 {
        self.ports()[0]
    }

    /// The TCP ports it announced, in order.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let lines = self.announced();
        lines
            .iter()
            .filter_map(|l| port_in(l.strip_prefix("listening ")?))
            .collect()
    }

    pub(crate) fn admin_port(&self) -> u16 {
        let lines = self.announced();
        lines
            .iter()
            .find_map(|l| port_in(l.strip_prefix("status ")?))
            .expect("an admin port")
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid_().as_raw_nonzero().get()
    }

    fn pid_(&self) -> Pid {
        pid_of(&self.child.lock().unwrap())
    }

    /// The lines of its standard output.
    pub(crate) fn announced(&self) -> Vec<String> {
        self.stdout.lock().unwrap().clone()
    }

    /// All its output so far: standard output, then standard error.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        for line in self
            .announced()
            .iter()
            .chain(self.stderr.lock().unwrap().iter())
        {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Waits until a line announces that `app` is ready, even after failures.
    pub(crate) fn wait_ready(&self, app: &str) -> &Self {
        let start = format!("app {app}: ");
        let is_ready = |line: &String| line.starts_with(&start) && line.contains(" ready in ");
        let what = format!("app {app} is ready");
        eventually(PATIENCE, &what, || self.announced().iter().any(is_ready));
        self
    }

    /// Waits until all of these applications are ready.
    pub(crate) fn wait_all_ready(&self, apps: &[&str]) -> &Self {
        for app in apps {
            self.wait_ready(app);
        }
        self
    }

    /// Waits until `needle` is in the log.
    pub(crate) fn wait_log(&self, needle: &str) -> &Self {
        eventually(PATIENCE, &format!("{needle:?} in the log"), || {
            self.log().contains(needle)
        });
        self
    }

    /// A new connection to the first listener.
    pub(crate) fn connect(&self) -> RawClient {
        RawClient::connect(self.port())
    }

    /// One GET on its own connection.
    pub(crate) fn get(&self, path: &str) -> Response {
        get(self.port(), path)
    }

    pub(crate) fn control_path(&self) -> PathBuf {
        let path = |line: &String| line.strip_prefix("control unix:").map(PathBuf::from);
        eventually(PATIENCE, "it says where its control socket is", || {
            self.announced().iter().find_map(path)
        })
    }

    /// A new connection to the control socket.
    pub(crate) fn control(&self) -> RawClient {
        RawClient::connect_unix(&self.control_path())
    }

    /// A request to the admin interface; changes go to the control socket.
    pub(crate) fn admin(&self, method: &str, path: &str) -> Response {
        let mut client = match method {
            "POST" => self.control(),
            _ => RawClient::connect(self.admin_port()),
        };
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        client.response()
    }

    pub(crate) fn admin_json(&self) -> serde_json::Value {
        let answer = self.admin("GET", "/status.json");
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The value of a line of `/metrics`, named with its labels; `None` if there is no such line.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.admin("GET", "/metrics").text();
        text.lines().find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
    }

    /// The process ids of an application's workers that have one, in the order of the status.
    pub(crate) fn workers(&self, app: &str) -> Vec<i32> {
        let status = self.admin_json();
        let apps = status["apps"].as_array().unwrap();
        let Some(app) = apps.iter().find(|a| a["name"] == app) else {
            return Vec::new();
        };
        let workers = app["workers"].as_array().unwrap();
        workers
            .iter()
            .filter_map(|w| i32::try_from(w["pid"].as_i64()?).ok())
            .collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid_(), signal).unwrap();
    }

    /// Its exit status, if it has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    /// Waits for its end, which the test then judges itself.
    pub(crate) fn wait_exit(&self, within: Duration) -> ExitStatus {
        self.seen_exit.store(true, Ordering::Relaxed);
        eventually(within, "the server ends", || self.exited())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let pid = self.pid_();
        if !failed && self.exited().is_none() {
            let _ = kill_process(pid, Signal::TERM);
        }
        let patience = if failed { Duration::ZERO } else { PATIENCE };
        let ended = wait_for(&mut self.child.lock().unwrap(), patience);
        // Workers die with the server; its own group has whatever else it may have started.
        let _ = kill_process(pid, Signal::KILL);
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.lock().unwrap().wait();
        let clean = self.seen_exit.load(Ordering::Relaxed)
            || ended.is_some_and(|status| status.code() == Some(0));
        if failed || !clean {
            eprintln!(
                "--- log of the server in {}\n{}---",
                self.site.dir().display(),
                self.log()
            );
        }
        assert!(
            failed || clean,
            "the server did not end with exit code 0 on SIGTERM: {ended:?}"
        );
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

fn wait_for(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return Some(status),
            None if Instant::now() >= deadline => return None,
            None => std::thread::sleep(POLL),
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let to = Arc::clone(&lines);
    std::thread::spawn(move || {
        let (mut buffer, mut rest) = ([0; 4096], Vec::new());
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            rest.extend_from_slice(&buffer[..count]);
            while let Some(end) = rest.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                to.lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&line[..end]).into_owned());
            }
        }
    });
    lines
}

fn port_in(url: &str) -> Option<u16> {
    let (_, address) = url.split_once("://")?;
    address
        .trim_end_matches('/')
        .rsplit(':')
        .next()?
        .parse()
        .ok()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        // Some mounts of /proc hide processes of other users.
        return rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_ok();
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Sends a signal to any process.
pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
