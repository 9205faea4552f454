//! Static files: serves a directory as a [`Handler`], and passes other requests to the next
//! handler.
//!
//! `file_cache` answers paths checked within the last second without a system call. Otherwise
//! `resolve` turns the path into candidates, and `file_tree` opens them: on the event loop if the
//! kernel has them in memory, else in a blocking pool. `file_entry` selects the content coding,
//! `compressor` compresses on demand, and `reply` decides between 200, 206, 304, 412 and 416.
//! `hide_patterns` hides names, `file_header_rules` and `description` set the fields, and `listing`
//! builds directory pages. `penstock` creates one [`FilesHandler`] for each `files = { ... }` of a
//! route.
//!
//! # Invariants
//!
//! - Nothing outside the root is opened, whatever the path or symbolic links.
//! - Hidden files are not served.
//! - An event loop never waits for a disk.
//! - Memory is bounded.
//! - A change on disk is visible within about a second.
//!
//! [`Handler`]: penstock_exchange::Handler

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::print_stderr,
        reason = "tests may wait for a disk, and report skipped checks"
    )
)]

mod compressor;
mod description;
mod file_cache;
mod file_entry;
mod file_header_rules;
mod file_tree;
mod handler;
mod hide_patterns;
mod listing;
mod logged_names;
mod reply;
mod resolve;
#[cfg(test)]
mod test_support;
mod unfollowed_links;
mod unreadable_files;

pub use file_tree::RootDir;
pub use handler::{FilesHandler, FilesSetup};
pub use unfollowed_links::{explain_unfollowed_link, find_unfollowed_links};
