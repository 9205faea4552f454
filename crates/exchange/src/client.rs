//! Whether the client of a connection is still there.
//!
//! One per connection. `edge` watches the socket while a handler works and marks the client gone;
//! a handler that only waits (in a queue) asks and gives up. Edge polls the handler's future again
//! right after marking, in the same task, so no waker is needed.

use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by a connection and the request it is working on.
#[derive(Debug, Default)]
pub struct ClientState {
    gone: AtomicBool,
}

impl ClientState {
    /// Marks the client as gone: it closed its side or the connection broke.
    pub fn mark_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether the client left. One that only closed its sending side looks the same.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
