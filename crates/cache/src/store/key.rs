//! Keys and metadata of stored objects. `handler` creates both; `tier` finds objects by the key,
//! and `format` writes the metadata to disk.
//!
//! # Invariants
//!
//! - A key is its text. A look-up by hash also compares the text, so that no request gets an object
//!   of another key with the same hash.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::caching::Lifetime;
use penstock_http::{FieldBlock, Status};
use twox_hash::xxhash3_128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectKey {
    /// XXH3-128 of the text. The same in every process: files and stores are chosen by it.
    pub(crate) hash: u128,
    /// `scheme://host/path?query`, then for each further part a NUL byte and the part. Purges match
    /// the text before the first NUL.
    pub(crate) text: Arc<[u8]>,
}

impl ObjectKey {
    pub(crate) fn new(text: &[u8]) -> Self {
        Self {
            hash: xxhash3_128::Hasher::oneshot(text),
            text: text.into(),
        }
    }
}

/// A stored response's metadata. Small: one is in memory for each object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectMeta {
    pub(crate) key: Arc<[u8]>,
    pub(crate) status: Status,
    /// The fields as they are sent, without hop-by-hop fields. Freeze the block: it is cloned for
    /// each use.
    pub(crate) fields: FieldBlock,
    pub(crate) lifetime: Lifetime,
    /// When the request was sent, since the epoch. Stored in microseconds.
    pub(crate) request_time: Duration,
    /// When the response head arrived, since the epoch. Stored in microseconds.
    pub(crate) response_time: Duration,
    /// Names of the request fields that select the response (`Vary`), lower case, in order. Empty:
    /// it is the only variant.
    pub(crate) vary_names: Vec<String>,
    /// The normalised values of those fields in the answered request. Names and values identify the
    /// variant of a key.
    pub(crate) variant: Vec<u8>,
    pub(crate) tags: Vec<String>,
    /// Length of the body, set by the store when the body is complete.
    pub(crate) length: u64,
    /// Set for a slice index, which has no body of its own.
    pub(crate) slice_set: Option<SliceSet>,
}

/// Identifies the slices of one content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SliceSet {
    /// Unique to this content.
    pub(crate) id: u128,
    pub(crate) total_length: u64,
}

impl ObjectMeta {
    /// Whether one replaces the other.
    pub(crate) fn is_same_variant(&self, other: &Self) -> bool {
        self.vary_names == other.vary_names
            && self.variant == other.variant
            && self.key == other.key
    }

    /// Approximate memory use in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let names = self.vary_names.iter().chain(&self.tags);
        let names: usize = names.map(|name| name.len() + 32).sum();
        (self.key.len() + self.fields.as_bytes().len() + self.variant.len() + names + 384) as u64
    }
}
