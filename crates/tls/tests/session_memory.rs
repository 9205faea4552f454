//! What an established session holds on the heap: it decides how many idle connections a machine has
//! room for.
//!
//! Alone in its process, with an allocator that counts. The expanded keys are not counted: AWS-LC has
//! them, 600 bytes each, and an idle session has none.

use std::alloc::System;

use penstock_runtime::loops;
use penstock_tls::fuzzing::SessionEnds;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SESSIONS: usize = 100;

/// The layer with the keys of its records, and the facts of the handshake.
const MAX_SESSION_BYTES: usize = 700;

/// Bytes of one session, without the client's end, which the list has.
fn heap_bytes(is_tls13: bool) -> usize {
    let live = || {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let measure = async {
        let mut sessions = Vec::with_capacity(SESSIONS + 10);
        for _ in 0..10 {
            sessions.push(SessionEnds::new(is_tls13).await.expect("a handshake"));
        }
        let before = live();
        for _ in 0..SESSIONS {
            sessions.push(SessionEnds::new(is_tls13).await.expect("a handshake"));
        }
        (live() - before) / SESSIONS
    };
    loops::block_on(measure).expect("a loop")
}

#[test]
fn a_session_holds_little_memory() {
    for is_tls13 in [true, false] {
        let bytes = heap_bytes(is_tls13);
        assert!(
            (500..=MAX_SESSION_BYTES).contains(&bytes),
            "TLS 1.3 {is_tls13}: {bytes}"
        );
    }
}
