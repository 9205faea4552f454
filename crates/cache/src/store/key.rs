//! What an object is found by, and what is known of it beside its body.
//!
//! `handler` makes both; `index` finds by them, `format` writes them to disk. What must stay true: a key
//! is its text, of which the hash is only the short form: whoever finds by hash compares the text, so
//! that no request ever gets what belongs to another one whose hash is the same.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::{FieldBlock, Status};
use twox_hash::xxhash3_128;

/// Integers that a [`ObjectMeta`] keeps for its maker: what the caching rules computed once.
pub(crate) const LIFETIME_WORDS: usize = 8;

/// What an object is found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectKey {
    /// XXH3-128 of the text: the same in every process, as files and shelves are found by it.
    pub(crate) hash: u128,
    /// `scheme://host/path?query`, then for each further part a NUL byte and the part. Purging knows the
    /// part before the first NUL.
    pub(crate) text: Arc<[u8]>,
}

impl ObjectKey {
    /// The key of this text.
    pub(crate) fn new(text: &[u8]) -> Self {
        Self {
            hash: xxhash3_128::Hasher::oneshot(text),
            text: text.into(),
        }
    }
}

/// What is known of a stored response beside its body. Small: one is in memory for each object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectMeta {
    /// The text of its key.
    pub(crate) key: Arc<[u8]>,
    /// Its status.
    pub(crate) status: Status,
    /// Its fields as they are to be sent, without the connection's own. Freeze the block: it is cloned for
    /// each use.
    pub(crate) fields: FieldBlock,
    /// The rules' verdict on it (`Lifetime`), as its maker encodes it.
    pub(crate) lifetime: [i64; LIFETIME_WORDS],
    /// When its request was sent, since the epoch. Kept to the microsecond.
    pub(crate) request_time: Duration,
    /// When its head came, since the epoch. Kept to the microsecond.
    pub(crate) response_time: Duration,
    /// Names of the request fields that select it (`Vary`), lower case, in order; none: it is the only variant.
    pub(crate) vary_names: Vec<String>,
    /// Those fields' values in the request that it answered, normalised. With the names it tells the
    /// variants of a key apart.
    pub(crate) variant: Vec<u8>,
    /// Its tags (surrogate keys).
    pub(crate) tags: Vec<String>,
    /// Bytes of its body; set by the store when the body is complete.
    pub(crate) length: u64,
    /// It has no body of its own: the content is stored in slices, as far as it is.
    pub(crate) slice_set: Option<SliceSet>,
}

/// What a content that is stored in slices is put together by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SliceSet {
    /// Tells its slices from those of all others; nobody else has it.
    pub(crate) id: u128,
    /// Bytes of the whole content.
    pub(crate) total_length: u64,
}

impl ObjectMeta {
    /// Whether one takes the place of the other.
    pub(crate) fn is_same_variant(&self, other: &Self) -> bool {
        self.vary_names == other.vary_names
            && self.variant == other.variant
            && self.key == other.key
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let names: usize = self
            .vary_names
            .iter()
            .chain(&self.tags)
            .map(|name| name.len() + 32)
            .sum();
        (self.key.len() + self.fields.as_bytes().len() + self.variant.len() + names + 384) as u64
    }
}
