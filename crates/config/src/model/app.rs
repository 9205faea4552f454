//! An application: `[apps.NAME]`.
//!
//! Filled by `app`, read by the rooms `apps` (how its processes live) and `proxy` (of kinds that are
//! servers of their own). What must stay true: `Default` and [`App::new`] are what an empty table
//! gives; every bound is at least what its comment says.

use std::path::PathBuf;
use std::time::Duration;

use super::{Grip, Sendfile, Upstream};
use crate::cores::usable_cpus;
use crate::redacted::Variables;

/// An application: `[apps.NAME]`.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// Its name, unique.
    pub name: String,
    /// The absolute folder it runs in.
    pub dir: PathBuf,
    /// How it is spoken to.
    pub kind: AppKind,
    /// Whether `kind` is what the text of the code looks like, WSGI or ASGI, and nobody said so: what a
    /// process finds the loaded application to be then goes before.
    pub kind_is_guess: bool,
    /// `module:callable`, `module:factory()`, `module` or a `.ru` file inside `dir`.
    pub entry: String,
    /// The interpreter: an absolute path, or a bare name to be looked up in `PATH`; none is to be
    /// found by the one that starts it.
    pub interpreter: Option<PathBuf>,
    /// How many worker processes.
    pub processes: Processes,
    /// When their number changes between its bounds.
    pub scaling: Scaling,
    /// Threads in each of them, at least one; where the load decides how many, there are never more.
    pub threads: usize,
    /// Threads of each that always take requests: `threads`, or fewer where the load decides.
    pub min_threads: usize,
    /// Threads of each process beyond `threads`, for requests that say that they are bound by I/O
    /// (`penstock.mark_as_io_bound`): such a request frees its slot and another takes it.
    pub io_threads: usize,
    /// Whether a process serves its requests by a reactor in one thread instead of threads.
    pub concurrency: Concurrency,
    /// Requests in progress at once in a process with a reactor, WebSockets and streams included.
    pub max_concurrent: u32,
    /// Whether requests wait until their bodies have come whole; none is what its kind has.
    pub request_buffering: Option<bool>,
    /// Whether the code is loaded once, in a template process from which the workers are forked.
    pub preload: Preload,
    /// After how many requests of one worker it becomes the template of the others: the first number
    /// for the first time, and so on, the last one again and again. Empty is never.
    pub refork_after: Vec<u64>,
    /// How many processes beyond their number a replacement may run at once, at least one.
    pub max_surge: usize,
    /// How many of them a replacement may take out before their successors are ready.
    pub max_unavailable: usize,
    /// Memory of a worker.
    pub max_memory: Option<MemoryLimit>,
    /// Most processes and threads at once of all that it starts, if it says so ([`App::task_bound`]).
    pub max_tasks: Option<u64>,
    /// Most bytes of memory of all that it starts.
    pub max_total_memory: Option<u64>,
    /// Most processors that all of it uses, 1.5 for one and a half.
    pub max_cpu: Option<f64>,
    /// Requests of a worker after which it is replaced, less up to a tenth by chance.
    pub max_requests: Option<u64>,
    /// Age at which a worker is replaced, less up to a tenth by chance.
    pub max_age: Option<Duration>,
    /// Whether garbage is collected between requests, when the queue is empty, not within them.
    pub gc_when_idle: bool,
    /// How a client is kept at one worker process; none does not.
    pub sticky: Option<Sticky>,
    /// Whether messages of WebSockets are compressed where the client offers it.
    pub websocket_compression: bool,
    /// Requests that may wait for a slot; one more is answered 503.
    pub max_queued: usize,
    /// How long a request may wait for a slot (503 after).
    pub queue_timeout: Duration,
    /// How long a worker may take to answer (504 after).
    pub response_timeout: Duration,
    /// How long a worker may take to become ready.
    pub boot_timeout: Duration,
    /// How long a worker that was asked to end may take before it is killed.
    pub stop_timeout: Duration,
    /// How long WebSockets and streams may go on in a worker that is being replaced.
    pub stream_timeout: Duration,
    /// What it may say by GRIP; none is nothing.
    pub grip: Option<Grip>,
    /// Whether its responses may name another body.
    pub sendfile: Sendfile,
    /// Whether its processes are kept from those of others, and from calls that they do not need.
    pub isolation: bool,
    /// Which files and TCP ports its processes may use, beyond what `isolation` says.
    pub access: Access,
    /// The user that its processes run as, if not the server's.
    pub user: Option<String>,
    /// The group beside `user`; none is the user's own.
    pub group: Option<String>,
    /// Variables added to the environment of its workers.
    pub env: Variables,
    /// The command line of each process, for `kind = "command"` and `"fastcgi"`: words with
    /// `{port}`, `{socket}` or `{fd}` in them; empty for the other kinds.
    pub command: Vec<String>,
    /// How its processes are spoken to, for the same kinds; its name is the application's, its
    /// servers are the processes.
    pub upstream: Option<Box<Upstream>>,
}

