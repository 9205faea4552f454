//! Tests of balancing: shares, idle connections, limits, and stable keys.

use std::collections::HashMap;

use super::*;

/// Servers with these weights in thousandths and this limit, without active requests.
fn servers(weights: &[u32]) -> Vec<Candidate> {
    let server = |(index, weight): (usize, &u32)| Candidate {
        index,
        name_hash: hash_key(format!("10.0.0.{index}:80").as_bytes()),
        weight: *weight,
        active: 0,
        max_active: u32::MAX,
        has_idle_connection_on_this_loop: false,
        has_idle_connection: false,
        last_used: 0,
        slow_start_permille: 1000,
    };
    weights.iter().enumerate().map(server).collect()
}

fn balancer(method: Balance) -> Balancer {
    Balancer::new(method, 7)
}

const POLICIES: [Balance; 5] = [
    Balance::IdleFirst,
    Balance::RoundRobin,
    Balance::LeastActive,
    Balance::RandomTwo,
    Balance::Hash,
];

/// Places `requests`, of which `in_progress` are active at a time and end in random order; returns
/// the count per server.
fn shares(
    policy: Balance,
    servers: &mut [Candidate],
    in_progress: usize,
    requests: u32,
) -> Vec<u32> {
    let (mut balancer, mut counts) = (balancer(policy), vec![0; servers.len()]);
    let mut busy = Vec::new();
    for request in 0..requests {
        let key = hash_key(&request.to_le_bytes());
        let chosen = balancer.choose(servers, Some(key)).unwrap();
        assert!(servers[chosen].active < servers[chosen].max_active);
        servers[chosen].active += 1;
        counts[chosen] += 1;
        busy.push(chosen);
        if busy.len() >= in_progress {
            let ends = usize::try_from(balancer.next_random() % busy.len() as u64).unwrap();
            servers[busy.swap_remove(ends)].active -= 1;
        }
    }
    counts
}

#[test]
fn under_load_each_server_gets_the_share_of_its_weight() {
    for policy in POLICIES {
        let mut servers = servers(&[1, 2, 5]);
        let counts = shares(policy, &mut servers, 80, 16_000);
        for (count, expected) in counts.iter().zip([2000, 4000, 10_000]) {
            let off = count.abs_diff(expected);
            assert!(off * 8 < expected, "{policy:?}: {counts:?}");
        }
    }
}

#[test]
fn a_server_that_just_came_back_gets_a_part_of_its_share() {
    for policy in POLICIES {
        let mut servers = servers(&[1, 1, 1, 1]);
        servers[2].slow_start_permille = 250;
        let counts = shares(policy, &mut servers, 130, 13_000);
        assert!((800..=1200).contains(&counts[2]), "{policy:?}: {counts:?}");
    }
}

#[test]
fn a_slow_start_of_zero_still_gets_requests() {
    for policy in POLICIES {
        let mut servers = servers(&[1, 1]);
        servers[0].slow_start_permille = 0;
        servers[1].max_active = 1;
        servers[1].active = 1;
        assert_eq!(
            balancer(policy).choose(&servers, None),
            Some(0),
            "{policy:?}"
        );
    }
}

