//! The worker scripts inside the binary, and the command line that starts them.
//!
//! An application runs under its own `python3` or `ruby`, with nothing installed beside it. The
//! executor writes [`bundle`] into a memory file once, hands its descriptor to the new process, and
//! starts it with [`WorkerLaunch::argv`]: a stub on the command line loads the modules from there.
//! No script ever exists on disk, so none can be stale, missing or replaced.
//!
//! # Invariants
//! - A bundle is read through the descriptor with `pread`, from offset 0, so that several workers
//!   may share one open file.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use penstock_wire::Dialect;

/// All of a process's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLaunch<'a> {
    pub dialect: Dialect,
    /// Path of the application's interpreter.
    pub interpreter: &'a OsStr,
    /// Descriptor, in the new process, of a file that holds [`bundle`].
    pub bundle_fd: i32,
    pub control_fd: i32,
    pub sockets: LaunchSockets<'a>,
    /// How the application is called: `wsgi`, `asgi` or `rack`.
    pub interface: &'a str,
    /// Whether that is a guess: an application that is something else is served as what it is.
    pub interface_is_guess: bool,
    /// What has its requests in progress, when threads have not: `tasks` or `gevent`.
    pub reactor: Option<&'a str>,
    /// Threads of it, or of each worker that is forked from it.
    pub threads: usize,
    /// Whether garbage is collected on request, not within requests.
    pub gc_when_idle: bool,
    /// How long it may take to end.
    pub stop_timeout: Duration,
    /// Name of the application, for messages.
    pub app: &'a str,
    /// The application's folder: working directory and first place to import from.
    pub dir: &'a OsStr,
    /// `module:callable`, or the path of a `config.ru` relative to `dir`.
    pub entry: &'a str,
}

/// What a process gets its requests from: descriptors in the new process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchSockets<'a> {
    /// A worker with threads: one for each, and one for each that is spare.
    Slots {
        slots: &'a [i32],
        spare: &'a [i32],
    },
    Reactor {
        channel: i32,
        files: i32,
    },
    /// A worker that finds out which of both it is, and closes the sockets of the other.
    Either {
        slots: &'a [i32],
        spare: &'a [i32],
        channel: i32,
        files: i32,
    },
    /// A template gets no requests; its workers are to become children of this process, and are
    /// forked whatever threads there are, or only where that is safe.
    Template {
        server_pid: u32,
        ignores_threads: bool,
    },
}

impl WorkerLaunch<'_> {
    /// The whole command line, interpreter first.
    pub fn argv(&self) -> Vec<OsString> {
        let (switch, stub) = match self.dialect {
            Dialect::Python => ("-c", PYTHON_STUB),
            Dialect::Ruby => ("-e", RUBY_STUB),
        };
        let mut argv = vec![self.interpreter.to_owned(), switch.into(), stub.into()];
        if self.dialect == Dialect::Ruby {
            // Without it ruby would take the first option below for its own.
            argv.push("--".into());
        }
        argv.push(self.bundle_fd.to_string().into());
        let mut option = |name: &str, value: &OsStr| argv.extend([name.into(), value.to_owned()]);
        option("--control-fd", self.control_fd.to_string().as_ref());
        option("--app", self.app.as_ref());
        option("--dir", self.dir);
        option("--entry", self.entry.as_ref());
        option("--interface", self.interface.as_ref());
        option("--threads", self.threads.to_string().as_ref());
        let seconds = self.stop_timeout.as_secs_f64().to_string();
        option("--stop-timeout", seconds.as_ref());
        if let Some(reactor) = self.reactor {
            option("--reactor", reactor.as_ref());
        }
        if let LaunchSockets::Slots { slots, spare } | LaunchSockets::Either { slots, spare, .. } =
            &self.sockets
        {
            option("--slot-fds", comma_separated(slots).as_ref());
            if !spare.is_empty() {
                option("--spare-slot-fds", comma_separated(spare).as_ref());
            }
        }
        match &self.sockets {
            LaunchSockets::Slots { .. } => {}
            LaunchSockets::Reactor { channel, files }
            | LaunchSockets::Either { channel, files, .. } => {
                option("--channel-fd", channel.to_string().as_ref());
                option("--files-fd", files.to_string().as_ref());
            }
            LaunchSockets::Template {
                server_pid,
                ignores_threads,
            } => {
                option("--server-pid", server_pid.to_string().as_ref());
                argv.push("--template".into());
                if *ignores_threads {
                    argv.push("--ignore-threads".into());
                }
            }
        }
        if self.interface_is_guess {
            argv.push("--interface-is-guess".into());
        }
        if self.gc_when_idle {
            argv.push("--gc-when-idle".into());
        }
        argv
    }
}

