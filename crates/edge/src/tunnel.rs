//! Connections that count as the edge's but are no longer HTTP, or never were.
//!
//! `connection` ends here when a handler switched protocols, `accept` begins here for a TCP listener.
//! What stays is a small task: the count, the drain's guard and the new owner's future. What must stay
//! true: such a connection counts as open until it ends, and the drain waits for it as for any other.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_exchange::TakeoverFuture;
use penstock_runtime::loops;

use crate::Edge;

/// The edge, with one connection counted in it; the drop is the connection's end.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Edge>);

impl Counted {
    /// Counts one more open connection.
    pub(crate) fn new(edge: &Arc<Edge>) -> Self {
        edge.open.fetch_add(1, Ordering::Relaxed);
        edge.metrics().open.add(1);
        Self(Arc::clone(edge))
    }

    /// Counts the same connection for another owner.
    pub(crate) fn again(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Deref for Counted {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics().open.add(-1);
    }
}

/// Lets `serving` go on by itself. A task of its own: that of an HTTP connection is larger.
pub(crate) fn go_on(edge: Counted, serving: TakeoverFuture) {
    let guard = edge.drain.guard();
    loops::spawn_here(async move {
        serving.await;
        drop((guard, edge));
    });
}
