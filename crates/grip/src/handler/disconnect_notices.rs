//! Notifies back ends of clients that are gone: `Grip-Link: <uri>; rel=gone`.
//!
//! One POST for each client with such a link, however it left. A million streams that end
//! at once must not become a million requests at once: so many are sent together, so many more
//! wait, and the rest is counted and dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_exchange::Reply;
use penstock_runtime::loops;
use tokio::sync::Semaphore;

use super::GripShared;
use super::body_reader::{self, BodyLimit};
use super::original_request::OriginalRequest;

/// Notices sent to a back end at the same time.
const MAX_CONCURRENT_NOTICES: usize = 16;
/// Notices that wait for their turn.
const MAX_WAITING_NOTICES: usize = 10_000;

#[derive(Debug)]
pub(super) struct DisconnectNotices {
    /// Permits for notices in progress.
    in_progress: Semaphore,
    /// Permits for notices in progress or waiting.
    permits: Arc<Semaphore>,
    skipped_notices: AtomicU64,
}

impl Default for DisconnectNotices {
    fn default() -> Self {
        let permits = MAX_WAITING_NOTICES + MAX_CONCURRENT_NOTICES;
        Self {
            in_progress: Semaphore::new(MAX_CONCURRENT_NOTICES),
            permits: Arc::new(Semaphore::new(permits)),
            skipped_notices: AtomicU64::new(0),
        }
    }
}

/// Begins to tell the back end at `link`, from a loop.
pub(super) fn send_disconnect_notice(
    shared: &Arc<GripShared>,
    origin: Arc<OriginalRequest>,
    link: Box<str>,
) {
    let notices = &shared.disconnect_notices;
    let Ok(permit) = Arc::clone(&notices.permits).try_acquire_owned() else {
        let before = notices.skipped_notices.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(1000) {
            log::warn!(
                "grip: {} clients are gone of which a back end is not told: {MAX_WAITING_NOTICES} \
                 notices wait",
                before + 1
            );
        }
        return;
    };
    let shared = Arc::clone(shared);
    loops::spawn_here(async move {
        // Never closed.
        let Ok(_turn) = shared.disconnect_notices.in_progress.acquire().await else {
            return;
        };
        if let Err(cause) = post_notice(&shared, &origin, &link).await {
            log::info!("grip: a back end is not told at `{link}` that a client is gone: {cause}");
        }
        drop(permit);
    });
}

async fn post_notice(
    shared: &GripShared,
    origin: &OriginalRequest,
    link: &str,
) -> Result<(), String> {
    let fault_cause = |fault: penstock_exchange::Fault| fault.cause.into_owned();
    let request = origin
        .build_link_request(shared, "POST", link, &[])
        .map_err(fault_cause)?;
    match shared
        .backend
        .handle(request)
        .wait_for_reply()
        .await
        .map_err(fault_cause)?
    {
        Reply::Response(response) if response.status.is_error() => {
            Err(format!("it answers {}", response.status))
        }
        // Its body is read, so that the connection to the back end is kept.
        Reply::Response(response) => {
            let bound = BodyLimit::for_small_body("the answer");
            let read = body_reader::read_whole_body(response.body, bound).await;
            read.map(drop).map_err(fault_cause)
        }
        Reply::Pass(_) | Reply::Redirect(_) => Err("nobody answers there".to_owned()),
    }
}
