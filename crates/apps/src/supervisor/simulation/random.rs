//! Chance, the same for the same seed.

use super::*;

pub(super) fn random_policy(rng: &mut Rng) -> SupervisorPolicy {
    let processes_min = 1 + rng.below(3);
    let threads_min = 1 + rng.below(2);
    // Below, between and beyond the bounds.
    let first = [(0, 0), (2, 2), (9, 9)][rng.below(3)];
    SupervisorPolicy {
        initial_processes: first.0,
        initial_threads: first.1,
        min_processes: processes_min,
        max_processes: processes_min + rng.below(4),
        min_threads: threads_min,
        max_threads: threads_min + rng.below(4),
        max_surge: 1 + rng.below(3),
        max_unavailable: rng.below(3),
        spawn_rate: 1 + u32::try_from(rng.below(4)).unwrap(),
        scale_up_after: Duration::from_millis(100),
        scale_down_after: rng.random_millis(500, 3000),
        boot_timeout: Duration::from_secs(2),
        stop_timeout: Duration::from_millis(500),
        min_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(5),
    }
}

/// xorshift64*: enough disorder for a test, and the same on every machine.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }

    pub(super) fn random_millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least))
    }
}
