//! Orphans of workers: processes that left their group, and that no parent waits for.
//!
//! They become children of the server, so that none outlives it. While it runs the executor reaps
//! those that end ([`reap_orphans`]); at its end the server ends the rest ([`end_orphans`]).
//!
//! # Invariants
//! - A child that is about to be waited for elsewhere is not reaped here, so an ended one is looked
//!   at twice.

use std::time::Duration;

use penstock_runtime::clock;
use penstock_sys::process;
use tokio::signal::unix::{SignalKind, signal};

/// The time between the two checks of a child that has ended.
const REAP_DELAY: Duration = Duration::from_secs(1);

/// Reaps children without a waiting parent, as they end; never returns. Cancel safe.
pub(crate) async fn reap_orphans() {
    let Ok(mut ended) = signal(SignalKind::child()) else {
        // They stay in the table of processes until the server ends.
        return std::future::pending().await;
    };
    while ended.recv().await.is_some() {
        let mut seen: Vec<u32> = Vec::new();
        loop {
            clock::sleep(REAP_DELAY).await;
            seen = reap_ended(&seen);
            if seen.is_empty() {
                break;
            }
        }
    }
    std::future::pending::<()>().await;
}

/// Reaps orphans that had ended already at the last look; gives those that have since.
fn reap_ended(seen: &[u32]) -> Vec<u32> {
    // Without a list there is nothing to do.
    let orphans = process::list_orphans().unwrap_or_default();
    let ended = orphans.into_iter().filter(|orphan| orphan.has_ended);
    let (old, new): (Vec<_>, Vec<_>) = ended.partition(|orphan| seen.contains(&orphan.pid));
    for orphan in old {
        // Of a worker's own group: it ended with the worker.
        let level = match orphan.group == orphan.pid {
            true => log::Level::Info,
            false => log::Level::Debug,
        };
        if process::reap_orphan(orphan.pid) {
            let (pid, name) = (orphan.pid, orphan.name);
            log::log!(
                level,
                "process {pid} ({name}), left behind by a worker, has ended"
            );
        }
    }
    new.into_iter().map(|orphan| orphan.pid).collect()
}

/// Ends all processes that workers have left behind, for the end of a server; those in `except`
/// stay. Blocks for up to 2 s. Children that are still waited for are ended too.
pub fn end_orphans(except: &[u32]) {
    for orphan in process::kill_orphans(except) {
        let (pid, name) = (orphan.pid, orphan.name);
        log::warn!("a worker left process {pid} ({name}) behind; it was ended");
    }
}
