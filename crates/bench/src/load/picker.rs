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
    random: fastrand::Rng,
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
            random: fastrand::Rng::with_seed(seed),
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
                    let drawn = self.random.u64(..all);
                    self.cumulative_weights.partition_point(|&sum| sum <= drawn)
                }
                None => self.random.usize(..self.count),
            },
        }
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
            tls: None,
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
