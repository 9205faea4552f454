//! One run of a program to its end: a job that runs at times.
//!
//! The program runs as the processes of an application do: in its folder, with its environment, as
//! its user and within its limits. Its output goes to the log.
//!
//! # Invariants
//! - A run ends: by itself, at its time limit, or when its owner stops it. It is asked to end by
//!   SIGTERM first, and killed with its group after `stop_timeout`.

use std::ffi::OsString;
use std::pin::Pin;
use std::time::{Duration, Instant};

use penstock_config::App;
use penstock_runtime::multiline_output::OutputEvent;
use penstock_runtime::{clock, process as watch_process};
use penstock_sys::process::{ProcessExit, SpawnedProcess};

use crate::executor::launching::{ProgramLookup, find_program, start};
use crate::executor::process_task::{LAST_OUTPUT_TIMEOUT, OutputTail, log_output};
use crate::executor::servers::program_spec;
use crate::executor::setup::AppResources;
use crate::stop_timeout;

/// Runs a program of an application, or of a job.
#[derive(Debug, Clone)]
pub(crate) struct ProgramRunner {
    config: App,
    /// Bounds how long the program may take to end.
    stop_option: String,
    resources: AppResources,
}

/// How a run has ended.
#[derive(Debug)]
pub(crate) struct ProgramRun {
    /// How it ended; `None` if that is not known.
    pub(crate) exit: Option<ProcessExit>,
    /// What made it end.
    pub(crate) cause: EndCause,
    /// Why it was killed, if it did not end when asked to.
    pub(crate) kill: Option<String>,
    /// Its last lines.
    pub(crate) last_lines: String,
}

/// What made a program end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// Itself.
    Itself,
    /// Its time limit.
    TimeLimit,
    /// Its owner, who stops.
    Stop,
}

impl ProgramRun {
    /// How it has ended, and whether with status 0. `limit` is its time limit, with the name of its
    /// key.
    pub(crate) fn outcome(&self, limit: (&str, Option<Duration>)) -> (String, bool) {
        let how = match self.exit {
            Some(exit) => exit.to_string(),
            None => "ended".to_owned(),
        };
        let how = match &self.kill {
            Some(why) => format!("{how}: {why}"),
            None => how,
        };
        match self.cause {
            EndCause::Itself => (how, self.exit == Some(ProcessExit::Code(0))),
            EndCause::TimeLimit => {
                let (key, limit) = (limit.0, limit.1.unwrap_or_default());
                (
                    format!("stopped at its `{key}` of {limit:?} ({how})"),
                    false,
                )
            }
            EndCause::Stop => (format!("stopped ({how})"), false),
        }
    }
}

impl ProgramRunner {
    /// `stop_option` is the option that `config.stop_timeout` is from.
    pub(crate) fn new(config: App, stop_option: String, resources: AppResources) -> Self {
        Self {
            config,
            stop_option,
            resources,
        }
    }

    pub(crate) fn config(&self) -> &App {
        &self.config
    }

    /// Runs the command until it ends, at most for `time_limit`, and no longer than `stop` is
    /// pending. `started` gets its process id.
    ///
    /// # Errors
    /// Why it was not started.
    pub(crate) async fn run(
        &self,
        time_limit: Option<Duration>,
        stop: impl Future<Output = ()>,
        started: impl FnOnce(u32),
    ) -> Result<ProgramRun, String> {
        let mut process = self.start().await?;
        started(process.pid);
        let deadline = time_limit.and_then(|limit| clock::now().checked_add(limit));
        let tail = OutputTail::default();
        let (cause, kill) = self.follow(&process, &tail, deadline, stop).await;
        // Whatever it started in its group ends with it; before it is reaped its number is still
        // its own.
        let _ = process.handle().kill_group();
        Ok(ProgramRun {
            exit: process.try_exit().ok().flatten(),
            cause,
            kill,
            last_lines: tail.joined_lines(),
        })
    }

    async fn start(&self) -> Result<SpawnedProcess, String> {
        let AppResources {
            launcher,
            account,
            cgroup,
            buffering_settings,
            ..
        } = &self.resources;
        let config = self.config.clone();
        let found = find_program(config, 0, ProgramLookup::default(), buffering_settings).await?;
        let words = self.config.command.iter().map(OsString::from).collect();
        let mut spec = program_spec(&self.config, account.as_ref(), cgroup.as_deref(), words);
        found.add_to_rules(&mut spec.access);
        start(launcher.as_deref(), spec).await
    }

    /// Waits for its end, and for its last words; why it was killed, if it was.
    async fn follow(
        &self,
        process: &SpawnedProcess,
        tail: &OutputTail,
        deadline: Option<Instant>,
        stop: impl Future<Output = ()>,
    ) -> (EndCause, Option<String>) {
        let (name, pid) = (&*self.config.name, process.pid);
        let line = |text: &str| tail.push_line(text);
        let log = |event: OutputEvent| log_output(name, pid, &event);
        let words = async {
            // Without its pipes the output of a program is lost, and no more.
            if let (Ok(stdout), Ok(stderr)) =
                (process.stdout.try_clone(), process.stderr.try_clone())
            {
                tokio::join!(
                    watch_process::read_output(stdout, line, log),
                    watch_process::read_output(stderr, line, log),
                );
            }
        };
        let mut words = Words {
            reading: std::pin::pin!(words),
            is_over: false,
        };
        let over = async {
            match deadline {
                Some(at) => clock::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let ended = || watch_process::wait_for_exit(&process.exit_fd);
        let first = async {
            tokio::select! {
                () = ended() => EndCause::Itself,
                () = over => EndCause::TimeLimit,
                () = stop => EndCause::Stop,
            }
        };
        let cause = words.read_beside(first).await;
        let mut kill = None;
        if cause != EndCause::Itself {
            // A process that is gone already needs no signal.
            let _ = process.handle().terminate();
            let stopped = words.read_beside(ended());
            let stopped = clock::timeout(self.config.stop_timeout, stopped).await;
            if stopped.is_none() {
                let limit = self.config.stop_timeout;
                kill = Some(stop_timeout::describe_kill(limit, &self.stop_option));
                let _ = process.handle().kill();
                ended().await;
            }
        }
        if !words.is_over {
            // Something that it has started may hold its pipes open for ever.
            clock::timeout(LAST_OUTPUT_TIMEOUT, &mut words.reading).await;
        }
        (cause, kill)
    }
}

/// What reads the output of a process, which may close it long before its end.
struct Words<'f, F> {
    reading: Pin<&'f mut F>,
    is_over: bool,
}

impl<F: Future<Output = ()>> Words<'_, F> {
    /// Reads while something else is awaited.
    async fn read_beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                value = &mut other => return value,
                () = &mut self.reading, if !self.is_over => self.is_over = true,
            }
        }
    }
}
