//! An application: `[apps.NAME]`.
//!
//! Filled by `app`, read by the crates `apps` (how its processes live) and `proxy` (kinds that are
//! servers of their own).
//!
//! # Invariants
//! - `Default` and [`App::new`] are the values of an empty table.
//! - Every bound is at least what its comment says.

use std::path::PathBuf;
use std::time::Duration;

use super::{Grip, Sendfile, Upstream};
use crate::cores::usable_cpus;
use crate::options::OptionDefault::{Described, Toml};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::EnvVariables;

section! {
    /// An application and its workers: Python or Ruby code that Penstock loads, or any program
    /// that serves HTTP or FastCGI.
    #[derive(Debug, Clone, PartialEq)]
    pub struct App(name: &str, dir: PathBuf, kind: AppKind, entry: &str)
    in "apps.NAME", "[apps.NAME]", "[apps.hello]" {
        /// Directory the workers run in.
        dir: PathBuf = dir, Path, default "the folder of the file", example r#"".""#, by hand;
        /// The interface of the application; left out, the loaded object says whether it is
        /// wsgi or asgi. `command` and `fastcgi` are programs that serve HTTP or FastCGI.
        kind: AppKind = kind, Choice(APP_KINDS),
            default "detected", example r#""wsgi""#, by hand;
        /// What to load: `module:callable`, `module:factory()` or a module alone for wsgi and
        /// asgi; a rackup file, `file.rb` or `file.rb:Constant` for rack.
        entry: String = entry.to_owned(), Text(APP_ENTRY), default "detected",
            example r#""app:application""#, only ONLY_SCRIPT_KINDS, by hand;
        /// What runs the workers; a name without a slash is looked up in PATH.
        interpreter: Option<PathBuf> = None, Text("a path or a command name"),
            default "the virtual environment's in `dir`, else `python3` or `ruby`",
            example r#""python3""#, only ONLY_SCRIPT_KINDS, by hand;
        /// What each process runs, without a shell; `{port}`, `{socket}` or `{fd}` says where
        /// it listens. A program without any of them listens at 127.0.0.1 and the port in the
        /// variable PORT, and a fastcgi program gets a listening socket as descriptor 0.
        command: Vec<String> = Vec::new(), TextOrTexts(APP_COMMAND), default "required by its kinds",
            example r#""thin -p {port} start""#, only ONLY_PROGRAM_KINDS, by hand;
        /// Number of worker processes, or bounds on it.
        processes: Processes = Processes::default(),
            OrTable(&Number(1, 1024), "apps.NAME.processes"),
            default "number of cores; 1 in development", example "{ min = 1, max = 4 }", by hand;
        /// When the number of processes and threads changes between the bounds of `processes`
        /// and `threads`.
        "scale" => scaling: ScalingConfig = ScalingConfig::default(), Table("apps.NAME.scale"),
            default "every default", example r#"{ up_after = "100ms", max_spawn_rate = 4 }"#,
            only ONLY_SCRIPT_KINDS;
        /// Threads in each worker process, each with one request at a time, or bounds on them;
        /// of a command, requests that a process gets at once. An application with a reactor
        /// has one.
        threads: usize = 1, OrTable(&Number(1, 1024), "apps.NAME.threads"), example "5", by hand;
        /// Threads of each worker process beyond `threads`, for requests that have called
        /// `penstock.mark_as_io_bound`: such a request frees its slot, and another takes it.
        io_threads: usize = 0, Number(0, 1024), example "4", only ONLY_THREADED;
        /// Whether a process serves its requests by a reactor in one thread instead of threads:
        /// a task each (`true`: asgi always, rack on a fiber scheduler), or a greenlet each
        /// (`"gevent"`: wsgi).
        "async" => concurrency: Concurrency = Concurrency::default_for(kind),
            FlagOrWord("gevent"), default "true for asgi, else false", example "false",
            only ONLY_SCRIPT_KINDS, by hand;
        /// Requests in progress at once in a process with a reactor, WebSockets and streams
        /// included; more wait in the queue.
        max_concurrent: u32 = 1000, Number(1, 1_000_000), only ONLY_REACTOR;
        /// Whether a request waits until its body has come whole, to memory or a temporary
        /// file, before a worker gets it. With `false` the application reads the body as it
        /// comes, and its client is read no faster: live uploads, exchanges in both directions.
        /// A slow client then occupies a thread, or one of `max_concurrent`.
        request_buffering: Option<bool> = None, Bool,
            default "false for asgi, and for rack with `async = true`; else true",
            only ONLY_SCRIPT_KINDS;
        /// Keeps a client at one worker process while that lives, by a cookie or by its
        /// address: for what a process remembers between requests, such as the sessions of
        /// Socket.IO while it polls. Of a `command` or `fastcgi` application it stands in
        /// `upstream`.
        sticky: Option<Sticky> = None, Choice(Sticky::WORDS), default "no stickiness",
            example r#""cookie""#, only ONLY_SCRIPT_KINDS;
        /// Whether messages of WebSockets are compressed (`permessage-deflate`) where the
        /// client offers it.
        websocket_compression: bool = true, Bool, only ONLY_ASGI;
        /// What runs to its end before new code serves, without a shell: at the start of the
        /// server, at a restart, and at a reload that finds changed code. While it fails the old
        /// code goes on. Not in development.
        release_command: Vec<String> = Vec::new(), TextOrTexts(JOB_COMMAND), default "none",
            example r#""python manage.py migrate""#, by hand;
        /// How long `release_command` may take; then it is ended and has failed.
        release_timeout: Duration = Duration::from_secs(600), Time(1);
        /// How long a worker may take to answer; after it the answer is 504.
        response_timeout: Duration = Duration::from_secs(60), Time(1);
        /// How long a worker may take to load the application.
        boot_timeout: Duration = Duration::from_secs(60), Time(1);
        /// Whether its processes gain no privileges (`sudo`, set-user-ID programs), do not
        /// reach other processes (signals, memory, abstract sockets), and make no system calls
        /// that only debuggers and administrators need. A table is `true`, and limits files and
        /// ports as well.
        isolation: bool = true, OrTable(&Bool, "apps.NAME.isolation"),
            example r#"{ write_paths = ["uploads"] }"#, by hand;
        /// How long a worker that was asked to end may take before it is killed; 2s in
        /// development.
        stop_timeout: Duration = Duration::from_secs(10), Time(1);
        /// How long WebSockets and streams may go on in a worker that is being replaced; 2s in
        /// development.
        stream_timeout: Duration = Duration::from_secs(300), Time(1), only ONLY_SCRIPT_KINDS;
        /// Whether what the application says by GRIP is obeyed: responses with `Grip-Hold` are
        /// held, and of wsgi and rack WebSockets come as requests (WebSocket-over-HTTP). Its
        /// workers find in `GRIP_URL` where they publish. A table is `true`. A route may say
        /// otherwise.
        grip: Option<Grip> = None, OrTable(&Bool, "apps.NAME.grip"), shows "false", example "true",
            by hand;
        /// Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a
        /// file by absolute path below one of these directories (`X-Sendfile`); and bound its rate
        /// (`X-Accel-Limit-Rate`). A route may say otherwise.
        sendfile: Sendfile = Sendfile::default(), FlagOrPaths, shows "false",
            example r#"["private"]"#, by hand;
        /// Whether the code is loaded once, in a template process from which the workers are
        /// forked: they start in milliseconds and share memory. `"auto"`: unless threads that
        /// the code has started as it was loaded make that unsafe; then the workers are started
        /// one by one. `true`: also then; only an application that says `prevent_fork` is not
        /// forked.
        preload: Preload = Preload::default(), FlagOrWord("auto"), shows r#""auto""#,
            example "true", only ONLY_SCRIPT_KINDS, by hand;
        /// File with functions that are called around boot and forks, by their names:
        /// `before_fork`, `after_fork`, `on_boot`, and those of Puma and Gunicorn, whose own
        /// configuration file may be this one (processes.md). Python for wsgi and asgi, Ruby
        /// for rack.
        hooks: Option<PathBuf> = None, Path,
            default "`penstock_hooks.py`, `penstock_hooks.rb` or `config/penstock.rb` in `dir`, if \
                there is one",
            example r#""penstock_hooks.py""#, only ONLY_SCRIPT_KINDS, by hand;
        /// After how many requests of one worker it becomes the template of the others, with
        /// all that it has warmed up: the first number for the first time and so on, the last
        /// one again and again.
        refork_after: Vec<u64> = Vec::new(), NumberOrNumbers(1, 1_000_000_000), default "never",
            example "[500, 1000]", only ONLY_PRELOADED, by hand;
        /// How many processes beyond their number a replacement may run at once.
        max_surge: usize = 1, Number(1, 1024);
        /// How many processes a restart may take out before their successors are ready, once
        /// the new code has shown that it boots; one always stays.
        max_unavailable: usize = 0, Number(0, 1024), example "1";
        /// Memory of a worker (its proportional set size), or bounds on it; a size alone is
        /// `hard`.
        max_memory: Option<MemoryLimit> = None, OrTable(&Size(1 << 20), "apps.NAME.max_memory"),
            default "no limit", example r#""512MiB""#, by hand;
        /// Processes and threads at once of its workers and of all that they start: one more is
        /// refused (a cgroup; see isolation.md). A change takes a restart.
        max_tasks: Option<u64> = None, Number(16, 4_194_304),
            default "no limit; with a `user`, 1024 and room for its workers", example "512";
        /// Memory of its workers and of all that they start together: what takes more is killed
        /// (a cgroup; see isolation.md). A change takes a restart.
        max_total_memory: Option<u64> = None, Size(16 << 20), default "no limit",
            example r#""2GiB""#;
        /// Processors that its workers and all that they start use together: beyond it they
        /// wait (a cgroup; see isolation.md). A change takes a restart.
        max_cpu: Option<f64> = None, Decimal(0.01, 1024.0), default "no limit", example "1.5";
        /// Requests of a worker after which it is replaced, less up to a tenth by chance.
        max_requests: Option<u64> = None, Number(1, 1_000_000_000_000), default "no limit",
            example "100000", only ONLY_SCRIPT_KINDS;
        /// Age at which a worker is replaced, less up to a tenth by chance.
        max_age: Option<Duration> = None, Time(1), default "no limit", example r#""1d""#;
        /// Whether garbage is collected between requests, when the queue is empty, not within
        /// them.
        gc_when_idle: bool = false, Bool, only ONLY_THREADED;
        /// The user that its processes run as; needs to be started as root.
        user: Option<String> = None, Text("a user's name or number, or `user:group`"),
            default "`server.user`, or whoever starts the server", example r#""shop""#, by hand;
        /// The group beside `user`.
        group: Option<String> = None, Text("a group's name or number"),
            default "the groups of `user`", example r#""shop""#, by hand;
        /// Variables added to the workers' environment.
        env: EnvVariables = EnvVariables::default(), StringMap, shows "{}",
            example r#"{ GREETING = "hello" }"#, by hand;
        /// File with more variables for the workers, `NAME=value` a line, as dotenv reads it. What
        /// `env` or the environment of the server has stays.
        env_file: Option<PathBuf> = None, Path, default "none", example r#"".env""#, by hand;
        /// How its processes are spoken to.
        upstream: Option<Box<Upstream>> = None, Table("apps.NAME.upstream"),
            default "every default",
            example r#"{ connect_timeout = "1s", health = { path = "/up" } }"#,
            only ONLY_PROGRAM_KINDS, by hand;
    }
    also {
        /// The queue of requests for a free worker.
        "queue": Table("apps.NAME.queue"), Described("every default"),
            example r#"{ max = 1000, timeout = "30s" }"#;
        /// One directory more of `sendfile`.
        "sendfile_root": Path, Described("none"), example r#""public""#, only ONLY_SCRIPT_KINDS;
    }
    plain {
        /// Its name, unique.
        name: String = name.to_owned();
        /// The application that a job is restarted with.
        owner: Option<String> = None;
        /// Whether `kind`, WSGI or ASGI, was guessed from the text of the code: what a process
        /// finds the loaded application to be then goes before.
        kind_is_guess: bool = false;
        /// What its folder showed it to be; `None` where a configuration file names it.
        detection: Option<Detection> = None;
        /// Threads of each that always take requests: `threads`, or fewer where the load
        /// decides.
        min_threads: usize = 1;
        /// Requests that may wait for a slot; one more is answered 503.
        max_queued: usize = 1000;
        /// How long a request may wait for a slot (503 after).
        queue_timeout: Duration = Duration::from_secs(30);
        /// Which files and TCP ports its processes may use, beyond what `isolation` says.
        access: Access = Access::default();
    }
}

