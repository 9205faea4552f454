//! What a held session costs: its own bytes and no buffer, also after traffic in both directions.
//!
//! Alone in its process, with an allocator that counts.

use std::alloc::System;
use std::io::IoSlice;

use penstock_exchange::RecordLayer;
use penstock_tls::records::MAX_SESSION_BYTES;
use penstock_tls::records::fuzzing::{SUITE_COUNT, SessionPair};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SESSIONS: usize = 600;

/// Bytes that are allocated now.
fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// An event, a request in two pieces, and a key update where there are any.
fn exchange(pair: &mut SessionPair) {
    const WORKS: &str = "both ends are open";
    let mut out = Vec::new();
    let event = [1; 5_000];
    let sealed = pair.server.seal(&[IoSlice::new(&event)], &mut out);
    sealed.expect(WORKS);
    pair.client.open(&mut out, &mut Vec::new()).expect(WORKS);
    let mut records = pair.seal_as_client(23, &[2; 2_000]).expect(WORKS);
    if let Ok(update) = pair.seal_as_client(22, &[24, 0, 0, 1, 1]) {
        records.extend(update);
    }
    let (first, rest) = records.split_at_mut(1_000);
    let mut answer = Vec::new();
    pair.server.open(first, &mut answer).expect(WORKS);
    // TLS 1.2 has no key updates, and is ended by one.
    let _ = pair.server.open(rest, &mut answer);
}

#[test]
fn an_idle_session_has_its_own_bytes_only() {
    let mut layers: Vec<Box<dyn RecordLayer>> = Vec::with_capacity(SESSIONS);
    let before = allocated();
    for number in 0..SESSIONS {
        let mut pair = SessionPair::new(number % SUITE_COUNT, 1).expect("there is such a suite");
        exchange(&mut pair);
        layers.push(Box::new(pair.server));
    }
    let each = (allocated() - before) / SESSIONS;
    let told = layers[0].memory_bytes();
    // The harness of the tests allocates a little meanwhile.
    assert!(
        (told..=told + 16).contains(&each),
        "{each} bytes, not {told}"
    );
    assert!(told <= MAX_SESSION_BYTES);
}
