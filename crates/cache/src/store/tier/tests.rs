//! The index: look-ups by text, variants, and removal exactly once.

use super::*;
use crate::store::tests::meta_of;

fn item(text: &str, variant: &str, weight: u64) -> Arc<IndexedObject<u32>> {
    let key = ObjectKey::new(text.as_bytes());
    let mut meta = meta_of(text);
    if !variant.is_empty() {
        meta.vary_names = vec!["accept".to_owned()];
        meta.variant = variant.as_bytes().to_vec();
    }
    IndexedObject::new(key.hash, Arc::new(meta), 0, weight)
}

fn count(tier: &Tier<u32>) -> u64 {
    tier.weight_and_count().1
}

#[test]
fn the_text_decides_and_not_the_hash_alone() {
    let tier = Tier::new();
    tier.insert(&item("http://a/", "", 10));
    let mut forged = ObjectKey::new(b"http://a/");
    assert!(tier.find(&forged, &mut |_| true).is_some());
    forged.text = b"http://b/".as_slice().into();
    assert!(tier.find(&forged, &mut |_| true).is_none());
    assert!(tier.remove_key(&forged).is_empty());
    // Both have the same hash: each is found by its own text.
    let other = IndexedObject::new(forged.hash, Arc::new(meta_of("http://b/")), 0, 10);
    assert!(tier.insert(&other).is_empty());
    let found = tier.find(&forged, &mut |_| true).unwrap();
    assert_eq!(&*found.meta.key, b"http://b/");
    assert_eq!(count(&tier), 2);
}

#[test]
fn a_variant_takes_the_place_of_its_own_kind_only_and_their_number_is_bounded() {
    let tier = Tier::new();
    let key = ObjectKey::new(b"http://a/");
    let (first, second) = (item("http://a/", "br", 10), item("http://a/", "gzip", 10));
    assert!(tier.insert(&first).is_empty() && tier.insert(&second).is_empty());
    let newer = item("http://a/", "br", 20);
    let out = tier.insert(&newer);
    assert!(out.len() == 1 && Arc::ptr_eq(&out[0], &first));
    assert!(!tier.remove(&first), "it is out already");
    assert_eq!(tier.weight_and_count(), (30, 2));
    for number in 0..200 {
        tier.insert(&item("http://a/", &number.to_string(), 10));
    }
    assert_eq!(count(&tier), MAX_VARIANTS as u64);
    assert_eq!(tier.remove_key(&key).len(), MAX_VARIANTS);
    assert_eq!(tier.weight_and_count(), (0, 0));
    assert!(tier.find(&key, &mut |_| true).is_none());
}

#[test]
fn a_recovered_object_never_replaces_a_newer_one() {
    let tier: Tier<u32> = Tier::new();
    let at = |number| {
        let key = ObjectKey::new(b"http://a/");
        IndexedObject::new(key.hash, Arc::new(meta_of("http://a/")), number, 10)
    };
    let newer_than = |number: u32| move |there: &u32| *there > number;
    assert!(
        tier.insert_recovered(&at(5), newer_than(5))
            .unwrap()
            .is_none()
    );
    assert!(tier.insert_recovered(&at(3), newer_than(3)).is_err());
    let old = tier.insert_recovered(&at(7), newer_than(7)).unwrap();
    assert_eq!(old.unwrap().body, 5);
    assert_eq!(tier.weight_and_count(), (10, 1));
}

#[test]
fn eviction_returns_each_object_once_and_keeps_the_limit() {
    let tier = Tier::new();
    for number in 0..1000 {
        tier.insert(&item(&format!("http://a/{number}"), "", 100));
    }
    let out = tier.evict(50_000, |_| true);
    assert_eq!((out.len(), tier.weight_and_count()), (500, (50_000, 500)));
    assert!(out.iter().all(|item| !tier.remove(item)));
    let more = tier.evict(50_000, |out| out.len() >= 10);
    assert_eq!((more.len(), tier.weight_and_count().1), (10, 490));
    let tenth = tier.remove_where(|meta| meta.key.ends_with(b"7"));
    assert_eq!(tier.weight_and_count().1, 490 - tenth.len() as u64);
    assert!(
        tier.remove_where(|meta| meta.key.ends_with(b"7"))
            .is_empty()
    );
}

