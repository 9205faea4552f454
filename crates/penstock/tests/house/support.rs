//! What every house test stands on: a site in a temporary folder, a server, a client of raw bytes.
//!
//! `Site` makes the folder, `Site::serve` starts the real binary in it and reads its ports from what it
//! prints, `RawClient` sends bytes as they are and reads responses strictly. What must stay true:
//! nothing waits without a deadline, a server that is dropped must end with exit code 0 on SIGTERM,
//! whatever happens no process is left, and a failed test shows the server's log.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How long anything may take that is not itself what a test measures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How often a condition is looked at again.
const POLL: Duration = Duration::from_millis(3);

/// Awaits `probe` to give something (`Some` or `true`); panics after `within`, naming `what`.
pub(crate) fn eventually<O: Outcome>(
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

/// What a probe of [`eventually`] may give.
pub(crate) trait Outcome {
    /// What is there once it has come.
    type Value;
    /// `None` as long as it has not come.
    fn outcome(self) -> Option<Self::Value>;
}

impl Outcome for bool {
    type Value = ();
    fn outcome(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Outcome for Option<T> {
    type Value = T;
    fn outcome(self) -> Self {
        self
    }
}

/// An application that tells what it got, and notes in `seen.txt` every request that reached it.
///
/// `/gate/NAME` answers once the file NAME is there; `/chunks` gives three pieces of unknown length,
/// `/stream/NAME` a first piece, and a last one once NAME is there; `/big` 8 MiB, `/huge` 64 MiB;
/// `/status/CODE` that status with a body all the same; anything else `METHOD PATH LENGTH MD5`.
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

/// A folder named `site` (so is an application found in it), removed with the last that uses it.
#[derive(Clone)]
pub(crate) struct Site {
    dir: Arc<TempDir>,
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap_or(&self.0));
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-house-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name).join("site");
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir: Arc::new(TempDir(dir.canonicalize().unwrap())) }
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// Writes a file, with its folders; also to change one while a server runs.
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

    /// The text of a file, empty when there is none.
    pub(crate) fn read(&self, path: &str) -> String {
        let bytes = std::fs::read(self.dir().join(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A site with [`APP`] as `app.py`.
    pub(crate) fn with_app() -> Self {
        Self::new().file("app.py", APP)
    }

    /// What reached [`APP`] so far, `METHOD PATH LENGTH` each.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.read("seen.txt").lines().map(str::to_owned).collect()
    }

    /// Writes `penstock.toml`.
    pub(crate) fn config(self, toml: &str) -> Self {
        self.file("penstock.toml", toml)
    }

    /// Starts `penstock serve` with `arguments` in this folder and waits until it listens (not until
    /// its applications are ready). Free ports are taken unless the arguments or `penstock.toml` name
    /// addresses.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.serve_with(arguments, &[])
    }

    /// [`Site::serve`] with variables added to the server's environment.
    pub(crate) fn serve_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> Server {
        let toml = self.read("penstock.toml");
        let has = |flags: &[&str], key: &str| {
            arguments.iter().any(|a| flags.iter().any(|f| a.starts_with(f)))
                || toml.lines().any(|line| line.trim_start().starts_with(key))
        };
        let mut command = self.command("serve");
        command.args(arguments).envs(env.iter().copied());
        if !has(&["-l", "--listen"], "listen") {
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

    /// Runs a verb to its end in this folder.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments[0]);
        command.args(&arguments[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        Output { status, stdout: read_out.join().unwrap(), stderr: read_err.join().unwrap() }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
        command.arg(verb).current_dir(self.dir()).stdin(Stdio::null()).process_group(0);
        command
    }
}

/// Standard output and standard error of a process as text.
pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A running server. Dropped, it is told to end and must do so with exit code 0.
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
        Self { site, child: Mutex::new(child), stdout, stderr, seen_exit: false.into() }
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
        lines.iter().filter_map(|l| port_in(l.strip_prefix("listening ")?)).collect()
    }

    pub(crate) fn admin_port(&self) -> u16 {
        let lines = self.announced();
        lines.iter().find_map(|l| port_in(l.strip_prefix("status ")?)).expect("an admin port")
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

    /// All it wrote so far: standard output, then standard error.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        for line in self.announced().iter().chain(self.stderr.lock().unwrap().iter()) {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Waits until the line that announces `app` says that it is ready.
    pub(crate) fn wait_ready(&self, app: &str) -> &Self {
        let start = format!("app {app}: ");
        eventually(PATIENCE, &format!("app {app} is ready"), || {
            let lines = self.announced();
            let line = lines.iter().find(|l| l.starts_with(&start))?;
            assert!(line.contains(" ready in "), "{line}\n{}", self.log());
            Some(())
        });
        self
    }

    /// Waits until `needle` is in the log.
    pub(crate) fn wait_log(&self, needle: &str) -> &Self {
        eventually(PATIENCE, &format!("{needle:?} in the log"), || self.log().contains(needle));
        self
    }

    /// A new connection to the first listener.
    pub(crate) fn connect(&self) -> RawClient {
        RawClient::connect(self.port())
    }

    /// One GET on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Response {
        get(self.port(), path)
    }

    /// A request to the admin interface.
    pub(crate) fn admin(&self, method: &str, path: &str) -> Response {
        let mut client = RawClient::connect(self.admin_port());
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        client.response()
    }

    /// `/status.json`.
    pub(crate) fn admin_json(&self) -> serde_json::Value {
        let answer = self.admin("GET", "/status.json");
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The value of a line of `/metrics`, named with its labels; `None` when there is no such line.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.admin("GET", "/metrics").text();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// The process ids of an application's workers that have one, in the order of the status.
    pub(crate) fn workers(&self, app: &str) -> Vec<i32> {
        let status = self.admin_json();
        let apps = status["apps"].as_array().unwrap();
        let Some(app) = apps.iter().find(|a| a["name"] == app) else { return Vec::new() };
        let workers = app["workers"].as_array().unwrap();
        workers.iter().filter_map(|w| i32::try_from(w["pid"].as_i64()?).ok()).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid_(), signal).unwrap();
    }

    /// How it ended, if it has.
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
        // Workers die with the server; its own group is whatever else it may have started.
        let _ = kill_process(pid, Signal::KILL);
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.lock().unwrap().wait();
        let clean = self.seen_exit.load(Ordering::Relaxed) || ended.is_some_and(|status| status.code() == Some(0));
        if failed || !clean {
            eprintln!("--- log of the server in {}\n{}---", self.site.dir().display(), self.log());
        }
        assert!(failed || clean, "the server did not end with exit code 0 on SIGTERM: {ended:?}");
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
                to.lock().unwrap().push(String::from_utf8_lossy(&line[..end]).into_owned());
            }
        }
    });
    lines
}

