//! The supervisor's reports about an application: for the log, the status page and the error page.
//!
//! Values only; the texts are made elsewhere. The supervisor emits a [`SupervisorReport`] for each
//! thing worth a log line and returns [`AppState`] when asked.

use std::fmt;
use std::time::Duration;

use super::WorkerId;

/// One thing worth a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorReport {
    /// A worker answers requests now.
    WorkerReady {
        /// Which one.
        worker: WorkerId,
        /// Its process, when known.
        pid: Option<u32>,
        /// How long it took to boot.
        boot: Duration,
    },
    /// All processes are ready for the first time.
    Up {
        /// How many.
        processes: usize,
        /// Since the start.
        took: Duration,
    },
    /// A worker that had been ready exited without being asked.
    Crashed {
        /// Which one.
        worker: WorkerId,
        /// Its process, when known.
        pid: Option<u32>,
        /// How it ended.
        status: ExitSummary,
        /// When it is replaced; zero is at once.
        next_try: Duration,
    },
    /// A worker did not become ready.
    BootFailed {
        /// Which one.
        worker: WorkerId,
        /// The traceback, or another reason.
        report: String,
        /// When the next one is tried; `None` for a new version that is given up.
        next_try: Option<Duration>,
    },
    /// A worker was killed.
    Killed {
        /// Which one.
        worker: WorkerId,
        /// Its process, when known.
        pid: Option<u32>,
        /// What for.
        reason: KillReason,
    },
    /// A restart has begun to bring in this generation.
    RestartBegan {
        /// The new one.
        generation: u64,
    },
    /// Every process runs the new generation.
    Restarted {
        /// The new one.
        generation: u64,
        /// Since the restart began.
        took: Duration,
    },
    /// The number of workers that there should be has changed with the load.
    Scaled {
        /// How many there were to be.
        from: usize,
        /// How many there are to be now.
        to: usize,
        /// What was seen, in words.
        why: String,
    },
    /// The number of threads of each worker that take requests has changed with the load.
    ThreadsScaled {
        /// How many took them.
        from: usize,
        /// How many do now.
        to: usize,
        /// What was seen, in words.
        why: String,
    },
    /// A worn worker is retired: its successor is ready, or one less is wanted.
    Replaced {
        /// Which one.
        worker: WorkerId,
        /// Its process, when known.
        pid: Option<u32>,
        /// What it was worn by.
        why: ReplaceReason,
    },
    /// The new version was given up and the old one serves on.
    RestartReverted {
        /// The old one.
        generation: u64,
        /// Why the new one was given up.
        report: String,
    },
}

/// Why a worker was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// It did not become ready in time.
    BootTimedOut,
    /// A request took longer than it may.
    ResponseTimedOut,
    /// It sent something that is not the worker protocol.
    ProtocolBroken,
    /// It was asked to terminate and did not.
    StopTimedOut,
    /// It used more memory than it may.
    MemoryExceeded {
        /// What it used, in bytes.
        bytes: u64,
        /// What it may use, in bytes.
        max: u64,
    },
}

/// Why a worker is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceReason {
    /// It uses more memory than it should.
    Memory {
        /// What it uses, in bytes.
        bytes: u64,
        /// What it should not exceed, in bytes.
        max: u64,
    },
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
pub enum ExitSummary {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// By the kernel: all processes of the application together had met their bound on memory.
    OutOfMemory,
    /// Unknown.
    Unknown,
}

/// The application as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppState {
    /// Not all processes have been ready yet, and nothing has failed.
    Starting,
    /// All processes are ready.
    Ready,
    /// Some are.
    Degraded,
    /// None is, and the last try failed.
    Failing {
        /// The traceback, or another reason.
        report: String,
    },
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
            Self::StopTimedOut => f.write_str("it did not terminate when asked"),
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