fn comma_separated(numbers: &[i32]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(",")
}

/// All modules of one language: for each `name_len u32, name, source_len u32, source`.
pub fn bundle(dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, source) in modules(dialect) {
        for part in [name, source] {
            let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(part.as_bytes());
        }
    }
    out
}

fn modules(dialect: Dialect) -> &'static [(&'static str, &'static str)] {
    match dialect {
        Dialect::Python => PYTHON_MODULES,
        Dialect::Ruby => RUBY_MODULES,
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
    "entry.py",
    "file_wrapper.py",
    "forks.py",
    "gevent_reactor.py",
    "gevent_stream.py",
    "gevent_websocket.py",
    "hijack.py",
    "idle_gc.py",
    "interface.py",
    "lifespan.py",
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
    "rack_app.rb",
    "channel.rb",
    "fiber_stream.rb",
    "fiber_reactor.rb",
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
    use super::*;

    #[test]
    fn frames_every_script_of_a_bundle() {
        for dialect in [Dialect::Python, Dialect::Ruby] {
            let bytes = bundle(dialect);
            let mut rest = bytes.as_slice();
            let mut parts = Vec::new();
            while let Some((len, tail)) = rest.split_first_chunk::<4>() {
                let (part, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
                parts.push(std::str::from_utf8(part).unwrap());
                rest = tail;
            }
            assert!(rest.is_empty());
            let listed: Vec<_> = modules(dialect)
                .iter()
                .flat_map(|(n, s)| [*n, *s])
                .collect();
            assert_eq!(parts, listed);
        }
    }

    #[test]
    fn puts_the_bundle_before_the_options() {
        let launch = WorkerLaunch {
            dialect: Dialect::Ruby,
            interpreter: OsStr::new("/usr/bin/ruby"),
            bundle_fd: 9,
            control_fd: 3,
            sockets: LaunchSockets::Slots {
                slots: &[4, 5],
                spare: &[],
            },
            interface: "rack",
            interface_is_guess: false,
            reactor: None,
            threads: 2,
            gc_when_idle: false,
            stop_timeout: Duration::from_secs(10),
            app: "shop",
            dir: OsStr::new("/srv/shop"),
            entry: "config.ru",
        };
        let argv = launch.argv();
        assert_eq!(argv[..2], ["/usr/bin/ruby", "-e"]);
        let common = "-- 9 --control-fd 3 --app shop --dir /srv/shop --entry config.ru \
                      --interface rack --threads 2 --stop-timeout 10";
        let tail = |launch: &WorkerLaunch<'_>| {
            let words = launch.argv()[3..].join(OsStr::new(" "));
            let words = words.into_string().unwrap();
            let tail = words.strip_prefix(common).expect("the same for all");
            tail.trim_start().to_owned()
        };
        assert_eq!(tail(&launch), "--slot-fds 4,5");
        let with_spare = WorkerLaunch {
            sockets: LaunchSockets::Slots {
                slots: &[4, 5],
                spare: &[6, 7],
            },
            gc_when_idle: true,
            ..launch.clone()
        };
        let expected = "--slot-fds 4,5 --spare-slot-fds 6,7 --gc-when-idle";
        assert_eq!(tail(&with_spare), expected);
        let reactor = WorkerLaunch {
            sockets: LaunchSockets::Reactor {
                channel: 4,
                files: 5,
            },
            reactor: Some("tasks"),
            ..launch.clone()
        };
        let expected = "--reactor tasks --channel-fd 4 --files-fd 5";
        assert_eq!(tail(&reactor), expected);
        let either = WorkerLaunch {
            sockets: LaunchSockets::Either {
                slots: &[4],
                spare: &[],
                channel: 5,
                files: 6,
            },
            interface_is_guess: true,
            ..launch.clone()
        };
        let expected = "--slot-fds 4 --channel-fd 5 --files-fd 6 --interface-is-guess";
        assert_eq!(tail(&either), expected);
        for (ignores_threads, expected) in [
            (false, "--server-pid 77 --template"),
            (true, "--server-pid 77 --template --ignore-threads"),
        ] {
            let template = WorkerLaunch {
                sockets: LaunchSockets::Template {
                    server_pid: 77,
                    ignores_threads,
                },
                ..launch.clone()
            };
            assert_eq!(tail(&template), expected);
        }
    }
}
