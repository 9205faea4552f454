//! Rotation, the end of keys, moves between processes, and tickets that are no tickets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::UnixTime;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;

use super::{InvalidTicketKeys, LIFETIME, MAX_KEYS, MAX_SEALS, ROTATION, TicketKeys};
use crate::testing::{NOW, at};

/// A clock that a test sets.
#[derive(Debug)]
struct TestClock(AtomicU64);

impl TimeProvider for TestClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(at(self.0.load(Ordering::Relaxed)))
    }
}

fn keys() -> (TicketKeys, Arc<TestClock>) {
    let clock = Arc::new(TestClock(AtomicU64::new(NOW)));
    (TicketKeys::new(clock.clone()), clock)
}

fn set(clock: &TestClock, seconds: u64) {
    clock.0.store(seconds, Ordering::Relaxed);
}

fn name(ticket: &[u8]) -> &[u8] {
    &ticket[..16]
}

#[test]
fn a_ticket_opens_and_two_are_never_equal() {
    let (keys, _) = keys();
    for session in [&b"a session"[..], b"", &[7; 4096]] {
        let (one, two) = (
            keys.encrypt(session).unwrap(),
            keys.encrypt(session).unwrap(),
        );
        assert_ne!(one, two);
        assert_eq!(name(&one), name(&two));
        assert_eq!(one.len(), 16 + 12 + session.len() + 16);
        assert_eq!(keys.decrypt(&one).unwrap(), session);
        assert_eq!(keys.decrypt(&two).unwrap(), session);
    }
    assert!(keys.enabled());
    assert_eq!(keys.lifetime(), 12 * 3600);
}

#[test]
fn damaged_and_foreign_tickets_do_not_open() {
    let (keys, _) = keys();
    let ticket = keys.encrypt(b"a session").unwrap();
    for index in 0..ticket.len() {
        let mut damaged = ticket.clone();
        damaged[index] ^= 1;
        assert_eq!(keys.decrypt(&damaged), None, "byte {index}");
        assert_eq!(keys.decrypt(&ticket[..index]), None, "length {index}");
    }
    let (others, _) = self::keys();
    assert_eq!(others.decrypt(&ticket), None);
    others.encrypt(b"").unwrap();
    assert_eq!(others.decrypt(&ticket), None);
    let mut longer = ticket;
    longer.push(0);
    assert_eq!(keys.decrypt(&longer), None);
}

#[test]
fn keys_rotate_and_end() {
    let (keys, clock) = keys();
    let (rotation, lifetime) = (ROTATION.as_secs(), LIFETIME.as_secs());
    let first = keys.encrypt(b"1").unwrap();
    set(&clock, NOW + rotation - 1);
    let last_of_first = keys.encrypt(b"2").unwrap();
    assert_eq!(name(&first), name(&last_of_first));
    set(&clock, NOW + rotation);
    let second = keys.encrypt(b"3").unwrap();
    assert_ne!(name(&first), name(&second));
    // Every ticket opens for its whole lifetime.
    set(&clock, NOW + rotation - 1 + lifetime);
    assert!(keys.decrypt(&last_of_first).is_some());
    set(&clock, NOW + rotation + lifetime);
    assert_eq!(keys.decrypt(&first), None);
    assert!(keys.decrypt(&second).is_some());
    // The next rotation erases what no longer opens.
    keys.encrypt(b"4").unwrap();
    assert_eq!(format!("{keys:?}"), "TicketKeys { keys: 2, .. }");
}

#[test]
fn a_key_that_sealed_much_is_replaced() {
    let (keys, _) = keys();
    let first = keys.encrypt(b"1").unwrap();
    keys.ring.load().0[0]
        .seals
        .store(MAX_SEALS, Ordering::Relaxed);
    let second = keys.encrypt(b"2").unwrap();
    assert_ne!(name(&first), name(&second));
    assert!(keys.decrypt(&first).is_some());
    for _ in 0..2 * MAX_KEYS {
        keys.ring.load().0[0]
            .seals
            .store(MAX_SEALS, Ordering::Relaxed);
        keys.encrypt(b"3").unwrap();
    }
    assert_eq!(keys.ring.load().0.len(), MAX_KEYS);
}

