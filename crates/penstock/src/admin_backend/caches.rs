//! Caches as the admin interface sees and empties them: `cache`'s words in `status`'s, and back.
//!
//! Called by `source`, for each snapshot and for each purge that is asked for. What must stay true: a
//! purge is done on a thread of its own pool, which no disk can hold up, and says what it did.

use std::sync::Arc;

use penstock_cache::{PurgeTarget, Store, StoreSnapshot, StoreState};
use penstock_runtime::blocking::Pool;
use penstock_status::{
    CacheCounters, CacheStatus, CachedRouteStatus, PurgeError, PurgeRequest, PurgeSelector, TimeSum,
};

use crate::caches::{CachedRoute, Caches};

/// The pool that purges run in. Looking through a large index takes a while, and the control loop has
/// workers to look after; the pools of the configuration may wait for the very disk that is ill.
pub(super) fn purge_pool() -> Pool {
    Pool::new("purges", 1, MAX_QUEUED_PURGES)
}

/// How many purges may wait: they come from people and from scripts that publish, one at a time.
const MAX_QUEUED_PURGES: usize = 1024;

/// Takes out of `caches` what is wanted; the number of objects.
pub(super) async fn purge(
    pool: Pool,
    caches: Caches,
    wanted: PurgeRequest,
) -> Result<u64, PurgeError> {
    let said = describe_purge(&wanted);
    let stores: Vec<Arc<Store>> = match wanted.cache {
        None => caches.into_values().collect(),
        Some(name) => match caches.get(&name) {
            Some(store) => vec![Arc::clone(store)],
            None => return Err(PurgeError::UnknownCache(name)),
        },
    };
    let what = purge_target(wanted.selector);
    let purged = pool.run(move || penstock_cache::purge(&stores, &what));
    let purged = purged
        .await
        .map_err(|error| PurgeError::Rejected(error.to_string()))?;
    // Whoever reads the log later must see why the back end had more to do.
    log::info!(
        "admin: cache purge: {said} (objects={})",
        purged.removed_objects
    );
    Ok(purged.removed_objects)
}

/// The wish as the log says it.
fn describe_purge(wanted: &PurgeRequest) -> String {
    let what = match &wanted.selector {
        PurgeSelector::Url(url) => format!("url {url:?}"),
        PurgeSelector::Prefix(prefix) => format!("prefix {prefix:?}"),
        PurgeSelector::Tag(tag) => format!("tag {tag:?}"),
        PurgeSelector::All => "all".to_owned(),
    };
    match &wanted.cache {
        Some(name) => format!("purge of {what} in {name:?}"),
        None => format!("purge of {what}"),
    }
}

fn purge_target(what: PurgeSelector) -> PurgeTarget {
    match what {
        PurgeSelector::Url(url) => PurgeTarget::Url(url),
        PurgeSelector::Prefix(prefix) => PurgeTarget::Prefix(prefix),
        PurgeSelector::Tag(tag) => PurgeTarget::Tag(tag),
        PurgeSelector::All => PurgeTarget::All,
    }
}

/// A cache in the words of `status`.
pub(super) fn cache_status(usage: StoreSnapshot) -> CacheStatus {
    let (state, reason) = match usage.state {
        StoreState::Working => ("working", None),
        StoreState::Recovering => ("recovering", None),
        StoreState::OutOfService { reason } => ("out_of_service", Some(reason)),
    };
    let counters = CacheCounters {
        hits: usage.hits,
        misses: usage.misses,
        stores: usage.stored,
        evictions: usage.evicted,
        purged_objects: usage.purged,
        errors: usage.errors,
    };
    CacheStatus {
        name: usage.name,
        path: usage.path.map(|path| path.display().to_string()),
        state: state.to_owned(),
        reason,
        objects: usage.objects,
        bytes: usage.bytes,
        max_bytes: usage.max_bytes,
        memory_objects: usage.memory_objects,
        memory_bytes: usage.memory_bytes,
        max_memory_bytes: usage.max_memory,
        counters,
        hit_ratio: counters.hit_ratio(),
        read_time: TimeSum::new(usage.reads, usage.read_time),
        write_time: TimeSum::new(usage.writes, usage.write_time),
    }
}

/// A route with caches in the words of `status`.
pub(super) fn cached_route_status(route: &CachedRoute) -> CachedRouteStatus {
    let counters = route.total_counters();
    CachedRouteStatus {
        name: route.name.clone(),
        caches: route.caches.clone(),
        counters,
        hit_ratio: counters.hit_ratio(),
    }
}
