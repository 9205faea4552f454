//! Applications: their queue, their workers, and the supervisor that keeps them up.
//!
//! The way of a request: [`App`] (a handler) reads its body (`exchange::bodies`), builds the environment
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

pub use app::{App, AppSnapshot, Boot, ProcessesSnapshot, Setup, Size, WorkerSnapshot};
pub use channel::bounds::MessageLimits;
pub use dispatch::QueueUse;
pub use executor::place::remove_abandoned_folders;
pub use executor::trial::load_once;
pub use interpreter::find as find_interpreter;
pub use orphans::end_orphans;
pub use server_set::ServerSet;
