//! Who waits for whom, and that every flight lands.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::FaultKind;
use penstock_runtime::clock;

use super::{Flights, Joined, Landing, Lead, MARK_TIME, MARKS_MAX, Outcome, SHARDS, Ticket};
use crate::store::Key;
use crate::testing::run;

fn leads(joined: Joined) -> (Ticket, Landing) {
    match joined {
        Joined::Leads(ticket, landing) => (ticket, landing),
        Joined::Waits(_) => panic!("somebody else flies"),
    }
}

fn waits(joined: Joined) -> Ticket {
    match joined {
        Joined::Waits(ticket) => ticket,
        Joined::Leads(..) => panic!("nobody else flies"),
    }
}

#[test]
fn those_who_want_the_same_wait_and_no_others() {
    let flights = Arc::new(Flights::default());
    let key = Key::new(b"http://a/");
    let (_ticket, landing) = leads(flights.join(&key, Vec::new(), None));
    let _waiting = waits(flights.join(&key, Vec::new(), None));
    let _variant = leads(flights.join(&key, b"gzip".to_vec(), None));
    let _other = leads(flights.join(&Key::new(b"http://b/"), Vec::new(), None));
    // A key whose hash is the same is another key all the same.
    let twin = Key {
        hash: key.hash,
        text: b"http://twin/".as_slice().into(),
    };
    let _twin = leads(flights.join(&twin, Vec::new(), None));
    let _alone = flights.begin_alone(&key);
    assert!(flights.begin_background(&key, Vec::new()).is_none());
    landing.land(Outcome::Again, Lead::default());
    let _next = leads(flights.join(&key, Vec::new(), None));
}

#[test]
fn a_flight_that_ends_without_a_word_has_failed() {
    run(async {
        let flights = Arc::new(Flights::default());
        let key = Key::new(b"http://a/");
        let (ticket, landing) = leads(flights.join(&key, Vec::new(), None));
        drop(landing);
        let outcome = ticket.outcome().await;
        assert!(matches!(outcome, Outcome::Failed(FaultKind::House, _)));
        leads(flights.join(&key, Vec::new(), None));
    });
}

#[test]
fn a_flight_that_nobody_waits_for_is_told_so() {
    run(async {
        let flights = Arc::new(Flights::default());
        let key = Key::new(b"http://a/");
        let (ticket, landing) = leads(flights.join(&key, Vec::new(), None));
        let second = waits(flights.join(&key, Vec::new(), None));
        let soon = || clock::now() + Duration::from_millis(1);
        drop(ticket);
        assert!(
            clock::timeout_at(soon(), landing.abandoned())
                .await
                .is_none()
        );
        drop(second);
        landing.abandoned().await;
        // Nobody joins what is about to end.
        leads(flights.join(&key, Vec::new(), None));
    });
}

#[test]
fn what_is_outdated_is_not_joined() {
    let flights = Arc::new(Flights::default());
    let key = Key::new(b"http://a/");
    let (_ticket, landing) = leads(flights.join(&key, Vec::new(), None));
    flights.outdate(&Key::new(b"http://b/"));
    assert!(!landing.is_outdated());
    flights.outdate(&key);
    assert!(landing.is_outdated());
    leads(flights.join(&key, Vec::new(), None));
    let variant = Key::new(b"http://a/\0header x=y");
    let (_ticket, landing) = leads(flights.join(&variant, Vec::new(), None));
    flights.outdate_url(b"http://a");
    assert!(!landing.is_outdated());
    flights.outdate_url(b"http://a/");
    assert!(landing.is_outdated());
}

#[test]
fn marks_end_and_are_bounded() {
    let flights = Flights::default();
    let key = Key::new(b"http://a/");
    let now = clock::now();
    assert!(!flights.is_marked(&key, now));
    flights.mark(&key, now);
    assert!(flights.is_marked(&key, now));
    assert!(!flights.is_marked(&key, now + MARK_TIME));
    flights.unmark(&key);
    assert!(!flights.is_marked(&key, now));
    for number in 0..2 * MARKS_MAX * SHARDS {
        flights.mark(&Key::new(number.to_string().as_bytes()), now);
    }
    let held = |flights: &Flights| {
        let shards = flights.shards.iter();
        shards
            .map(|shard| shard.lock().unwrap().marks.len())
            .sum::<usize>()
    };
    assert_eq!(held(&flights), MARKS_MAX * SHARDS);
    // What has ended makes room.
    flights.mark(&key, now + MARK_TIME);
    assert!(flights.is_marked(&key, now + MARK_TIME));
}

/// The mark of a page that is never stored has run out, and others' requests for it fail all the time.
#[test]
fn a_failure_keeps_the_mark_of_what_is_not_stored() {
    let flights = Flights::default();
    let (key, other) = (Key::new(b"http://a/"), Key::new(b"http://b/"));
    let start = clock::now();
    flights.mark(&key, start);
    let later = start + MARK_TIME + Duration::from_secs(1);
    assert!(!flights.is_marked(&key, later));
    flights.renew_mark(&key, later);
    flights.renew_mark(&other, later);
    assert!(flights.is_marked(&key, later));
    assert!(!flights.is_marked(&other, later));
}

/// The hash of a key is public, so whoever chooses URLs can make two texts meet.
#[test]
fn keys_with_the_same_hash_have_marks_of_their_own() {
    let (flights, now) = (Flights::default(), clock::now());
    let key = Key::new(b"https://a/page");
    let forged = Key {
        hash: key.hash,
        ..Key::new(b"https://a/page?forged")
    };
    flights.mark(&forged, now);
    assert!(flights.is_marked(&forged, now) && !flights.is_marked(&key, now));
    flights.renew_mark(&key, now + MARK_TIME / 2);
    flights.unmark(&key);
    assert!(flights.is_marked(&forged, now) && !flights.is_marked(&forged, now + MARK_TIME));
    flights.mark(&key, now);
    assert!(flights.is_marked(&key, now) && flights.is_marked(&forged, now));
    flights.mark(&forged, now);
    flights.unmark(&forged);
    assert!(flights.is_marked(&key, now) && !flights.is_marked(&forged, now));
}

#[test]
fn a_write_outdates_no_other_key_with_the_same_hash() {
    let flights = Arc::new(Flights::default());
    let key = Key::new(b"http://a/");
    let twin = Key {
        hash: key.hash,
        text: b"http://a/?twin".as_slice().into(),
    };
    let (_ticket, landing) = leads(flights.join(&key, Vec::new(), None));
    flights.outdate(&twin);
    assert!(!landing.is_outdated());
    flights.outdate(&key);
    assert!(landing.is_outdated());
}