impl App {
    /// Its table, for messages: `apps.shop`.
    #[must_use]
    pub fn table_name(&self) -> String {
        let kind = if self.kind == AppKind::Job {
            "jobs"
        } else {
            "apps"
        };
        format!("{kind}.{}", self.name)
    }

    /// How long it may take from its start until it serves.
    #[must_use]
    pub fn max_start_time(&self) -> Duration {
        match self.release_command.is_empty() {
            true => self.boot_timeout,
            false => self.boot_timeout + self.release_timeout,
        }
    }

    /// Whether its processes serve by a reactor: one channel for all requests instead of one socket
    /// a thread.
    pub fn has_reactor(&self) -> bool {
        self.kind == AppKind::Asgi || self.concurrency != Concurrency::Threads
    }

    /// Whether a worker gets a request before its body is complete. A request that waits for its
    /// client costs a reactor little, but occupies a thread.
    pub fn streams_bodies(&self) -> bool {
        let streams_by_itself = self.kind == AppKind::Asgi
            || self.kind == AppKind::Rack && self.concurrency == Concurrency::Tasks;
        self.request_buffering
            .map_or(streams_by_itself, |is_buffered| !is_buffered)
    }

    /// Whether the load decides how many processes or threads there are.
    pub fn is_autoscaled(&self) -> bool {
        self.processes.min < self.processes.max || self.has_spare_threads()
    }

