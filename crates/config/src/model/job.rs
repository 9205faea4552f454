//! Programs beside the applications: the `[jobs.NAME]` tables.
//!
//! Filled by `job`, read by the crate `apps`. A job that runs all the time is an [`App`] of the kind
//! [`AppKind::Job`], supervised as any other.
//!
//! [`AppKind::Job`]: super::AppKind::Job

use std::fmt;
use std::time::Duration;

use super::App;
use crate::options::OptionDefault::*;
use crate::options::OptionKind::*;
use crate::options::expected::*;

keys! {
    /// A program that serves no requests: one that works through a queue (Celery, Sidekiq), or one
    /// that runs at times. Penstock starts it with the server, keeps it running, and ends it by
    /// SIGTERM.
    JOB in "jobs.NAME", "[jobs.NAME]", "[jobs.mailer]" {
        /// What each process runs, without a shell.
        "command": TextOrTexts(JOB_COMMAND), Required,
            example r#""celery -A shop worker""#;
        /// The application that it belongs to: it runs in its folder, with its variables, user and
        /// limits of access, unless they are set here, and is restarted with it.
        "app": Text("the name of an [apps.NAME] table"), Described("no app"), example r#""hello""#;
        /// Directory that it runs in.
        "dir": Path, Described("that of `app`, else the folder of the file"), example r#"".""#;
        /// Processes of a job that runs all the time.
        "processes": Number(1, 1024), Toml("1"), example "2", only "a job without `every` and `at`";
        /// Time between the starts of two runs; one that takes longer delays the next. The first
        /// one begins as long after the start of the server.
        "every": Time(1), Described("it runs all the time"), example r#""1d""#,
            only "a job without `at`";
        /// Times of the day, in the time zone of the server (`TZ`), at which it runs. While it
        /// still runs it is not started again.
        "at": TextOrTexts(TIME_OF_DAY), Described("it runs all the time"), example r#""03:30""#;
        /// How long a run may take; then it is ended and counts as failed.
        "timeout": Time(1), Described("no limit"), example r#""1h""#, only "a job with `every` or `at`";
        /// How long a process that was asked to end may take before it is killed; 2s in
        /// development.
        "stop_timeout": Time(1), Toml(r#""10s""#), example r#""60s""#;
        /// Age at which a process is replaced, less up to a tenth by chance.
        "max_age": Time(1), Described("no limit"), example r#""1d""#;
        /// Memory of a process (its proportional set size), or bounds on it; a size alone is `hard`.
        "max_memory": OrTable(&Size(1 << 20), "apps.NAME.max_memory"), Described("no limit"),
            example r#""512MiB""#;
        /// Processes and threads at once of it and of all that it starts (a cgroup; see
        /// isolation.md).
        "max_tasks": Number(16, 4_194_304), Described("as of an application"), example "512";
        /// Memory of its processes and of all that they start together (a cgroup; see isolation.md).
        "max_total_memory": Size(16 << 20), Described("no limit"), example r#""2GiB""#;
        /// Processors that it and all that it starts use together (a cgroup; see isolation.md).
        "max_cpu": Decimal(0.01, 1024.0), Described("no limit"), example "1.5";
        /// As of an application.
        "isolation": OrTable(&Bool, "apps.NAME.isolation"), Described("that of `app`, else true"),
            example r#"{ write_paths = ["uploads"] }"#;
        /// The user that it runs as; needs to be started as root.
        "user": Text("a user's name or number, or `user:group`"),
            Described("that of `app`, else `server.user`"), example r#""shop""#;
        /// The group beside `user`.
        "group": Text("a group's name or number"), Described("the groups of `user`"),
            example r#""shop""#;
        /// Variables added to its environment, and to those of `app`.
        "env": StringMap, Toml("{}"), example r#"{ QUEUES = "mail" }"#;
        /// File with more variables, `NAME=value` a line, as dotenv reads it.
        "env_file": Path, Described("none"), example r#"".env""#;
    }
}

/// A program that runs at times.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledJob {
    /// How it runs.
    pub program: App,
    /// When.
    pub schedule: Schedule,
    /// How long it may take; `None` is no limit.
    pub timeout: Option<Duration>,
}

/// The times at which a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// With so much time between two starts.
    Every(Duration),
    /// At these times of each day.
    At(Vec<TimeOfDay>),
}

/// A time of the day in the time zone of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay {
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
}

impl TimeOfDay {
    /// Reads `03:30`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (hour, minute) = text.split_once(':')?;
        let number = |text: &str, max: u8| {
            let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number: u8 = text.parse().ok().filter(|_| is_number)?;
            (number <= max).then_some(number)
        };
        Some(Self {
            hour: number(hour, 23)?,
            minute: number(minute, 59)?,
        })
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.hour, self.minute)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(time) => write!(f, "every {time:?}"),
            Self::At(times) => {
                let times: Vec<_> = times.iter().map(TimeOfDay::to_string).collect();
                write!(f, "at {}", times.join(", "))
            }
        }
    }
}
