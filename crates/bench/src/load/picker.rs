//! Chooses the next request: in sequence, or drawn by weight.
//!
//! A [`RequestPicker`] belongs to one load on one event loop and has its own random numbers, seeded
//! by the loop's number so that a run can be repeated. The sequence is shared by all loops, hence
//! the shared counter.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Load, RequestOrder};

/// Draws the next request of a load.
#[derive(Debug)]
pub(super) struct RequestPicker {
    order: RequestOrder,
    count: usize,
    /// Cumulative weights; empty if all are equal.
    cumulative_weights: Vec<u64>,
    random: u64,
}

impl RequestPicker {
    pub(super) fn new(load: &Load, seed: u64) -> Self {
        let weights = || load.requests.iter().map(|shape| shape.weight);
        let first = weights().next().unwrap_or(1);
        let mut sum = 0;
        let sums: Vec<u64> = weights()
            .map(|weight| {
                sum += u64::from(weight);
                sum
            })
            .collect();
        let is_even = weights().all(|weight| weight == first);
        Self {
            order: load.order,
            count: load.requests.len(),
            cumulative_weights: if is_even { Vec::new() } else { sums },
            // Any odd constant spreads small seeds; the state must not be zero.
            random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// Returns the index of the next request; `in_order` counts the requests of all loops.
    pub(super) fn next(&mut self, in_order: &AtomicUsize) -> usize {
        if self.count <= 1 {
            return 0;
        }
        match self.order {
            RequestOrder::Sequence => in_order.fetch_add(1, Ordering::Relaxed) % self.count,
            RequestOrder::Random => match self.cumulative_weights.last() {
                Some(&all) => {
                    let drawn = self.random_below(all);
                    self.cumulative_weights.partition_point(|&sum| sum <= drawn)
                }
                None => usize::try_from(self.random_below(self.count as u64)).unwrap_or(0),
            },
        }
    }

    /// A number below `bound`, from the upper bits of a product: no division, no visible bias.
    fn random_below(&mut self, bound: u64) -> u64 {
        // xorshift64*: sufficient for this.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let drawn = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d);
        u64::try_from((u128::from(drawn) * u128::from(bound)) >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Address, EncodedRequest};
    use bytes::Bytes;
    use std::time::Duration;

    fn load(order: RequestOrder, weights: &[u32]) -> Load {
        let shape = |&weight: &u32| EncodedRequest {
            address: Address::Unix("x".into()),
            bytes: Bytes::new(),
            weight,
            is_head: false,
        };
        Load {
            name: String::new(),
            requests: weights.iter().map(shape).collect(),
            order,
            connections: 1,
            rate: None,
            keep_alive: true,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn draws_by_weight() {
        for weights in [&[1, 3, 0, 6][..], &[2, 2, 2, 2], &[0, 0, 0, 5]] {
            let all: u32 = weights.iter().sum();
            let mut picker = RequestPicker::new(&load(RequestOrder::Random, weights), 1);
            let mut found = [0_u32; 4];
            for _ in 0..100_000 {
                found[picker.next(&AtomicUsize::new(0))] += 1;
            }
            for (&weight, found) in weights.iter().zip(found) {
                let expected = f64::from(weight) / f64::from(all) * 100_000.0;
                assert!((f64::from(found) - expected).abs() < 1_000.0, "{weights:?}");
            }
        }
    }

    #[test]
    fn two_loops_share_one_order() {
        let load = load(RequestOrder::Sequence, &[1, 1, 1]);
        let (mut a, mut b) = (RequestPicker::new(&load, 0), RequestPicker::new(&load, 1));
        let shared = AtomicUsize::new(0);
        let found = [
            a.next(&shared),
            b.next(&shared),
            b.next(&shared),
            a.next(&shared),
        ];
        assert_eq!(found, [0, 1, 2, 0]);
    }
}
