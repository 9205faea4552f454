//! Two servers and a store that grants cells as Redis does, in steps of virtual time.

use super::*;

/// Grants cells by the algorithm of the script.
#[derive(Default)]
struct Store(HashMap<SharedKey, Duration>);

impl Store {
    fn grant(&mut self, request: &CellRequest, now: Duration) -> CellGrant {
        let (interval, burst) = (request.interval_nanos, request.burst_nanos);
        let idle_at = self.0.entry(request.key).or_default();
        let ahead = idle_at.saturating_sub(now).as_nanos();
        let mut ahead = u64::try_from(ahead).unwrap();
        let mut cells = 0;
        while cells < request.cells && ahead <= burst {
            ahead += interval;
            cells += 1;
        }
        *idle_at = now + Duration::from_nanos(ahead);
        CellGrant {
            cells,
            wait: Duration::from_nanos(ahead.saturating_sub(burst)),
        }
    }
}

/// Carries what a server asks for to the store and back.
fn carry(rates: &SharedRates, store: &mut Store, start: Instant, now: Instant) {
    let batch = rates.lock().batch();
    let grants: Vec<_> = batch
        .iter()
        .map(|request| store.grant(request, now - start))
        .collect();
    rates.complete(&batch, &grants, now);
}

fn connected() -> SharedRates {
    let rates = SharedRates::default();
    rates.connect();
    rates
}

fn second(count: u32, burst: u32) -> RateLimit {
    RateLimit::new(count, Duration::from_secs(1), burst, Duration::ZERO)
}

#[test]
fn two_servers_share_one_rate() {
    for (count, burst, each_millisecond) in [(100, 10, 1), (100, 100, 1), (1000, 50, 3), (5, 5, 1)]
    {
        let servers = [connected(), connected()];
        let (start, mut store) = (Instant::now(), Store::default());
        let limit = second(count, burst);
        let key = shared_key("rule", b"client");
        let mut allowed = 0;
        let mut pending = Vec::new();
        for millis in 0..5000 {
            let now = start + Duration::from_millis(millis);
            for rates in &servers {
                for _ in 0..each_millisecond {
                    match rates.take(key, &limit, now) {
                        SharedDecision::Known(SharedAnswer::Allow) => allowed += 1,
                        SharedDecision::Known(SharedAnswer::Refuse(_)) => {}
                        SharedDecision::Known(SharedAnswer::Alone) => panic!("Redis answers"),
                        SharedDecision::Pending(receiver) => pending.push(receiver),
                    }
                }
            }
            // A round trip takes two milliseconds.
            if millis % 2 == 0 {
                for rates in &servers {
                    carry(rates, &mut store, start, now);
                }
            }
            pending.retain_mut(|receiver| match receiver.try_recv() {
                Ok(answer) => {
                    allowed += u32::from(answer == SharedAnswer::Allow);
                    false
                }
                Err(_) => true,
            });
        }
        let expected = f64::from(burst + 5 * count);
        let deviation = (f64::from(allowed) - expected).abs() / expected;
        assert!(
            deviation <= 0.05,
            "{count}/s {burst}: {allowed} of {expected}"
        );
    }
}

#[test]
fn a_server_without_redis_decides_alone() {
    let rates = SharedRates::default();
    let (now, limit) = (Instant::now(), second(1, 1));
    let key = shared_key("rule", b"client");
    let alone = |decision| matches!(decision, SharedDecision::Known(SharedAnswer::Alone));
    assert!(alone(rates.take(key, &limit, now)));
    rates.connect();
    let SharedDecision::Pending(mut waits) = rates.take(key, &limit, now) else {
        panic!("the first request waits");
    };
    rates.disconnect();
    assert_eq!(waits.try_recv(), Ok(SharedAnswer::Alone));
    assert!(alone(rates.take(key, &limit, now)));
    assert_eq!((rates.decided_alone(), rates.is_connected()), (3, false));
    assert!(rates.lock().batch().is_empty());
}

#[test]
fn cells_of_requests_that_have_left_are_for_others() {
    let rates = connected();
    let (now, limit) = (Instant::now(), second(10, 10));
    let key = shared_key("rule", b"client");
    let left = rates.take(key, &limit, now);
    let mut store = Store::default();
    drop(left);
    carry(&rates, &mut store, now, now);
    let next = rates.take(key, &limit, now);
    assert!(matches!(next, SharedDecision::Known(SharedAnswer::Allow)));
    // What is not used in time is lost: Redis has counted it.
    let rates = connected();
    drop(rates.take(key, &limit, now));
    carry(&rates, &mut store, now, now);
    let late = rates.take(key, &limit, now + LEASE_TIME);
    assert!(matches!(late, SharedDecision::Pending(_)));
}

#[test]
fn keys_and_waiting_requests_are_bounded() {
    let rates = connected();
    let (now, limit) = (Instant::now(), second(10, 10));
    let key = |number: usize| shared_key("rule", &number.to_le_bytes());
    let mut waiting: Vec<_> = (0..MAX_WAITING)
        .map(|_| rates.take(key(0), &limit, now))
        .collect();
    let more = rates.take(key(0), &limit, now);
    assert!(matches!(
        more,
        SharedDecision::Known(SharedAnswer::Refuse(_))
    ));
    waiting.extend((1..MAX_KEYS).map(|number| rates.take(key(number), &limit, now)));
    let beyond = rates.take(key(MAX_KEYS), &limit, now);
    assert!(matches!(beyond, SharedDecision::Known(SharedAnswer::Alone)));
    assert_eq!(rates.lock().batch().len(), MAX_BATCH);
    // Once they are answered and idle they are forgotten.
    let mut store = Store::default();
    while !rates.lock().queue.is_empty() {
        carry(&rates, &mut store, now, now);
    }
    let later = now + Duration::from_secs(200);
    let room = rates.take(key(MAX_KEYS), &limit, later);
    assert!(matches!(room, SharedDecision::Pending(_)));
}
