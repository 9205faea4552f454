//! Applications: their queue, their workers, and the supervisor that keeps them up.
//!
//! The way of a request: [`App`] (`handler`) reads its body, builds the environment (`environ`) and
//! submits it to the queue (`dispatch`). The driver of a free worker (`driver`) sends it to its
//! process and returns the response (`reply`, a spool). The `executor` starts and ends the
//! processes as the pure `supervisor` decides.
//!
//! Modules use only those above them in this list: leaves (`environ`, `reply`, `upload`, the values
//! of `app/snapshot`, ...), `dispatch`, `shared`, `driver`, `executor` (with `supervisor` beside
//! it), `app`, `handler`.
//!
//! # Invariants
//! - The front end always knows which requests a worker has.
//! - No worker waits for a client.
//! - No worker outlives the server.

mod app;
mod boot_failures;
mod dispatch;
mod driver;
mod environ;
mod executor;
mod handler;
mod interpreter;
mod orphans;
mod output;
mod program;
mod program_name;
mod release;
mod reply;
mod scheduled_job;
mod server_set;
mod shared;
mod sticky;
mod stop_timeout;
mod supervisor;
#[cfg(test)]
mod testing;
mod upload;
mod websocket_handshake;
mod websocket_message_limits;
mod worker_scripts;

pub use app::{
    APP_METRICS, App, AppSnapshot, BoundsSnapshot, ProcessesSnapshot, QueueSnapshot, WorkerSnapshot,
};
pub use boot_failures::failure_line;
pub use dispatch::QueueUsage;
pub use executor::boot_check::check_boot;
pub use executor::listen_address::remove_abandoned_socket_dirs;
pub use executor::settings_query::ask_interpreter;
pub use executor::setup::{AppResources, AppSize, BootStatus};
pub use executor::workers::rack_env;
pub use interpreter::{
    describe_version, find_interpreter, missing_environment, program_environment,
};
pub use orphans::end_orphans;
pub use scheduled_job::{JOB_METRICS, JobCounts, JobSnapshot, LastRun, ScheduledJob};
pub use server_set::ServerSet;
pub use websocket_message_limits::WebSocketMessageLimits;
