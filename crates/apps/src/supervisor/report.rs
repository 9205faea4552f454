//! The supervisor's reports about an application: for the log, the status page and the error page.
//!
//! Values only; the texts are made elsewhere. The supervisor emits a [`SupervisorReport`] for each
//! thing worth a log line and returns [`AppState`] when asked.

use std::fmt;
use std::time::Duration;

use super::WorkerId;

/// One thing worth a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorReport {
    /// A worker answers requests now.
    WorkerReady {
        worker: WorkerId,
        pid: Option<u32>,
        boot: Duration,
    },
    /// All processes are ready for the first time.
    Up {
        /// Since the start.
        took: Duration,
    },
    /// A worker that had been ready exited without being asked.
    Crashed {
        pid: Option<u32>,
        status: ExitSummary,
        /// When it is replaced; zero is at once.
        next_try: Duration,
    },
    /// A worker did not become ready.
    BootFailed {
        report: String,
        /// When the next one is tried; `None` for a new version that is given up.
        next_try: Option<Duration>,
    },
    /// A worker was killed.
    Killed {
        pid: Option<u32>,
        reason: KillReason,
    },
    /// A restart has begun to bring in this generation.
    RestartBegan { generation: u64 },
    /// Every process runs the new generation.
    Restarted {
        generation: u64,
        /// Since the restart began.
        took: Duration,
    },
    /// The number of workers that there should be has changed with the load.
    Scaled { from: usize, to: usize, why: String },
    /// The number of threads of each worker that take requests has changed with the load.
    ThreadsScaled { from: usize, to: usize, why: String },
    /// A worn worker is retired: its successor is ready, or one less is wanted.
    Replaced {
        pid: Option<u32>,
        why: ReplaceReason,
    },
    /// The new version was given up and the old one serves on.
    RestartReverted { generation: u64, report: String },
}

/// Why a worker was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// It did not become ready in time.
    BootTimedOut,
    /// A request took longer than it may.
    ResponseTimedOut,
    /// It sent something that is not the worker protocol.
    ProtocolBroken,
    /// It was asked to terminate and did not within this time.
    StopTimedOut { limit: Duration },
    /// It used more memory than it may.
    MemoryExceeded { bytes: u64, max: u64 },
}

/// Why a worker is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplaceReason {
    /// It uses more memory than it should.
    Memory { bytes: u64, max: u64 },
    /// It has served so many requests.
    Requests(u64),
    /// It is that old.
    Age(Duration),
    /// A request does not end and holds a thread of it.
    Stuck,
    /// It was forked from a template that another has replaced.
    Refork,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitSummary {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// By the kernel: all processes of the application together had met their bound on memory.
    OutOfMemory,
    Unknown,
}

/// The application as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AppState {
    /// Not all processes have been ready yet, and nothing has failed.
    Starting,
    /// All processes are ready.
    Ready,
    /// Some are.
    Degraded,
    /// None is, and the last try failed.
    Failing { report: String },
    /// Finishing requests in progress.
    Draining,
    /// No process is left, or none was ever started.
    Stopped,
}

impl fmt::Display for ExitSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::OutOfMemory => {
                f.write_str("was killed: memory bound of the application (max_total_memory)")
            }
            Self::Unknown => f.write_str("is gone"),
        }
    }
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootTimedOut => f.write_str("boot took too long"),
            Self::ResponseTimedOut => f.write_str("a response took too long"),
            Self::ProtocolBroken => f.write_str("it broke the worker protocol"),
            Self::StopTimedOut { limit } => write!(f, "it did not end within {limit:?}"),
            Self::MemoryExceeded { bytes, max } => {
                let (used, max) = (mebibytes(*bytes), mebibytes(*max));
                write!(f, "it used {used} of memory and may use {max}")
            }
        }
    }
}

impl fmt::Display for ReplaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { bytes, max } => {
                let (used, max) = (mebibytes(*bytes), mebibytes(*max));
                write!(f, "{used} of memory, more than {max}")
            }
            Self::Requests(count) => write!(f, "{count} requests served"),
            Self::Age(age) => write!(f, "{} s old", age.as_secs()),
            Self::Stuck => f.write_str("a request does not end"),
            Self::Refork => f.write_str("the template was renewed"),
        }
    }
}

/// An amount of memory for people, with one digit after the point.
fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
