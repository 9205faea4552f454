//! The HTTP cache: stored responses in front of any [`Handler`], in memory and over several disks.
//!
//! The way of a request: `handler` asks `rules` whether the cache may know of it at all and what its key
//! is, `store` what it holds under that key, and `http`'s caching rules (RFC 9111) whether that may be
//! sent. If not, one request goes to the handler behind, whose response is read into a `store` object
//! that all who wait for it read from while it grows. `penstock`'s wiring starts one [`Store`] for
//! each `[caches.NAME]` and makes one [`Cache`] for each route that names some.
//!
//! What must stay true: what is served is byte for byte what a back end answered for that very key; an
//! object is whole or not there, whatever ended the process that wrote it; a disk that fails, fills or
//! stalls costs its share of hits and nothing else; memory, disks and waiting are bounded.
//!
//! [`Handler`]: penstock_exchange::Handler

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may wait for a disk")
)]

mod backend_request;
mod coalesced_fetch;
mod counters;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod purge;
mod route_rules;
mod serve;
mod slices;
mod store;
#[cfg(test)]
mod testing;

pub use counters::CacheCounters;
pub use handler::Cache;
pub use purge::{PurgeOutcome, PurgeTarget, purge};
pub use store::{Store, StoreSnapshot, StoreState};
