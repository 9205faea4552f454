//! What time alone brings: histories that grow old, and parked messages that have waited long enough.
//!
//! One task on the hub's first loop. It sleeps while there is neither; else it looks once a second at a
//! part of the channels that have a history, so that it has seen all within [`ROUND`]. Those who publish
//! and those who come back see to the ages of their own channels themselves: this one only gives memory
//! back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};

use super::Shared;
use crate::shares::Share;

/// Within so long all histories are looked at.
const ROUND: usize = 30;

/// Channels between two of which others on the loop have their turn.
const QUANTUM: usize = 256;

/// Runs until its loop ends.
pub(super) async fn keep(shared: Arc<Shared>) {
    loop {
        let woken = shared.keeper.notified();
        let Some(next) = next(&shared) else {
            woken.await;
            continue;
        };
        // A wake-up before that is only news for the next look.
        clock::timeout_at(next, std::future::pending::<()>()).await;
        release(&shared).await;
        look(&shared).await;
    }
}

/// When there is something to do; none is not before somebody says so.
fn next(shared: &Shared) -> Option<Instant> {
    let soon = clock::now() + Duration::from_secs(1);
    let parked = shared.parked().front().map(|(until, _)| *until);
    let shares = shared.registry.shares.all();
    let has_history = shares.iter().any(|share| !share.histories.is_empty());
    let kept = has_history.then_some(soon);
    match (parked, kept) {
        (Some(parked), _) => Some(parked.min(soon)),
        (None, kept) => kept,
    }
}

async fn release(shared: &Shared) {
    let now = clock::now();
    let mut count = 0;
    loop {
        let channel = {
            let mut parked = shared.parked();
            match parked.front() {
                Some((until, _)) if *until <= now => parked.pop_front(),
                _ => None,
            }
        };
        let Some((_, channel)) = channel else {
            return;
        };
        shared.release_parked(&channel, now);
        pause(&mut count).await;
    }
}

async fn look(shared: &Shared) {
    for share in shared.registry.shares.all() {
        look_at(shared, &share).await;
    }
}

async fn look_at(shared: &Shared, share: &Share) {
    let part = share.histories.len() / ROUND + 1;
    let mut count = 0;
    for _ in 0..part {
        let Some((_, channel)) = share.histories.first_from(0) else {
            return;
        };
        let is_empty = {
            let mut state = channel.lock();
            shared.trim(&mut state, clock::now());
            state.move_back(&channel);
            state.history.is_empty()
        };
        if is_empty {
            shared.registry.release(&channel);
        }
        pause(&mut count).await;
    }
}

async fn pause(count: &mut usize) {
    *count += 1;
    if count.is_multiple_of(QUANTUM) {
        loops::yield_now().await;
    }
}
