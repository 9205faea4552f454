//! Purging: what is taken out of the stores on demand, by the command and the admin interface.

use std::sync::Arc;

use crate::store::{PurgeRule, Store};

/// What is to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeTarget {
    /// Every variant of one URL (`http://host/path?query`, or `/path?query` for every host).
    Url(String),
    /// Every URL that begins so.
    Prefix(String),
    /// Every response with this tag (surrogate key).
    Tag(String),
    /// Everything.
    All,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurgeOutcome {
    /// Objects taken out, one that clients get while it is on its way in with them. What was only asked for
    /// and what a store has not read back yet is not counted, and not served either.
    pub removed_objects: u64,
}

/// Takes out of `stores` what `purge` says. From its return on nothing of it is served any more (what is
/// being sent goes on). Looks at every object in memory, about 50 ms for a million; waits for no disk.
pub fn purge(stores: &[Arc<Store>], purge: &PurgeTarget) -> PurgeOutcome {
    let rule = match purge {
        PurgeTarget::Url(url) => PurgeRule::Url(url.clone()),
        PurgeTarget::Prefix(prefix) => PurgeRule::Prefix(prefix.clone()),
        PurgeTarget::Tag(tag) => PurgeRule::Tag(tag.clone()),
        PurgeTarget::All => PurgeRule::All,
    };
    PurgeOutcome {
        removed_objects: stores.iter().map(|store| store.purge(&rule)).sum(),
    }
}
