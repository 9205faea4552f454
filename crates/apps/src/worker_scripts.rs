//! The worker scripts inside the binary, and the command line that starts them.
//!
//! An application runs under its own `python3` or `ruby`, with nothing installed beside it. The
//! executor writes the output of [`encode_script_bundle`] into a memory file once, hands its
//! descriptor to the new process, and starts it with [`worker_args`]: a stub on the command line
//! loads the modules from there.
//! No script ever exists on disk, so none can be stale, missing or replaced.
//!
//! # Invariants
//! - A bundle is read through the descriptor with `pread`, from offset 0, so that several workers
//!   may share one open file.

use std::ffi::OsString;

use penstock_config::{App, AppKind, Concurrency};
use penstock_wire::Dialect;

/// What a process gets its requests from: descriptors in the new process.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaunchSockets {
    /// One for each thread, and one for each that is spare.
    pub(crate) slots: Vec<i32>,
    pub(crate) spare: Vec<i32>,
    /// The channel of a reactor, and its socket for files. A worker that has these and slots finds
    /// out what it is, and closes the others.
    pub(crate) reactor: Option<(i32, i32)>,
}

/// What a process is started for.
#[derive(Debug, Clone)]
pub(crate) enum LaunchRole {
    /// A worker that loads the code itself, with its number.
    Worker(LaunchSockets, u64),
    /// A template, whose workers are to become children of this process. They are forked whatever
    /// threads there are, or only where that is safe.
    Template { ignores_threads: bool },
}

/// The arguments of an application's interpreter, with the descriptors of a file that holds
/// the script bundle and of its control socket. With `is_kind_guessed` an application that is of
/// another kind is served as what it is.
pub(crate) fn worker_args(
    config: &App,
    is_kind_guessed: bool,
    (bundle_fd, control_fd): (i32, i32),
    role: &LaunchRole,
) -> Vec<OsString> {
    let mut args: Vec<OsString> = match dialect(config) {
        Dialect::Python => vec!["-c".into(), PYTHON_STUB.into()],
        // Without the last ruby would take the first option below for its own.
        Dialect::Ruby => vec!["-e".into(), RUBY_STUB.into(), "--".into()],
    };
    args.push(bundle_fd.to_string().into());
    let mut option = |name: &str, value: OsString| args.extend([name.into(), value]);
    option("--control-fd", control_fd.to_string().into());
    option("--app", config.name.clone().into());
    option("--dir", config.dir.clone().into());
    option("--entry", config.entry.clone().into());
    option("--interface", config.kind.as_str().into());
    option("--threads", config.threads.to_string().into());
    let seconds = config.stop_timeout.as_secs_f64();
    option("--stop-timeout", seconds.to_string().into());
    if let Some(hooks) = &config.hooks {
        option("--hooks", hooks.clone().into());
    }
    if config.has_reactor() {
        let reactor = match config.concurrency {
            Concurrency::Gevent => "gevent",
            Concurrency::Threads | Concurrency::Tasks => "tasks",
        };
        option("--reactor", reactor.into());
    }
    match role {
        LaunchRole::Worker(sockets, number) => {
            if config.hooks.is_some() {
                option("--worker-number", number.to_string().into());
            }
            if !sockets.slots.is_empty() {
                option("--slot-fds", comma_separated(&sockets.slots).into());
            }
            if !sockets.spare.is_empty() {
                option("--spare-slot-fds", comma_separated(&sockets.spare).into());
            }
            if let Some((channel, files)) = sockets.reactor {
                option("--channel-fd", channel.to_string().into());
                option("--files-fd", files.to_string().into());
            }
        }
        LaunchRole::Template { ignores_threads } => {
            option("--server-pid", std::process::id().to_string().into());
            args.push("--template".into());
            args.extend(ignores_threads.then(|| "--ignore-threads".into()));
        }
    }
    args.extend(is_kind_guessed.then(|| "--interface-is-guess".into()));
    args.extend(config.gc_when_idle.then(|| "--gc-when-idle".into()));
    args
}

/// The language of an application's workers.
pub(crate) fn dialect(config: &App) -> Dialect {
    match config.kind {
        AppKind::Rack => Dialect::Ruby,
        _ => Dialect::Python,
    }
}

fn comma_separated(numbers: &[i32]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(",")
}

/// All modules of one language, and its native part: for each `name_len u32, name, source_len u32,
/// source`.
pub(crate) fn encode_script_bundle(dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::new();
    let mut push = |name: &str, content: &[u8]| {
        for part in [name.as_bytes(), content] {
            let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(part);
        }
    };
    for (name, source) in modules(dialect) {
        push(name, source.as_bytes());
    }
    let (name, library) = native_part(dialect);
    push(name, library);
    out
}

fn modules(dialect: Dialect) -> &'static [(&'static str, &'static str)] {
    match dialect {
        Dialect::Python => PYTHON_MODULES,
        Dialect::Ruby => RUBY_MODULES,
    }
}

/// The library that goes with the modules, and its name. Compiled by `build.rs`; loaded by
/// `native.py` and `native.rb`.
fn native_part(dialect: Dialect) -> (&'static str, &'static [u8]) {
    match dialect {
        Dialect::Python => (
            "_native.so",
            include_bytes!(concat!(env!("OUT_DIR"), "/python.so")),
        ),
        Dialect::Ruby => (
            "penstock_native.so",
            include_bytes!(concat!(env!("OUT_DIR"), "/ruby.so")),
        ),
    }
}

