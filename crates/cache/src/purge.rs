//! Purging: removes objects from the stores on request of the command line and the admin interface.

use std::sync::Arc;

use crate::store::{PurgeRule, Store};

/// Which objects to purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeTarget {
    /// Every variant of one URL (`http://host/path?query`, or `/path?query` for every host).
    Url(String),
    /// Every URL with this prefix.
    Prefix(String),
    /// Every response with this tag (surrogate key).
    Tag(String),
    /// Everything.
    All,
}

/// Removes the matching objects from `stores`. After the return none of them is served any more;
/// responses being sent continue. Scans every object in memory, about 50 ms for a million, and
/// waits for no disk.
///
/// Returns the number of objects removed, including a partial object that clients read. Fetches
/// without a response yet and objects that a store has not yet read back from disk are not counted,
/// and not served either.
pub fn purge(stores: &[Arc<Store>], purge: &PurgeTarget) -> u64 {
    let rule = match purge {
        PurgeTarget::Url(url) => PurgeRule::Url(url.clone()),
        PurgeTarget::Prefix(prefix) => PurgeRule::Prefix(prefix.clone()),
        PurgeTarget::Tag(tag) => PurgeRule::Tag(tag.clone()),
        PurgeTarget::All => PurgeRule::All,
    };
    stores.iter().map(|store| store.purge(&rule)).sum()
}