    /// Whether the load decides how many threads of each process take requests.
    pub fn has_spare_threads(&self) -> bool {
        self.min_threads < self.threads
    }

    /// The maximum of processes and threads at once that it starts. With a user of its own there is
    /// always a bound: its own need (libraries that start a few threads for each processor
    /// included), twice over for a successor beside it, and 1024 more.
    pub fn effective_max_tasks(&self) -> Option<u64> {
        let of_process = self.threads + self.io_threads + 4 * usable_cpus();
        let needed = self.processes.max.saturating_mul(2 * of_process);
        let ample = u64::try_from(needed)
            .unwrap_or(u64::MAX)
            .saturating_add(1024);
        self.max_tasks
            .or_else(|| self.user.is_some().then_some(ample))
    }

    /// Copies the application's queue, time-out, and threads (as the bound of each process) to its
    /// upstream, if it has one.
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

/// What a folder showed its application to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detection {
    /// What the start shows of a program in place of its command line.
    pub title: Option<String>,
    /// The framework's name, where the code shows one.
    pub framework: Option<&'static str>,
    /// Whether the entry is a function that makes the application.
    pub is_factory: bool,
    /// The settings module of a Django project.
    pub django_settings: Option<String>,
}

/// The kinds that a table may say: all but the last.
pub(crate) const APP_KINDS: &[&str] = AppKind::WORDS.split_at(AppKind::WORDS.len() - 1).0;

