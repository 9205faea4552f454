//! The resources with which an application starts, and the result of its first start.
//!
//! `penstock`'s components pass them in when they start an `App`; the executor reports
//! [`BootStatus`].

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::LoopHandle;
use penstock_sys::account::Account;
use penstock_sys::cgroup::AppCgroup;
use penstock_sys::process::Launcher;
use tokio::sync::watch;

/// The resources that an application needs.
#[derive(Debug, Clone)]
pub struct AppResources {
    /// The loops of its drivers.
    pub loops: Vec<LoopHandle>,
    /// Starts its processes; `None` if this process does.
    pub launcher: Option<Arc<Launcher>>,
    /// The account that the launcher starts them as; `None` is the server's user.
    pub account: Option<Account>,
    /// The cgroup that limits them, with all that they start, if set.
    pub cgroup: Option<Arc<AppCgroup>>,
    /// The settings for buffered bodies.
    pub buffering_settings: BufferingSettings,
    /// Whether its boot yields to an application that serves already, which it follows.
    pub yields_cpu_at_boot: bool,
    /// Whether the server runs for development (`serve --dev`).
    pub is_development: bool,
    /// The size of the application that it follows, within its own bounds; without one it starts
    /// with the least of both.
    pub initial_size: Option<AppSize>,
    /// Of a job, the first start of its application: its own first process waits until that serves.
    pub owner: Option<watch::Receiver<BootStatus>>,
}

/// The size of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppSize {
    /// The target number of processes.
    pub processes: usize,
    /// How many threads of each take requests.
    pub threads: usize,
}

/// The result of the first start so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootStatus {
    /// Not known yet.
    Pending,
    /// All processes have been ready.
    Ready {
        /// The time from the start until then.
        took: Duration,
        /// The interpreter's description of itself.
        interpreter: String,
    },
    /// The code does not boot; further attempts follow with growing delays.
    Failed {
        /// The traceback.
        report: String,
    },
}
