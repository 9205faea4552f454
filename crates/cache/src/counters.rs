//! What caches did with requests: counted by `handler` and what is below it, shown by the status.
//!
//! One set for each route's cache. Plain counters: nobody decides by them.

use penstock_exchange::metrics::Counter;

/// What the cache of one route did. Each request that may use the cache counts once as one of `hits`, `stale`,
/// `validated`, `collapsed`, `misses` and `passed`.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Answered from what is stored, fresh.
    pub hits: Counter,
    /// Answered with what is stale: while it is revalidated, or because the back end failed.
    pub stale: Counter,
    /// Answered from what is stored after the back end said that it is still current.
    pub revalidated: Counter,
    /// Answered with what another request brought.
    pub collapsed: Counter,
    /// Answered by the back end.
    pub misses: Counter,
    /// Not for the cache: methods, bypass rules, a disk that is out, responses that are not stored.
    pub bypassed: Counter,
    /// Fetches that failed: no response, or one that ended too early.
    pub fetch_failures: Counter,
    /// Responses that went into a store.
    pub stored: Counter,
    /// Bytes of bodies that came from a store.
    pub served_bytes: Counter,
}
