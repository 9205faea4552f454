//! The HTTP cache: stores responses of any [`Handler`] in memory and on several disks.
//!
//! For each request, `handler` asks `route_rules` whether the cache may serve it and under which
//! key, looks the key up in `store`, and asks `http`'s caching rules (RFC 9111) whether the stored
//! response may be sent. If not, one request goes to the back end's handler. Its response is
//! written to a `store` object that all waiting requests read while it grows. `penstock` starts one
//! [`Store`] for each `[caches.NAME]` and one [`CacheHandler`] for each route with a cache.
//!
//! # Invariants
//!
//! - A served response is byte for byte what a back end sent for that key.
//! - A stored object is complete or absent, however the process that wrote it ended.
//! - A disk that fails, fills up or stalls costs only its share of hits.
//! - Memory, disk space and waiting times are bounded.
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

pub use counters::{CACHED_ROUTE_METRICS, CacheCounters, CachedRoute};
pub use handler::CacheHandler;
pub use purge::{PurgeTarget, purge};
pub use store::{STORE_METRICS, Store, StoreCounts, StoreSnapshot, StoreState};
