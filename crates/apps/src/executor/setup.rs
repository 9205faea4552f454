//! The resources an application starts with, and how its first start went.
//!
//! Passed in by `penstock`'s wiring when it starts an `App`; the executor reports [`BootStatus`].

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::buffering::BodyStore;
use penstock_runtime::LoopHandle;
use penstock_sys::account::Account;
use penstock_sys::cgroup::Group;
use penstock_sys::process::Launcher;

/// What an application needs of the house.
#[derive(Debug, Clone)]
pub struct AppResources {
    /// Where its slots live.
    pub loops: Vec<LoopHandle>,
    /// Starts its processes; without one this process does.
    pub launcher: Option<Arc<Launcher>>,
    /// Whom the launcher starts them as; none is the server's user.
    pub account: Option<Account>,
    /// What bounds them, with all that they start; none is nothing.
    pub group: Option<Arc<Group>>,
    /// Where bodies wait.
    pub body_store: BodyStore,
    /// Whether something serves already on this machine that its boot must not slow down: what it follows.
    pub yields_cpu_at_boot: bool,
    /// Whether people work on the applications here (`serve --dev`).
    pub is_development: bool,
    /// How large the application was that this one follows, as far as its bounds allow; without one it begins with
    /// the least of both.
    pub initial_size: Option<AppSize>,
}

/// What the load has made of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppSize {
    /// How many processes there are to be.
    pub processes: usize,
    /// How many threads of each take requests.
    pub threads: usize,
}

/// How the first start went, so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootStatus {
    /// Nothing can be said yet.
    Pending,
    /// All processes have been ready.
    Ready {
        /// From the start until then.
        took: Duration,
        /// What the interpreter says of itself.
        interpreter: String,
    },
    /// The code does not boot; it is tried again with growing delays.
    Failed {
        /// The real traceback.
        report: String,
    },
}
