//! Misbehaving applications: the damage is limited to the request or the worker, and logged.
//!
//! `apps/misbehaving.py` and `apps/misbehaving.ru` have one path per kind of damage, for every
//! process model (`ProcessModel`): `boot_failures` while loading, `requests` in a request,
//! `stuck_requests` in one that does not end, `leaks` slowly, `descendants` by processes left
//! behind, `signals_to_server` to the server itself. `killed_workers`, `replacement` and `limits`
//! are about processes that come and go.
//!
//! # Invariants
//!
//! - Other requests are served meanwhile.
//! - No process is left after the server's end ([`WatchedServer`]).

mod boot_failures;
mod descendants;
mod killed_workers;
mod launcher;
mod leaks;
mod limits;
mod replacement;
mod requests;
mod signals_to_server;
mod stuck_requests;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_alive, kill, texts};

const PYTHON: &str = include_str!("apps/misbehaving.py");
const RUBY: &str = include_str!("apps/misbehaving.ru");

/// A process model: its name in messages, its entry, its lines in `[apps.app]`.
#[derive(Debug, Clone, Copy)]
struct ProcessModel(&'static str, &'static str, &'static str);

const FORKED: ProcessModel = ProcessModel("forked", "misbehaving:app", "");
const PLAIN: ProcessModel = ProcessModel("plain", "misbehaving:app", "preload = false");
const THREADS: ProcessModel = ProcessModel("threads", "misbehaving:app", "threads = 3");
const ASGI: ProcessModel = ProcessModel("asgi", "misbehaving:tasks", "kind = \"asgi\"");
/// Needs gevent, from the virtualenv of the tests with real programs.
const GREENLETS: ProcessModel = ProcessModel(
    "greenlets",
    "misbehaving:app",
    concat!(
        "async = \"gevent\"\ninterpreter = \"",
        env!("CARGO_MANIFEST_DIR"),
        "/../../.venv/bin/python\""
    ),
);
const RACK: ProcessModel = ProcessModel("rack", "config.ru", "");
const RACK_PLAIN: ProcessModel = ProcessModel("rack, plain", "config.ru", "preload = false");
const FIBERS: ProcessModel = ProcessModel("fibers", "config.ru", "async = true");
const RACK_THREADS: ProcessModel = ProcessModel("rack, threads", "config.ru", "threads = 3");

impl ProcessModel {
    /// A site with the application under this model, and these further lines.
    fn site(self, more: &str) -> Site {
        let Self(_, entry, lines) = self;
        let site = Site::new()
            .file("misbehaving.py", PYTHON)
            .file("config.ru", RUBY);
        let mark = site.dir().display().to_string();
        let toml = format!(
            "[server]\nthreads = 1\n\n[apps.app]\nentry = \"{entry}\"\n{lines}\n{more}\n\
             env = {{ {MARK} = \"{mark}\" }}\n"
        );
        site.config(&toml)
    }

    /// The same, with all of its processes ready.
    fn serve(self, more: &str) -> WatchedServer {
        let watched = WatchedServer::new(&self.site(more));
        watched.wait_ready("app");
        watched
    }
}

/// The variable that marks every process of a site's application.
const MARK: &str = "TEST_SITE_MARK";

/// The interval of looks at the process list.
const LOOK: Duration = Duration::from_millis(50);

/// A server with a check at its end: no process of it may be left.
struct WatchedServer {
    server: Option<Server>,
    mark: PathBuf,
}

impl Deref for WatchedServer {
    type Target = Server;
    fn deref(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is dropped")
    }
}

impl Drop for WatchedServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.take();
            self.leftovers().into_iter().for_each(end);
            return;
        }
        if self.exited().is_none() {
            self.signal(Signal::TERM);
            assert_eq!(self.wait_exit(PATIENCE).code(), Some(0), "{}", self.log());
        }
        self.expect_nothing_left();
    }
}

