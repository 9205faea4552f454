//! Notifies back ends of clients that are gone: `Grip-Link: <uri>; rel=gone`.
//!
//! One POST for each client with such a link, however it left. A million streams that end
//! at once must not become a million requests at once: so many are sent together, so many more
//! wait, and the rest is counted and dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_exchange::{Body, HandlerProgress, Reply};
use penstock_hub::EndCallback;
use penstock_runtime::loops;
use tokio::sync::Semaphore;

use super::GripShared;
use super::body_reader::{self, BodyLimit};
use super::original_request::OriginalRequest;

/// Notices that a back end gets at the same time.
const MAX_CONCURRENT_NOTICES: usize = 16;
/// Notices that wait for their turn.
const MAX_WAITING_NOTICES: usize = 10_000;

/// The notices of one back end.
#[derive(Debug)]
pub(super) struct GoneNotices {
    semaphore: Semaphore,
    /// Those under way and those that wait.
    open_notices: AtomicUsize,
    skipped_notices: AtomicU64,
}

impl Default for GoneNotices {
    fn default() -> Self {
        Self {
            semaphore: Semaphore::new(MAX_CONCURRENT_NOTICES),
            open_notices: AtomicUsize::new(0),
            skipped_notices: AtomicU64::new(0),
        }
    }
}

/// One of those that are open; counted until it is dropped.
struct NoticePermit(Arc<GripShared>);

impl NoticePermit {
    fn acquire(shared: &Arc<GripShared>) -> Option<Self> {
        let open = &shared.gone_notices.open_notices;
        if open.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING_NOTICES + MAX_CONCURRENT_NOTICES {
            open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for NoticePermit {
    fn drop(&mut self) {
        self.0
            .gone_notices
            .open_notices
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the back end at `link` when the stream has ended.
pub(super) fn notify_on_end(
    shared: Arc<GripShared>,
    origin: Arc<OriginalRequest>,
    link: Box<str>,
) -> EndCallback {
    EndCallback(Box::new(move || send_notice(&shared, origin, link)))
}

/// Begins to tell the back end at `link`, from a loop.
pub(super) fn send_notice(shared: &Arc<GripShared>, origin: Arc<OriginalRequest>, link: Box<str>) {
    let Some(open) = NoticePermit::acquire(shared) else {
        let before = shared
            .gone_notices
            .skipped_notices
            .fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(1000) {
            log::warn!(
                "grip: {} clients are gone of which a back end is not told: {MAX_WAITING_NOTICES} \
                 notices wait",
                before + 1
            );
        }
        return;
    };
    loops::spawn_here(async move {
        let shared = &open.0;
        // Never closed.
        let Ok(_turn) = shared.gone_notices.semaphore.acquire().await else {
            return;
        };
        if let Err(cause) = post_notice(shared, &origin, &link).await {
            log::info!("grip: a back end is not told at `{link}` that a client is gone: {cause}");
        }
    });
}

async fn post_notice(
    shared: &GripShared,
    origin: &OriginalRequest,
    link: &str,
) -> Result<(), String> {
    let told = |fault: penstock_exchange::Fault| fault.cause.into_owned();
    let request = origin
        .link_request(shared, "POST", link, &[])
        .map_err(told)?;
    let answered = match shared.backend.handle(request) {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    };
    match answered.map_err(told)? {
        Reply::Response(response) if response.status.is_error() => {
            Err(format!("it answers {}", response.status))
        }
        Reply::Response(response) => discard_body(response.body).await,
        Reply::Pass(_) | Reply::Redirect(_) => Err("nobody answers there".to_owned()),
    }
}

/// Reads and drops the response body, so that the connection to the back end is kept.
async fn discard_body(body: Body) -> Result<(), String> {
    let bound = BodyLimit {
        body_name: "the answer",
        max_bytes: 100_000,
        limit_name: "fixed",
    };
    let read = body_reader::read_whole(body, bound).await;
    read.map(drop).map_err(|fault| fault.cause.into_owned())
}
