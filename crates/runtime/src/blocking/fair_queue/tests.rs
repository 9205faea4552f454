//! The order in fixed cases, and compared with a slow model for many seeds.
//!
//! `PENSTOCK_SEED=n` replays one seed, `PENSTOCK_SEEDS=n` runs n seeds.

use super::*;

fn id(file: char, number: u64) -> ReadId<char> {
    ReadId { file, number }
}

fn take_all(queue: &mut FairQueue<char, &'static str>) -> String {
    let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
    assert_eq!(queue.len(), 0);
    assert!(
        queue.rotation.is_empty() && queue.place_by_file.is_empty() && queue.due_order.is_empty()
    );
    taken.join(" ")
}

#[test]
fn single_jobs_and_reads_with_one_waiter_alternate() {
    let mut queue = FairQueue::new();
    queue.push("write");
    queue.push_read(id('a', 1), 1, "a1");
    queue.push_read(id('b', 3), 1, "b3");
    queue.push("close");
    assert_eq!(take_all(&mut queue), "write a1 b3 close");
}

#[test]
fn a_read_with_many_waiters_goes_first_and_others_get_every_fourth_turn() {
    let mut queue = FairQueue::new();
    for cold in ["c1", "c2", "c3", "c4", "c5", "c6"] {
        queue.push(cold);
    }
    for (number, waiters, job) in [(1, 5, "h1"), (2, 50, "h2"), (3, 6, "h3"), (4, 7, "h4")] {
        queue.push_read(id('h', number), waiters, job);
    }
    assert_eq!(take_all(&mut queue), "h2 h4 h3 c1 h1 c2 c3 c4 c5 c6");
}

#[test]
fn changed_waiter_counts_change_the_order() {
    let mut queue = FairQueue::new();
    queue.push("write");
    queue.push_read(id('a', 1), 1, "a1");
    queue.push_read(id('b', 1), 1, "b1");
    queue.push_read(id('c', 1), 2, "c1");
    for (file, has_come) in [
        ('b', true),
        ('b', true),
        ('c', false),
        ('c', false),
        ('c', false),
    ] {
        queue.update_waiters(id(file, 1), has_come);
    }
    // Reads that are absent, or no longer queued.
    queue.update_waiters(id('d', 1), true);
    queue.update_waiters(id('b', 2), true);
    assert_eq!(take_all(&mut queue), "b1 write a1 c1");
}

#[test]
fn files_get_turns_by_weight_and_a_minimum_share() {
    // Each reader of a file wants another part of it, and a further part after that.
    for (readers, expected) in [
        (&[2, 2, 2, 2][..], &[1000, 1000, 1000, 1000][..]),
        (&[2, 6], &[250 + 375, 250 + 1125]),
        (&[2, 2, 56], &[300 + 7, 300 + 7, 300 + 2686]),
    ] {
        let mut queue = FairQueue::new();
        let mut number = 0;
        for (file, &count) in readers.iter().enumerate() {
            for _ in 0..count {
                number += 1;
                queue.push_read(ReadId { file, number }, 1, file);
            }
        }
        let mut turns = vec![0_u32; readers.len()];
        for _ in 0..expected.iter().sum::<u32>() {
            let file = queue.take().unwrap();
            turns[file] += 1;
            number += 1;
            queue.push_read(ReadId { file, number }, 1, file);
        }
        for (turns, &expected) in turns.iter().zip(expected) {
            let (few, many) = (expected * 9 / 10, expected * 11 / 10);
            assert!(
                (few..=many).contains(turns),
                "{turns} of {expected}: {readers:?}"
            );
        }
    }
}

#[test]
fn weight_grows_with_the_square_of_the_waiters() {
    for (waiters, expected) in [
        (0, 1),
        (1, 1),
        (7, 7),
        (8, 16),
        (50, 600),
        (400, 40_000),
        (1 << 12, 1 << 22),
        (usize::MAX, 1 << 22),
    ] {
        assert_eq!(weight_of_waiters(waiters), expected, "{waiters}");
    }
}

