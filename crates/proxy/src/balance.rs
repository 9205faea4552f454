//! Chooses the server for the next request among those that may serve it.
//!
//! The claim gathers one [`Candidate`] per server that accepts requests (backups only when no other
//! server does) and asks the upstream's [`Balancer`] under the short lock that also claims the
//! slot. Pure: no clock, and random numbers come from a seed. One or two passes over the
//! candidates, without allocation. Requests that find no server wait in `queue`.
//!
//! # Invariants
//!
//! - A server without a free slot is never chosen. If any server has one, a server is chosen.
//! - Shares follow weight times slow start.
//! - A key moves only when its own server is added, removed, or far above its share.

mod hash;

use std::cmp::Ordering;

use penstock_config::Balance;

pub(crate) use hash::hash_key;

/// A server's data for the choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// The value that `choose` returns: small, and stable while the server exists.
    pub(crate) index: usize,
    /// `hash_key` of the server's name, for `Hash`: the same in every process, and independent
    /// of other servers.
    pub(crate) name_hash: u64,
    /// Relative share; a server with weight 0 is never chosen.
    pub(crate) weight: u32,
    pub(crate) active: u32,
    /// Maximum active requests.
    pub(crate) max_active: u32,
    pub(crate) has_idle_connection_on_this_loop: bool,
    /// Whether any loop has an idle connection to the server.
    pub(crate) has_idle_connection: bool,
    /// Increases with each use of any server; 0 means never used.
    pub(crate) last_used: u64,
    /// The part of the weight that counts, in thousandths: below 1000 during slow start.
    pub(crate) slow_start_permille: u16,
}

/// Chooses by one method and keeps the state between choices.
#[derive(Debug)]
pub(crate) struct Balancer {
    method: Balance,
    random_state: u64,
    /// Per server: the credit of the smooth weighted round robin.
    round_robin_credit: Vec<i64>,
}

impl Balancer {
    /// Creates a balancer. The same seed and candidates give the same choices.
    pub(crate) const fn new(method: Balance, seed: u64) -> Self {
        Self {
            method,
            random_state: seed,
            round_robin_credit: Vec::new(),
        }
    }

    /// Returns the index of the server for the next request; `None` when no candidate has a free
    /// slot.
    ///
    /// For `Hash`, pass all servers that accept requests, including full ones: they count in the
    /// average, and their keys move only while they are full. Without a key, a server is drawn at
    /// random.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], key: Option<u64>) -> Option<usize> {
        match self.method {
            Balance::IdleFirst => idle_first(candidates),
            Balance::RoundRobin => self.round_robin(candidates, |_| true),
            Balance::LeastActive => self.least_active(candidates),
            Balance::RandomTwo => self.random_two(candidates),
            Balance::Hash => {
                let key = key.unwrap_or_else(|| self.next_random());
                hash::choose(candidates, key)
            }
        }
    }

    /// Smooth weighted round robin, as in nginx: every server gains its share and the chosen one
    /// pays the total. A heavy server's turns are spread among the others'.
    fn round_robin(
        &mut self,
        candidates: &[Candidate],
        is_wanted: impl Fn(&Candidate) -> bool,
    ) -> Option<usize> {
        let mut total = 0_i64;
        let mut best: Option<(i64, usize)> = None;
        for candidate in with_free_slot(candidates).filter(|c| is_wanted(c)) {
            let index = candidate.index;
            if self.round_robin_credit.len() <= index {
                self.round_robin_credit.resize(index + 1, 0);
            }
            let share = i64::try_from(candidate.share()).unwrap_or(i64::MAX);
            let turn = self.round_robin_credit[index].saturating_add(share);
            self.round_robin_credit[index] = turn;
            total = total.saturating_add(share);
            if best.is_none_or(|(most, _)| turn > most) {
                best = Some((turn, index));
            }
        }
        let (turn, index) = best?;
        self.round_robin_credit[index] = turn.saturating_sub(total);
        Some(index)
    }

    /// The fewest active requests for its share; ties in turn.
    fn least_active(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let least = with_free_slot(candidates).min_by(|a, b| compare_load(a, b))?;
        self.round_robin(candidates, |c| compare_load(c, least).is_eq())
    }

    /// The less loaded of two servers drawn by share.
    fn random_two(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let one = self.draw_weighted(with_free_slot(candidates))?;
        let others = with_free_slot(candidates).filter(|c| c.index != one.index);
        let other = self.draw_weighted(others);
        let chosen = other
            .filter(|other| compare_load(other, one).is_lt())
            .unwrap_or(one);
        Some(chosen.index)
    }

    fn draw_weighted<'a>(
        &mut self,
        candidates: impl Iterator<Item = &'a Candidate> + Clone,
    ) -> Option<&'a Candidate> {
        let total: u64 = candidates.clone().map(Candidate::share).sum();
        // The upper half of the product: no division, no visible bias, always below the total.
        let mut left = (u128::from(self.next_random()) * u128::from(total)) >> 64;
        for candidate in candidates {
            let share = u128::from(candidate.share());
            if left < share {
                return Some(candidate);
            }
            left -= share;
        }
        None
    }

    /// Returns the next random number: a mixed counter (splitmix64).
    fn next_random(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash::mix_bits(self.random_state)
    }
}

impl Candidate {
    /// The effective weight in thousandths; never 0 at the beginning of slow start.
    fn share(&self) -> u64 {
        let ramp = u64::from(self.slow_start_permille.clamp(1, 1000));
        u64::from(self.weight) * ramp
    }
}

fn with_free_slot(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> + Clone {
    let has_room = |c: &&Candidate| c.active < c.max_active && c.weight > 0;
    candidates.iter().filter(has_room)
}

/// Orders by active requests in relation to share.
fn compare_load(a: &Candidate, b: &Candidate) -> Ordering {
    let of_a = u128::from(a.active) * u128::from(b.share());
    let of_b = u128::from(b.active) * u128::from(a.share());
    of_a.cmp(&of_b)
}

/// The fewest active requests for its share; then a server with an idle connection on this loop,
/// then on any loop, then the most recently used.
fn idle_first(candidates: &[Candidate]) -> Option<usize> {
    let reuse_rank = |c: &Candidate| {
        (
            c.has_idle_connection_on_this_loop,
            c.has_idle_connection,
            c.last_used,
        )
    };
    let best = with_free_slot(candidates)
        .min_by(|a, b| compare_load(a, b).then_with(|| reuse_rank(b).cmp(&reuse_rank(a))));
    best.map(|c| c.index)
}

#[cfg(test)]
mod tests;