#[test]
fn a_clock_that_is_set_back_keeps_no_key_for_ever() {
    let (keys, clock) = keys();
    let ticket = keys.encrypt(b"1").unwrap();
    set(&clock, NOW - 600);
    assert!(keys.decrypt(&ticket).is_some());
    assert_eq!(name(&keys.encrypt(b"2").unwrap()), name(&ticket));
    set(&clock, NOW - 365 * 86_400);
    assert_eq!(keys.decrypt(&ticket), None);
    assert_ne!(name(&keys.encrypt(b"3").unwrap()), name(&ticket));
}

#[test]
fn loops_that_rotate_at_once_agree_on_one_key() {
    let (keys, _) = keys();
    let barrier = std::sync::Barrier::new(8);
    let names: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let seal = || {
            barrier.wait();
            name(&keys.encrypt(b"1").unwrap()).to_vec()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(seal)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(names.iter().all(|name| *name == names[0]));
    assert_eq!(keys.ring.load().0.len(), 1);
}

#[test]
fn keys_move_to_another_process() {
    let (old, clock) = keys();
    let first = old.encrypt(b"1").unwrap();
    set(&clock, NOW + ROTATION.as_secs());
    let second = old.encrypt(b"2").unwrap();
    let (new, new_clock) = keys();
    set(&new_clock, NOW + ROTATION.as_secs() + 5);
    assert_eq!(new.import(&old.export()), Ok(2));
    assert_eq!(new.decrypt(&first).unwrap(), b"1");
    assert_eq!(new.decrypt(&second).unwrap(), b"2");
    // It seals with the same key, so that the old process can still open its tickets.
    let third = new.encrypt(b"3").unwrap();
    assert_eq!(name(&third), name(&second));
    assert_eq!(old.decrypt(&third).unwrap(), b"3");
    // Importing again changes nothing.
    assert_eq!(new.import(&old.export()), Ok(2));
    assert_eq!(*new.export(), *old.export());
}

#[test]
fn keys_of_its_own_stay_open_after_an_import() {
    let ((old, _), (new, _)) = (keys(), keys());
    let earlier = old.encrypt(b"old").unwrap();
    let own = new.encrypt(b"own").unwrap();
    assert_eq!(new.import(&old.export()), Ok(2));
    assert_eq!(new.decrypt(&own).unwrap(), b"own");
    // Nor does another import drop those of an earlier one.
    let (third, _) = keys();
    third.encrypt(b"third").unwrap();
    assert_eq!(new.import(&third.export()), Ok(3));
    assert_eq!(new.decrypt(&earlier).unwrap(), b"old");
}

#[test]
fn keys_that_ended_are_not_imported() {
    let (old, _) = keys();
    old.encrypt(b"1").unwrap();
    let (new, clock) = keys();
    set(&clock, NOW + (ROTATION + LIFETIME).as_secs());
    assert_eq!(new.import(&old.export()), Ok(0));
}

#[test]
fn exports_that_are_damaged_or_of_another_version_are_refused() {
    let (old, _) = keys();
    assert_eq!(*old.export(), b"PTK\x01");
    assert_eq!(keys().0.import(&old.export()), Ok(0));
    old.encrypt(b"1").unwrap();
    let export = old.export();
    let (new, _) = keys();
    for length in (0..export.len()).filter(|length| *length != 4) {
        assert_eq!(
            new.import(&export[..length]),
            Err(InvalidTicketKeys),
            "{length}"
        );
    }
    let mut next_version = export.to_vec();
    next_version[3] = 2;
    assert_eq!(new.import(&next_version), Err(InvalidTicketKeys));
    let many = [&export[..4], &export[4..].repeat(MAX_KEYS + 1)].concat();
    assert_eq!(new.import(&many), Err(InvalidTicketKeys));
    assert_eq!(new.ring.load().0.len(), 0);
}

#[test]
fn debug_output_shows_no_key() {
    let (keys, _) = keys();
    keys.encrypt(b"1").unwrap();
    assert_eq!(format!("{keys:?}"), "TicketKeys { keys: 1, .. }");
}
