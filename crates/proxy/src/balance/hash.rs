//! Maps keys to servers: rendezvous hashing with bounded loads, used by `balance`.
//!
//! Each server gets a score from the key and its own name; the highest score in relation to its
//! share wins. There is no table to rebuild: a new server takes only the keys for which it scores
//! highest, and a removed server leaves each key to the next. If the winner has more than 1.25
//! times its share of all active requests, the next server gets the request ("Consistent Hashing
//! with Bounded Loads", Mirrokni et al.). Costs one logarithm per server, well below a microsecond
//! for dozens.
//!
//! # Invariants
//!
//! - `hash_key` returns the same number in every process and version, so that several front ends
//!   agree.

use super::{Candidate, with_free_slot};

/// Hashes a key or a server name. Not secret; it only spreads.
pub(crate) fn hash_key(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The length distinguishes the padding of the last word.
    let mut hash = bytes.len() as u64;
    for word in words.iter().chain([&last]) {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^= hash >> 32;
    }
    mix_bits(hash)
}

/// The server for this key: the highest score with a free slot and below the bound, else the
/// highest with a free slot.
pub(super) fn choose(candidates: &[Candidate], key: u64) -> Option<usize> {
    let mut load = TotalLoad {
        active: 1,
        share: 0,
    };
    for candidate in candidates {
        load.active += u64::from(candidate.active);
        load.share += candidate.share();
    }
    let rank = |c: &Candidate| (load.is_within_bound(c), score(c, key));
    let mut best: Option<(&Candidate, (bool, f64))> = None;
    for candidate in with_free_slot(candidates) {
        let rank = rank(candidate);
        if best.is_none_or(|(_, highest)| rank > highest) {
            best = Some((candidate, rank));
        }
    }
    best.map(|(candidate, _)| candidate.index)
}

/// Mixes bits: each input bit changes half of the output bits (splitmix64's finaliser).
pub(super) fn mix_bits(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Sums over all candidates, including the request to be placed.
struct TotalLoad {
    active: u64,
    share: u64,
}

impl TotalLoad {
    /// Whether the server, with this request, has at most 1.25 times its share, rounded up.
    fn is_within_bound(&self, candidate: &Candidate) -> bool {
        let has = 4 * u128::from(candidate.active) * u128::from(self.share);
        has < 5 * u128::from(self.active) * u128::from(candidate.share())
    }
}

/// The highest of the scores -share / ln(u), with u drawn evenly, is each server's in proportion to
/// its share.
fn score(candidate: &Candidate, key: u64) -> f64 {
    let drawn = mix_bits(key ^ candidate.name_hash) >> 11;
    let even = (drawn as f64 + 0.5) / (1_u64 << 53) as f64;
    candidate.share() as f64 / -even.ln()
}