choice! {
    /// The interface of an application.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum AppKind {
        /// Python, PEP 3333.
        Wsgi = "wsgi",
        /// Python, ASGI 3.
        Asgi = "asgi",
        /// Ruby, the Rack specification.
        Rack = "rack",
        /// Any program that serves HTTP on an address that it is given.
        Command = "command",
        /// Any program that serves FastCGI on an address or a listening socket that it is given.
        FastCgi = "fastcgi",
        /// A program that serves no requests: a `[jobs.NAME]` table, not a value of `kind`.
        Job = "job",
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
    /// The default of a kind.
    pub fn default_for(kind: AppKind) -> Self {
        match kind {
            AppKind::Asgi => Self::Tasks,
            AppKind::Wsgi | AppKind::Rack | AppKind::Command | AppKind::FastCgi | AppKind::Job => {
                Self::Threads
            }
        }
    }
}

choice! {
    /// The way to keep a client at one worker process: `sticky`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Sticky {
        /// By a cookie of the application's (`"cookie"`).
        Cookie = "cookie",
        /// By the client's address (`"client_ip"`).
        ClientIp = "client_ip",
    }
}

/// Whether workers are forked from a template: `preload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preload {
    /// Unless threads that the code has started while it was loaded make it unsafe (`"auto"`).
    #[default]
    Auto,
    /// With any threads (`true`); only the application itself can prevent it.
    Always,
    /// Each worker loads the code itself (`false`).
    Never,
}

