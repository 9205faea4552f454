//! The counters of the caches of a route, as `/status.json` and `/metrics` show them.

use std::sync::Arc;

use penstock_exchange::metric_table;
use penstock_exchange::metrics::{Counter, MetricValue};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Counters of one route's cache. Each request that may use the cache counts once, as one of
/// `hits`, `stale`, `revalidated`, `collapsed`, `misses` and `bypassed`.
#[derive(Debug, Default, Serialize)]
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
    #[serde(rename = "stores")]
    pub stored: Counter,
    /// Body bytes sent from a store.
    pub served_bytes: Counter,
}

/// A route with caches.
#[derive(Debug, Clone)]
pub struct CachedRoute {
    /// Its hosts (`*` for all) and its path.
    pub name: String,
    /// The names of its caches.
    pub caches: Vec<String>,
    /// Its counters. A reload keeps them.
    pub counters: Arc<CacheCounters>,
}

impl CacheCounters {
    /// The share of requests that were served from a cache; `None` without any.
    fn hit_ratio(&self) -> Option<f64> {
        let hits = [&self.hits, &self.stale, &self.revalidated, &self.collapsed];
        hit_ratio(hits.map(Counter::value).iter().sum(), self.misses.value())
    }
}

impl Serialize for CachedRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut json = serializer.serialize_struct("CachedRoute", 4)?;
        json.serialize_field("name", &self.name)?;
        json.serialize_field("caches", &self.caches)?;
        json.serialize_field("counters", &*self.counters)?;
        json.serialize_field("hit_ratio", &self.counters.hit_ratio())?;
        json.end()
    }
}

/// The share of hits; `None` without look-ups.
#[expect(clippy::cast_precision_loss, reason = "a ratio to show")]
pub(crate) fn hit_ratio(hits: u64, misses: u64) -> Option<f64> {
    let lookups = hits + misses;
    (lookups > 0).then(|| hits as f64 / lookups as f64)
}

metric_table! {
    /// Metrics of a route with caches, labelled `route`.
    pub static CACHED_ROUTE_METRICS: |route: CachedRoute| {
        counter route_cache_requests_total = MetricValue::by_label("result", [
            ("hit", route.counters.hits.value()),
            ("stale", route.counters.stale.value()),
            ("revalidated", route.counters.revalidated.value()),
            ("collapsed", route.counters.collapsed.value()),
            ("miss", route.counters.misses.value()),
            ("bypassed", route.counters.bypassed.value()),
        ]), "Requests of routes with caches, by result.";
        counter route_cache_fetch_failures_total = route.counters.fetch_failures.value(),
            "Fetches from the origin that failed.";
        counter route_cache_stores_total = route.counters.stored.value(), "Responses stored.";
        counter route_cache_served_bytes_total = route.counters.served_bytes.value(),
            "Body bytes served from a cache.";
    }
}