macro_rules! scripts {
    ($folder:literal, $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../workers/", $folder, $name)))),+]
    };
}

const PYTHON_MODULES: &[(&str, &str)] = scripts!(
    "python/penstock_worker/",
    "__init__.py",
    "__main__.py",
    "api.py",
    "asgi.py",
    "asgi_http.py",
    "asgi_stream.py",
    "asgi_websocket.py",
    "boot.py",
    "channel.py",
    "django_static.py",
    "entry.py",
    "file_wrapper.py",
    "forks.py",
    "gevent_reactor.py",
    "gevent_stream.py",
    "gevent_websocket.py",
    "hijack.py",
    "hooks.py",
    "idle_gc.py",
    "interface.py",
    "lifespan.py",
    "native.py",
    "options.py",
    "request_body.py",
    "slot_threads.py",
    "task_stacks.py",
    "template.py",
    "thread_stacks.py",
    "threads.py",
    "tracebacks.py",
    "wire.py",
    "wsgi.py",
);

/// In the order in which they are evaluated.
const RUBY_MODULES: &[(&str, &str)] = scripts!(
    "ruby/",
    "api.rb",
    "options.rb",
    "wire.rb",
    "forks.rb",
    "thread_stacks.rb",
    "idle_gc.rb",
    "request_body.rb",
    "rack_env.rb",
    "streaming_body.rb",
    "threads.rb",
    "response.rb",
    "native.rb",
    "rack_app.rb",
    "channel.rb",
    "fiber_stream.rb",
    "fiber_reactor.rb",
    "hooks.rb",
    "template.rb",
    "slot_threads.rb",
    "entry.rb",
    "boot.rb",
    "worker.rb",
);

const PYTHON_STUB: &str = include_str!("../workers/python/stub.py");
const RUBY_STUB: &str = include_str!("../workers/ruby/stub.rb");

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn frames_every_script_of_a_bundle() {
        for dialect in [Dialect::Python, Dialect::Ruby] {
            let bytes = encode_script_bundle(dialect);
            let mut rest = bytes.as_slice();
            let mut parts = Vec::new();
            while let Some((len, tail)) = rest.split_first_chunk::<4>() {
                let (part, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
                parts.push(part);
                rest = tail;
            }
            assert!(rest.is_empty());
            let scripts = modules(dialect).iter();
            let mut listed: Vec<&[u8]> = scripts
                .flat_map(|(name, source)| [name.as_bytes(), source.as_bytes()])
                .collect();
            let (name, library) = native_part(dialect);
            assert!(library.starts_with(b"\x7fELF"));
            listed.extend([name.as_bytes(), library]);
            assert_eq!(parts, listed);
        }
    }

    #[test]
    fn puts_the_bundle_before_the_options() {
        let mut app = App::new("shop", "/srv/shop".into(), AppKind::Rack, "config.ru");
        app.threads = 2;
        app.stop_timeout = Duration::from_secs(10);
        let slots = |slots: &[i32], spare: &[i32]| LaunchSockets {
            slots: slots.to_vec(),
            spare: spare.to_vec(),
            reactor: None,
        };
        let reactor = |slots: &[i32]| {
            let sockets = LaunchSockets {
                slots: slots.to_vec(),
                spare: Vec::new(),
                reactor: Some((5, 6)),
            };
            LaunchRole::Worker(sockets, 7)
        };
        let tail = |app: &App, is_guessed: bool, role: LaunchRole| {
            let words = worker_args(app, is_guessed, (9, 3), &role);
            assert_eq!(words[0], "-e");
            let words = words[2..].join(OsStr::new(" ")).into_string().unwrap();
            let common = "-- 9 --control-fd 3 --app shop --dir /srv/shop --entry config.ru \
                          --interface rack --threads 2 --stop-timeout 10";
            let tail = words.strip_prefix(common).expect("the same for all");
            tail.trim_start().to_owned()
        };
        app.gc_when_idle = false;
        app.concurrency = Concurrency::Threads;
        let plain = LaunchRole::Worker(slots(&[4, 5], &[]), 7);
        assert_eq!(tail(&app, false, plain.clone()), "--slot-fds 4,5");
        app.hooks = Some("/srv/hooks.rb".into());
        let expected = "--hooks /srv/hooks.rb --worker-number 7 --slot-fds 4,5";
        assert_eq!(tail(&app, false, plain), expected);
        app.hooks = None;
        let either = tail(&app, true, reactor(&[4]));
        let expected = "--slot-fds 4 --channel-fd 5 --files-fd 6 --interface-is-guess";
        assert_eq!(either, expected);
        let pid = std::process::id();
        for (ignores_threads, more) in [(false, ""), (true, " --ignore-threads")] {
            let template = LaunchRole::Template { ignores_threads };
            let expected = format!("--server-pid {pid} --template{more}");
            assert_eq!(tail(&app, false, template), expected);
        }
        app.gc_when_idle = true;
        let with_spare = LaunchRole::Worker(slots(&[4, 5], &[6, 7]), 7);
        let expected = "--slot-fds 4,5 --spare-slot-fds 6,7 --gc-when-idle";
        assert_eq!(tail(&app, false, with_spare), expected);
        app.gc_when_idle = false;
        app.concurrency = Concurrency::Tasks;
        let expected = "--reactor tasks --channel-fd 5 --files-fd 6";
        assert_eq!(tail(&app, false, reactor(&[])), expected);
    }
}