#[test]
fn a_popular_read_does_not_wait_for_many_single_reads() {
    for rounds in 0..8 {
        let mut queue = FairQueue::new();
        // 200 clients that each request another file after the last, sampled at various moments.
        for file in 0..200 {
            queue.push_read(ReadId { file, number: 1 }, 1, file);
        }
        for file in 200..300 + rounds * 50 {
            queue.take().unwrap();
            queue.push_read(ReadId { file, number: 1 }, 1, file);
        }
        // Among them one file of eight chunks with 50 waiters.
        let hot = 1000;
        for number in 0..8 {
            queue.push_read(ReadId { file: hot, number }, 6, hot);
        }
        let (mut turns, mut parts) = (0, 0);
        while parts < 8 {
            turns += 1;
            if queue.take().unwrap() != hot {
                continue;
            }
            parts += 1;
            // A client that received one chunk wants the others too.
            for number in 0..8 {
                queue.update_waiters(ReadId { file: hot, number }, true);
            }
        }
        assert!(turns <= 14, "{turns} turns after {rounds}");
    }
}

#[test]
fn a_read_with_fifty_waiters_is_soon_served_among_two_hundred() {
    for before in 0..300 {
        let mut queue = FairQueue::new();
        for file in 0..200 {
            queue.push_read(ReadId { file, number: 1 }, 1, file);
        }
        for file in 200..200 + before {
            queue.take().unwrap();
            queue.push_read(ReadId { file, number: 1 }, 1, file);
        }
        let file = 1000;
        queue.push_read(ReadId { file, number: 1 }, 1, file);
        for _ in 1..50 {
            queue.update_waiters(ReadId { file, number: 1 }, true);
        }
        let turn = (0..).find(|_| queue.take().unwrap() == file);
        assert!(turn <= Some(2), "{turn:?} after {before}");
    }
}

#[test]
fn new_popular_reads_do_not_starve_queued_ones() {
    // Their total weight exceeds the unit.
    let most = 1 << 12;
    let mut queue = FairQueue::new();
    for file in 0..10 {
        queue.push_read(ReadId { file, number: 0 }, most, file);
    }
    // Five files always have waiting reads; each other group is replaced by another when served.
    for file in 0..5 {
        queue.push_read(ReadId { file, number: 1 }, 1, file);
    }
    let mut turns = [0_u32; 5];
    let mut next_file = 10;
    for number in 2..402 {
        let mut file = queue.take().unwrap();
        match turns.get_mut(file) {
            Some(turns) => *turns += 1,
            None => {
                file = next_file;
                next_file += 1;
            }
        }
        queue.push_read(ReadId { file, number }, most, file);
    }
    // Each gets its tenth; the rotation alone would give it a twentieth.
    assert!(
        turns.iter().all(|turns| (36..=60).contains(turns)),
        "{turns:?}"
    );
}

#[test]
fn the_last_pushed_job_can_be_taken_back() {
    let mut queue = FairQueue::new();
    queue.push_read(id('a', 1), 1, "a1");
    let read = queue.push_read(id('a', 2), 9, "a2");
    assert_eq!(queue.take_back_last(read), Some("a2"));
    let alone = queue.push("write");
    assert_eq!(
        (queue.take_back_last(alone), queue.len()),
        (Some("write"), 1)
    );
    assert_eq!(take_all(&mut queue), "a1");
}

/// The same rules, by scanning everything each time.
#[derive(Default)]
struct Model {
    /// The next one first.
    groups: Vec<ModelGroup>,
    weighted_turns: u32,
    virtual_time: u64,
    turns: u64,
}

struct ModelGroup {
    file: Option<char>,
    /// Number, waiters and job.
    jobs: Vec<(u64, usize, u64)>,
    virtual_start: u64,
    /// The turn at which the rotation reaches it at the latest.
    last_turn: u64,
}

impl ModelGroup {
    fn weight(&self) -> u64 {
        let waiters: usize = self.jobs.iter().map(|job| job.1).sum();
        weight_of_waiters(waiters)
    }

    fn due(&self) -> u64 {
        self.virtual_start + UNIT / self.weight()
    }
}

