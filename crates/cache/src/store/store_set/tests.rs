//! Assignment of keys to stores.

use super::*;

fn shares(weights: &[(u64, f64)]) -> Vec<u32> {
    let mut shares = vec![0; weights.len()];
    for number in 0..10_000_u32 {
        let hash = ObjectKey::new(&number.to_le_bytes()).hash;
        shares[choose_store(hash, weights).unwrap()] += 1;
    }
    shares
}

#[test]
fn keys_are_spread_by_size_and_stay_in_their_store() {
    let weights = [(11, 1e9), (22, 1e9), (33, 2e9)];
    let all = shares(&weights);
    assert!(
        all.iter()
            .zip([2500, 2500, 5000])
            .all(|(&n, want): (&u32, u32)| n.abs_diff(want) < 300),
        "{all:?}"
    );
    // Without the second store, its keys move to the others and no other key moves.
    let fewer = [weights[0], weights[2]];
    for number in 0..2000_u32 {
        let hash = ObjectKey::new(&number.to_le_bytes()).hash;
        let before = weights[choose_store(hash, &weights).unwrap()].0;
        let after = fewer[choose_store(hash, &fewer).unwrap()].0;
        assert!(before == after || before == 22);
    }
    assert_eq!(choose_store(1, &[]), None);
}