fn port_in(url: &str) -> Option<u16> {
    url.strip_prefix("http://")?.trim_end_matches('/').rsplit(':').next()?.parse().ok()
}

/// Whether a process exists and is not merely waiting to be reaped.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Sends a signal to any process.
pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// One GET on a connection of its own; any status.
pub(crate) fn get(port: u16, path: &str) -> Response {
    let mut client = RawClient::connect(port);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    client.response()
}

/// A connection on which the test says every byte.
pub(crate) struct RawClient {
    channel: Box<dyn Channel>,
    /// Received and not yet taken by a response.
    pub(crate) received: Vec<u8>,
    patience: Duration,
}

/// A response, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The status line.
    pub(crate) line: String,
    /// Names as sent, values as Latin-1.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Why there is no whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Closed before the first byte of a response.
    Closed,
    /// Closed or reset inside a response; what had come of it, a body decoded.
    Cut(Vec<u8>),
    /// Nothing more came in time; what had come of it, raw.
    TimedOut(Vec<u8>),
}

impl Response {
    /// The value of a header, by name without case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

trait Channel: Read + Write + Send {
    fn set_patience(&self, patience: Duration);
    fn close_write(&self);
}

impl Channel for TcpStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
        self.set_write_timeout(Some(patience)).unwrap();
    }
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Channel for UnixStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
        self.set_write_timeout(Some(patience)).unwrap();
    }
    fn close_write(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl RawClient {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(Box::new(stream))
    }

    pub(crate) fn connect_unix(path: &Path) -> Self {
        Self::over(Box::new(UnixStream::connect(path).unwrap()))
    }

    fn over(channel: Box<dyn Channel>) -> Self {
        channel.set_patience(PATIENCE);
        Self { channel, received: Vec::new(), patience: PATIENCE }
    }

    /// How long each read may take from now on.
    pub(crate) fn patience(&mut self, patience: Duration) -> &mut Self {
        self.channel.set_patience(patience);
        self.patience = patience;
        self
    }

    /// Sends bytes as they are; panics when the server no longer takes them.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).unwrap();
        self
    }

    /// Sends bytes; an error when the server no longer takes them.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.channel.write_all(bytes.as_ref())
    }

    /// Says that nothing more will be sent.
    pub(crate) fn close_write(&mut self) -> &mut Self {
        self.channel.close_write();
        self
    }

    /// One read: appended to `received` and returned; empty at the end or after a reset, `None` when
    /// nothing came in time.
    pub(crate) fn read_some(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match self.channel.read(&mut buffer) {
                Ok(count) => {
                    buffer.truncate(count);
                    self.received.extend_from_slice(&buffer);
                    return Some(buffer);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(Vec::new()),
            }
        }
    }

    /// Reads the next response (to anything but HEAD) and expects it to have this status.
    pub(crate) fn expect_status(&mut self, status: u16) -> Response {
        let response = self.response();
        assert_eq!(response.status, status, "{}\n{}", response.line, response.text());
        response
    }

    /// Reads the next response to a HEAD request: no body, whatever its headers say.
    pub(crate) fn expect_head(&mut self, status: u16) -> Response {
        let response = self.try_response(true).unwrap();
        assert_eq!(response.status, status, "{}", response.line);
        response
    }

    /// Reads the next response, whatever its status; interim ones (1xx) are responses of their own.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response(false).unwrap()
    }

    /// Expects the server to close, without another byte.
    pub(crate) fn expect_closed(&mut self) {
        let rest = self.read_to_end();
        assert!(rest.is_empty(), "more came: {}", String::from_utf8_lossy(&rest));
    }

    /// Everything up to the end of the connection; panics when it is not closed in time.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        loop {
            match self.read_some() {
                Some(bytes) if bytes.is_empty() => return std::mem::take(&mut self.received),
                Some(_) => {}
                None => panic!("not closed within {:?}", self.patience),
            }
        }
    }

    /// Reads the next response; what follows it stays in `received`.
    pub(crate) fn try_response(&mut self, to_head: bool) -> Result<Response, Broken> {
        let end = loop {
            match find(&self.received, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.more(&[])?,
            }
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let mut response = parse_head(&head);
        if to_head || matches!(response.status, 100..=199 | 204 | 304) {
            return Ok(response);
        }
        let length = response.header("content-length").map(|v| v.parse::<usize>().unwrap());
        let chunked = response.header("transfer-encoding").map(str::to_owned);
        let body = match (length, chunked.as_deref()) {
            (Some(length), None) => self.take(length, &[]),
            (None, Some("chunked")) => self.chunks(),
            (None, None) => Ok(self.read_to_end()),
            both => panic!("doubtful framing: {both:?}"),
        };
        response.body = body.map_err(|broken| match broken {
            Broken::Closed => Broken::Cut(Vec::new()),
            other => other,
        })?;
        Ok(response)
    }

    fn chunks(&mut self) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        loop {
            let line = self.line(&body)?;
            let size = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("chunk {line:?}"));
            if size == 0 {
                assert_eq!(self.line(&body)?, "", "a trailer was sent");
                return Ok(body);
            }
            let data = self.take(size, &body)?;
            body.extend_from_slice(&data);
            assert_eq!(self.line(&body)?, "", "behind the data of a chunk");
        }
    }

    fn line(&mut self, so_far: &[u8]) -> Result<String, Broken> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.more(so_far)?;
        }
    }

    fn take(&mut self, count: usize, so_far: &[u8]) -> Result<Vec<u8>, Broken> {
        while self.received.len() < count {
            self.more(so_far)?;
        }
        Ok(self.received.drain(..count).collect())
    }

    /// One more read, or why a response will not be whole.
    fn more(&mut self, so_far: &[u8]) -> Result<(), Broken> {
        let read = self.read_some();
        let known = || [so_far, &self.received].concat();
        match read {
            None => Err(Broken::TimedOut(known())),
            Some(bytes) if !bytes.is_empty() => Ok(()),
            Some(_) if self.received.is_empty() && so_far.is_empty() => Err(Broken::Closed),
            Some(_) => Err(Broken::Cut(known())),
        }
    }
}

fn parse_head(head: &[u8]) -> Response {
    let text: String = head[..head.len() - 4].iter().map(|&b| char::from(b)).collect();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
    assert!(line.starts_with("HTTP/1.1 "), "{line:?}");
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("header {line:?}"));
        assert!(!line.contains(['\r', '\n']), "header {line:?}");
        (name.to_owned(), value.to_owned())
    });
    Response { status, headers: headers.collect(), line, body: Vec::new() }
}

/// Where `needle` begins in `bytes`.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
