//! When the expanded keys of a session are released: some time behind its last record.
//!
//! The task that waits for the peer is woken for it, so that it costs a busy connection a timer a
//! second, and an idle one nothing.

use std::task::{Context, Poll};
use std::time::Duration;

use penstock_runtime::{LazyDeadline, clock};

/// To expand both keys takes a third of a microsecond, to keep them 1,300 bytes.
pub(super) const KEY_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The timer of one session's keys.
#[derive(Default)]
pub(super) struct IdleKeys {
    /// Boxed: most sessions are idle, and have none.
    deadline: Option<Box<LazyDeadline>>,
    /// There were records since the deadline was set.
    is_active: bool,
}

impl IdleKeys {
    /// Notes that there are records now.
    pub(super) fn record_activity(&mut self) {
        self.is_active = true;
    }

    /// Ready when there was no record for [`KEY_IDLE_TIMEOUT`].
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.is_active) {
            let at = clock::now() + KEY_IDLE_TIMEOUT;
            match &mut self.deadline {
                Some(deadline) => deadline.set(at),
                none => *none = Some(Box::new(LazyDeadline::new(at))),
            }
        }
        let idle = match &mut self.deadline {
            Some(deadline) => deadline.poll(cx),
            None => Poll::Ready(()),
        };
        if idle.is_ready() {
            self.deadline = None;
        }
        idle
    }
}
