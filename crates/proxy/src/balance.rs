//! Which server gets the next request, among those that may have it.
//!
//! The claim gathers a [`Candidate`] for each server that takes requests (backups only when no other
//! does) and asks the upstream's [`Balancer`] under the same short lock that then claims the place.
//! Pure: no clock, and random numbers from a seed. The work is one or two passes over the candidates
//! without allocation. What must stay true: a server without room is never chosen, one with room
//! always is when there is any; shares follow weight times ramp; a key moves only when its own server
//! came, went, or has far more than its share. The line for those who find nothing is `queue`'s.

mod hash;

use std::cmp::Ordering;

pub(crate) use hash::hash_key;

/// How a server is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BalancePolicy {
    /// The fewest in progress for its share; then one with an idle connection on this loop, then one
    /// with any, then the last used.
    IdleFirst,
    /// In turn, by shares.
    RoundRobin,
    /// The fewest in progress for its share; those that are level in turn.
    LeastActive,
    /// The less busy of two drawn by shares.
    RandomTwo,
    /// The same server for the same key, while it has less than 1.25 times its share in progress.
    Hash,
}

/// One server as the choice sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// What `choose` answers with: a small number, the server's own while it is there.
    pub(crate) index: usize,
    /// What `hash` knows the server by, `hash_key` of its address: the same in every process, and not
    /// another's when servers come and go.
    pub(crate) name_hash: u64,
    /// Its share against the others'; one with 0 is never chosen.
    pub(crate) weight: u32,
    /// Requests in progress.
    pub(crate) active: u32,
    /// How many it may have in progress.
    pub(crate) capacity: u32,
    /// Whether this loop has an idle connection to it.
    pub(crate) has_idle_on_this_loop: bool,
    /// Whether any loop has.
    pub(crate) has_idle: bool,
    /// Grows with each use of any server; 0 is never used.
    pub(crate) last_used: u64,
    /// How much of its weight counts, in thousandths: less than 1000 for one that came back lately.
    pub(crate) slow_start_permille: u16,
}

/// Chooses by one policy, with what must be remembered from choice to choice.
#[derive(Debug)]
pub(crate) struct Balancer {
    policy: BalancePolicy,
    random_state: u64,
    /// By server: how far behind its share it is, in the smooth weighted round robin.
    round_robin_credit: Vec<i64>,
}

impl Balancer {
    /// A balancer whose choices are the same for the same seed and candidates.
    pub(crate) const fn new(policy: BalancePolicy, seed: u64) -> Self {
        Self {
            policy,
            random_state: seed,
            round_robin_credit: Vec::new(),
        }
    }

    /// The index of the server that gets the next request; none when no candidate has room.
    ///
    /// For `Hash` the candidates must be all servers that take requests, the full ones too: they count
    /// in the average, and their keys go elsewhere only while they are full. Without a key one is drawn.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], key: Option<u64>) -> Option<usize> {
        match self.policy {
            BalancePolicy::IdleFirst => idle_first(candidates),
            BalancePolicy::RoundRobin => self.round_robin(candidates, |_| true),
            BalancePolicy::LeastActive => self.least_active(candidates),
            BalancePolicy::RandomTwo => self.random_two(candidates),
            BalancePolicy::Hash => {
                let key = key.unwrap_or_else(|| self.next_random());
                hash::choose(candidates, key)
            }
        }
    }

    /// Smooth weighted round robin, as nginx has it: everybody gains its share, the first in front
    /// pays for all. So a heavy server's turns are spread among the others' and do not come in a row.
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

    fn least_active(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let least = with_free_slot(candidates).min_by(|a, b| compare_load(a, b))?;
        self.round_robin(candidates, |c| compare_load(c, least).is_eq())
    }

    fn random_two(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let one = self.draw_weighted(with_free_slot(candidates))?;
        let others = with_free_slot(candidates).filter(|c| c.index != one.index);
        let Some(other) = self.draw_weighted(others) else {
            return Some(one.index);
        };
        let chosen = if compare_load(other, one).is_lt() {
            other
        } else {
            one
        };
        Some(chosen.index)
    }

    fn draw_weighted<'a>(
        &mut self,
        candidates: impl Iterator<Item = &'a Candidate> + Clone,
    ) -> Option<&'a Candidate> {
        let total: u64 = candidates.clone().map(Candidate::share).sum();
        // The upper half of a product: no division, no visible bias, and always below the total.
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

    /// The next random number: a counter that is well mixed (splitmix64).
    fn next_random(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash::mix_bits(self.random_state)
    }
}

impl Candidate {
    /// What its weight comes to now, in thousandths: a ramp that has just begun leaves it a little.
    fn share(&self) -> u64 {
        let ramp = u64::from(self.slow_start_permille.clamp(1, 1000));
        u64::from(self.weight) * ramp
    }
}

fn with_free_slot(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> + Clone {
    let has_room = |c: &&Candidate| c.active < c.capacity && c.weight > 0;
    candidates.iter().filter(has_room)
}

/// Less is the one with fewer in progress for its share.
fn compare_load(a: &Candidate, b: &Candidate) -> Ordering {
    let of_a = u128::from(a.active) * u128::from(b.share());
    let of_b = u128::from(b.active) * u128::from(a.share());
    of_a.cmp(&of_b)
}

fn idle_first(candidates: &[Candidate]) -> Option<usize> {
    let warmth = |c: &Candidate| (c.has_idle_on_this_loop, c.has_idle, c.last_used);
    let best = with_free_slot(candidates)
        .min_by(|a, b| compare_load(a, b).then_with(|| warmth(b).cmp(&warmth(a))));
    best.map(|c| c.index)
}

#[cfg(test)]
mod tests;
