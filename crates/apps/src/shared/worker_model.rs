//! How an application's workers get their requests, once that is known.
//!
//! The configuration says the kind, or the executor settles it when the first process has loaded
//! the code. Until then requests wait here: a request is encoded in the workers' form before it
//! joins the queue.
//!
//! # Invariants
//! - No request is encoded before the model is settled, and it is settled once.
//! - No more requests wait here than the queue takes, and no longer than one waits there.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use penstock_config::{self as config, AppKind};
use penstock_exchange::{ClientState, Fault, FaultKind};
use penstock_runtime::{LazyDeadline, clock};
use tokio::sync::Notify;

use super::AppShared;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerModel {
    /// One a thread, over a socket each.
    Threads,
    /// All of a process over one channel.
    Reactor(RequestEncoding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEncoding {
    Environ,
    Scope,
}

/// The model of an application, and the requests that wait for it.
#[derive(Debug)]
pub(crate) struct WorkerModelCell {
    /// The kind that the configuration says or guesses.
    guessed_kind: AppKind,
    /// With whether workers get a request before its body is complete.
    settled: OnceLock<(WorkerModel, bool)>,
    changed: Notify,
    requests_awaiting_model: AtomicUsize,
}

impl WorkerModelCell {
    pub(crate) fn new(config: &config::App) -> Self {
        let cell = Self {
            guessed_kind: config.kind,
            settled: OnceLock::new(),
            changed: Notify::new(),
            requests_awaiting_model: AtomicUsize::new(0),
        };
        if !config.kind_is_guess {
            cell.set_from_config(config);
        }
        cell
    }

    /// The model; `None` while no process has loaded the code.
    pub(crate) fn get(&self) -> Option<WorkerModel> {
        self.settled.get().map(|(model, _)| *model)
    }

    /// Whether workers get a request before its body is complete.
    pub(crate) fn streams_request_bodies(&self) -> bool {
        self.settled.get().is_some_and(|(_, streams)| *streams)
    }

    pub(crate) fn has_reactor(&self) -> bool {
        matches!(self.get(), Some(WorkerModel::Reactor(_)))
    }

    /// The kind of the application; the guess before it is settled.
    pub(crate) fn app_kind(&self) -> AppKind {
        match (self.guessed_kind, self.get()) {
            (AppKind::Wsgi | AppKind::Asgi, Some(WorkerModel::Reactor(RequestEncoding::Scope))) => {
                AppKind::Asgi
            }
            (AppKind::Wsgi | AppKind::Asgi, Some(_)) => AppKind::Wsgi,
            (kind, _) => kind,
        }
    }

    /// Sets the model that the configuration gives, for good.
    pub(crate) fn set_from_config(&self, config: &config::App) {
        let model = match config.kind {
            AppKind::Asgi => WorkerModel::Reactor(RequestEncoding::Scope),
            AppKind::Wsgi | AppKind::Rack if config.has_reactor() => {
                WorkerModel::Reactor(RequestEncoding::Environ)
            }
            _ => WorkerModel::Threads,
        };
        self.settled
            .get_or_init(|| (model, config.streams_bodies()));
        self.wake_waiters();
    }

    /// Has waiting requests check again: the model is settled, or requests are refused.
    pub(crate) fn wake_waiters(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn requests_awaiting_model(&self) -> usize {
        self.requests_awaiting_model.load(Ordering::Relaxed)
    }
}

impl AppShared {
    /// Waits until the model is settled.
    ///
    /// # Errors
    /// The application does not boot or stops, too many requests wait already, it took too long, or
    /// the client has left.
    pub(crate) async fn wait_for_model(&self, client: &ClientState) -> Result<WorkerModel, Fault> {
        if let Some(model) = self.model.get() {
            return Ok(model);
        }
        let since = clock::now();
        let _place = ModelWaitGuard::acquire(self)?;
        let mut deadline = LazyDeadline::new(since + self.queue_timeout());
        loop {
            let mut changed = pin!(self.model.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(model) = self.model.get() {
                return Ok(model);
            }
            if let Some(fault) = self.refusal_fault() {
                return Err(fault);
            }
            let end = poll_fn(|cx| {
                // The task is polled when the client leaves, as for every request that waits.
                if client.is_disconnected() {
                    return Poll::Ready(Some(FaultKind::ClientDisconnected));
                }
                if changed.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                deadline.poll(cx).map(|()| Some(FaultKind::QueueTimeout))
            });
            if let Some(kind) = end.await {
                return Err(self.wait_fault(kind, clock::now().saturating_duration_since(since)));
            }
        }
    }

    fn wait_fault(&self, kind: FaultKind, waited: Duration) -> Fault {
        let cause = if kind == FaultKind::ClientDisconnected {
            self.metrics.queue_abandoned.increment();
            "left while the application started".to_owned()
        } else {
            self.metrics.queue_timeout.increment();
            let limit = self.queue_timeout();
            format!("the application has not loaded its code within {limit:?}")
        };
        Fault::new(kind, cause).with_timing(self.wait_timing(waited))
    }
}

/// A waiting request, counted until it is dropped.
struct ModelWaitGuard<'a>(&'a WorkerModelCell);

impl<'a> ModelWaitGuard<'a> {
    fn acquire(shared: &'a AppShared) -> Result<Self, Fault> {
        let before = shared
            .model
            .requests_awaiting_model
            .fetch_add(1, Ordering::Relaxed);
        let guard = Self(&shared.model);
        let most = shared.queue_limits.max_len;
        if before < most {
            return Ok(guard);
        }
        shared.metrics.queue_full.increment();
        let cause = format!("the queue is full: queue.max = {most} requests wait");
        Err(Fault::new(FaultKind::QueueFull, cause))
    }
}

impl Drop for ModelWaitGuard<'_> {
    fn drop(&mut self) {
        self.0
            .requests_awaiting_model
            .fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
