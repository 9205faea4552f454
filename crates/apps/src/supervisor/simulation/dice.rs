//! Chance, the same for the same seed.

use super::*;

pub(super) fn random_policy(rng: &mut Rng) -> Policy {
    let processes_min = 1 + rng.below(3);
    let threads_min = 1 + rng.below(2);
    // Below, between and beyond the bounds.
    let first = [(0, 0), (2, 2), (9, 9)][rng.below(3)];
    Policy {
        processes_first: first.0,
        threads_first: first.1,
        processes_min,
        processes_max: processes_min + rng.below(4),
        threads_min,
        threads_max: threads_min + rng.below(4),
        max_surge: 1 + rng.below(3),
        max_unavailable: rng.below(3),
        spawn_rate: 1 + u32::try_from(rng.below(4)).unwrap(),
        up_after: Duration::from_millis(100),
        idle_ttl: rng.millis(500, 3000),
        boot_timeout: Duration::from_secs(2),
        stop_timeout: Duration::from_millis(500),
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(5),
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

    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least))
    }
}
