//! Counters of a route's cache, updated by `handler` and the modules it calls, and shown by the
//! status page.

use penstock_exchange::metrics::Counter;

/// Counters of one route's cache. Each request that may use the cache counts once, as one of
/// `hits`, `stale`, `revalidated`, `collapsed`, `misses` and `bypassed`.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Answered with a fresh stored response.
    pub hits: Counter,
    /// Answered with a stale response, during its revalidation or after a failure of the back end.
    pub stale: Counter,
    /// Answered with a stored response that the back end confirmed.
    pub revalidated: Counter,
    /// Answered with the result of another request's fetch.
    pub collapsed: Counter,
    /// Answered by the back end.
    pub misses: Counter,
    /// Bypassed the cache: methods, bypass rules, a disk out of service, responses that are not
    /// stored.
    pub bypassed: Counter,
    /// Failed fetches: no response, or a truncated one.
    pub fetch_failures: Counter,
    /// Responses written to a store.
    pub stored: Counter,
    /// Body bytes sent from a store.
    pub served_bytes: Counter,
}
