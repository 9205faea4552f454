//! Applications: their queue, their workers, and the supervisor that keeps them up.
//!
//! The way of a request: [`App`] (a handler) reads its body (`exchange::response_bodies`), builds the environment
//! (`environ`), puts it in line (`dispatch`); the driver of a free slot (`slot`) hands it to a worker
//! and gives the answer back (`reply`, a spool). Beside it `executor` starts and ends workers as the
//! pure [`supervisor`] decides. What must stay true: a worker has one request a slot, and the front
//! end always knows which; no worker waits for a client; no worker outlives the server.

mod app;
mod channel;
mod dispatch;
pub mod embed;
mod environ;
mod executor;
mod handler;
mod interpreter;
mod orphans;
mod output;
mod reply;
mod server_set;
mod slot;
mod sticky;
pub mod supervisor;
#[cfg(test)]
mod testing;
mod upload;

pub use app::{
    App, AppResources, AppSize, AppSnapshot, BootStatus, ProcessesSnapshot, WorkerSnapshot,
};
pub use channel::message_limits::MessageLimits;
pub use dispatch::QueueUsage;
pub use executor::boot_check::check_boot;
pub use executor::listen_address::remove_abandoned_folders;
pub use interpreter::find_interpreter;
pub use orphans::end_orphans;
pub use server_set::ServerSet;
