//! Joining fetches, and their completion.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::FaultKind;
use penstock_runtime::clock;

use super::{
    CoalescedFetches, FetchCompleter, FetchOutcome, FetchWaiter, LeaderResult,
    MAX_UNCACHEABLE_KEYS, SHARDS, UNCACHEABLE_TIME,
};
use crate::store::ObjectKey;
use crate::testing::run;

type Joined = (FetchWaiter, Option<FetchCompleter>);

fn expect_leader((waiter, completion): Joined) -> (FetchWaiter, FetchCompleter) {
    (waiter, completion.expect("a new fetch"))
}

fn expect_waiter((waiter, completion): Joined) -> FetchWaiter {
    assert!(completion.is_none(), "another request's fetch");
    waiter
}

#[test]
fn only_equal_requests_share_a_fetch() {
    let flights = Arc::new(CoalescedFetches::default());
    let key = ObjectKey::new(b"http://a/");
    let (_ticket, landing) = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    let _waiting = expect_waiter(flights.join_or_begin(&key, Vec::new(), None));
    let _variant = expect_leader(flights.join_or_begin(&key, b"gzip".to_vec(), None));
    let _other =
        expect_leader(flights.join_or_begin(&ObjectKey::new(b"http://b/"), Vec::new(), None));
    // A key with the same hash is still another key.
    let twin = ObjectKey {
        hash: key.hash,
        text: b"http://twin/".as_slice().into(),
    };
    let _twin = expect_leader(flights.join_or_begin(&twin, Vec::new(), None));
    let _alone = flights.begin_exclusive(&key);
    assert!(flights.begin_background(&key, Vec::new()).is_none());
    landing.complete(FetchOutcome::RetryLookup, LeaderResult::default());
    let _next = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
}

#[test]
fn a_dropped_completion_fails_its_waiters() {
    run(async {
        let flights = Arc::new(CoalescedFetches::default());
        let key = ObjectKey::new(b"http://a/");
        let (ticket, landing) = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
        drop(landing);
        let outcome = ticket.wait(clock::now()).await;
        assert!(matches!(
            outcome,
            Some(FetchOutcome::Failed(FaultKind::Internal, _))
        ));
        expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    });
}

#[test]
fn a_fetch_without_waiters_is_abandoned() {
    run(async {
        let flights = Arc::new(CoalescedFetches::default());
        let key = ObjectKey::new(b"http://a/");
        let (ticket, landing) = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
        let second = expect_waiter(flights.join_or_begin(&key, Vec::new(), None));
        let soon = || clock::now() + Duration::from_millis(1);
        drop(ticket);
        assert!(
            clock::timeout_at(soon(), landing.wait_until_abandoned())
                .await
                .is_none()
        );
        drop(second);
        landing.wait_until_abandoned().await;
        // An abandoned fetch cannot be joined.
        expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    });
}

#[test]
fn an_outdated_fetch_is_not_joined() {
    let flights = Arc::new(CoalescedFetches::default());
    let key = ObjectKey::new(b"http://a/");
    let (_ticket, landing) = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    flights.mark_outdated(&ObjectKey::new(b"http://b/"));
    assert!(!landing.is_outdated());
    flights.mark_outdated(&key);
    assert!(landing.is_outdated());
    expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    let variant = ObjectKey::new(b"http://a/\0header x=y");
    let (_ticket, landing) = expect_leader(flights.join_or_begin(&variant, Vec::new(), None));
    flights.mark_url_outdated(b"http://a");
    assert!(!landing.is_outdated());
    flights.mark_url_outdated(b"http://a/");
    assert!(landing.is_outdated());
}

#[test]
fn uncacheable_keys_expire_and_are_bounded() {
    let flights = CoalescedFetches::default();
    let key = ObjectKey::new(b"http://a/");
    let now = clock::now();
    assert!(!flights.is_uncacheable(&key, now));
    flights.mark_uncacheable(&key, now);
    assert!(flights.is_uncacheable(&key, now));
    assert!(!flights.is_uncacheable(&key, now + UNCACHEABLE_TIME));
    flights.clear_uncacheable(&key);
    assert!(!flights.is_uncacheable(&key, now));
    for number in 0..2 * MAX_UNCACHEABLE_KEYS * SHARDS {
        flights.mark_uncacheable(&ObjectKey::new(number.to_string().as_bytes()), now);
    }
    let held = |flights: &CoalescedFetches| {
        let shards = flights.shards.iter();
        shards
            .map(|shard| shard.lock().uncacheable.len())
            .sum::<usize>()
    };
    assert_eq!(held(&flights), MAX_UNCACHEABLE_KEYS * SHARDS);
    // Expired keys make room.
    flights.mark_uncacheable(&key, now + UNCACHEABLE_TIME);
    assert!(flights.is_uncacheable(&key, now + UNCACHEABLE_TIME));
}

/// The mark of an uncacheable page has expired while other requests for it keep failing.
#[test]
fn a_failure_renews_an_uncacheable_key() {
    let flights = CoalescedFetches::default();
    let (key, other) = (ObjectKey::new(b"http://a/"), ObjectKey::new(b"http://b/"));
    let start = clock::now();
    flights.mark_uncacheable(&key, start);
    let later = start + UNCACHEABLE_TIME + Duration::from_secs(1);
    assert!(!flights.is_uncacheable(&key, later));
    flights.renew_uncacheable(&key, later);
    flights.renew_uncacheable(&other, later);
    assert!(flights.is_uncacheable(&key, later));
    assert!(!flights.is_uncacheable(&other, later));
}

/// The hash of a key is public, so that a client can choose URLs that collide.
#[test]
fn keys_with_the_same_hash_have_marks_of_their_own() {
    let (flights, now) = (CoalescedFetches::default(), clock::now());
    let key = ObjectKey::new(b"https://a/page");
    let forged = ObjectKey {
        hash: key.hash,
        ..ObjectKey::new(b"https://a/page?forged")
    };
    flights.mark_uncacheable(&forged, now);
    assert!(flights.is_uncacheable(&forged, now) && !flights.is_uncacheable(&key, now));
    flights.renew_uncacheable(&key, now + UNCACHEABLE_TIME / 2);
    flights.clear_uncacheable(&key);
    assert!(
        flights.is_uncacheable(&forged, now)
            && !flights.is_uncacheable(&forged, now + UNCACHEABLE_TIME)
    );
    flights.mark_uncacheable(&key, now);
    assert!(flights.is_uncacheable(&key, now) && flights.is_uncacheable(&forged, now));
    flights.mark_uncacheable(&forged, now);
    flights.clear_uncacheable(&forged);
    assert!(flights.is_uncacheable(&key, now) && !flights.is_uncacheable(&forged, now));
}

#[test]
fn a_write_outdates_no_other_key_with_the_same_hash() {
    let flights = Arc::new(CoalescedFetches::default());
    let key = ObjectKey::new(b"http://a/");
    let twin = ObjectKey {
        hash: key.hash,
        text: b"http://a/?twin".as_slice().into(),
    };
    let (_ticket, landing) = expect_leader(flights.join_or_begin(&key, Vec::new(), None));
    flights.mark_outdated(&twin);
    assert!(!landing.is_outdated());
    flights.mark_outdated(&key);
    assert!(landing.is_outdated());
}
