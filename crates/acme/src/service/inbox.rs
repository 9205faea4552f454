//! Requests to the worker. Bounded: each kind is a set of names or one value.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::name::CertificateName;

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queue: Mutex<RequestQueue>,
    changed: Notify,
}

/// Requests, by kind.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    /// The names of the configuration, if they have changed.
    pub(super) names: Option<BTreeSet<CertificateName>>,
    pub(super) on_demand: BTreeSet<CertificateName>,
    pub(super) checks: BTreeSet<CertificateName>,
    pub(super) renewals: BTreeSet<CertificateName>,
    pub(super) stop: Option<StopRequest>,
}

/// A request to stop; the sender is dropped when the worker has ended.
#[derive(Debug)]
pub(super) struct StopRequest {
    pub(super) grace: Duration,
    pub(super) _done: oneshot::Sender<()>,
}

impl Inbox {
    pub(super) fn push(&self, change: impl FnOnce(&mut RequestQueue)) {
        change(&mut self.queue.lock());
        self.changed.notify_one();
    }

    pub(super) fn try_push<E>(
        &self,
        change: impl FnOnce(&mut RequestQueue) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = change(&mut self.queue.lock());
        self.changed.notify_one();
        result
    }

    pub(super) fn request_stop(&self, grace: Duration) -> oneshot::Receiver<()> {
        let (done, stopped) = oneshot::channel();
        let request = StopRequest { grace, _done: done };
        self.push(|queue| queue.stop = Some(request));
        stopped
    }

    /// Takes what waits.
    pub(super) fn take(&self) -> RequestQueue {
        std::mem::take(&mut *self.queue.lock())
    }

    /// Waits for a request since the last one was taken.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