#[test]
fn index_and_queues_agree_whatever_is_done_to_them() {
    for seed in 0..60_u64 {
        let tier = Tier::new();
        // The expected content: by text and variant, newest last.
        let mut model: Vec<Arc<IndexedObject<u32>>> = Vec::new();
        let mut state = seed | 1;
        for step in 0..300 {
            state = twox_hash::XxHash3_64::oneshot(&state.to_le_bytes());
            let text = format!("http://h/{}", state % 13);
            let variant = ["", "br", "gzip"][usize::try_from(state / 13 % 3).unwrap()];
            let key = ObjectKey::new(text.as_bytes());
            let is_out = |out: &[Arc<IndexedObject<u32>>], item: &Arc<IndexedObject<u32>>| {
                out.iter().any(|other| Arc::ptr_eq(other, item))
            };
            match state / 39 % 8 {
                0..=3 => {
                    let new = item(&text, variant, 1 + state % 90);
                    let out = tier.insert(&new);
                    model.retain(|item| !is_out(&out, item));
                    model.push(new);
                }
                4 => {
                    let out = tier.remove_key(&key);
                    assert!(out.iter().all(|item| item.meta.key == key.text));
                    model.retain(|item| item.meta.key != key.text);
                }
                5 => {
                    let out = tier.evict(state % 1000, |_| true);
                    model.retain(|item| !is_out(&out, item));
                    assert!(tier.weight_and_count().0 <= state % 1000);
                }
                6 if !model.is_empty() => {
                    let old = model.remove(0);
                    let new = item(
                        std::str::from_utf8(&old.meta.key).unwrap(),
                        std::str::from_utf8(&old.meta.variant).unwrap(),
                        5,
                    );
                    assert!(tier.replace(&old, &new) && !tier.replace(&old, &new));
                    model.insert(0, new);
                }
                _ => {
                    let found = tier.find(&key, &mut |_| true);
                    let there = model.iter().any(|item| item.meta.key == key.text);
                    assert_eq!(found.is_some(), there, "seed {seed} step {step}");
                }
            }
            let weight: u64 = model.iter().map(|item| item.weight).sum();
            let usage = (weight, model.len() as u64);
            assert_eq!(tier.weight_and_count(), usage, "seed {seed} step {step}");
            assert!(
                model
                    .iter()
                    .all(|item| tier.run_if_present(item, || ()).is_some())
            );
        }
        assert_eq!(tier.remove_where(|_| true).len(), model.len());
        assert_eq!(tier.weight_and_count(), (0, 0));
    }
}

#[test]
fn an_object_being_evicted_is_not_replaced() {
    let tier = Tier::new();
    let old = item("http://a/", "", 10);
    tier.insert(&old);
    // During eviction: removed from the queue, still in the shard.
    assert!(Arc::ptr_eq(&tier.eviction().evict(0).unwrap(), &old));
    assert!(!tier.replace(&old, &item("http://a/", "", 10)));
    assert!(tier.write(old.hash, |shard| remove_from_shard(shard, &old)));
    assert!(tier.remove_where(|_| true).is_empty());
    assert_eq!(tier.weight_and_count(), (0, 0));
}

#[test]
fn an_object_replaced_constantly_can_still_be_removed() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let (tier, is_over) = (Tier::new(), AtomicBool::new(false));
    let key = ObjectKey::new(b"http://a/");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                if let Some(old) = tier.find(&key, &mut |_| true) {
                    tier.replace(&old, &item("http://a/", "", 10));
                }
            }
        });
        let mut left = 0;
        for round in 0..20_000 {
            tier.insert(&item("http://a/", "", 10));
            let out = match round % 2 {
                0 => tier.remove_key(&key),
                _ => tier.remove_where(|meta| meta.key == key.text),
            };
            left += usize::from(out.len() != 1 || tier.find(&key, &mut |_| true).is_some());
        }
        is_over.store(true, Relaxed);
        assert_eq!(left, 0);
    });
}