impl App {
    /// An application with every default.
    pub fn new(name: &str, dir: PathBuf, kind: AppKind, entry: &str) -> Self {
        Self {
            name: name.to_owned(),
            dir,
            kind,
            kind_is_guess: false,
            entry: entry.to_owned(),
            interpreter: None,
            processes: Processes::default(),
            scaling: Scaling::default(),
            threads: 1,
            min_threads: 1,
            io_threads: 0,
            concurrency: Concurrency::default_for(kind),
            max_concurrent: 1000,
            request_buffering: None,
            preload: Preload::default(),
            refork_after: Vec::new(),
            max_surge: 1,
            max_unavailable: 0,
            max_memory: None,
            max_tasks: None,
            max_total_memory: None,
            max_cpu: None,
            max_requests: None,
            max_age: None,
            gc_when_idle: false,
            sticky: None,
            websocket_compression: true,
            max_queued: 1000,
            queue_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(60),
            boot_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            stream_timeout: Duration::from_secs(300),
            grip: None,
            sendfile: Sendfile::default(),
            isolation: true,
            access: Access::default(),
            user: None,
            group: None,
            env: Variables::default(),
            command: Vec::new(),
            upstream: None,
        }
    }

    /// Whether its processes serve by a reactor: one channel for all requests instead of one socket a
    /// thread.
    pub fn has_reactor(&self) -> bool {
        self.kind == AppKind::Asgi || self.concurrency != Concurrency::Threads
    }

    /// Whether a worker gets a request before its body has come whole. One that waits for its
    /// client costs a reactor little, but a thread all of its time.
    pub fn streams_bodies(&self) -> bool {
        let streams_by_itself = self.kind == AppKind::Asgi
            || self.kind == AppKind::Rack && self.concurrency == Concurrency::Tasks;
        self.request_buffering
            .map_or(streams_by_itself, |is_buffered| !is_buffered)
    }

    /// Whether the load decides how many processes or threads there are.
    pub fn is_scaled(&self) -> bool {
        self.processes.min < self.processes.max || self.has_spare_threads()
    }

    /// Whether the load decides how many threads of each process take requests.
    pub fn has_spare_threads(&self) -> bool {
        self.min_threads < self.threads
    }

    /// Most processes and threads at once of all that it starts. With a user of its own there is always
    /// a bound: what it needs itself, twice over for a successor beside it, libraries that start a
    /// few threads for each processor included, and 1024 more.
    pub fn task_bound(&self) -> Option<u64> {
        let of_process = self.threads + self.io_threads + 4 * usable_cpus();
        let needed = self.processes.max.saturating_mul(2 * of_process);
        let ample = u64::try_from(needed)
            .unwrap_or(u64::MAX)
            .saturating_add(1024);
        self.max_tasks
            .or_else(|| self.user.is_some().then_some(ample))
    }

    /// Tells its upstream, if it has one, what the application says: queue, time-out, and threads as
    /// the bound of each process.
    pub(crate) fn apply_to_upstream(&mut self) {
        let Some(upstream) = &mut self.upstream else {
            return;
        };
        let threads = u32::try_from(self.threads).unwrap_or(u32::MAX);
        upstream.max_active = Some(threads);
        upstream.max_queued = self.max_queued;
        upstream.queue_timeout = self.queue_timeout;
        upstream.response_timeout = self.response_timeout;
        upstream.connections.max = upstream.connections.max.max(threads);
    }
}