/// Bounds on the number of worker processes: `1 <= min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// Always kept.
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

section! {
    /// When the number of worker processes, and of their threads, changes between its bounds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ScalingConfig
    in "apps.NAME.scale", "scale = { ... } in [apps.NAME]", "" {
        /// One process or thread more when requests have waited this long in the queue.
        up_after: Duration = Duration::from_millis(100), Time(1);
        /// One process less, or threads, when so much capacity has not been used for this long.
        idle_timeout: Duration = Duration::from_secs(60), Time(1);
        /// Most processes that are started within a second.
        max_spawn_rate: u32 = 4, Number(1, 1024);
    }
}

/// Bounds on the memory of a worker (its proportional set size): `soft <= hard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes at which it is replaced after its current requests.
    pub soft: u64,
    /// Bytes at which it is killed.
    pub hard: u64,
    /// Checks in a row, a few seconds apart, that must find it above; at least one.
    pub samples: u32,
}

section! {
    /// Files and TCP ports that the application's processes may use, by Landlock
    /// (isolation.md).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Access
    in "apps.NAME.isolation", "isolation = { ... } in [apps.NAME]", "" {
        /// Files and directories that its processes may read, relative to the file's directory,
        /// beside `dir`, the interpreter and the directories of the system (isolation.md).
        read_paths: Option<Vec<PathBuf>> = None, Texts(FILE_PATH),
            default "any; with `write_paths`, none", example r#"["/srv/shared"]"#, by hand;
        /// Files and directories that they may write to, and read; temporary files go to the first
        /// unless `env` has a `TMPDIR`.
        write_paths: Option<Vec<PathBuf>> = None, Texts(FILE_PATH),
            default "any; with `read_paths`, none", example r#"["uploads"]"#, by hand;
        /// TCP ports that they may connect to.
        connect_ports: Option<Vec<u16>> = None, Texts(PORT), default "any",
            example r#"["5432", "6379"]"#, by hand;
        /// TCP ports that they may listen on by themselves, beside the port that Penstock gives
        /// a program.
        bind_ports: Option<Vec<u16>> = None, Texts(PORT), default "any", example "[]", by hand;
    }
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

keys! {
    /// Bounds on the number of worker processes.
    APP_PROCESSES in "apps.NAME.processes", "processes = { ... } in [apps.NAME]", "" {
        /// Processes kept for ever.
        "min": Number(1, 1024), Toml("1");
        /// Processes never exceeded.
        "max": Number(1, 1024), Described("number of cores, or `min` if that is more"),
            example "4";
    }
}

keys! {
    /// Bounds on the threads of each worker process (the kinds "wsgi" and "rack" without
    /// `async`): one more takes requests when they wait although the processors have room; see
    /// processes.md.
    APP_THREADS in "apps.NAME.threads", "threads = { ... } in [apps.NAME]", "" {
        /// Threads of each process that always take requests.
        "min": Number(1, 1024), Toml("1"), example "2";
        /// Threads of each process never exceeded, but for `io_threads`.
        "max": Number(1, 1024), Described("5, or `min` if that is more"), example "16";
    }
}

keys! {
    /// Bounds on the memory of a worker, at least one of them: `soft` <= `hard`.
    APP_MAX_MEMORY in "apps.NAME.max_memory", "max_memory = { ... } in [apps.NAME]", "" {
        /// Bytes at which a worker is replaced after the requests that it has.
        "soft": Size(1 << 20), Described("four fifths of `hard`"), example r#""400MiB""#;
        /// Bytes at which a worker is killed.
        "hard": Size(1 << 20), Described("five quarters of `soft`"), example r#""512MiB""#;
        /// How many looks in a row, a few seconds apart, must find a worker above a bound.
        "samples": Number(1, 1000), Toml("3");
    }
}

keys! {
    /// How many requests may wait for a free worker, and how long.
    APP_QUEUE in "apps.NAME.queue", "queue = { ... } in [apps.NAME]", "" {
        /// Requests that may wait; one more is answered 503 at once.
        "max": Number(0, 10_000_000), Toml("1000");
        /// How long a request may wait; after it the answer is 503.
        "timeout": Time(1), Toml(r#""30s""#);
    }
}
