//! S3-FIFO against LRU on a fixed trace, and seeded checks of its invariants.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a trace's numbers are small"
)]

use super::*;

#[derive(Debug)]
struct TestObject {
    name: u64,
    weight: u64,
    marks: EvictionState,
}

impl Evictable for TestObject {
    fn weight(&self) -> u64 {
        self.weight
    }
    fn ghost_key(&self) -> u64 {
        self.name
    }
    fn eviction_state(&self) -> &EvictionState {
        &self.marks
    }
}

fn test_object(name: u64, weight: u64) -> Arc<TestObject> {
    Arc::new(TestObject {
        name,
        weight,
        marks: EvictionState::default(),
    })
}

/// A small deterministic generator.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Names by a Zipf law over 20,000, with occasional scans of new names.
fn trace() -> Vec<u64> {
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=20_000_u32 {
        sum += 1.0 / f64::from(rank).powf(0.9);
        sums.push(sum);
    }
    let mut dice = TestRng(1);
    let mut trace = Vec::new();
    let mut fresh = 1_000_000;
    for step in 0..300_000 {
        if step % 30_000 == 29_999 {
            trace.extend(fresh..fresh + 5_000);
            fresh += 5_000;
        }
        let at = dice.unit() * sum;
        trace.push(sums.partition_point(|&s| s < at) as u64);
    }
    trace
}

/// Between 1 and 16 kB, fixed for a name.
fn weight_of(name: u64) -> u64 {
    1024 * (1 + TestRng(name).next() % 16)
}

fn hits_of_fifo(trace: &[u64], room: u64) -> u64 {
    let mut fifo = S3Fifo::default();
    let mut there: HashMap<u64, Arc<TestObject>> = HashMap::new();
    let mut hits = 0;
    for &name in trace {
        if let Some(found) = there.get(&name) {
            found.marks.record_use();
            hits += 1;
            continue;
        }
        let new = test_object(name, weight_of(name));
        fifo.insert(&new);
        there.insert(name, new);
        while fifo.bytes() > room {
            there.remove(&fifo.evict(room).unwrap().name);
        }
    }
    hits
}

fn hits_of_lru(trace: &[u64], room: u64) -> u64 {
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut order = std::collections::BTreeMap::new();
    let (mut hits, mut bytes) = (0, 0);
    for (now, &name) in (0..).zip(trace) {
        if let Some(before) = last.insert(name, now) {
            order.remove(&before);
            hits += 1;
        } else {
            bytes += weight_of(name);
        }
        order.insert(now, name);
        while bytes > room {
            let (_, oldest) = order.pop_first().unwrap();
            last.remove(&oldest);
            bytes -= weight_of(oldest);
        }
    }
    hits
}

#[test]
fn the_hit_rate_beats_lru_under_scans() {
    let trace = trace();
    for share in [100, 20, 5] {
        let all: u64 = (0..20_000).map(weight_of).sum();
        let room = all / share;
        let (ours, lru) = (hits_of_fifo(&trace, room), hits_of_lru(&trace, room));
        assert!(ours > lru, "room 1/{share}: {ours} against {lru}");
    }
}

/// `/?x=1`, `/?x=2` and so on, each requested once.
#[test]
fn a_client_that_asks_for_ever_new_names_pushes_out_its_own() {
    let mut fifo = S3Fifo::default();
    for name in 0..50 {
        let popular = test_object(name, 1);
        fifo.insert(&popular);
        popular.marks.record_use();
        popular.marks.record_use();
    }
    for name in 1_000..51_000 {
        fifo.insert(&test_object(name, 1));
        while fifo.bytes() > 100 {
            let evicted = fifo.evict(100).unwrap();
            assert!(evicted.name >= 1_000, "{} after {name}", evicted.name);
        }
    }
}

#[test]
fn counts_match_the_queues_under_random_operations() {
    let seed = std::env::var("PENSTOCK_SEED").ok();
    let seeds = match seed.and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..200,
    };
    for seed in seeds {
        let mut dice = TestRng(seed);
        let mut fifo = S3Fifo::default();
        let mut there: Vec<Arc<TestObject>> = Vec::new();
        let room = 100_000;
        for step in 0..500 {
            match dice.next() % 8 {
                0..=3 => {
                    let new = test_object(dice.next() % 300, 1 + dice.next() % 9_000);
                    if dice.next().is_multiple_of(4) {
                        fifo.insert_into_main(&new);
                    } else {
                        fifo.insert(&new);
                    }
                    there.push(new);
                }
                4 | 5 if !there.is_empty() => {
                    let at = dice.next() as usize % there.len();
                    there[at].marks.record_use();
                }
                6 if !there.is_empty() => {
                    let at = dice.next() as usize % there.len();
                    let out = there.swap_remove(at);
                    assert!(fifo.remove(&out), "seed {seed} step {step}");
                    assert!(!fifo.remove(&out));
                }
                7 if !there.is_empty() => {
                    let at = dice.next() as usize % there.len();
                    let new = test_object(there[at].name, 1 + dice.next() % 9_000);
                    fifo.replace(&there[at], &new);
                    there[at] = new;
                }
                _ => {}
            }
            while fifo.bytes() > room {
                let out = fifo.evict(room).unwrap();
                let at = there.iter().position(|one| Arc::ptr_eq(one, &out));
                there.swap_remove(at.expect("what is evicted was queued"));
            }
            let bytes: u64 = there.iter().map(|one| one.weight).sum();
            assert_eq!(
                (fifo.bytes(), fifo.len()),
                (bytes, there.len()),
                "seed {seed} step {step}"
            );
            let ghosts = &fifo.ghosts;
            assert!(ghosts.bytes <= room && ghosts.counts.len() <= ghosts.order.len());
        }
        // Every object is evicted once.
        while let Some(out) = fifo.evict(room) {
            let at = there.iter().position(|one| Arc::ptr_eq(one, &out));
            there.swap_remove(at.expect("nothing is evicted twice"));
        }
        assert!(there.is_empty(), "seed {seed}");
    }
}

#[test]
fn an_object_larger_than_the_queue_is_evicted() {
    let mut fifo = S3Fifo::default();
    let large = test_object(1, 1_000_000);
    for _ in 0..5 {
        large.marks.record_use();
    }
    fifo.insert(&large);
    let mut rounds = 0;
    while fifo.bytes() > 1000 {
        fifo.evict(1000);
        rounds += 1;
    }
    assert!(rounds < 10 && fifo.evict(1000).is_none());
}
