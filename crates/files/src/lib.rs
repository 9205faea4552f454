//! Static files: a folder as a [`Handler`], with fall-through to what comes after it.
//!
//! The way of a request: `memory` answers what was asked within the last second without a system
//! call; else `resolve` turns the path into the places to look in, and `tree` opens them, on the loop as far
//! as the kernel has them in memory and in a blocking pool else. `known` chooses the coding that the client
//! gets, `compress` makes it if it is not there, and `reply` decides between 200, 206, 304, 412 and 416.
//! `hidden` says which names are never sent, `naming` and `description` what is sent with a file, and `listing` makes bodies. `penstock`'s wiring
//! makes one [`Files`] for each `files = { ... }` of a route.
//!
//! What must stay true: nothing outside the root is ever opened, whatever the path or the symbolic
//! links say; hidden files are not given out; a loop never waits for a disk; memory is bounded. A
//! change on disk shows within about a second.
//!
//! [`Handler`]: penstock_exchange::Handler

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::print_stderr,
        reason = "tests may wait for a disk, and say what they could not test"
    )
)]

mod compressor;
mod description;
mod file_cache;
mod file_entry;
mod file_tree;
mod handler;
mod hide_patterns;
mod listing;
mod name_rules;
mod reply;
mod resolve;
#[cfg(test)]
mod testing;
mod unfollowed_links;

pub use file_tree::RootDir;
pub use handler::{Files, FilesSetup};
pub use unfollowed_links::{explain_unfollowed_link, find_unfollowed_links};
