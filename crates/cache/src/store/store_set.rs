//! The stores of one route, and the assignment of keys to them.
//!
//! Weighted rendezvous hashing: every store gets a score for the key, weighted by its `max_size`,
//! and the highest score has the key.
//!
//! # Invariants
//!
//! - Only the key and the stores' names and sizes decide. So the assignment survives a restart, all
//!   variants of a key share a store, and adding or removing a store moves no key between the
//!   others.
//! - A store that is out of service keeps its keys: their requests go to the back end, and the
//!   other stores are unaffected.

use std::sync::Arc;

use super::{ObjectKey, Store};

#[derive(Debug)]
pub(crate) struct StoreSet {
    stores: Vec<Arc<Store>>,
    /// The stores' name hashes and weights, in order.
    weights: Vec<(u64, f64)>,
}

impl StoreSet {
    pub(crate) fn new(stores: Vec<Arc<Store>>) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a weight: rounding above 2^53 bytes moves hardly any key"
        )]
        let weights = stores
            .iter()
            .map(|store| {
                let name = twox_hash::XxHash3_64::oneshot(store.config().name.as_bytes());
                (name, store.config().max_size.max(1) as f64)
            })
            .collect();
        Self { stores, weights }
    }

    /// The store of `key`. `None` while it is out of service: the request goes to the back end, and
    /// nothing is stored.
    pub(crate) fn store_for(&self, key: &ObjectKey) -> Option<&Arc<Store>> {
        let store = match &self.stores[..] {
            [only] => only,
            stores => stores.get(choose_store(key.hash, &self.weights)?)?,
        };
        store.is_working().then_some(store)
    }

    pub(crate) fn stores(&self) -> &[Arc<Store>] {
        &self.stores
    }
}

/// The index with the highest score `-weight / ln(u)`, with `u` uniform in (0, 1) from key and
/// name.
fn choose_store(hash: u128, weights: &[(u64, f64)]) -> Option<usize> {
    let score = |(name, weight): &(u64, f64)| {
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let mixed = mix_bits((hash as u64) ^ mix_bits(((hash >> 64) as u64) ^ name));
        #[expect(clippy::cast_precision_loss, reason = "a 53-bit value")]
        let uniform = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -weight / uniform.ln()
    };
    let scores = weights.iter().map(score).enumerate();
    scores
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(index, _)| index)
}

/// SplitMix64's finaliser: every input bit affects every output bit.
fn mix_bits(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
