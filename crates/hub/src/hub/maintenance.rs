//! Work that only the passing of time causes: histories that expire, parked messages that have
//! waited long enough, and changes of presence to publish.
//!
//! One task on the hub's first event loop. It sleeps while there is none; else it looks once a
//! second at a part of the channels with a history, so that it has seen all within
//! [`ROUND_SECONDS`]. Publishers and resuming clients check the ages of their own channels
//! themselves: this task only frees memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};

use super::HubShared;

/// Within so long all histories are looked at.
const ROUND_SECONDS: usize = 30;

/// Channels between two of which others on the loop have their turn.
const CHANNELS_PER_YIELD: usize = 256;

pub(super) async fn run_maintenance(shared: Arc<HubShared>) {
    loop {
        let woken = shared.maintenance_due.notified();
        let Some(next) = next_due(&shared) else {
            woken.await;
            continue;
        };
        // A wake-up before that is only news for the next look.
        clock::timeout_at(next, std::future::pending::<()>()).await;
        release_overdue(&shared).await;
        shared.publish_presence_changes().await;
        trim_histories(&shared).await;
    }
}

/// When there is work; `None` until a notification.
fn next_due(shared: &HubShared) -> Option<Instant> {
    let soon = clock::now() + Duration::from_secs(1);
    let parked = shared.parked_channels().front().map(|(until, _)| *until);
    let usages = shared.registry.namespace_usages.all();
    let has_history = usages
        .iter()
        .any(|usage| !usage.channels_with_history.is_empty());
    let kept = has_history.then_some(soon);
    let first = parked
        .into_iter()
        .chain(shared.presence_changes.due())
        .min();
    first.map(|first| first.min(soon)).or(kept)
}

async fn release_overdue(shared: &HubShared) {
    let now = clock::now();
    let mut count = 0;
    loop {
        let channel = {
            let mut parked = shared.parked_channels();
            match parked.front() {
                Some((until, _)) if *until <= now => parked.pop_front(),
                _ => None,
            }
        };
        let Some((_, channel)) = channel else {
            return;
        };
        shared.publish_overdue_parked(&channel, now);
        yield_occasionally(&mut count).await;
    }
}

async fn trim_histories(shared: &HubShared) {
    let mut count = 0;
    for usage in shared.registry.namespace_usages.all() {
        for _ in 0..usage.channels_with_history.len() / ROUND_SECONDS + 1 {
            let Some((_, channel)) = usage.channels_with_history.first_from(0) else {
                break;
            };
            let is_empty = {
                let mut state = channel.lock();
                shared.trim_history(&mut state, clock::now());
                state.move_to_queue_end(&channel);
                state.history.is_empty()
            };
            if is_empty {
                shared.registry.remove_if_idle(&channel);
            }
            yield_occasionally(&mut count).await;
        }
    }
}

async fn yield_occasionally(count: &mut usize) {
    *count += 1;
    if count.is_multiple_of(CHANNELS_PER_YIELD) {
        loops::yield_now().await;
    }
}
