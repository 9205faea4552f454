//! Static files: a folder as a [`Handler`], with fall-through to what comes after it.
//!
//! The way of a request: `memory` answers what was asked within the last second without a system
//! call; else `resolve` turns the path into the places to look in, `tree` opens them in a blocking
//! pool, and `reply` decides between 200, 206, 304, 412 and 416. `penstock`'s wiring makes one
//! [`Files`] for each `files = { ... }` of a route.
//!
//! What must stay true: nothing outside the root is ever opened, whatever the path or the symbolic
//! links say; hidden files are not given out; a loop never waits for a disk; memory is bounded. A
//! change on disk shows within about a second.
//!
//! [`Handler`]: penstock_exchange::Handler

mod handler;
mod memory;
mod reply;
mod resolve;
#[cfg(test)]
mod testing;
mod tree;
mod types;

pub use handler::{Files, FilesSetup};