/// How an application is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppKind {
    /// Python, PEP 3333.
    Wsgi,
    /// Python, ASGI 3.
    Asgi,
    /// Ruby, the Rack specification.
    Rack,
    /// Any program that serves HTTP on an address that it is given.
    Command,
    /// Any program that serves FastCGI on an address or a listening socket that it is given.
    FastCgi,
}

impl AppKind {
    /// The word used for it in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wsgi => "wsgi",
            Self::Asgi => "asgi",
            Self::Rack => "rack",
            Self::Command => "command",
            Self::FastCgi => "fastcgi",
        }
    }
}

impl std::fmt::Display for AppKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How one process has several requests in progress: `async`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// A thread each (`async = false`).
    #[default]
    Threads,
    /// A task each: `kind = "asgi"` always, Rack on a fiber scheduler (`async = true`).
    Tasks,
    /// A greenlet each, for WSGI (`async = "gevent"`).
    Gevent,
}

impl Concurrency {
    /// What a kind has when nothing is said.
    pub fn default_for(kind: AppKind) -> Self {
        match kind {
            AppKind::Asgi => Self::Tasks,
            AppKind::Wsgi | AppKind::Rack | AppKind::Command | AppKind::FastCgi => Self::Threads,
        }
    }
}

/// How a client is kept at one worker process: `sticky`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sticky {
    /// By a cookie of the application's (`"cookie"`).
    Cookie,
    /// By the client's address (`"client_ip"`).
    ClientIp,
}

/// Whether workers are forked from a template: `preload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preload {
    /// Unless the threads that the code has started while it was loaded make it doubtful (`"auto"`).
    #[default]
    Auto,
    /// Whatever threads there are (`true`); only the application itself can prevent it.
    Always,
    /// Each worker loads the code for itself (`false`).
    Never,
}

/// Bounds on the number of worker processes: `1 <= min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// Kept for ever.
    pub min: usize,
    /// Never exceeded.
    pub max: usize,
}

impl Processes {
    /// Exactly `count` processes.
    pub fn exactly(count: usize) -> Self {
        Self {
            min: count,
            max: count,
        }
    }
}

impl Default for Processes {
    fn default() -> Self {
        Self::exactly(usable_cpus())
    }
}

/// When the number of processes changes between its bounds: `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scaling {
    /// One more when requests have waited this long in the queue (`up_after`).
    pub up_after: Duration,
    /// One less when so much capacity has not been used for this long (`idle_timeout`).
    pub idle_timeout: Duration,
    /// Most processes that are started within a second (`max_spawn_rate`).
    pub max_spawn_rate: u32,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            up_after: Duration::from_millis(100),
            idle_timeout: Duration::from_secs(60),
            max_spawn_rate: 4,
        }
    }
}

/// Bounds on the memory of a worker (its proportional set size): `soft <= hard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes at which it is replaced after the requests that it has.
    pub soft: u64,
    /// Bytes at which it is killed.
    pub hard: u64,
    /// How many looks in a row, a few seconds apart, must find it above; at least one.
    pub samples: u32,
}

/// What an application's processes may use: `isolation = { ... }`. What is `None` has no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// Absolute paths of files and folders that they may read, beside its folder and the system's.
    pub read_paths: Option<Vec<PathBuf>>,
    /// Absolute paths that they may write to, too.
    pub write_paths: Option<Vec<PathBuf>>,
    /// TCP ports that they may connect to.
    pub connect_ports: Option<Vec<u16>>,
    /// TCP ports that they may listen on.
    pub bind_ports: Option<Vec<u16>>,
}

impl Access {
    /// Whether files are limited.
    #[must_use]
    pub fn limits_files(&self) -> bool {
        self.read_paths.is_some() || self.write_paths.is_some()
    }

    /// Whether TCP is limited.
    #[must_use]
    pub fn limits_ports(&self) -> bool {
        self.connect_ports.is_some() || self.bind_ports.is_some()
    }
}
