//! A task whose output can be awaited.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::spawn_here;

/// Awaits the output of a task; an error when the task panicked, was aborted, or its loop has
/// ended. Dropping the handle detaches the task.
#[derive(Debug)]
pub struct TaskHandle<T> {
    outcome: oneshot::Receiver<T>,
    abort_sender: Option<oneshot::Sender<()>>,
    /// The task holds the strong reference while it exists.
    alive: Weak<()>,
}

/// Starts `task` on the loop this code runs on.
///
/// # Panics
/// Outside of a loop.
pub fn spawn_with_handle<F>(task: F) -> TaskHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    let (give, outcome) = oneshot::channel();
    let (stop, mut stopped) = oneshot::channel();
    let here = Arc::new(());
    let alive = Arc::downgrade(&here);
    spawn_here(async move {
        let _here = here;
        let mut task = pin!(task);
        let mut may_stop = true;
        let done = poll_fn(|cx| {
            if may_stop && let Poll::Ready(is_told) = Pin::new(&mut stopped).poll(cx) {
                if is_told.is_ok() {
                    return Poll::Ready(None);
                }
                // The handle was dropped: the task can no longer be aborted.
                may_stop = false;
            }
            task.as_mut().poll(cx).map(Some)
        });
        if let Some(done) = done.await {
            let _ = give.send(done);
        }
    });
    TaskHandle {
        outcome,
        abort_sender: Some(stop),
        alive,
    }
}

impl<T> TaskHandle<T> {
    /// Drops the task where it waits.
    pub fn abort(&mut self) {
        if let Some(stop) = self.abort_sender.take() {
            let _ = stop.send(());
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(cx)
    }
}
