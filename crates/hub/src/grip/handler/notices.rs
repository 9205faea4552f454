//! Telling back ends of clients that are gone: `Grip-Link: <uri>; rel=gone`.
//!
//! One POST for each client that asked for it, however it left. A million streams that end at once must not
//! become a million requests at once: so many go out together, so many more wait, and the rest is counted
//! and not told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_exchange::{Body, HandlerProgress, Reply};
use penstock_runtime::loops;
use tokio::sync::Semaphore;

use super::Shared;
use super::origin::Origin;
use super::whole::{self, Bound};
use crate::Ended;

/// Notices that a back end gets at the same time.
const TOGETHER: usize = 16;
/// Notices that wait for their turn.
const WAITING_MAX: usize = 10_000;

/// The notices of one back end.
#[derive(Debug)]
pub(super) struct Notices {
    turns: Semaphore,
    /// Those under way and those that wait.
    open: AtomicUsize,
    left_out: AtomicU64,
}

impl Default for Notices {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(TOGETHER),
            open: AtomicUsize::new(0),
            left_out: AtomicU64::new(0),
        }
    }
}

/// One of those that are open; counted until it is dropped.
struct Open(Arc<Shared>);

impl Open {
    fn claim(shared: &Arc<Shared>) -> Option<Self> {
        let open = &shared.notices.open;
        if open.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX + TOGETHER {
            open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.notices.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the back end at `link` when the stream has ended.
pub(super) fn when_ended(shared: Arc<Shared>, origin: Arc<Origin>, link: Box<str>) -> Ended {
    Ended(Box::new(move || tell(&shared, origin, link)))
}

/// Begins to tell the back end at `link`, from a loop.
pub(super) fn tell(shared: &Arc<Shared>, origin: Arc<Origin>, link: Box<str>) {
    let Some(open) = Open::claim(shared) else {
        let before = shared.notices.left_out.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(1000) {
            log::warn!(
                "grip: {} clients are gone of which a back end is not told: {WAITING_MAX} \
                 notices wait",
                before + 1
            );
        }
        return;
    };
    loops::spawn_here(async move {
        let shared = &open.0;
        // Never closed.
        let Ok(_turn) = shared.notices.turns.acquire().await else {
            return;
        };
        if let Err(cause) = post(shared, &origin, &link).await {
            log::info!("grip: a back end is not told at `{link}` that a client is gone: {cause}");
        }
    });
}

async fn post(shared: &Shared, origin: &Origin, link: &str) -> Result<(), String> {
    let told = |fault: penstock_exchange::Fault| fault.cause.into_owned();
    let request = origin.follow(shared, "POST", link, &[]).map_err(told)?;
    let answered = match shared.inner.handle(request) {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    };
    match answered.map_err(told)? {
        Reply::Response(response) if response.status.is_error() => {
            Err(format!("it answers {}", response.status))
        }
        Reply::Response(response) => drain(response.body).await,
        Reply::Pass(_) | Reply::Redirect(_) => Err("nobody answers there".to_owned()),
    }
}

/// Reads what nobody wants, so that the connection to the back end is kept.
async fn drain(body: Body) -> Result<(), String> {
    let bound = Bound {
        what: "the answer",
        bytes: 100_000,
        limit: "fixed",
    };
    let read = whole::read(body, bound).await;
    read.map(drop).map_err(|fault| fault.cause.into_owned())
}