impl Model {
    fn push_group(&mut self, group: ModelGroup) {
        let before = self.groups.len() as u64;
        let last_turn = self.turns + u64::from(WEIGHTED_TURNS_PER_ROTATION + 1) * (before + 1);
        self.groups.push(ModelGroup { last_turn, ..group });
    }

    fn push(&mut self, file: Option<char>, number: u64, waiters: usize, job: u64) {
        let is_known = |group: &&mut ModelGroup| file.is_some() && group.file == file;
        match self.groups.iter_mut().find(is_known) {
            Some(group) => group.jobs.push((number, waiters, job)),
            None => self.push_group(ModelGroup {
                file,
                jobs: vec![(number, waiters, job)],
                virtual_start: self.virtual_time,
                last_turn: 0,
            }),
        }
    }

    fn take(&mut self) -> Option<u64> {
        if self.groups.is_empty() {
            return None;
        }
        self.turns += 1;
        if self.weighted_turns < WEIGHTED_TURNS_PER_ROTATION {
            self.weighted_turns += 1;
            let weight: u64 = self.groups.iter().map(ModelGroup::weight).sum();
            self.virtual_time += (UNIT / weight).max(1);
            let due = self.groups.iter().map(ModelGroup::due).min()?;
            let place = self.groups.iter().position(|group| group.due() == due)?;
            let group = &mut self.groups[place];
            group.virtual_start = self.virtual_time.max(due);
            let wanted = group.jobs.iter().map(|job| job.1.max(1)).max()?;
            let index = group.jobs.iter().position(|job| job.1.max(1) == wanted)?;
            let (_, _, job) = group.jobs.remove(index);
            if group.jobs.is_empty() {
                self.groups.remove(place);
            }
            return Some(job);
        }
        self.weighted_turns = 0;
        let mut group = self.groups.remove(0);
        assert!(
            self.turns <= group.last_turn,
            "a group was not served in time"
        );
        let (_, _, job) = group.jobs.remove(0);
        if !group.jobs.is_empty() {
            self.push_group(group);
        }
        Some(job)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A random file out of this many.
    fn file(&mut self, files: u64) -> char {
        let number = u32::try_from(self.below(files)).unwrap();
        char::from_digit(10 + number, 36).unwrap()
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut queue, mut model) = (FairQueue::new(), Model::default());
    let (files, takes_of) = (1 + random.below(8), 1 + random.below(4));
    let mut waiting = 0;
    for job in 0..600 {
        match random.below(3 + takes_of) {
            0 => {
                let position = queue.push(job);
                match random.below(4) {
                    0 => assert_eq!(queue.take_back_last(position), Some(job)),
                    _ => model.push(None, 0, 1, job),
                }
            }
            1 => {
                let file = random.file(files);
                let waiters = if random.below(2) == 0 { 1 } else { 3 };
                let position = queue.push_read(id(file, job), waiters, job);
                match random.below(4) {
                    0 => assert_eq!(queue.take_back_last(position), Some(job)),
                    _ => model.push(Some(file), job, waiters, job),
                }
            }
            2 => {
                let file = random.file(files);
                let (number, has_come) = (random.below(job + 1), random.below(3) > 0);
                queue.update_waiters(id(file, number), has_come);
                let groups = model
                    .groups
                    .iter_mut()
                    .filter(|group| group.file == Some(file));
                for read in groups
                    .flat_map(|group| &mut group.jobs)
                    .filter(|read| read.0 == number)
                {
                    read.1 = if has_come {
                        read.1 + 1
                    } else {
                        read.1.saturating_sub(1)
                    };
                }
            }
            _ => assert_eq!(queue.take(), model.take(), "at {job}"),
        }
        waiting = model.groups.iter().map(|group| group.jobs.len()).sum();
        assert_eq!(queue.len(), waiting);
        let jobs = model.groups.iter().flat_map(|group| &group.jobs);
        assert!(queue.iter().eq(jobs.map(|(_, _, job)| job)));
    }
    for _ in 0..=waiting {
        assert_eq!(queue.take(), model.take());
    }
    assert!(
        queue.rotation.is_empty() && queue.place_by_file.is_empty() && queue.due_order.is_empty()
    );
}

#[test]
fn the_order_matches_a_simple_model_and_every_group_is_served() {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}