/// Ends a process that may have ended already.
fn end(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

impl WatchedServer {
    /// Starts a server, whether or not its application boots.
    fn new(site: &Site) -> Self {
        Self {
            server: Some(site.serve(&[])),
            mark: site.dir().to_owned(),
        }
    }

    /// All processes of the application, wherever they have moved.
    fn leftovers(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}\0", self.mark.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if crate::support::find(&environ, mark.as_bytes()).is_some() && is_alive(pid) {
                found.push(pid);
            }
        }
        found
    }

    /// After its end.
    fn expect_nothing_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                let names = left.iter().map(|pid| describe(*pid)).collect::<Vec<_>>();
                left.into_iter().for_each(end);
                panic!("left behind: {names:?}\n{}", self.log());
            }
            pause(LOOK);
        }
    }

    /// The application's part of the status.
    fn app(&self) -> Value {
        self.admin_json()["apps"][0].clone()
    }

    fn counter(&self, name: &str) -> u64 {
        self.app()["counters"][name].as_u64().unwrap()
    }

    /// The ready workers, by process id, without templates.
    fn ready(&self) -> Vec<i32> {
        let app = self.app();
        let workers = app["workers"].as_array().unwrap();
        let ready = workers.iter().filter(|w| w["state"] == "ready");
        ready.map(|w| pid_in(&w["pid"]).unwrap()).collect()
    }

    /// Waits until exactly `count` workers are ready and no other exists; returns them.
    fn settled(&self, count: usize) -> Vec<i32> {
        eventually(PATIENCE, &format!("{count} workers serve"), || {
            let app = self.app();
            let workers = app["workers"].as_array().unwrap();
            let states = workers.iter().map(|w| w["state"].as_str().unwrap());
            let states: Vec<_> = states.filter(|state| *state != "template").collect();
            let is_so = states.len() == count && states.iter().all(|state| *state == "ready");
            is_so.then(|| self.ready())
        })
    }

    /// A request on its own connection.
    fn ask(&self, path: &str) -> RawClient {
        let mut client = self.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    }

    /// A request that is in the application until [`WatchedServer::open`] opens its gate.
    fn hold(&self, gate: &str) -> RawClient {
        let before = self.lines("begun").len();
        let client = self.ask(&format!("/hold?{gate}"));
        eventually(PATIENCE, "it has begun", || {
            self.lines("begun").len() > before
        });
        client
    }

    fn open(&self, gate: &str) {
        self.site().write(gate, "");
    }

    /// The lines of a file that the application writes.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = self.site().read(file);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Runs `penstock restart app`: its exit code, standard output, standard error.
    fn restart(&self) -> (i32, String, String) {
        self.verb(&["restart", "app"])
    }

    fn verb(&self, words: &[&str]) -> (i32, String, String) {
        let admin = format!("127.0.0.1:{}", self.admin_port());
        let output = self.site().run(&[words, &["--admin", &admin]].concat());
        let (stdout, stderr) = texts(&output);
        (output.status.code().unwrap(), stdout, stderr)
    }

    /// The failure when the application is loaded from now on; none if empty.
    fn boot_with(&self, what: &str) {
        self.site().write("boot", what);
    }

    /// Does `work` while clients send requests on kept and on new connections; each must get a 200.
    /// Returns the number of responses.
    fn under_load(&self, path: &str, work: impl FnOnce()) -> usize {
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (stop, count, request) = (&stop, &count, &request);
                scope.spawn(move || {
                    let mut kept = self.connect();
                    while !stop.load(Ordering::Relaxed) {
                        let answer = match number {
                            0 => self.get(path),
                            _ => kept.send(request).response(),
                        };
                        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), self.log());
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let total = || count.load(Ordering::Relaxed);
            eventually(PATIENCE, "there is load", || total() > 20);
            // The load ends also if the work fails.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let before = total();
            eventually(PATIENCE, "it goes on", || {
                total() > before + 20 || done.is_err()
            });
            stop.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        count.into_inner()
    }

    /// The template's process id, once one is ready.
    fn template(&self) -> i32 {
        eventually(PATIENCE, "there is a template", || {
            let log = self.log();
            let line = log.lines().rfind(|l| l.contains("]: template ready"))?;
            let pid = line.split('[').next_back()?.split(']').next()?;
            pid.parse().ok().filter(|pid| is_alive(*pid))
        })
    }

    /// Waits until a process is gone.
    fn wait_gone(&self, pid: i32) {
        eventually(PATIENCE, &format!("process {pid} is gone"), || {
            !is_alive(pid)
        });
    }
}

fn pid_in(value: &Value) -> Option<i32> {
    i32::try_from(value.as_i64()?).ok()
}

/// Between two expensive checks.
fn pause(time: Duration) {
    let began = Instant::now();
    eventually(PATIENCE, "a moment has passed", || began.elapsed() >= time);
}

/// Describes a process: its number, state and command line.
fn describe(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let words: String = words.chars().rev().take(120).collect();
    let words: String = words.chars().rev().collect();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    format!("{pid} {:?} {words}", &stat[..stat.len().min(4)])
}

/// Sends a signal to an existing process.
fn send(pid: i32, signal: Signal) {
    kill(pid, signal);
}
