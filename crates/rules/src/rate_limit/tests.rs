//! The algorithm against a count of what it let through.

use super::*;

fn second(count: u32, burst: u32, max_delay: Duration) -> RateLimit {
    RateLimit::new(count, Duration::from_secs(1), burst, max_delay)
}

#[test]
fn a_key_gets_its_burst_and_then_its_rate() {
    let start = Instant::now();
    let table = RateTable::new(1000, start);
    let limit = second(100, 20, Duration::ZERO);
    let mut allowed = 0;
    // 1,000 requests a second for five seconds.
    for at in 0..5_000_u64 {
        let now = start + Duration::from_millis(at);
        match table.count(b"a", &limit, now) {
            RateDecision::Allow => allowed += 1,
            RateDecision::Refuse(wait) => {
                assert!(wait <= Duration::from_millis(10), "{wait:?}");
                // One that comes then goes on, and one just before does not.
                let early = now + wait - Duration::from_nanos(1);
                assert_ne!(table.count(b"a", &limit, early), RateDecision::Allow);
            }
            RateDecision::Delay(wait) => panic!("nothing waits: {wait:?}"),
        }
    }
    assert!((519..=520).contains(&allowed), "{allowed}");
    // Another key has not been counted, and after a pause the burst is there again.
    let now = start + Duration::from_secs(5);
    assert_eq!(table.count(b"b", &limit, now), RateDecision::Allow);
    let later = now + Duration::from_secs(1);
    let again = (0..30).filter(|_| table.count(b"a", &limit, later) == RateDecision::Allow);
    assert_eq!(again.count(), 20);
}

#[test]
fn requests_wait_as_long_as_they_may() {
    let start = Instant::now();
    let table = RateTable::new(1000, start);
    let limit = second(10, 1, Duration::from_millis(250));
    let decisions: Vec<_> = (0..5).map(|_| table.count(b"a", &limit, start)).collect();
    let millis = Duration::from_millis;
    assert_eq!(
        decisions,
        [
            RateDecision::Allow,
            RateDecision::Delay(millis(100)),
            RateDecision::Delay(millis(200)),
            RateDecision::Refuse(millis(50)),
            RateDecision::Refuse(millis(50)),
        ]
    );
}

#[test]
fn a_flood_of_keys_frees_nobody_who_is_over_the_limit() {
    let start = Instant::now();
    let table = RateTable::new(4096, start);
    let limit = second(10, 10, Duration::ZERO);
    let size = size_of_val(table.shards[0].lock().unwrap().as_ref()) * SHARDS;
    for _ in 0..10 {
        assert_eq!(table.count(b"heavy", &limit, start), RateDecision::Allow);
    }
    for key in 0..100_000_u32 {
        let now = start + Duration::from_micros(u64::from(key) / 2);
        let _ = table.count(&key.to_le_bytes(), &limit, now);
    }
    let now = start + Duration::from_millis(50);
    let still = table.count(b"heavy", &limit, now);
    assert_eq!(still, RateDecision::Refuse(Duration::from_millis(50)));
    let after = size_of_val(table.shards[0].lock().unwrap().as_ref()) * SHARDS;
    assert_eq!((size, after), (4096 * 16, 4096 * 16));
}

#[test]
fn several_threads_share_one_limit() {
    let start = Instant::now();
    let table = RateTable::new(1000, start);
    let limit = second(1, 1000, Duration::ZERO);
    let count = || {
        (0..1000)
            .filter(|_| table.count(b"a", &limit, start) == RateDecision::Allow)
            .count()
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(total, 1000);
}

#[test]
fn extreme_rates_do_not_overflow() {
    let start = Instant::now();
    let table = RateTable::new(1, start);
    for limit in [
        RateLimit::new(u32::MAX, Duration::from_secs(1), u32::MAX, Duration::MAX),
        RateLimit::new(
            1,
            Duration::from_secs(365 * 86_400),
            u32::MAX,
            Duration::MAX,
        ),
        RateLimit::new(0, Duration::ZERO, 0, Duration::ZERO),
    ] {
        for _ in 0..3 {
            let _ = table.count(b"a", &limit, start + Duration::from_secs(1 << 30));
        }
    }
}

#[test]
fn a_request_that_is_given_back_has_not_counted() {
    let start = Instant::now();
    let table = RateTable::new(100, start);
    let limit = second(1, 2, Duration::ZERO);
    let count = || table.count(b"a", &limit, start) == RateDecision::Allow;
    assert_eq!([count(), count(), count()], [true, true, false]);
    table.give_back(b"a", &limit);
    assert_eq!([count(), count()], [true, false]);
    table.give_back(b"unknown", &limit);
}
