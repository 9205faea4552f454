//! Purges of caches for the admin API.
//!
//! # Invariants
//! - A purge runs on a thread of its own pool, which no disk can block.

use std::sync::Arc;

use penstock_cache::{PurgeTarget, Store};
use penstock_runtime::blocking::Pool;
use penstock_status::{ChangeError, PurgeRequest};

use crate::caches::Caches;

/// The pool of purges. Searching a large index takes too long for the control loop, and the
/// configured pools may be waiting for the failing disk.
pub(super) fn purge_pool() -> Pool {
    Pool::new("purges", 1, MAX_QUEUED_PURGES)
}

/// The limit on waiting purges.
const MAX_QUEUED_PURGES: usize = 1024;

/// Purges `caches` and returns the number of objects.
pub(super) async fn purge(
    pool: Pool,
    caches: Caches,
    wanted: PurgeRequest,
) -> Result<u64, ChangeError> {
    let description = describe_purge(&wanted);
    let stores: Vec<Arc<Store>> = match wanted.cache {
        None => caches.into_values().collect(),
        Some(name) => match caches.get(&name) {
            Some(store) => vec![Arc::clone(store)],
            None => {
                let text = format!("there is no cache named {name}");
                return Err(ChangeError::not_found(text));
            }
        },
    };
    let purged = pool.run(move || penstock_cache::purge(&stores, &wanted.target));
    let purged = purged
        .await
        .map_err(|error| ChangeError::unavailable(error.to_string()))?;
    // A purge explains a later load on the back end.
    log::info!("admin: cache purge: {description} (objects={purged})");
    Ok(purged)
}

/// Describes a purge for the log.
fn describe_purge(wanted: &PurgeRequest) -> String {
    let what = match &wanted.target {
        PurgeTarget::Url(url) => format!("url {url:?}"),
        PurgeTarget::Prefix(prefix) => format!("prefix {prefix:?}"),
        PurgeTarget::Tag(tag) => format!("tag {tag:?}"),
        PurgeTarget::All => "all".to_owned(),
    };
    match &wanted.cache {
        Some(name) => format!("purge of {what} in {name:?}"),
        None => format!("purge of {what}"),
    }
}