#[test]
fn never_chooses_a_full_server_and_always_one_with_room() {
    let mut random = balancer(Balance::RandomTwo);
    let mut below = |bound: u64| u32::try_from(random.next_random() % bound).unwrap();
    for policy in POLICIES {
        let mut balancer = balancer(policy);
        for round in 0..3000_u64 {
            let mut servers = servers(&[1, 1, 3, 1, 2][..1 + below(5) as usize]);
            for server in &mut servers {
                server.max_active = below(4);
                server.active = below(5);
                server.weight = below(3);
                server.slow_start_permille = u16::try_from(below(1001)).unwrap();
            }
            let key = (below(2) == 0).then_some(round);
            let has_room = |c: &Candidate| c.active < c.max_active && c.weight > 0;
            let is_any = servers.iter().any(has_room);
            match balancer.choose(&servers, key) {
                Some(chosen) => assert!(has_room(&servers[chosen]), "{policy:?}"),
                None => assert!(!is_any, "{policy:?}"),
            }
        }
        assert_eq!(balancer.choose(&[], Some(1)), None, "{policy:?}");
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    for policy in POLICIES {
        let mut balancer = balancer(policy);
        let mut servers = servers(&[u32::MAX; 9]);
        servers.iter_mut().for_each(|s| s.active = u32::MAX - 1);
        for key in 0..100 {
            assert!(balancer.choose(&servers, Some(key)).is_some(), "{policy:?}");
        }
    }
}

#[test]
fn returns_the_index_of_the_server() {
    for policy in POLICIES {
        let mut balancer = balancer(policy);
        let last = servers(&[1; 7])[6];
        for _ in 0..3 {
            assert_eq!(balancer.choose(&[last], None), Some(6), "{policy:?}");
        }
    }
}

#[test]
fn chooses_the_same_for_the_same_seed() {
    for policy in POLICIES {
        let run = || shares(policy, &mut servers(&[1, 2, 3]), 10, 500);
        assert_eq!(run(), run(), "{policy:?}");
    }
    let draws = |seed| [0; 4].map(|_| Balancer::new(Balance::RandomTwo, seed).next_random());
    assert_ne!(draws(1), draws(2));
}

#[test]
fn idle_first_prefers_the_idle_then_the_warm() {
    struct Row {
        name: &'static str,
        change: fn(&mut [Candidate]),
        chosen: usize,
    }
    let rows = [
        Row {
            name: "all alike: the first",
            change: |_| {},
            chosen: 0,
        },
        Row {
            name: "the idle one, however cold",
            change: |s| {
                (s[0].active, s[1].active) = (1, 1);
                (s[0].has_idle_connection_on_this_loop, s[0].last_used) = (true, 9);
            },
            chosen: 2,
        },
        Row {
            name: "the fewest for its weight",
            change: |s| {
                (s[0].active, s[1].active, s[2].active) = (2, 3, 2);
                s[1].weight = 2;
            },
            chosen: 1,
        },
        Row {
            name: "the fewest for what its ramp leaves",
            change: |s| {
                (s[0].active, s[1].active, s[2].active) = (2, 3, 3);
                s[0].slow_start_permille = 500;
            },
            chosen: 1,
        },
        Row {
            name: "a connection here before one elsewhere",
            change: |s| {
                (s[0].has_idle_connection, s[0].last_used) = (true, 9);
                (
                    s[2].has_idle_connection,
                    s[2].has_idle_connection_on_this_loop,
                ) = (true, true);
            },
            chosen: 2,
        },
        Row {
            name: "a connection elsewhere before none",
            change: |s| {
                s[0].last_used = 9;
                s[1].has_idle_connection = true;
            },
            chosen: 1,
        },
        Row {
            name: "the last used",
            change: |s| (s[0].last_used, s[1].last_used, s[2].last_used) = (3, 9, 5),
            chosen: 1,
        },
    ];
    for row in rows {
        let mut servers = servers(&[1, 1, 1]);
        (row.change)(&mut servers);
        let chosen = balancer(Balance::IdleFirst).choose(&servers, None);
        assert_eq!(chosen, Some(row.chosen), "{}", row.name);
    }
}

#[test]
fn round_robin_spreads_the_turns_of_a_heavy_server() {
    let (mut balancer, servers) = (balancer(Balance::RoundRobin), servers(&[5, 1, 1]));
    let turns = [0; 14].map(|_| balancer.choose(&servers, None).unwrap());
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn least_active_takes_level_servers_in_turn() {
    let (mut balancer, mut servers) = (balancer(Balance::LeastActive), servers(&[1, 1, 1, 2]));
    servers[1].active = 1;
    servers[3].active = 1;
    let turns = [0; 4].map(|_| balancer.choose(&servers, None).unwrap());
    assert_eq!(turns, [0, 2, 0, 2]);
}

#[test]
fn random_two_never_takes_the_busiest_of_three() {
    let (mut balancer, mut servers) = (balancer(Balance::RandomTwo), servers(&[1, 1, 1]));
    servers[1].active = 1;
    let chosen: Vec<_> = (0..200)
        .filter_map(|_| balancer.choose(&servers, None))
        .collect();
    assert!(!chosen.contains(&1));
    assert!(chosen.contains(&0) && chosen.contains(&2));
}

/// The server of each of many keys when no request is active.
fn owners(servers: &[Candidate]) -> HashMap<u64, usize> {
    let mut balancer = balancer(Balance::Hash);
    let keys = (0..20_000_u32).map(|n| hash_key(&n.to_le_bytes()));
    let owner = |key| (key, balancer.choose(servers, Some(key)).unwrap());
    keys.map(owner).collect()
}

#[test]
fn a_key_moves_only_to_the_server_that_came_or_from_the_one_that_went() {
    let all = servers(&[1, 1, 2, 1, 1]);
    let before = owners(&all);
    for gone in 0..all.len() {
        let mut fewer = all.clone();
        fewer.remove(gone);
        let (mut moved, after) = (0, owners(&fewer));
        for (key, owner) in &before {
            if *owner == gone {
                moved += 1;
            } else {
                assert_eq!(after[key], *owner, "a key of another server moved");
            }
        }
        let share = 20_000 * all[gone].weight / 6;
        assert!(share.abs_diff(moved) * 10 < share, "{moved} of {share}");
    }
}

#[test]
fn a_key_does_not_follow_the_number_of_its_server() {
    let all = servers(&[1, 1, 1]);
    let mut renumbered = all[1..].to_vec();
    renumbered[0].index = 0;
    renumbered[1].index = 1;
    let (before, after) = (owners(&all), owners(&renumbered));
    for (key, owner) in before.iter().filter(|(_, owner)| **owner > 0) {
        assert_eq!(after[key], owner - 1);
    }
}

#[test]
fn one_hot_key_spills_over_at_a_quarter_above_the_share() {
    let mut servers = servers(&[1, 1, 1, 1]);
    let (mut balancer, key) = (balancer(Balance::Hash), hash_key(b"/hot"));
    let chosen_index = balancer.choose(&servers, Some(key)).unwrap();
    for placed in 1..=1000_u32 {
        let chosen = balancer.choose(&servers, Some(key)).unwrap();
        servers[chosen].active += 1;
        let bound = (5 * placed).div_ceil(4 * 4);
        let most = servers.iter().map(|s| s.active).max().unwrap();
        assert_eq!(
            (servers[chosen_index].active, most),
            (bound, bound),
            "of {placed}"
        );
    }
    servers.iter_mut().for_each(|s| s.active = 0);
    assert_eq!(
        balancer.choose(&servers, Some(key)),
        Some(chosen_index),
        "and it returns"
    );
}

#[test]
fn only_the_keys_of_a_full_server_move() {
    let mut servers = servers(&[1, 1, 1, 1]);
    let before = owners(&servers);
    servers[1].max_active = 0;
    let after = owners(&servers);
    for (key, owner) in before {
        assert_eq!(after[&key] == owner, owner != 1);
    }
}

#[test]
fn without_a_key_the_hash_draws_one() {
    let counts = {
        let (mut balancer, servers) = (balancer(Balance::Hash), servers(&[1, 1, 1]));
        let mut counts = [0_u32; 3];
        for _ in 0..3000_u64 {
            counts[balancer.choose(&servers, None).unwrap()] += 1;
        }
        counts
    };
    assert!(
        counts.iter().all(|count| count.abs_diff(1000) < 150),
        "{counts:?}"
    );
}

#[test]
fn key_hashes_never_change() {
    let rows: [(&[u8], u64); 5] = [
        (b"", 0),
        (b"a", 0x3069_6779_209d_d0e5),
        (b"12345678", 0x941f_4625_21a9_6cd6),
        (b"/index.html", 0xd113_3052_9c37_879e),
        (b"\0", 0xfbf3_d070_40a8_e228),
    ];
    for (key, expected) in rows {
        assert_eq!(hash_key(key), expected, "{}", key.escape_ascii());
    }
}

#[test]
fn similar_keys_have_unrelated_hashes() {
    let text = *b"/a/path/of/some/length?and=a&query";
    for bit in 0..text.len() * 8 {
        let mut other = text;
        other[bit / 8] ^= 1 << (bit % 8);
        let differ = (hash_key(&text) ^ hash_key(&other)).count_ones();
        assert!((12..=52).contains(&differ), "bit {bit}: {differ}");
    }
    let zeros: Vec<_> = (0..20).map(|len| hash_key(&vec![0; len])).collect();
    let distinct: std::collections::HashSet<_> = zeros.iter().collect();
    assert_eq!(distinct.len(), zeros.len(), "the length counts");
}
